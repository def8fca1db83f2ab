//! To whom an endpoint belongs. The project of its name that serves from it belongs to the same.

use std::fmt;

use fairlead_api::conditions::{ConditionStatus, find};
use fairlead_api::reef::{OWNED, ProxyCacheStatus};
use fairlead_domain::harbor::Endpoint;

const BEFORE_CLUSTER: &str = "Managed by Fairlead: cluster ";
const BEFORE_NAME: &str = ", ProxyCache ";
const BEFORE_UID: &str = ", UID ";

/// An object, as endpoints name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Identity of the cluster.
    pub cluster: String,
    /// Name of the object.
    pub name: String,
    /// Its UID. Another object of this name, made later, did not make the endpoint.
    pub uid: Option<String>,
}

impl Mark {
    /// The mark in a description: its last line that is one.
    pub fn find(description: &str) -> Option<Self> {
        description.lines().rev().find_map(|line| {
            let (cluster, object) = line.trim().strip_prefix(BEFORE_CLUSTER)?.split_once(BEFORE_NAME)?;
            let (name, uid) =
                object.split_once(BEFORE_UID).map_or((object, None), |(name, uid)| (name, Some(uid)));
            Some(Self { cluster: cluster.to_owned(), name: name.to_owned(), uid: uid.map(str::to_owned) })
        })
    }

    fn names_the_same(&self, other: &Self) -> bool {
        (&self.cluster, &self.name) == (&other.cluster, &other.name)
    }

    /// A description with this mark and no other. What people wrote stays.
    #[must_use]
    pub fn put_into(&self, description: &str) -> String {
        let others =
            description.lines().filter(|line| Self::find(line).is_none()).filter(|line| !line.is_empty());
        others.map(str::to_owned).chain([self.to_string()]).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BEFORE_CLUSTER}{}{BEFORE_NAME}{}", self.cluster, self.name)?;
        self.uid.iter().try_for_each(|uid| write!(f, "{BEFORE_UID}{uid}"))
    }
}

/// The object that is planned for.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "a function has no form to print")]
pub struct CacheObject<'a> {
    pub mark: &'a Mark,
    pub status: Option<&'a ProxyCacheStatus>,
    /// Whether this cluster has another object of this name that stands for the same pair.
    pub stands_for_it: &'a dyn Fn(&str) -> bool,
    /// Another object of this cluster that asks for the pair of this name, and is not being deleted.
    pub wanted_by: &'a dyn Fn(&str) -> Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// There is no endpoint.
    Absent,
    Ours,
    /// It becomes ours: the object's status names it, or the object of this cluster that it belonged to is gone.
    Adoptable,
    /// It belongs to another object, if it says so.
    Foreign(Option<Mark>),
}

/// To whom the endpoint belongs.
pub fn ownership(endpoint: Option<&Endpoint>, object: CacheObject<'_>) -> Ownership {
    let Some(endpoint) = endpoint else { return Ownership::Absent };
    match Mark::find(&endpoint.description) {
        Some(mark) if mark.names_the_same(object.mark) => Ownership::Ours,
        Some(mark) if mark.cluster == object.mark.cluster && !(object.stands_for_it)(&mark.name) => {
            Ownership::Adoptable
        }
        Some(mark) => Ownership::Foreign(Some(mark)),
        None if owned_id(object.status) == Some(endpoint.id) => Ownership::Adoptable,
        None => Ownership::Foreign(None),
    }
}

/// The endpoint that the status names as the object's own. One of earlier days, without a mark, has no condition.
pub(super) fn owned_id(status: Option<&ProxyCacheStatus>) -> Option<i64> {
    let status = status?;
    let disowned = find(&status.conditions, OWNED).is_some_and(|one| one.status == ConditionStatus::False);
    status.registry_id.filter(|_| !disowned)
}

/// Whether an endpoint was made for this very object under a name that it had before: every edit of the name leaves
/// one behind, also one that was made while the endpoint was. What an earlier object of the same name left in Harbor
/// is not the object's own.
pub fn is_former(endpoint: &Endpoint, name: &str, mark: &Mark) -> bool {
    endpoint.name != name && mark.uid.is_some() && Mark::find(&endpoint.description).as_ref() == Some(mark)
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no endpoint"),
            Self::Ours | Self::Adoptable => f.write_str("endpoint and project belong to this object"),
            Self::Foreign(Some(mark)) => {
                write!(f, "they belong to ProxyCache {} of cluster {}", mark.name, mark.cluster)
            }
            Self::Foreign(None) => f.write_str("they were not made by Fairlead"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stands_beside_what_people_wrote() {
        let mark = Mark { cluster: "c-1".to_owned(), name: "quay".to_owned(), uid: Some("u-7".to_owned()) };
        assert_eq!(mark.put_into(""), "Managed by Fairlead: cluster c-1, ProxyCache quay, UID u-7");
        let described = mark.put_into("Ask the platform team.");
        assert_eq!(
            described,
            "Ask the platform team.\nManaged by Fairlead: cluster c-1, ProxyCache quay, UID u-7"
        );
        assert_eq!(Mark::find(&described).as_ref(), Some(&mark));
        let without = Mark::find("Managed by Fairlead: cluster c-1, ProxyCache quay").expect("a mark");
        assert_eq!(without, Mark { uid: None, ..mark.clone() });
        let other = Mark { name: "other".to_owned(), ..mark };
        assert_eq!(other.put_into(&described).matches("Managed by").count(), 1, "one mark only");
        assert_eq!(Mark::find("Managed by Fairlead"), None);
    }
}
