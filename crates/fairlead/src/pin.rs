//! `fairlead pin`: prints manifests with the digests of their images, for those who keep manifests in git.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use fairlead_domain::digest::Digest;
use fairlead_domain::duration::Duration;
use fairlead_domain::reference::Reference;
use fairlead_plan::pinning::{self, ReadContents, RunningImage};
use fairlead_registry::{Class, Client, Context, ProbeOptions, Settings};
use futures::{StreamExt, stream};
use serde::Serialize;
use tokio::time::Instant;

use self::places::{ImageField, Left, Workload};
use crate::access::{self, Access, Person};
use crate::connect::Server;
use crate::ending::run_to_end;
use crate::explain::files;
use crate::inventory::registries::{Answers, Questions, Registries};
use crate::output::{FAILING, MISUSED, tell, write};

mod document;
mod places;
mod running;
#[cfg(test)]
mod tests;

/// Images that registries are asked about at once; each registry has its own, lower limit.
const AT_ONCE: usize = 32;

/// Version of the report that programs read.
const VERSION: u32 = 1;

/// Print manifests with every image tag held to a digest
///
/// Pods, workloads with Pod templates, and lists of them are pinned; everything else is printed as it is. Only the
/// images change: a digest is put behind each tag, and comments, order and quotes stay. Ends with 0 if every tag has
/// got its digest, with 2 if the manifests cannot be read, and with 3 if some tag stays; standard error names it.
#[derive(Debug, Args)]
pub(crate) struct Pin {
    /// File with manifests in YAML or JSON; - is standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    file: PathBuf,
    /// Where digests come from
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Origin::Running)]
    from: Origin,
    /// Namespace of objects whose manifest names none [default: the one of the kubeconfig]
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// What is printed
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = PinOutput::Manifests)]
    output: PinOutput,
    /// How long to wait for a registry's answer about one image
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Duration,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Origin {
    /// What the Pods of the cluster run
    Running,
    /// What registries serve now
    Registry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PinOutput {
    /// The manifests
    Manifests,
    /// A report about every image, in JSON
    Json,
}

/// What was done, for programs.
#[derive(Debug, Serialize)]
struct PinReport {
    version: u32,
    from: Origin,
    images: Vec<ImageReport>,
}

#[derive(Debug, Serialize)]
struct ImageReport {
    file: String,
    document: usize,
    line: usize,
    object: String,
    field: String,
    image: String,
    state: State,
    /// The image with its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<String>,
    /// Why it stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Pinned,
    /// There was nothing to do.
    Left,
    Failed,
}

/// The digest of an image, or why it is not known.
type FoundDigest = Result<Digest, String>;

/// The same for a field, which may need none.
type PinResult = Result<Option<Digest>, String>;

impl Pin {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        let file = files::name(&self.file);
        let misused = |error: anyhow::Error| {
            tell(&format!("Error: {error:#}"));
            Ok(MISUSED.into())
        };
        let text = match files::text(&self.file).with_context(|| format!("cannot read {file}")) {
            Ok(text) => text,
            Err(error) => return misused(error),
        };
        let documents = match document::parse(&text).with_context(|| file.clone()) {
            Ok(documents) => documents,
            Err(error) => return misused(error),
        };
        let mut workloads = match places::workloads(&documents).with_context(|| file.clone()) {
            Ok(workloads) => workloads,
            Err(error) => return misused(error),
        };
        if let Some(namespace) = &self.namespace {
            for workload in &mut workloads {
                workload.namespace.get_or_insert_with(|| namespace.clone());
            }
        }
        let digests = run_to_end(self.digests(&workloads))?;
        let digests = places::agree(&workloads, &digests);
        let mut insertions = Vec::new();
        let mut report = PinReport { version: VERSION, from: self.from, images: Vec::new() };
        let fields =
            workloads.iter().flat_map(|workload| workload.images.iter().map(move |field| (workload, field)));
        for ((workload, field), found) in fields.zip(digests) {
            if let Ok(Some(digest)) = &found {
                insertions.extend(field.insertion(digest));
            }
            report.images.push(ImageReport::new(&file, workload, field, found));
        }
        let failed = report.images.iter().filter(|image| image.state == State::Failed);
        let failures: Vec<_> = failed.map(ImageReport::told).collect();
        match self.output {
            PinOutput::Manifests => {
                failures.iter().for_each(access::warn);
                write(&document::insert(&text, &insertions))?;
            }
            PinOutput::Json => {
                write(&(serde_json::to_string_pretty(&report).context("cannot write the report")? + "\n"))?;
            }
        }
        Ok(if failures.is_empty() { ExitCode::SUCCESS } else { FAILING.into() })
    }

    /// The digest of each image, in order; none where there is nothing to do.
    async fn digests(&mut self, workloads: &[Workload]) -> Result<Vec<PinResult>> {
        let to_do = workloads.iter().flat_map(|one| &one.images).any(|field| field.tag.is_ok());
        let found = match self.from {
            _ if !to_do => Vec::new(),
            Origin::Registry => self.by_registry(workloads).await?,
            Origin::Running => self.by_cluster(workloads).await?,
        };
        let mut found = found.into_iter();
        let of = |field: &ImageField| match &field.tag {
            Ok(_) => found.next().unwrap_or_else(|| Err("nothing was asked".to_owned())).map(Some),
            Err(Left::Right(_)) => Ok(None),
            Err(Left::Wrong(why)) => Err(why.clone()),
        };
        Ok(workloads.iter().flat_map(|one| &one.images).map(of).collect())
    }

    async fn by_registry(&self, workloads: &[Workload]) -> Result<Vec<FoundDigest>> {
        let client = Client::new(self.access.settings(Settings::default())?);
        let person = self.access.person()?;
        let tags: Vec<&Reference> = tags(workloads).collect();
        let mut distinct = tags.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let ask = async |tag: &Reference| (tag.clone(), self.ask(&client, &person, tag).await);
        let answers: HashMap<Reference, FoundDigest> =
            stream::iter(distinct).map(ask).buffer_unordered(AT_ONCE).collect().await;
        let unasked = || Err("nothing was asked".to_owned());
        Ok(tags.into_iter().map(|tag| answers.get(tag).cloned().unwrap_or_else(unasked)).collect())
    }

    async fn ask(&self, client: &Client, person: &Person, image: &Reference) -> FoundDigest {
        let credentials = person.credentials(&image.repository(), access::warn).await;
        let context = Context::new(Class::Admission, Instant::now() + self.timeout.as_std());
        let verdict = client.probe(image, &credentials, ProbeOptions::default(), &context).await;
        verdict.digest().ok_or_else(|| {
            let told = verdict.to_string();
            format!("it is {told}{}", access::hint(&told))
        })
    }

    async fn by_cluster(&self, workloads: &[Workload]) -> Result<Vec<FoundDigest>> {
        let client = self.server.connect().await?.client;
        let (mut found, mut answers) = (Vec::new(), Answers::default());
        for workload in workloads.iter().filter(|one| one.images.iter().any(|field| field.tag.is_ok())) {
            let mut running = running::images(&client, workload).await;
            if let Ok(running) = &mut running {
                self.read(running.values().flatten(), &mut answers).await?;
                self.prove(running.values_mut().flatten()).await?;
            }
            let unread = |digest: &Digest| answers.unread(digest).map(str::to_owned);
            let now = |tag: &Reference| answers.asked(tag).cloned();
            let read = ReadContents { contents: &answers.contents, unread: &unread, now: &now };
            for field in &workload.images {
                let Ok(tag) = &field.tag else { continue };
                found.push(match &running {
                    Ok(running) => {
                        let images = running.get(&field.key).map(Vec::as_slice).unwrap_or_default();
                        pinning::running(tag, images, read).map_err(|error| error.to_string())
                    }
                    Err(error) => Err(error.to_string()),
                });
            }
        }
        Ok(found)
    }

    /// Asks registries whether they have what only annotations of Pods name.
    async fn prove(&self, images: impl Iterator<Item = &mut RunningImage>) -> Result<()> {
        let mut claims: HashMap<Reference, Vec<&mut RunningImage>> = HashMap::new();
        for image in images {
            if let (Some(digest), Ok(reference)) = (image.unproven(), Reference::parse(&image.image)) {
                claims.entry(reference.without_tag().with_digest(&digest)).or_default().push(image);
            }
        }
        if claims.is_empty() {
            return Ok(());
        }
        let client = Client::new(self.access.settings(Settings::default())?);
        let person = self.access.person()?;
        let ask = async |(claim, images): (Reference, Vec<_>)| {
            (self.ask(&client, &person, &claim).await.err().map(|why| format!("{claim}: {why}")), images)
        };
        let asked = stream::iter(claims).map(ask).buffer_unordered(AT_ONCE);
        let asked: Vec<(Option<String>, Vec<&mut RunningImage>)> = asked.collect().await;
        for (doubt, images) in asked {
            for image in images {
                image.doubt.clone_from(&doubt);
            }
        }
        Ok(())
    }

    /// Asks registries what tells whether kubelets report what was recorded, or the image of one platform.
    async fn read(
        &self,
        images: impl Iterator<Item = &RunningImage> + Clone,
        answers: &mut Answers,
    ) -> Result<()> {
        loop {
            let mut questions = Questions::default();
            let unread = |digest: &Digest| answers.unread(digest).map(str::to_owned);
            let now = |tag: &Reference| answers.asked(tag).cloned();
            let read = ReadContents { contents: &answers.contents, unread: &unread, now: &now };
            for image in images.clone() {
                if let Some(digest) = image.to_read(read) {
                    questions.digests.entry(digest).or_default().extend(image.repositories());
                }
                questions.tags.extend(image.to_ask(read));
            }
            if questions.is_empty() {
                return Ok(());
            }
            let registries = Registries::new(&self.access, Instant::now() + self.timeout.as_std())?;
            if !registries.ask(questions, answers).await {
                return Ok(());
            }
        }
    }
}

fn tags(workloads: &[Workload]) -> impl Iterator<Item = &Reference> {
    workloads.iter().flat_map(|workload| &workload.images).filter_map(|field| field.tag.as_ref().ok())
}

impl ImageReport {
    fn new(file: &str, workload: &Workload, field: &ImageField, found: PinResult) -> Self {
        let (state, pinned, why) = match (found, &field.tag) {
            (Ok(Some(digest)), _) => (State::Pinned, Some(field.pinned(&digest)), None),
            (Ok(None), Err(Left::Right(why))) => (State::Left, None, Some((*why).to_owned())),
            (Ok(None), _) => (State::Left, None, None),
            (Err(why), _) => (State::Failed, None, Some(why)),
        };
        Self {
            file: file.to_owned(),
            document: workload.document,
            line: field.line,
            object: workload.title(),
            field: field.path.clone(),
            image: field.image.clone(),
            state,
            pinned,
            why,
        }
    }

    fn told(&self) -> String {
        let Self { file, document, line, object, field, image, why, .. } = self;
        let why = why.as_deref().unwrap_or_default();
        format!("{file}:{line} (document {document}, {object}) {field}: {image} is not pinned: {why}")
    }
}
