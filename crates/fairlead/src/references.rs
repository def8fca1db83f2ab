//! Lists in files and on standard input, such as of image references: one entry on each line, empty lines and comments
//! left out.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fairlead_domain::reference::Reference;

/// Room for a hundred thousand references of the usual length.
const LONGEST_LIST: u64 = 16 * 1024 * 1024;
/// A few mistakes are listed; thousands would not be read.
const MOST_MISTAKES: usize = 10;

/// The image references of a file, or of standard input where it is `-`.
pub(crate) fn read(file: &Path) -> Result<Vec<Reference>> {
    read_list(file, "image references", |line, _| Ok(Reference::parse(line)?))
}

/// The entries of a list of something, each made of its line and the line's number.
pub(crate) fn read_list<T>(
    file: &Path,
    of: &str,
    entry: impl FnMut(&str, usize) -> Result<T>,
) -> Result<Vec<T>> {
    let mut text = String::new();
    let name = if file == Path::new("-") { PathBuf::from("standard input") } else { file.to_owned() };
    let name = name.display();
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(|| format!("cannot read the list {name}"))?)
    };
    let length = source
        .take(LONGEST_LIST + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read the list {name}"))?;
    ensure!(length as u64 <= LONGEST_LIST, "{name} has more than {LONGEST_LIST} bytes; split it");
    parse(&text, entry).with_context(|| format!("{name} is not a list of {of}"))
}

fn parse<T>(text: &str, mut entry: impl FnMut(&str, usize) -> Result<T>) -> Result<Vec<T>> {
    let mut entries = Vec::new();
    let mut mistakes = Vec::new();
    // Some editors begin every file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim).zip(1..);
    for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
        match entry(line, number) {
            Ok(entry) => entries.push(entry),
            Err(error) => mistakes.push(format!("line {number}: {error:#}")),
        }
    }
    let more = mistakes.len().saturating_sub(MOST_MISTAKES);
    mistakes.truncate(MOST_MISTAKES);
    if more > 0 {
        mistakes.push(format!("and {more} more lines"));
    }
    if !mistakes.is_empty() {
        bail!("{}", mistakes.join("\n"));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(text: &str) -> Result<Vec<Reference>> {
        parse(text, |line, _| Ok(Reference::parse(line)?))
    }

    #[test]
    fn lines_are_references() {
        let found = images("nginx\r\n\n  # a comment\n  quay.io/a/b:1  \n").unwrap();
        let names: Vec<_> = found.iter().map(Reference::written).collect();
        assert_eq!(names, ["nginx", "quay.io/a/b:1"]);
        assert!(images("").unwrap().is_empty());
        assert_eq!(images("\u{feff}# a comment\n").unwrap(), []);
        assert_eq!(images("\u{feff}nginx\n").unwrap()[0].written(), "nginx");
    }

    #[test]
    fn every_mistake_has_its_line() {
        let error = images(&format!("nginx\nquay.io/A\n{}", "a:b:c\n".repeat(12))).unwrap_err().to_string();
        assert!(error.contains("line 2: \"quay.io/A\"") && error.contains("character 9"), "{error}");
        assert!(error.contains("line 3: ") && error.ends_with("and 3 more lines"), "{error}");
    }
}
