//! What is to be copied where: from a file, one pair on each line, and checked as a whole.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fairlead_domain::reference::{DEFAULT_TAG, PlaceKey, Reference};

use crate::references;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) source: Reference,
    pub(crate) destination: Reference,
    pub(crate) origin: Origin,
}

/// Where a pair was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Arguments,
    /// A line of the file, counted from one.
    Line(usize),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments => f.write_str("the arguments"),
            Self::Line(number) => write!(f, "line {number}"),
        }
    }
}

/// The pairs of a file, or of standard input where it is `-`.
pub(crate) fn read(file: &Path) -> Result<Vec<Pair>> {
    references::read_list(file, "images to copy", pair)
}

fn pair(line: &str, number: usize) -> Result<Pair> {
    let mut words = line.split_whitespace();
    let (Some(source), Some(destination), None) = (words.next(), words.next(), words.next()) else {
        bail!("write the image, a space and where to copy it: nginx:1.29 r.example.com/nginx:1.29");
    };
    Ok(Pair {
        source: Reference::parse(source).context("source")?,
        destination: Reference::parse(destination).context("destination")?,
        origin: Origin::Line(number),
    })
}

/// Refuses two images for one name: which of them would have it in the end is left to chance.
pub(crate) fn check_destinations(pairs: &[Pair]) -> Result<()> {
    let mut firsts = HashMap::new();
    for pair in pairs {
        let first: &Pair = firsts.entry(published(&pair.destination)).or_insert(pair);
        let (one, other) = (first.source.pulled(), pair.source.pulled());
        if !one.is_same_image(&other) {
            bail!(
                "{} and {}: {one} and {other} cannot both be copied to {}",
                first.origin,
                pair.origin,
                pair.destination.written()
            );
        }
    }
    Ok(())
}

/// The name that a copy is given: the tag, beside which a digest is only a condition, else the digest, else `latest`.
fn published(destination: &Reference) -> (PlaceKey<'_>, String) {
    let name = match (destination.tag(), destination.digest()) {
        (Some(tag), _) => tag.to_owned(),
        (None, Some(digest)) => digest.to_string(),
        (None, None) => DEFAULT_TAG.to_owned(),
    };
    (destination.place(), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_source_and_a_destination() {
        let found = pair("nginx\t r.example.com/nginx:1", 1).unwrap();
        assert_eq!((found.source.written(), found.destination.written()), ("nginx", "r.example.com/nginx:1"));
        for (line, expected) in [
            ("nginx", "write the image"),
            ("nginx to r.example.com/nginx", "write the image"),
            ("nginx:: r.example.com/nginx", "source: "),
            ("nginx r.example.com/Nginx", "destination: "),
        ] {
            let error = format!("{:#}", pair(line, 1).unwrap_err());
            assert!(error.starts_with(expected), "{line}: {error}");
        }
    }

    fn check(lines: &[&str]) -> Result<(), String> {
        let pairs: Vec<_> = lines.iter().zip(1..).map(|(line, number)| pair(line, number).unwrap()).collect();
        check_destinations(&pairs).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_is_for_one_image() {
        check(&["a r.io/x:1", "b r.io/x:2", "docker.io/library/a:latest r.io/x:1"]).unwrap();
        assert_eq!(
            check(&["c r.io/y", "a r.io/x", "b r.io/x:latest"]).unwrap_err(),
            "line 2 and line 3: docker.io/library/a:latest and docker.io/library/b:latest \
             cannot both be copied to r.io/x:latest"
        );
    }

    #[test]
    fn a_name_is_known_in_whatever_way_it_is_written() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let with_digest = |line: &str| line.replace('@', &format!("@{digest}"));
        for (one, other, may_be) in [
            ("a r.io/x:1@", "b r.io/x:1", false),
            ("a r.io/x:1@", "b r.io/x:2@", true),
            ("a r.io/x@", "b r.io/x@", false),
            ("a r.io/x@", "b r.io/x:1@", true),
            ("a r.io:5000/x:1", "b R.IO:5000/x:1", false),
            ("a r.io/x:1", "b r.io:443/x:1", false),
            ("r.io/a:1 r.io/x", "R.io/a:1 r.io/x", true),
        ] {
            let outcome = check(&[&with_digest(one), &with_digest(other)]);
            assert_eq!(outcome.is_ok(), may_be, "{one}, {other}: {outcome:?}");
        }
    }
}
