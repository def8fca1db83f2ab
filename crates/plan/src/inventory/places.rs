//! Whether the places that images may be taken from hold the same today, for those who ask without knowing policies
//! and ledgers: the records on Pods tell which places there are.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;

use super::{Content, Contents, PodView, Row};
use crate::pinning::pin_key;

impl Row<'_> {
    /// Where else the image may be taken from, by tag. What was asked for by digest is the same everywhere.
    pub fn places(&self) -> Vec<Reference> {
        let by_tag = |image: &Reference| match image.digest() {
            Some(_) => pin_key(image),
            None => image.clone(),
        };
        let Ok(requested) = Reference::parse(&self.requested) else { return Vec::new() };
        if requested.digest().is_some() {
            return Vec::new();
        }
        let all = self.alternatives.iter().map(String::as_str).chain([self.routed]);
        let places = all.filter_map(|place| Reference::parse(place).ok()).map(|place| by_tag(&place));
        places.filter(|place| !place.is_same_image(&requested)).collect()
    }
}

/// The images of namespaces that have several places.
#[derive(Debug, Default)]
pub struct Places<'a>(BTreeMap<(&'a str, String), BTreeSet<Reference>>);

/// What comparing the places came to.
#[derive(Debug, Default)]
pub struct ComparedPlaces {
    /// What differs of each image of a namespace, in words.
    differing: BTreeMap<(String, String), Vec<String>>,
    /// Digests whose content would tell more, and the places that name them.
    pub reads: Vec<(Digest, Reference)>,
    /// Images of which it cannot be told, in words.
    pub undecided: Vec<String>,
}

impl ComparedPlaces {
    /// What differs of an image of a namespace; none where it was not found out.
    pub fn of(&self, namespace: &str, image: &str) -> Option<Vec<String>> {
        self.differing.get(&(namespace.to_owned(), image.to_owned())).cloned()
    }
}

impl<'a> Places<'a> {
    /// Takes up an image of a Pod.
    pub fn add(&mut self, pod: &PodView<'a>, row: &Row<'_>) {
        let places = row.places();
        if !places.is_empty() {
            self.0.entry((pod.namespace, row.requested.to_string())).or_default().extend(places);
        }
    }

    /// Compares all places of an image with what was asked for; `now` is what registries say of a tag today.
    pub fn compare(self, now: impl Fn(&str) -> Option<Digest>, contents: &Contents) -> ComparedPlaces {
        let mut compared = ComparedPlaces::default();
        for ((namespace, image), places) in self.0 {
            let Some(wanted) = now(&image) else { continue };
            let (mut differing, mut all_told) = (Vec::new(), true);
            for place in places {
                match now(place.as_str()).map(|found| (found, is_part(&wanted, &found, contents))) {
                    None => all_told = false,
                    Some((_, Ok(true))) => {}
                    Some((found, Ok(false))) => {
                        differing.push(format!("{image} is {wanted} and {place} is {found}"));
                    }
                    Some((found, Err(unread))) => {
                        all_told = false;
                        let at = |digest: &Digest| match Reference::parse(&image) {
                            Ok(image) if *digest != found => image,
                            _ => place.clone(),
                        };
                        compared.reads.extend(unread.iter().map(|digest| (*digest, at(digest))));
                        compared.undecided.push(format!("whether {place} holds the same as {image}"));
                    }
                }
            }
            if all_told || !differing.is_empty() {
                compared.differing.insert((namespace.to_owned(), image), differing);
            }
        }
        compared
    }
}

/// Whether two digests are one, or one of them is a copy of the other for some of its platforms; else the digests whose
/// content would tell.
fn is_part(one: &Digest, other: &Digest, contents: &Contents) -> Result<bool, Vec<Digest>> {
    if one == other {
        return Ok(true);
    }
    let (Some(first), Some(second)) = (contents.get(one), contents.get(other)) else {
        return Err([one, other]
            .into_iter()
            .filter(|digest| contents.get(digest).is_none())
            .copied()
            .collect());
    };
    let within = |whole: &Content, digest: &Digest, part: &Content| match part {
        Content::Image { .. } => whole.holds(digest),
        Content::Index { images, .. } => {
            !images.is_empty() && images.iter().all(|image| whole.holds(&image.digest))
        }
    };
    match within(first, other, second) || within(second, one, first) {
        false if first.is_cut() || second.is_cut() => Err(Vec::new()),
        part => Ok(part),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_domain::platform::Platform;

    use super::*;
    use crate::inventory::PlatformManifest;

    #[test]
    fn a_copy_of_some_platforms_is_a_part_of_its_source() {
        let digest = |of: &str| Digest::sha256(of.as_bytes());
        let mut contents = Contents::default();
        for (name, images) in
            [("all", ["a", "b"].as_slice()), ("some", &["a"]), ("other", &["a", "x"]), ("empty", &[])]
        {
            let manifest =
                |image: &&str| PlatformManifest { platform: Platform::default(), digest: digest(image) };
            contents.learn(digest(name), Content::index(images.iter().map(manifest)));
        }
        contents.learn(digest("b"), Content::image(digest("config")));
        let part = |other: &str| is_part(&digest("all"), &digest(other), &contents);
        for (other, expected) in
            [("all", true), ("some", true), ("b", true), ("other", false), ("empty", false)]
        {
            assert_eq!(part(other), Ok(expected), "{other}");
        }
        assert_eq!(part("unread"), Err(vec![digest("unread")]));
    }
}
