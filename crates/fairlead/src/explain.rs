//! `fairlead explain`: what becomes of an image and why, as admission would decide, from a cluster or from files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use fairlead_domain::duration::Duration;
use fairlead_domain::reference::Reference;
use fairlead_operator::admission::survey::{self, Login, Scope};
use fairlead_operator::admission::{Rewrites, Router};
use fairlead_operator::context::Context as OperatorContext;
use fairlead_operator::platform::config::{Config, Pinning};
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_operator::registries::verdicts;
use fairlead_plan::routing::Index;
use fairlead_registry::Client;
use futures::FutureExt;
use futures::future::join_all;
use serde_json::Value;
use tokio::time::Instant;

use self::cluster::{Cluster, Installation};
use self::files::{Manifests, Mismatch};
use self::image::Reporter;
use self::observe::Observer;
use self::policies::Policies;
use self::report::Explanation;
use self::subject::{MadeUp, Subject};
use crate::access::{self, Access};
use crate::connect::Server;
use crate::ending::run_to_end;
use crate::output::{Output, write};

mod cluster;
pub(crate) mod files;
mod image;
mod observe;
mod policies;
mod report;
mod subject;
mod table;

/// The status for "there is an image that can be had from nowhere".
const NOTHING_AVAILABLE: u8 = 3;

/// The namespace of Pods that name none.
const DEFAULT_POD_NAMESPACE: &str = "default";

