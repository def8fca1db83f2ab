//! What it costs to hold one image against a thousand filters: together, one by one, and in a plain set of regexes.
//!
//! Run with `cargo bench -p fairlead-domain --bench filters`. Ratios matter; times depend on the machine.

#![allow(clippy::print_stdout, reason = "printing is what a benchmark is for")]

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use fairlead_domain::reference::Reference;
use fairlead_domain::selector::{FilterSet, ImageFilter};
use regex::RegexSet;

const FILTERS: usize = 1000;
const RUNS: usize = 7;

struct Mix {
    name: &'static str,
    pattern: fn(usize) -> String,
}

/// From what people write to what they might.
const MIXES: [Mix; 6] = [
    Mix { name: "prefix     docker.io/team-N/.+", pattern: |n| format!(r"docker\.io/team-{n}/.+") },
    Mix { name: "middle     .*/app-N:.+", pattern: |n| format!(".*/app-{n}:.+") },
    Mix { name: "unescaped  quay.io/(a|b)/app-N(:.*)?", pattern: |n| format!("quay.io/(a|b)/app-{n}(:.*)?") },
    Mix {
        name: "shared     20 distinct patterns",
        pattern: |n| format!(r"[a-z.]+/team-{}/[^:]+(:v\d+)?", n % 20),
    },
    Mix { name: "any case   (?i).*/APP-N:.+", pattern: |n| format!("(?i).*/APP-{n}:.+") },
    Mix {
        name: "no text    [a-z.]+/[a-z]+/[a-z]{K}[-_][D]+[:@].{1,M}",
        pattern: |n| {
            let (digit, most, letters) = (n % 10, 1 + n / 10 % 10, 1 + n / 100);
            format!("[a-z.]+/[a-z]+/[a-z]{{{letters}}}[-_][{digit}-9]+[:@].{{1,{most}}}")
        },
    },
];

fn median(mut once: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            once();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times.get(RUNS / 2).copied().unwrap_or_default()
}

fn main() -> Result<(), Box<dyn Error>> {
    let images: Vec<Reference> = (0..100)
        .flat_map(|n| {
            [
                format!("team-{n}/web:v{n}"),
                format!("quay.io/a/app-{}:1", n * 7),
                format!("ghcr.io/x/app-{n}:2"),
            ]
        })
        .map(|image| Reference::parse(&image))
        .collect::<Result<_, _>>()?;
    let images_per_run = u32::try_from(images.len())?;
    let forms: Vec<_> = images.iter().map(Reference::forms).collect();
    println!(
        "{FILTERS} filters against one image, microseconds, median of {RUNS} runs over {} images",
        images.len()
    );
    println!(
        "{:55} {:>9} {:>11} {:>9} {:>8} {:>11}",
        "patterns", "together", "one by one", "RegexSet", "factor", "compile, ms"
    );
    for Mix { name, pattern } in MIXES {
        let none: [&str; 0] = [];
        let texts: Vec<String> = (0..FILTERS).map(pattern).collect();
        let start = Instant::now();
        let filters: Vec<ImageFilter> =
            texts.iter().map(|text| ImageFilter::legacy(&[text], &none)).collect::<Result<_, _>>()?;
        let set = FilterSet::new(&filters);
        let compile = start.elapsed().as_secs_f64() * 1e3;
        let plain = RegexSet::new(texts.iter().map(|text| format!("^(?:{text})$")))?;

        let together = median(|| {
            for forms in &forms {
                black_box(set.matching(forms.iter()));
            }
        });
        let alone = median(|| {
            for forms in &forms {
                black_box(filters.iter().filter(|filter| filter.matches(forms.iter())).count());
            }
        });
        let regexes = median(|| {
            for forms in &forms {
                forms.iter().for_each(|form| {
                    black_box(plain.matches(form).len());
                });
            }
        });
        let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(images_per_run);
        let factor = alone.as_secs_f64() / together.as_secs_f64();
        println!(
            "{name:55} {:9.2} {:11.2} {:9.2} {factor:7.1}x {compile:11.1}",
            each(together),
            each(alone),
            each(regexes)
        );
    }
    Ok(())
}
