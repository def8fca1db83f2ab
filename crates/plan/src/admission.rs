//! What becomes of one image of a Pod that is being admitted: from what the Pod and its annotations say to the route
//! that is recorded.

#[cfg(test)]
mod tests;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;

use crate::pinning;
use crate::pod_record::Route;
use crate::routing::{Alternative, Alternatives, Decision, Origin, PodPolicies, PullPolicy, Rules};

/// Recorded alternatives are for healing, which tries them one after the other; more would never be reached. Together
/// with the image that is used they are as many as healing remembers.
const MOST_ALTERNATIVES: usize = 31;

/// One image with all places it may come from.
#[derive(Debug)]
pub struct Planned {
    /// What the author of the Pod asked for, as written.
    pub asked: String,
    /// The places, or why there is nothing to choose from.
    pub places: Result<Alternatives, String>,
    /// The digest that a tag is held to. Until [`Planned::hold`], places are those of the tag.
    pub pin: Option<Digest>,
}

/// Plans one image.
///
/// `claimed` is what an annotation says was asked for before the image became what it is. It is believed only if the
/// policies, asked about it, offer the present image: then the whole choice is made anew for it, so a restored Pod is
/// not tied to a mirror that has gone since. A claim that does not hold is as good as none. An image that was pinned
/// stays pinned.
///
/// `foreign` says of a source and a destination whether what is there was copied from another image.
pub fn plan(
    policies: &PodPolicies<'_>,
    image: &str,
    claimed: Option<&str>,
    pull_policy: Option<&str>,
    rules: &Rules,
    foreign: impl Fn(&Reference, &Reference) -> bool,
) -> Planned {
    let mut planned = plan_all(policies, image, claimed, pull_policy, *rules);
    if let Ok(places) = &mut planned.places {
        places.withhold(foreign);
    }
    planned
}

fn plan_all(
    policies: &PodPolicies<'_>,
    image: &str,
    claimed: Option<&str>,
    pull_policy: Option<&str>,
    rules: Rules,
) -> Planned {
    let present = Reference::parse(image);
    if let (Some(claimed), Ok(present)) = (claimed, &present)
        && let Ok(asked) = Reference::parse(claimed)
    {
        let pin = present.digest().filter(|_| present.tag().is_some() && asked.digest().is_none());
        let named = if pin.is_some() { present.without_digest() } else { present.clone() };
        let places = policies.alternatives(&asked, PullPolicy::effective(pull_policy, &asked), &rules);
        let offers = |place: &Alternative| {
            let may_be = pin.is_some() || !matches!(place.origin, Origin::Original);
            may_be && place.reference.is_same_image(&named)
        };
        if places.list().iter().any(offers) {
            return Planned { asked: claimed.to_owned(), places: Ok(places), pin };
        }
    }
    let places = match present {
        Ok(present) => {
            Ok(policies.alternatives(&present, PullPolicy::effective(pull_policy, &present), &rules))
        }
        Err(error) => Err(format!("it cannot be read: {error}")),
    };
    Planned { asked: image.to_owned(), places, pin: None }
}

impl Planned {
    /// The image stays as it is, for this reason.
    pub fn left_alone(image: &str, why: &str) -> Self {
        Self { asked: image.to_owned(), places: Err(why.to_owned()), pin: None }
    }

    /// The tag that is to be given a digest, if it has none yet.
    pub fn unpinned_tag(&self, pull_policy: Option<&str>) -> Option<&Reference> {
        let original = self.places.as_ref().ok()?.original();
        (self.pin.is_none() && pinning::needs_digest(original, pull_policy)).then_some(original)
    }

    /// Holds the image to a digest, whichever place it comes from: a place that has another one under the tag is passed
    /// over.
    pub fn hold(&mut self, digest: Digest) {
        if let Ok(places) = &mut self.places {
            self.pin = Some(digest);
            places.hold(&digest);
        }
    }

    /// The places to ask, if anything is to be asked.
    pub fn to_ask(&self) -> Option<&Alternatives> {
        self.places.as_ref().ok().filter(|places| places.needs_probe())
    }

    /// The route that was decided on. `verdicts` are those that the decision was made with.
    pub fn route(&self, decision: Decision, verdicts: &[Option<Verdict>]) -> Route {
        let Ok(places) = &self.places else { return self.kept() };
        let (index, why) = match decision {
            Decision::Use { index, why } => (index, why),
            Decision::Keep { why } => {
                let unavailable = places.needs_probe();
                let route = self.original(&why);
                return Route {
                    unavailable,
                    failure: unavailable.then(|| places.failure(verdicts)),
                    alternatives: self.others(&route.used),
                    ..route
                };
            }
            // Nothing is decided before everything is known; otherwise the image stays.
            Decision::Wait => return self.kept(),
        };
        let Some(place) = places.list().get(index) else { return self.kept() };
        let verdict = verdicts.get(index).and_then(Option::as_ref);
        let is_original = place.reference == *places.original();
        let used = if is_original { self.original("").used } else { place.reference.to_string() };
        let unavailable = verdict.is_some_and(|verdict| !verdict.is_usable());
        Route {
            by: if is_original { Origin::Original.by() } else { place.origin.by() },
            why,
            digest: self
                .pin
                .or_else(|| verdict?.digest())
                .map(|digest| digest.to_string())
                .unwrap_or_default(),
            alternatives: self.others(place.reference.as_str()),
            unavailable,
            failure: unavailable.then(|| places.failure(verdicts)),
            asked: self.asked.clone(),
            used,
            ..Route::default()
        }
    }

    /// The image stays as it was asked for, without anything having been asked.
    pub fn kept(&self) -> Route {
        match &self.places {
            Err(why) => self.original(why),
            Ok(places) => match places.decide(&[]) {
                Decision::Keep { why } | Decision::Use { why, .. } => self.original(&why),
                Decision::Wait => self.original("nothing was asked"),
            },
        }
    }

    /// The image as its author wrote it, held to its digest if it is pinned.
    fn original(&self, why: &str) -> Route {
        let route = Route::original(&self.asked, why);
        match &self.pin {
            Some(digest) => Route {
                used: pinning::hold_written(&self.asked, digest),
                digest: digest.to_string(),
                ..route
            },
            None => route,
        }
    }

    fn others(&self, used: &str) -> Vec<String> {
        let places = self.places.as_ref().map(Alternatives::list).unwrap_or_default();
        let others = places.iter().map(|place| place.reference.as_str()).filter(|place| *place != used);
        let others = others.take(MOST_ALTERNATIVES).map(str::to_owned).collect::<Vec<_>>();
        if places.len() > 1 { others } else { Vec::new() }
    }
}
