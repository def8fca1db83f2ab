//! Whether a Pod is pinned: what the Pod says counts, then what its namespace says, then the configuration.

use fairlead_api::names::fairlead::PIN;

/// `account.pinning` of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is pinned, whatever Pods and namespaces say.
    Off,
    /// Pods that ask for it, or whose namespace does.
    OptIn,
    /// All Pods but those that do not want it.
    All,
}

/// The values that an object has under `fairlead.dev/pin`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said<'a> {
    pub annotation: Option<&'a str>,
    pub label: Option<&'a str>,
}

/// What comes of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opinion {
    pub pinned: bool,
    /// For the author of the Pod.
    pub warning: Option<String>,
}

impl Said<'_> {
    /// Whether what others say does not count any more.
    pub fn decides(&self) -> bool {
        self.wish().0.is_some()
    }

    /// An annotation counts before a label. A value that is neither `true` nor `false` is as good as none.
    fn wish(&self) -> (Option<bool>, Option<&str>) {
        let mut odd = None;
        for value in [self.annotation, self.label].into_iter().flatten() {
            match value {
                "true" => return (Some(true), odd),
                "false" => return (Some(false), odd),
                other => odd = odd.or(Some(other)),
            }
        }
        (None, odd)
    }
}

/// Whether a Pod is pinned.
pub fn opinion(mode: Mode, pod: Said<'_>, namespace: Said<'_>) -> Opinion {
    let ((by_pod, odd), (by_namespace, odd_namespace)) = (pod.wish(), namespace.wish());
    let wish = by_pod.or(by_namespace);
    let unread = |of: &str, value: &str| {
        format!("{PIN} of this {of} is `{value}`, which is neither true nor false, and does not count")
    };
    let warning = match (mode, by_pod) {
        (Mode::Off, Some(true)) => {
            Some(format!("{PIN} has no effect: account.pinning is off in the configuration of Fairlead"))
        }
        (Mode::Off, _) => None,
        _ => odd.map(|value| unread("Pod", value)).or_else(|| {
            let counts = by_pod.is_none();
            odd_namespace.filter(|_| counts).map(|value| unread("Pod's namespace", value))
        }),
    };
    let pinned = match mode {
        Mode::Off => false,
        Mode::OptIn => wish == Some(true),
        Mode::All => wish != Some(false),
    };
    Opinion { pinned, warning }
}
