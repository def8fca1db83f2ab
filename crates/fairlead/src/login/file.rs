//! One login file: docker's `config.json`, podman's `auth.json`, or the old `.dockercfg`, which has the entries alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use fairlead_domain::keyring::{IdentityKey, Keyring, shown_place};
use fairlead_domain::reference::Host;
use fairlead_domain::{json, json_object};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use super::error::{FileProblem, LoginError};
use super::helper::HelperName;
use super::place::{host_key, location};

/// A login file with a hundred registries has some 20 KiB.
const LONGEST_FILE: usize = 1024 * 1024;
/// The user name that marks a password as an identity token, as docker's helpers do it.
const IDENTITY_TOKEN_USER: &str = "<token>";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Config,
    /// The value of `auths` by itself.
    Entries,
}

/// What a file says about who to be where.
#[derive(Debug)]
pub(super) struct LoginFile {
    pub(super) path: PathBuf,
    pub(super) keyring: Keyring,
    /// For every registry that is not in `helpers`.
    helper: Option<HelperName>,
    /// By host; `None` where the file itself is to be used.
    helpers: BTreeMap<String, Option<HelperName>>,
}

impl LoginFile {
    /// The file's logins, and what in it cannot be used. `Ok(None)` if there is no such file.
    pub(super) fn read(
        path: &Path,
        shape: Shape,
        identity: &IdentityKey,
    ) -> Result<Option<(Self, Vec<LoginError>)>, LoginError> {
        let refuse = |problem| LoginError::File { path: path.to_owned(), problem };
        let Some(bytes) = bytes_of(path).map_err(refuse)? else {
            return Ok(None);
        };
        let written = AuthsEntry::parse(&bytes, shape).map_err(refuse)?;
        let mut file = Self {
            path: path.to_owned(),
            keyring: Keyring::new(identity.clone()),
            helper: None,
            helpers: BTreeMap::new(),
        };
        let problems = file.fill(written);
        Ok(Some((file, problems.into_iter().map(refuse).collect())))
    }

    /// The helper that is to be asked first for a registry's login.
    pub(super) fn helper_for(&self, host: &Host) -> Option<&HelperName> {
        self.helpers.get(&host_key(host.as_str())).unwrap_or(&self.helper).as_ref()
    }

    /// Takes over everything that makes sense and returns what does not.
    fn fill(&mut self, written: AuthsEntry) -> Vec<FileProblem> {
        let mut problems = Vec::new();
        for (place, entry) in written.auths {
            if let Err(problem) = self.add(&place, entry.unwrap_or_default()) {
                problems.push(problem);
            }
        }
        // A value that is no name is not quoted: it may be a password in the wrong place.
        let mut named = |name: Option<String>, setting: &dyn Fn() -> String| {
            let name = name.filter(|name| !name.is_empty())?;
            let helper = HelperName::parse(&name);
            if helper.is_none() {
                problems.push(FileProblem::HelperName { setting: setting() });
            }
            helper
        };
        self.helper = named(written.creds_store, &|| "credsStore".to_owned());
        for (place, name) in written.cred_helpers {
            let helper = named(name, &|| format!("credHelpers for {:?}", shown_place(&place)));
            self.helpers.insert(host_key(&place), helper);
        }
        problems
    }

    fn add(&mut self, place: &str, entry: FileEntry) -> Result<(), FileProblem> {
        let Some((username, password)) = entry.login(place)? else {
            return Ok(());
        };
        if self.keyring.add_login(&location(place), &username, &password) {
            Ok(())
        } else {
            Err(FileProblem::Place { location: shown_place(place) })
        }
    }
}

fn bytes_of(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, FileProblem> {
    let unreadable = |error: std::io::Error| FileProblem::Unreadable(error.to_string());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(error)),
    };
    // Room for all of it at once: a buffer that grows leaves copies of what it holds behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST_FILE + 1));
    file.take(LONGEST_FILE as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > LONGEST_FILE {
        return Err(FileProblem::TooLarge(LONGEST_FILE));
    }
    Ok(Some(bytes))
}

/// The file as written.
#[derive(Default)]
struct AuthsEntry {
    auths: Entries,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, Option<String>>,
}

json_object!(AuthsEntry { "auths" => auths, "credsStore" => creds_store, "credHelpers" => cred_helpers });

type Entries = BTreeMap<String, Option<FileEntry>>;

