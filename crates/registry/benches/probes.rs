//! How fast images are probed, beside a bare HTTP client that sends the same requests, and what identical probes cost.
//!
//! Run with `cargo bench -p fairlead-registry --bench probes`. Ratios matter; times depend on the machine.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "printing is what a benchmark is for")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fairlead_domain::reference::Reference;
use fairlead_registry::manifest::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use fairlead_registry::{Budget, Class, Client, Context, ProbeOptions, Settings};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault};
use fairlead_testkit::images::{self, Image};
use fairlead_testkit::measure::{Align, Bar, Bars, Table, median};
use fairlead_testkit::registry::Endpoint;
use fairlead_testkit::{Registry, RegistryConfig, install_crypto};
use futures::{StreamExt, TryStreamExt, future, stream};
use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE};

const IMAGES: usize = 1000;
const AT_ONCE: usize = 16;
const RUNS: usize = 7;
const CALLERS: usize = 500;
/// The least that probing may reach of the bare client's rate.
const SHARE: f64 = 0.5;
const DEADLINE: Duration = Duration::from_mins(2);

#[tokio::main]
async fn main() -> ExitCode {
    install_crypto();
    match tokio::time::timeout(5 * DEADLINE, measure()).await {
        Ok(Ok(true)) => ExitCode::SUCCESS,
        Ok(Ok(false)) => ExitCode::FAILURE,
        Ok(Err(error)) => {
            eprintln!("The measurement could not go on: {error:#}");
            ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("The measurement took too long and was given up");
            ExitCode::FAILURE
        }
    }
}

async fn measure() -> Result<bool> {
    let image = images::holding("probed")?;
    let mut bars = Bars::default();
    println!("Probes of {IMAGES} images, {AT_ONCE} at once, medians of {RUNS} runs");
    let mut table = Table::new(&[
        ("registry", Align::Left),
        ("probes/s", Align::Right),
        ("bare requests/s", Align::Right),
    ]);
    let mut held = Vec::new();

    let real = Registry::start(RegistryConfig::new()).await?;
    fill(real.endpoint(), &image).await?;
    let fake = FakeRegistry::start().await?;
    for number in 0..IMAGES {
        fake.hold("app", &tag(number), &image);
    }
    for (name, host) in [("distribution 3", real.host()), ("one that does nothing else", fake.host())] {
        let Rates { ours, bare } = compare(&host).await?;
        table.row(vec![name.to_owned(), format!("{ours:.0}"), format!("{bare:.0}")]);
        held.push(Bar::at_least(format!("{name}: rate of probes, of the bare client's"), ours / bare, SHARE));
    }
    print!("{table}{}", bars.add(held));

    let Identical { sent, in_flight } = identical(&image).await?;
    println!("\n{CALLERS} callers ask for one image at the same time: requests sent {sent}");
    print!("{}", bars.add(vec![Bar::at_most("most requests in flight for one probe", in_flight, 1.0)]));
    print!("\nProbes: {bars}");
    Ok(bars.all_held())
}

fn tag(number: usize) -> String {
    format!("v{number}")
}

/// One image under many tags.
async fn fill(endpoint: &Endpoint, image: &Image) -> Result<()> {
    endpoint.push("app", &tag(0), image).await?;
    let client = endpoint.http()?;
    let client = &client;
    stream::iter(1..IMAGES)
        .map(|number| async move {
            let put = endpoint
                .request(client, Method::PUT, &format!("/v2/app/manifests/{}", tag(number)))
                .header(CONTENT_TYPE, &image.root().media_type)
                .body(image.root().bytes.clone());
            put.send().await?.error_for_status().context("a tag was not accepted")
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(|_| future::ok(()))
        .await
}

struct Rates {
    ours: f64,
    bare: f64,
}

async fn compare(host: &str) -> Result<Rates> {
    let references: Vec<Reference> = (0..IMAGES)
        .map(|number| Reference::parse(&format!("{host}/app:{}", tag(number))).context("a reference"))
        .collect::<Result<_>>()?;
    let urls: Vec<String> =
        (0..IMAGES).map(|number| format!("http://{host}/v2/app/manifests/{}", tag(number))).collect();
    let (references, urls) = (Arc::new(references), Arc::new(urls));
    let client = client();
    let plain = reqwest::Client::builder().no_proxy().build()?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    // The first round opens connections and does not count.
    for round in 0..=RUNS {
        let probing = rate(&references, {
            let client = client.clone();
            move |reference: Reference| {
                let client = client.clone();
                async move {
                    let context = context();
                    let verdict = client.probe(&reference, &[], ProbeOptions::default(), &context).await;
                    ensure!(verdict.is_available(), "{reference}: {verdict}");
                    Ok(())
                }
            }
        });
        let probing = probing.await?;
        let sending = rate(&urls, {
            let client = plain.clone();
            move |url: String| {
                let client = client.clone();
                async move {
                    let accepted = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST].join(", ");
                    let answer = client.head(&url).header(ACCEPT, accepted).send().await?;
                    let stated = answer.headers().contains_key("docker-content-digest");
                    ensure!(answer.status().is_success() && stated, "{url}: {}", answer.status());
                    Ok(())
                }
            }
        });
        let sending = sending.await?;
        if round > 0 {
            ours.push(probing);
            bare.push(sending);
        }
    }
    Ok(Rates { ours: median(ours), bare: median(bare) })
}

fn client() -> Client {
    let mut settings = Settings::default();
    settings.default.budget = Budget { rate: None, ..settings.default.budget };
    Client::new(settings)
}

fn context() -> Context {
    Context::new(Class::Admission, tokio::time::Instant::now() + DEADLINE)
}

/// Asks everything once, so many at a time, and returns how many were answered in a second.
async fn rate<T, F, A>(all: &Arc<Vec<T>>, ask: F) -> Result<f64>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(T) -> A + Clone + Send + 'static,
    A: Future<Output = Result<()>> + Send,
{
    let started = Instant::now();
    let workers = (0..AT_ONCE).map(|worker| {
        let (all, ask) = (Arc::clone(all), ask.clone());
        tokio::spawn(async move {
            for one in all.iter().skip(worker).step_by(AT_ONCE) {
                ask(one.clone()).await?;
            }
            Ok::<_, anyhow::Error>(())
        })
    });
    for worker in future::join_all(workers).await {
        worker??;
    }
    let count = u32::try_from(all.len())?;
    Ok(f64::from(count) / started.elapsed().as_secs_f64())
}

struct Identical {
    sent: usize,
    /// The most that the registry had to answer at one time.
    in_flight: f64,
}

/// What a registry sees while many ask the same.
async fn identical(image: &Image) -> Result<Identical> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", image);
    let reference = Reference::parse(&format!("{}/app:1", registry.host())).context("a reference")?;
    let client = client();
    let warm = client.probe(&reference, &[], ProbeOptions::default(), &context()).await;
    ensure!(warm.is_available(), "{warm}");
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(300))));
    let (asked, context) = (registry.requests().len(), context());
    let probes = (0..CALLERS).map(|_| client.probe(&reference, &[], ProbeOptions::default(), &context));
    let verdicts = future::join_all(probes).await;
    ensure!(verdicts.iter().all(fairlead_domain::verdict::Verdict::is_available), "a probe failed");
    let in_flight = f64::from(u32::try_from(registry.peak_in_flight())?);
    Ok(Identical { sent: registry.requests().len() - asked, in_flight })
}
