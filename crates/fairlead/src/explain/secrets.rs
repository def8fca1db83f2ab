//! Which credentials an alternative is asked with: those of the Secrets that the Pod and the policies name, found by
//! the kubelet's rules, and in a file's world, where many Secrets are not, those of the person as a last resort.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_api::names::kubernetes::ENFORCE_MOUNTABLE_SECRETS;
use fairlead_domain::keyring::{Credential, IdentityKey, Keyring, SecretKind};
use fairlead_domain::reference::Repository;
use fairlead_plan::pull_secrets::{Receiver, local_name};
use fairlead_plan::routing::{Alternative, SecretName};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use serde_json::Value;

use super::cluster::Cluster;
use super::files::{self, Manifest, Mismatch, text_at};
use super::subject::{Role, Subject};
use crate::access::{self, Person};

/// What a Secret holds, or why it is of no use.
type Content = Result<(SecretKind, Vec<u8>), Useless>;

#[derive(Debug, Clone)]
struct Useless {
    why: String,
    /// To the operator it may well be of use.
    only_here: bool,
}

impl Useless {
    fn to_all(why: impl Into<String>) -> Self {
        Self { why: why.into(), only_here: false }
    }

    fn only_here(why: impl Into<String>) -> Self {
        Self { why: why.into(), only_here: true }
    }
}

/// Secrets by name, and the accounts that name some for their Pods.
pub(crate) struct Secrets {
    identity: IdentityKey,
    contents: BTreeMap<SecretName, Content>,
    accounts: BTreeMap<(String, String), Account>,
    /// The fallback where no Secret has a credential.
    person: Option<Person>,
}

/// What a `ServiceAccount` says about the Secrets of its Pods.
#[derive(Debug, Default)]
struct Account {
    /// For Pods that name none themselves.
    pull_secrets: Vec<String>,
    /// Its Pods may have no others.
    is_strict: bool,
}

/// The Secrets that one alternative is pulled with.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    /// In the kubelet's order.
    pub(crate) names: Vec<SecretName>,
    /// Why the Pod does not get the others that policies name.
    withheld: Vec<String>,
}

/// Credentials for one alternative.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) credentials: Vec<Credential>,
    /// Whose they are, in words.
    pub(crate) whose: String,
    /// What may make the answer another one than the operator gets.
    pub(crate) caveats: Vec<String>,
    /// A Secret that the operator may well read could not be read here.
    pub(crate) is_incomplete: bool,
}

impl Secrets {
    pub(crate) fn new(identity: IdentityKey, person: Option<Person>) -> Self {
        Self { identity, contents: BTreeMap::new(), accounts: BTreeMap::new(), person }
    }

    /// Keeps the Secrets and accounts among manifests. Those that do not say where they belong go to `namespace`.
    pub(crate) fn add_manifests(&mut self, manifests: &[Manifest], namespace: &str) {
        for Manifest { object, .. } in manifests {
            if text_at(object, &["apiVersion"]) != Some("v1") {
                continue;
            }
            let (Some(name), home) =
                (text_at(object, &["metadata", "name"]), text_at(object, &["metadata", "namespace"]))
            else {
                continue;
            };
            let home = home.unwrap_or(namespace);
            match text_at(object, &["kind"]) {
                Some("Secret") => {
                    self.contents.insert(secret_name(home, name), read(object));
                }
                Some("ServiceAccount") => {
                    if let Ok(account) = files::typed::<ServiceAccount>(object) {
                        self.accounts.insert((home.to_owned(), name.to_owned()), account.into());
                    }
                }
                _ => {}
            }
        }
    }

    /// Looks up the accounts of Pods. What could not be read is returned in words.
    pub(crate) async fn load_accounts(&mut self, subjects: &[Subject], cluster: &Cluster) -> Vec<String> {
        let wanted: BTreeSet<_> = subjects
            .iter()
            .map(|subject| (subject.namespace.clone(), subject.account.clone()))
            .filter(|account| !self.accounts.contains_key(account))
            .collect();
        let read = wanted.into_iter().map(|(namespace, name)| async {
            let account = cluster.account(&namespace, &name).await;
            ((namespace, name), account)
        });
        let mut warnings = Vec::new();
        for (key, account) in join_all(read).await {
            match account {
                Ok(account) => {
                    self.accounts.insert(key, account.map(Account::from).unwrap_or_default());
                }
                Err(warning) => warnings.push(warning),
            }
        }
        warnings
    }

    /// Reads what is not known yet from the cluster.
    pub(crate) async fn load(&mut self, names: BTreeSet<SecretName>, cluster: &Cluster) {
        let unknown = names.into_iter().filter(|name| !self.contents.contains_key(name));
        let read = unknown.map(|name| async {
            let content = match cluster.secret(&name).await {
                Ok(Some(secret)) => content(secret),
                Ok(None) => Err(Useless::to_all("it does not exist")),
                Err(problem) => Err(Useless::only_here(problem)),
            };
            (name, content)
        });
        self.contents.extend(join_all(read).await);
    }

