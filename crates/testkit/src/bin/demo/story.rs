//! How the demo talks: numbered steps with the time they begin, and what was seen, set in.

use std::time::Instant;

/// More than this of one text is too much to read.
const MOST_LINES: usize = 24;

pub(crate) struct Story {
    begun: Instant,
    steps: usize,
}

impl Story {
    pub(crate) fn begin() -> Self {
        println!(
            "Fairlead on a real Kubernetes. Only this machine reaches it, and it ends with this program."
        );
        Self { begun: Instant::now(), steps: 0 }
    }

    pub(crate) fn step(&mut self, title: &str) {
        self.steps += 1;
        println!("\n[{:5.1} s] {}. {title}", self.begun.elapsed().as_secs_f64(), self.steps);
    }

    pub(crate) fn say(text: impl AsRef<str>) {
        let lines: Vec<&str> = text.as_ref().lines().filter(|line| !line.trim().is_empty()).collect();
        for line in lines.iter().take(MOST_LINES) {
            println!("    {line}");
        }
        if lines.len() > MOST_LINES {
            println!("    … and {} more lines", lines.len() - MOST_LINES);
        }
    }

    pub(crate) fn end(self, next: &[&str]) {
        println!("\n[{:5.1} s] Done. What to look at next:", self.begun.elapsed().as_secs_f64());
        for line in next {
            println!("    {line}");
        }
    }
}
