//! What registries know and Pods do not say: what is behind digests, and which digest a tag names now. They are asked
//! with the logins of the person, about no more than is needed, once, and within a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{Reference, Repository};
use fairlead_operator::capabilities::account::observe::content;
use fairlead_plan::inventory::{Content, Contents};
use fairlead_registry::manifest::Selector;
use fairlead_registry::{Class, Client, Context, ProbeOptions, Problem, Right, Settings};
use futures::{StreamExt, stream};
use tokio::time::Instant;

use crate::access::{self, Access, Person};

/// Questions that are open at once; each registry has its own, lower limit.
const AT_ONCE: usize = 32;

/// What is to be asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Questions {
    /// What is behind digests, and where they may be read.
    pub(crate) digests: BTreeMap<Digest, BTreeSet<Repository>>,
    /// Which digests these name now.
    pub(crate) tags: BTreeSet<Reference>,
}

impl Questions {
    pub(crate) fn digest(&mut self, digest: Digest, image: &str) {
        let repositories = self.digests.entry(digest).or_default();
        repositories.extend(Reference::parse(image).ok().map(|image| image.repository()));
    }

    pub(crate) fn tag(&mut self, image: &str) {
        self.tags.extend(Reference::parse(image).ok().filter(|image| image.digest().is_none()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.digests.is_empty() && self.tags.is_empty()
    }
}

/// What registries said. Where none is asked, nothing will be read.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) contents: Contents,
    asking: bool,
    /// What could not be read, and why.
    unreadable: BTreeMap<Digest, String>,
    tags: HashMap<Reference, Result<Digest, String>>,
}

impl Answers {
    pub(crate) fn given_up(&self, digest: &Digest) -> bool {
        !self.asking || self.unreadable.contains_key(digest)
    }

    /// Why a digest could not be read.
    pub(crate) fn unread(&self, digest: &Digest) -> Option<&str> {
        self.unreadable.get(digest).map(String::as_str)
    }

    pub(crate) fn now(&self, image: &str) -> Option<Digest> {
        self.asked(&Reference::parse(image).ok()?)?.as_ref().ok().copied()
    }

    /// What was said of a tag, if it was asked about.
    pub(crate) fn asked(&self, tag: &Reference) -> Option<&Result<Digest, String>> {
        self.tags.get(tag)
    }

    /// What could not be found out.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some((digest, why)) = self.unreadable.first_key_value() {
            problems.push(format!(
                "{} could not be read, so some images are not compared: {digest}: {why}",
                counted(self.unreadable.len(), "digest")
            ));
        }
        let failed = self.tags.iter().filter_map(|(tag, found)| Some((tag, found.as_ref().err()?)));
        let failed: BTreeMap<_, _> = failed.collect();
        if let Some((tag, why)) = failed.first_key_value() {
            let tags = counted(failed.len(), "tag");
            problems.push(format!("which digest {tags} name now is not known: {tag}: {why}"));
        }
        problems
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Why it is not known what is behind a digest.
struct Unread {
    why: String,
    /// It is in none of the repositories.
    is_absent: bool,
}

/// The registries, as the person who runs the command may ask them.
pub(crate) struct Registries {
    client: Client,
    person: Person,
    deadline: Instant,
}

impl Registries {
    pub(crate) fn new(access: &Access, deadline: Instant) -> Result<Self> {
        let client = Client::new(access.settings(Settings::default())?);
        Ok(Self { client, person: access.person()?, deadline })
    }

    /// Asks what was not asked yet. Returns whether there was something.
    pub(crate) async fn ask(&self, questions: Questions, answers: &mut Answers) -> bool {
        answers.asking = true;
        let Questions { mut digests, mut tags } = questions;
        digests.retain(|digest, _| {
            answers.contents.get(digest).is_none() && !answers.unreadable.contains_key(digest)
        });
        tags.retain(|tag| !answers.tags.contains_key(tag));
        let open = Questions { digests, tags };
        if open.is_empty() {
            return false;
        }
        let Questions { digests, tags } = open;
        let reading =
            digests.into_iter().map(async |(digest, places)| (digest, self.read(digest, places).await));
        let reading = stream::iter(reading).buffer_unordered(AT_ONCE).collect::<Vec<_>>();
        let looking = tags.into_iter().map(async |tag| {
            let found = self.look(&tag).await;
            (tag, found)
        });
        let looking = stream::iter(looking).buffer_unordered(AT_ONCE).collect::<Vec<_>>();
        let (read, looked) = tokio::join!(reading, looking);
        for (digest, found) in read {
            match found {
                Ok(content) => {
                    if !answers.contents.learn(digest, content) {
                        answers.unreadable.insert(digest, "too many others are read".to_owned());
                    }
                }
                Err(Unread { why, is_absent }) => {
                    if is_absent {
                        answers.contents.miss(digest);
                    }
                    answers.unreadable.insert(digest, why);
                }
            }
        }
        answers.tags.extend(looked);
        true
    }

    fn context(&self) -> Context {
        Context::new(Class::Admission, self.deadline)
    }

    /// Reads what is behind a digest, in the first repository that has it.
    async fn read(&self, digest: Digest, places: BTreeSet<Repository>) -> Result<Content, Unread> {
        let mut unread = Unread { why: "it is not known where".to_owned(), is_absent: !places.is_empty() };
        for place in places {
            let credentials = self.person.credentials(&place, access::warn).await;
            let reading = async {
                let repository = self.client.repository(&place, credentials, Right::Pull)?;
                repository.manifest(&Selector::from(digest), &self.context()).await?.content()
            };
            match reading.await {
                Ok(read) => return Ok(content(read)),
                Err(error) => {
                    unread.is_absent &= matches!(error.problem, Problem::NotFound(_));
                    let told = error.to_string();
                    unread.why = format!("{told}{}", access::hint(&told));
                }
            }
        }
        Err(unread)
    }

    /// Which digest a tag names now.
    async fn look(&self, tag: &Reference) -> Result<Digest, String> {
        let credentials = self.person.credentials(&tag.repository(), access::warn).await;
        let verdict = self.client.probe(tag, &credentials, ProbeOptions::default(), &self.context()).await;
        verdict.digest().ok_or_else(|| {
            let told = verdict.to_string();
            format!("it is {told}{}", access::hint(&told))
        })
    }
}
