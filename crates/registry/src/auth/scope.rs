//! The scope of a token: `repository:team/app:pull,push`.

use std::collections::BTreeSet;
use std::fmt;

/// What a caller does in a repository. Includes reading, so that one token serves a whole copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    Pull,
    Push,
    Delete,
}

impl Right {
    fn actions(self) -> &'static [&'static str] {
        match self {
            Self::Pull => &["pull"],
            Self::Push => &["pull", "push"],
            Self::Delete => &["pull", "delete"],
        }
    }
}

/// A set of rights on one resource, as the token protocol writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Kind and name: `repository:team/app`.
    resource: String,
    actions: BTreeSet<String>,
}

impl Scope {
    pub fn repository(path: &str, right: Right) -> Self {
        let actions = right.actions().iter().map(|action| (*action).to_owned()).collect();
        Self { resource: format!("repository:{path}"), actions }
    }

    /// Parses the scope of a challenge: several are separated by spaces, the actions follow the last colon.
    pub fn parse_all(text: &str) -> Vec<Self> {
        text.split_ascii_whitespace()
            .filter_map(|part| {
                let (resource, actions) = part.rsplit_once(':')?;
                let actions =
                    actions.split(',').filter(|action| !action.is_empty()).map(str::to_owned).collect();
                Some(Self { resource: resource.to_owned(), actions })
            })
            .collect()
    }
}

/// The scopes to request: those of the challenge, with `wanted` actions added for the same resource. A registry may
/// know a repository under another name, for example behind a proxy; then the challenge counts.
pub fn combined(wanted: &[Scope], challenge: Option<&str>) -> Vec<Scope> {
    let mut scopes = Scope::parse_all(challenge.unwrap_or_default());
    if scopes.is_empty() {
        scopes = wanted.to_vec();
    }
    for scope in &mut scopes {
        for wanted in wanted.iter().filter(|wanted| wanted.resource == scope.resource) {
            scope.actions.extend(wanted.actions.iter().cloned());
        }
    }
    // The challenge names the request's own repository only, not the source of a mount.
    let main = wanted.first().map(|scope| scope.resource.as_str());
    for extra in wanted.iter().skip(1) {
        if Some(extra.resource.as_str()) != main
            && !scopes.iter().any(|scope| scope.resource == extra.resource)
        {
            scopes.push(extra.clone());
        }
    }
    scopes.sort();
    scopes.dedup();
    scopes
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.resource)?;
        for (position, action) in self.actions.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            f.write_str(action)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(scopes: &[Scope]) -> String {
        scopes.iter().map(Scope::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_registrys_word_counts_and_our_rights_are_added() {
        let push = [Scope::repository("a/b", Right::Push)];
        let mount = [Scope::repository("a/b", Right::Push), Scope::repository("c/d", Right::Pull)];
        let cases = [
            (&push[..], None, "repository:a/b:pull,push"),
            (&push[..], Some("repository:a/b:pull"), "repository:a/b:pull,push"),
            (&push[..], Some("repository:other/b:pull"), "repository:other/b:pull"),
            (&push[..], Some("repository:r:5000/b:pull"), "repository:r:5000/b:pull"),
            (&push[..], Some("nonsense"), "repository:a/b:pull,push"),
            (&mount[..], Some("repository:a/b:push"), "repository:a/b:pull,push repository:c/d:pull"),
        ];
        for (wanted, challenge, expected) in cases {
            assert_eq!(text(&combined(wanted, challenge)), expected, "{challenge:?}");
        }
    }

    proptest! {
        #[test]
        fn any_challenge_gives_a_scope(challenge in "[ -~]{0,80}") {
            let wanted = [Scope::repository("a/b", Right::Pull)];
            prop_assert!(!combined(&wanted, Some(&challenge)).is_empty());
        }
    }
}