impl AuthsEntry {
    fn parse(bytes: &[u8], shape: Shape) -> Result<Self, FileProblem> {
        // Tools leave an empty file behind when they are stopped while writing, and read it as no logins.
        if bytes.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let parsed = match shape {
            Shape::Config => json::from_slice::<Option<Self>>(bytes),
            Shape::Entries => json::from_slice::<Option<Entries>>(bytes)
                .map(|auths| Some(Self { auths: auths.unwrap_or_default(), ..Self::default() })),
        };
        parsed.map(Option::unwrap_or_default).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            // The decoder's own words are dropped: they quote the value.
            if error.is_data() {
                FileProblem::Type { line, column }
            } else {
                FileProblem::Syntax { line, column }
            }
        })
    }
}

/// Text that is wiped when dropped.
pub(super) struct Secret(pub(super) Zeroizing<String>);

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

#[derive(Default)]
struct FileEntry {
    username: Option<Secret>,
    password: Option<Secret>,
    auth: Option<Secret>,
    identitytoken: Option<Secret>,
    registrytoken: Option<Secret>,
}

json_object!(FileEntry {
    "username" => username,
    "password" => password,
    "auth" => auth,
    "identitytoken" => identitytoken,
    "registrytoken" => registrytoken,
});

type UserAndPassword = (Zeroizing<Vec<u8>>, Zeroizing<Vec<u8>>);

impl FileEntry {
    /// `None` for an entry that only names a place, as tools leave them beside a helper.
    fn login(self, place: &str) -> Result<Option<UserAndPassword>, FileProblem> {
        let given = |text: &Option<Secret>| text.as_ref().is_some_and(|text| !text.0.is_empty());
        let bytes = |text: Option<Secret>| {
            Zeroizing::new(text.map(|text| text.0.as_bytes().to_vec()).unwrap_or_default())
        };
        if given(&self.identitytoken) {
            let user = Zeroizing::new(IDENTITY_TOKEN_USER.as_bytes().to_vec());
            return Ok(Some((user, bytes(self.identitytoken))));
        }
        if let Some(auth) = self.auth.filter(|auth| !auth.0.is_empty()) {
            return match decode(&auth.0) {
                Some(login) => Ok(Some(login)),
                None => Err(FileProblem::Auth { location: shown_place(place) }),
            };
        }
        if given(&self.username) || given(&self.password) {
            return Ok(Some((bytes(self.username), bytes(self.password))));
        }
        if given(&self.registrytoken) {
            return Err(FileProblem::RegistryToken { location: shown_place(place) });
        }
        Ok(None)
    }
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn decode(auth: &str) -> Option<UserAndPassword> {
    let pair = Zeroizing::new(BASE64.decode(auth.trim()).ok()?);
    let at = pair.iter().position(|byte| *byte == b':')?;
    let (user, password) = (pair.get(..at)?, pair.get(at + 1..)?);
    // Docker pads what it encodes with zero bytes and takes them off again.
    let end = password.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Some((Zeroizing::new(user.to_vec()), Zeroizing::new(password.get(..end)?.to_vec())))
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::Reference;
    use proptest::prelude::*;

    use super::*;

    const PASSWORD: &str = "correcthorsebattery";

    fn valid() -> Vec<String> {
        let auth = BASE64.encode(format!("ada:{PASSWORD}"));
        let entries = format!(
            r#"{{"https://index.docker.io/v1/":{{"auth":"{auth}"}},"r.example.com/team":{{"username":"ada","password":"{PASSWORD}"}},"*.example.org":{{"identitytoken":"{PASSWORD}"}},"a":null}}"#
        );
        vec![
            format!(
                r#"{{"auths":{entries},"credsStore":"pass","credHelpers":{{"r.example.com":"gcr","b":null}}}}"#
            ),
            entries,
        ]
    }

    fn read(bytes: &[u8]) {
        for shape in [Shape::Config, Shape::Entries] {
            let Ok(written) = AuthsEntry::parse(bytes, shape) else { continue };
            let mut file = LoginFile {
                path: PathBuf::new(),
                keyring: Keyring::new(IdentityKey::new([0; 32])),
                helper: None,
                helpers: BTreeMap::new(),
            };
            for problem in file.fill(written) {
                let told = problem.to_string();
                assert!(!told.contains(PASSWORD) && told.len() < 2000, "{told}");
            }
            for image in ["nginx", "r.example.com/team/app"] {
                let repository = Reference::parse(image).unwrap().repository();
                let _ = file.helper_for(&repository.host()).is_some();
                drop(file.keyring.lookup(&repository));
            }
        }
    }

    proptest! {
        #[test]
        fn files_with_something_wrong_are_read_or_refused_and_show_nothing(bytes in fairlead_testkit::mutation::mutated(valid())) {
            read(&bytes);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            read(&bytes);
        }
    }
}