    /// The Secrets that a place is pulled with: those of the Pod, and those of policies that the Pod will have.
    /// `copying`: Secrets of other namespaces are copied to the Pod's. To a Pod that exists, where an ephemeral
    /// container is added, nothing is added.
    pub(crate) fn needed(&self, subject: &Subject, role: Role, place: &Alternative, copying: bool) -> Needed {
        let account = self.accounts.get(&(subject.namespace.clone(), subject.account.clone()));
        let own = match subject.pull_secrets.as_slice() {
            [] => account.map(|account| account.pull_secrets.as_slice()).unwrap_or_default(),
            own => own,
        };
        let mut needed = Needed {
            names: own.iter().map(|name| secret_name(&subject.namespace, name)).collect(),
            withheld: Vec::new(),
        };
        let permitted: Option<BTreeSet<String>> = account
            .filter(|account| account.is_strict)
            .map(|account| account.pull_secrets.iter().cloned().collect());
        let exists = role == Role::EphemeralContainer;
        let receiver = Receiver { present: own, exists, permitted: permitted.as_ref() };
        for used in &place.secrets {
            // Whether the webhook leaves the namespace out is said of the whole Pod.
            let local = local_name(used, &subject.namespace, copying, || false);
            match receiver.takes(&local) {
                Err(why) => {
                    needed.withheld.push(format!("the Pod does not get Secret {}: {why}", used.secret));
                }
                Ok(()) if needed.names.contains(&used.secret) => {}
                Ok(()) => needed.names.push(used.secret.clone()),
            }
        }
        needed
    }

    /// The credentials for a repository out of these Secrets.
    pub(crate) async fn find(&self, needed: Needed, repository: &Repository) -> Found {
        let mut found = Found { caveats: needed.withheld, ..Found::default() };
        let mut keyring = Keyring::new(self.identity.clone());
        let mut holders = Vec::new();
        for name in &needed.names {
            let content = self.contents.get(name).map(Result::as_ref);
            let useless = match content {
                Some(Ok((kind, data))) => match keyring.add(*kind, data) {
                    Ok(()) => {
                        if self.holds(*kind, data, repository) {
                            holders.push(name.to_string());
                        }
                        continue;
                    }
                    Err(error) => Useless::to_all(error.to_string()),
                },
                Some(Err(useless)) => useless.clone(),
                None => Useless::only_here("it is not among the given manifests"),
            };
            found.caveats.push(format!("Secret {name} is not used: {}", useless.why));
            found.is_incomplete |= useless.only_here;
        }
        found.credentials = keyring.lookup(repository);
        if !found.credentials.is_empty() {
            found.whose = format!("Secret {}", holders.join(", "));
        } else if let Some(person) = &self.person {
            found.credentials = person.credentials(repository, access::warn).await;
            if !found.credentials.is_empty() {
                "your own login".clone_into(&mut found.whose);
            }
        }
        if found.credentials.is_empty() {
            "anonymous".clone_into(&mut found.whose);
        }
        found
    }

    fn holds(&self, kind: SecretKind, data: &[u8], repository: &Repository) -> bool {
        let mut alone = Keyring::new(self.identity.clone());
        alone.add(kind, data).is_ok() && !alone.lookup(repository).is_empty()
    }
}

pub(crate) fn secret_name(namespace: &str, name: &str) -> SecretName {
    SecretName { namespace: namespace.into(), name: name.into() }
}

impl From<ServiceAccount> for Account {
    fn from(account: ServiceAccount) -> Self {
        let named = account.image_pull_secrets.unwrap_or_default().into_iter().map(|secret| secret.name);
        let annotations = account.metadata.annotations.unwrap_or_default();
        let strict = annotations.get(ENFORCE_MOUNTABLE_SECRETS);
        Self {
            pull_secrets: named.filter(|name| !name.is_empty()).collect(),
            // What the API server takes for yes.
            is_strict: strict
                .is_some_and(|text| ["1", "t", "T", "true", "TRUE", "True"].contains(&text.as_str())),
        }
    }
}

fn read(object: &Value) -> Content {
    files::typed::<Secret>(object)
        .map_err(|Mismatch { field, message }| Useless::to_all(format!("{field}: {message}")))
        .and_then(content)
}

