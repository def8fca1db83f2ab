//! What is to be copied where: from a file, one pair on each line, and checked as a whole.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fairlead_domain::reference::Reference;

use crate::references;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) source: Reference,
    pub(crate) destination: Reference,
}

/// The pairs of a file, or of standard input where it is `-`.
pub(crate) fn read(file: &Path) -> Result<Vec<Pair>> {
    references::read_list(file, "images to copy", pair)
}

fn pair(line: &str) -> Result<Pair> {
    let mut words = line.split_whitespace();
    let (Some(source), Some(destination), None) = (words.next(), words.next(), words.next()) else {
        bail!("write the image, a space and where to copy it: nginx:1.29 r.example.com/nginx:1.29");
    };
    Ok(Pair {
        source: Reference::parse(source).context("source")?,
        destination: Reference::parse(destination).context("destination")?,
    })
}

/// Refuses two images for one name: which of them would have it in the end is left to chance.
pub(crate) fn check_destinations(pairs: &[Pair]) -> Result<()> {
    let mut sources = HashMap::new();
    for Pair { source, destination } in pairs {
        let source = source.pulled();
        let other = sources.entry(destination.pulled()).or_insert_with(|| source.clone());
        if *other != source {
            bail!("{} and {} cannot both be copied to {}", other, source, destination.written());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_source_and_a_destination() {
        let found = pair("nginx\t r.example.com/nginx:1").unwrap();
        assert_eq!((found.source.written(), found.destination.written()), ("nginx", "r.example.com/nginx:1"));
        for (line, expected) in [
            ("nginx", "write the image"),
            ("nginx to r.example.com/nginx", "write the image"),
            ("nginx:: r.example.com/nginx", "source: "),
            ("nginx r.example.com/Nginx", "destination: "),
        ] {
            let error = format!("{:#}", pair(line).unwrap_err());
            assert!(error.starts_with(expected), "{line}: {error}");
        }
    }

    #[test]
    fn a_name_is_for_one_image() {
        let check = |lines: &[&str]| {
            let pairs: Vec<_> = lines.iter().map(|line| pair(line).unwrap()).collect();
            check_destinations(&pairs)
        };
        check(&["a r.io/x:1", "b r.io/x:2", "docker.io/library/a:latest r.io/x:1"]).unwrap();
        let error = check(&["a r.io/x", "b r.io/x:latest"]).unwrap_err().to_string();
        assert!(error.ends_with("cannot both be copied to r.io/x:latest"), "{error}");
    }
}