/// Say from where an image is pulled and why: every alternative in order, whether it is available, and the choice
///
/// Policies are read from the cluster, or from files with --policies; then no cluster is needed. Ends with 0 if
/// everything was explained, with 1 if what was asked about cannot be read, with 2 for wrong arguments, and with 3 if
/// some image is available from nowhere.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Images, or Pods of the cluster as pod/NAME
    #[arg(value_name = "IMAGE|pod/NAME", required_unless_present = "files")]
    targets: Vec<String>,
    /// File with Pods, or with Deployments, Jobs and other workloads that make Pods; - is standard input; may be given
    /// several times
    #[arg(short, long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Read policies, and the Secrets beside them, from this file or directory instead of the cluster; may be given
    /// several times
    #[arg(long, value_name = "FILE|DIR")]
    policies: Vec<PathBuf>,
    /// The operator's configuration [default: what the cluster's operator has; without a cluster the built-in defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Namespace of the Pod [default: the kubeconfig's, else default]
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Labels of the Pod that an IMAGE is asked in
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Annotations of the Pod that an IMAGE is asked in
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', value_parser = pair)]
    annotations: Vec<(String, String)>,
    /// Pull policy of an IMAGE [default: what the API server fills in]
    #[arg(long, value_name = "POLICY", value_enum)]
    pull_policy: Option<PullPolicyArgument>,
    /// Do not ask registries; only say in which order they would be asked
    #[arg(long)]
    no_probe: bool,
    /// How long registries have to answer, all together
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Duration,
    /// Form of the answer
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    server: Server,
    /// Namespace of the operator [default: where the webhook's Service is, else fairlead-system]
    #[arg(long, value_name = "NS")]
    operator_namespace: Option<String>,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum PullPolicyArgument {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicyArgument {
    fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

fn pair(text: &str) -> Result<(String, String)> {
    let (key, value) = text.split_once('=').context("write the key, '=' and the value")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// What is asked about, as the arguments name it.
enum Target<'a> {
    Pod(&'a str),
    Image(&'a str),
}

impl Target<'_> {
    fn parse(text: &str) -> Result<Target<'_>> {
        match text.split_once('/') {
            Some(("pod" | "pods" | "po", name)) if !name.contains('/') => Ok(Target::Pod(name)),
            _ => {
                Reference::parse(text)?;
                Ok(Target::Image(text))
            }
        }
    }
}

impl Explain {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        ensure!(!self.timeout.is_zero(), "--timeout must be more than nothing");
        let targets = self.targets.iter().map(|text| Target::parse(text)).collect::<Result<Vec<_>>>()?;
        let (given, beside) = (read(&self.files)?, read(&self.policies)?);
        let report = run_to_end(self.explain(&targets, &given, beside))?;
        self.print(&report)?;
        let status = if report.has_unavailable() { NOTHING_AVAILABLE.into() } else { ExitCode::SUCCESS };
        Ok(status)
    }

    async fn explain(
        &self,
        targets: &[Target<'_>],
        given: &Manifests,
        beside: Manifests,
    ) -> Result<Explanation> {
        let cluster = self.cluster(targets).await?;
        let namespace = self.namespace.as_deref();
        let namespace = namespace
            .or(cluster.as_ref().map(Cluster::namespace))
            .unwrap_or(DEFAULT_POD_NAMESPACE)
            .to_owned();
        let mut subjects = self.subjects(targets, given, cluster.as_ref(), &namespace).await?;
        let mut report = Explanation::default();
        report.warnings.extend(self.unused_policies(given));
        // Without policies there is nothing to explain, so a cluster that does not answer is found out here.
        let listed = self.listed_policies(&subjects, cluster.as_ref(), &mut report).await?;

        let installation = match &cluster {
            Some(cluster) => Some(cluster.installation().await),
            None => None,
        };
        let operator_namespace = self.operator_namespace(installation.as_ref());
        let config = self.configuration(cluster.as_ref(), operator_namespace, &mut report.warnings).await?;
        let policies = all_policies(listed, beside, &config, &namespace, &mut report);

        let context = self.context(cluster.as_ref(), operator_namespace, &config, policies.index)?;
        let mut observer = Observer::new(context.clone());
        observer.manifests(&given.objects, &namespace);
        observer.manifests(&policies.manifests, &namespace);
        let ledgers = match &cluster {
            Some(cluster) => self.observe(&mut observer, cluster, &subjects, &mut report.warnings).await,
            None => false,
        };
        observer.complete(&mut subjects);

        let registries = !self.no_probe;
        let scope = Scope { registries, ledgers, every_place: true, login: self.login(cluster.is_some())? };
        let router = |scope| Router::new(context.clone(), Rewrites::default()).within(scope);
        let planner = router(Scope { registries: false, ..scope.clone() });
        let (router, exclusions) = (router(scope), config.exclusions());
        let mut pods = Vec::with_capacity(subjects.len());
        for subject in &subjects {
            let pod = subject.pod();
            let left_alone = pod.left_alone(&exclusions, &subject.namespace, operator_namespace);
            let mut left_alone = left_alone.map(|why| why.to_string());
            if let (Some(cluster), Some(installation)) = (&cluster, &installation)
                && let Some(metadata) = cluster.metadata_of(&subject.namespace).await
            {
                left_alone = left_alone.or_else(|| installation.leaves_out(&metadata));
                context.resources.namespaces.learn(metadata);
            }
            let exempt = || router.exemption(&subject.namespace, &pod).map(|exempt| exempt.why);
            left_alone = left_alone.or_else(exempt);
            pods.push((subject, pod, left_alone));
        }
        report.warnings.extend(installation.into_iter().flat_map(|installation| installation.warnings));

        let deadline = Instant::now() + self.timeout.as_std();
        let surveys = pods.iter().map(|(subject, pod, left_alone)| {
            // Registries have no part in what is left alone.
            let router = if left_alone.is_some() { &planner } else { &router };
            router.survey(&subject.namespace, pod, deadline)
        });
        let (index, cluster) = (context.policies.current(), cluster.is_some());
        let reporter = Reporter { index: &index, config: &config, registries, ledgers, cluster };
        for ((subject, pod, left_alone), survey) in pods.iter().zip(join_all(surveys).await) {
            let left_alone = left_alone.as_deref();
            if left_alone.is_none() {
                report.warnings.extend(image::warnings(subject, &survey));
            }
            let images = survey.images.iter();
            let reports = images.map(|one| reporter.report(subject, pod, one, left_alone, &survey.remarks));
            report.images.extend(reports);
        }
        Ok(report)
    }

    /// Reads what admission would know of the cluster; and says whether that holds the ledgers, which are read where
    /// policies of the cluster make copies.
    async fn observe(
        &self,
        observer: &mut Observer,
        cluster: &Cluster,
        subjects: &[Subject],
        warnings: &mut Vec<String>,
    ) -> bool {
        let context = observer.context.clone();
        if !self.no_probe {
            warnings.extend(observer.accounts(subjects, cluster).await);
        }
        if context.config.account.pinning != Pinning::Off {
            warnings.extend(observer.pins(subjects, cluster).await);
        }
        observer.pods(subjects, cluster, !self.no_probe).await;
        let index = context.policies.current();
        if !self.policies.is_empty() || index.policies().all(|policy| policy.targets().is_empty()) {
            return false;
        }
        let read = cluster.ledgers(&context.claims, &context.namespace).await;
        read.map_err(|warning| warnings.push(warning)).is_ok()
    }
}

/// The policies that hold, and the manifests they were read from.
struct AllPolicies {
    index: Index,
    manifests: Vec<files::Manifest>,
}

/// Compiles the policies that were listed in the cluster and those from files.
fn all_policies(
    listed: Vec<Value>,
    beside: Manifests,
    config: &Config,
    namespace: &str,
    report: &mut Explanation,
) -> AllPolicies {
    let mut policies =
        Policies::new(&config.routing.namespaced_registries).pulling_from(config.harbor.pull_host());
    for object in listed {
        policies.add(None, object, namespace);
    }
    policies.add_manifests(&beside.objects, namespace);
    report.broken.extend(beside.broken);
    report.broken.extend(policies.broken);
    report.warnings.extend(policies.warnings);
    AllPolicies { index: Index::new(policies.compiled), manifests: beside.objects }
}

impl Explain {
    /// A cluster is needed for its policies or for its Pods, and not where files bring both.
    async fn cluster(&self, targets: &[Target<'_>]) -> Result<Option<Cluster>> {
        let names_pod = targets.iter().any(|target| matches!(target, Target::Pod(_)));
        if !self.policies.is_empty() && !names_pod {
            return Ok(None);
        }
        let connection = self.server.connect().await;
        let connection = if names_pod {
            connection.context("Pods are read from a cluster")
        } else {
            connection.context(
                "policies are read from a cluster; to explain without one, name files with --policies",
            )
        }?;
        Ok(Some(Cluster::new(connection.client)))
    }

    async fn subjects(
        &self,
        targets: &[Target<'_>],
        given: &Manifests,
        cluster: Option<&Cluster>,
        namespace: &str,
    ) -> Result<Vec<Subject>> {
        if let Some(broken) = given.broken.first() {
            bail!("{broken}");
        }
        let map = |pairs: &[(String, String)]| pairs.iter().cloned().collect::<BTreeMap<_, _>>();
        let made_up = MadeUp {
            labels: map(&self.labels),
            annotations: map(&self.annotations),
            pull_policy: self.pull_policy.map(|policy| policy.name().to_owned()),
        };
        let mut subjects = Vec::new();
        for target in targets {
            subjects.push(match target {
                Target::Image(image) => made_up.with(image, namespace),
                Target::Pod(name) => {
                    let cluster = cluster.context("a Pod of the cluster needs a cluster")?;
                    let pod = cluster.pod(namespace, name).await?;
                    Subject::running(&pod).map_err(|Mismatch { field, message }| {
                        anyhow!("cannot read Pod {namespace}/{name}: {field}: {message}")
                    })?
                }
            });
        }
        let in_files = given.objects.iter().filter_map(|manifest| Subject::of(manifest, namespace));
        for subject in in_files {
            subjects.push(subject.map_err(|broken| anyhow!("{broken}"))?);
        }
        ensure!(
            !subjects.is_empty(),
            "there is nothing to explain: {} no Pod and no workload that makes Pods",
            if self.files.len() == 1 { "the file holds" } else { "the files hold" }
        );
        if let Some(subject) = subjects.iter().find(|subject| subject.pod().images().is_empty()) {
            bail!("there is nothing to explain: {subject} names no image");
        }
        Ok(subjects)
    }

    /// Policies count only where they are asked for, which is easily forgotten when they stand beside the Pod.
    fn unused_policies(&self, given: &Manifests) -> Option<String> {
        let count =
            given.objects.iter().filter(|manifest| policies::kind(&manifest.object).is_some()).count();
        let is_read_as_well = self.files.iter().all(|file| self.policies.contains(file));
        (count > 0 && !is_read_as_well).then(|| {
            format!(
                "{count} policies among the manifests of -f are not used; name their file with --policies"
            )
        })
    }

    /// The policies of the cluster, unless there are others from files.
    async fn listed_policies(
        &self,
        subjects: &[Subject],
        cluster: Option<&Cluster>,
        report: &mut Explanation,
    ) -> Result<Vec<Value>> {
        if !self.policies.is_empty() {
            return Ok(Vec::new());
        }
        let cluster = cluster.context("policies without a cluster need --policies")?;
        let namespaces: BTreeSet<&str> = subjects.iter().map(|subject| subject.namespace.as_str()).collect();
        let listed = cluster.policies(&namespaces).await?;
        report.warnings.extend(listed.warnings);
        Ok(listed.objects)
    }

    fn operator_namespace<'a>(&'a self, installation: Option<&'a Installation>) -> &'a str {
        let seen = || installation.and_then(|installation| installation.namespace.as_deref());
        self.operator_namespace.as_deref().or_else(seen).unwrap_or(DEFAULT_NAMESPACE)
    }

    async fn configuration(
        &self,
        cluster: Option<&Cluster>,
        operator_namespace: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Config> {
        if let Some(file) = &self.config {
            return Ok(Config::load(Some(file), |_| None)?.config);
        }
        let Some(cluster) = cluster else { return Ok(Config::default()) };
        let (mut config, told) = cluster.configuration(operator_namespace).await;
        warnings.extend(told);
        let registries = &mut config.registries;
        for options in registries.hosts.values_mut().chain([&mut registries.default]) {
            let missing = options.ca_file.take_if(|file| !std::path::Path::new(file).exists());
            warnings.extend(missing.map(|file| {
                format!("the operator trusts the authorities in {file}, which is not here: use --ca-file HOST=FILE")
            }));
        }
        Ok(config)
    }

    /// What admission would work with. Registries have the time that the person gives them.
    fn context(
        &self,
        cluster: Option<&Cluster>,
        operator_namespace: &str,
        config: &Config,
        index: Index,
    ) -> Result<Arc<OperatorContext>> {
        let mut settings = self.access.settings(verdicts::settings(config))?;
        settings.fenced = false;
        let mut config = config.clone();
        config.routing.active_check.timeout = Some(self.timeout.clone());
        let client = cluster.map_or_else(survey::no_cluster, Cluster::client);
        Ok(survey::context(client, operator_namespace, config, Client::new(settings), index))
    }

    /// In a cluster the Secrets decide, as for the operator; a user who names a file of logins wants them to count,
    /// too.
    fn login(&self, in_cluster: bool) -> Result<Option<Login>> {
        if self.no_probe || in_cluster && !self.access.names_logins() {
            return Ok(None);
        }
        let person = Arc::new(self.access.person()?);
        Ok(Some(Arc::new(move |image: Reference| {
            let person = person.clone();
            async move { person.credentials(&image.repository(), access::warn).await }.boxed()
        })))
    }

    fn print(&self, report: &Explanation) -> Result<()> {
        let text = match self.output {
            Output::Json => {
                let json = serde_json::to_string_pretty(report).context("cannot write the explanation")?;
                format!("{json}\n")
            }
            Output::Table => {
                for warning in &report.warnings {
                    access::warn(warning);
                }
                table::table(report)
            }
        };
        write(&text).map(drop)
    }
}

fn read(paths: &[PathBuf]) -> Result<Manifests> {
    let mut manifests = Manifests::default();
    for path in paths {
        manifests.read(path)?;
    }
    Ok(manifests)
}