/// What a Secret says about registries. Like the API server, what is written in plain text wins.
fn content(secret: Secret) -> Content {
    let kind = secret.type_.unwrap_or_else(|| "Opaque".to_owned());
    let kind = SecretKind::of_type(&kind).ok_or_else(|| {
        Useless::to_all(format!(
            "its type is {kind}; registry credentials are in Secrets of type kubernetes.io/dockerconfigjson"
        ))
    })?;
    let plain = secret.string_data.unwrap_or_default().remove(kind.data_key()).map(String::into_bytes);
    let data = plain.or_else(|| Some(secret.data.unwrap_or_default().remove(kind.data_key())?.0));
    data.map(|data| (kind, data)).ok_or_else(|| Useless::to_all(format!("it has no key {}", kind.data_key())))
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::HostPattern;
    use fairlead_plan::pull_secrets::copy_name;
    use fairlead_plan::routing::{Index, PodFacts, PullPolicy, Rules};
    use serde_json::json;

    use super::*;

    fn manifest(object: Value) -> Manifest {
        Manifest { place: String::new(), object }
    }

    fn secret(name: &str, namespace: Option<&str>, kind: &str, config: &str) -> Manifest {
        manifest(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
            "type": kind, "stringData": {".dockerconfigjson": config},
        }))
    }

    #[tokio::test]
    async fn credentials_come_from_the_named_secrets() {
        let mut secrets = Secrets::new(IdentityKey::new([0; 32]), None);
        let config = r#"{"auths":{"r.example.com":{"username":"u","password":"p"}}}"#;
        let json_type = "kubernetes.io/dockerconfigjson";
        secrets.add_manifests(
            &[
                secret("good", None, json_type, config),
                secret("good", Some("elsewhere"), json_type, "{"),
                secret("opaque", None, "Opaque", config),
            ],
            "here",
        );
        let repository =
            "r.example.com/a:1".parse::<fairlead_domain::reference::Reference>().unwrap().repository();
        let find = async |namespace, name| {
            let names = vec![secret_name(namespace, name)];
            secrets.find(Needed { names, withheld: Vec::new() }, &repository).await
        };
        let found = find("here", "good").await;
        assert_eq!((found.credentials.len(), found.whose.as_str()), (1, "Secret here/good"));
        assert!(!found.is_incomplete);
        for (namespace, name, told, incomplete) in [
            ("elsewhere", "good", "Secret elsewhere/good is not used: ", false),
            ("here", "opaque", "its type is Opaque", false),
            ("here", "gone", "not among the given manifests", true),
        ] {
            let found = find(namespace, name).await;
            assert_eq!(found.whose, "anonymous");
            assert!(found.caveats[0].contains(told), "{:?}", found.caveats);
            assert_eq!(found.is_incomplete, incomplete, "{name}");
        }
    }

    /// Names of the Secrets for a copy that a cluster-wide policy offers with a Secret of its own, and what is
    /// withheld.
    fn needed(account: &Value, pod: &Subject, role: Role, copying: bool) -> (Vec<String>, String) {
        let mut secrets = Secrets::new(IdentityKey::new([0; 32]), None);
        let mut object = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"},
            "imagePullSecrets": [{"name": "a"}, {"name": "b"}],
        });
        object["metadata"]["annotations"] = account.clone();
        secrets.add_manifests(&[manifest(object)], "here");
        let policy = json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror", "metadata": {"name": "m"},
            "spec": {
                "priority": -1,
                "imageFilter": {"include": [".*"]},
                "mirrors": [{"registry": "m.io", "credentialSecret": {"name": "s", "namespace": "far"}}],
            },
        });
        let mut policies = super::super::policies::Policies::new(&[HostPattern::everything()]);
        policies.add(None, policy, "here");
        let index = Index::new(policies.compiled);
        let facts = PodFacts { namespace: "here", labels: &pod.labels, annotations: &pod.annotations };
        let image = "nginx:1".parse().unwrap();
        let places = index.for_pod(&facts).alternatives(&image, PullPolicy::IfNotPresent, &Rules::default());
        let needed = secrets.needed(pod, role, &places.list()[0], copying);
        (needed.names.iter().map(ToString::to_string).collect(), needed.withheld.join(" "))
    }

    #[test]
    fn what_the_pod_will_have_is_what_counts() {
        let mut pod = super::super::subject::MadeUp::default().with("nginx:1", "here");
        let nothing = json!({});
        let strict = json!({ENFORCE_MOUNTABLE_SECRETS: "true"});
        let names = |pod: &Subject| needed(&nothing, pod, Role::Container, true).0;
        assert_eq!(names(&pod), ["here/a", "here/b", "far/s"]);
        for (account, role, copying, said) in [
            (&nothing, Role::EphemeralContainer, true, "no Secret can be added"),
            (&nothing, Role::Container, false, "routing.pullSecrets.copy"),
            (&strict, Role::Container, true, "permits only"),
        ] {
            let (names, withheld) = needed(account, &pod, role, copying);
            assert_eq!(names, ["here/a", "here/b"], "{said}");
            assert!(withheld.contains("far/s") && withheld.contains(said), "{withheld}");
        }
        pod.pull_secrets = vec!["own".to_owned()];
        assert_eq!(names(&pod), ["here/own", "far/s"]);
        // A Pod that was rewritten has the copy already.
        pod.pull_secrets = vec![copy_name(&secret_name("far", "s"), "")];
        let (names, withheld) = needed(&strict, &pod, Role::EphemeralContainer, true);
        assert_eq!((names.len(), withheld.as_str()), (2, ""));
    }
}
