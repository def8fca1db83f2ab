//! What is known about images, and what registries get to see of it.

mod liveness;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_domain::keyring::{Credential, IdentityKey, Keyring};
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::{Verdict, VerdictKind};
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::telemetry::page;
use fairlead_operator::registries::verdicts::{KnownVerdict, Metrics, VerdictSettings, Verdicts, client};
use fairlead_plan::named_registries::Named;
use fairlead_registry::Client;
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::{Auth, Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::{ImageBuilder, holding};
use futures::future::join_all;
use prometheus_client::registry::Registry;
use tokio_util::sync::{CancellationToken, DropGuard};

const SECOND: Duration = Duration::from_secs(1);
/// Less than a probe of a hanging registry takes: only a caller that waits for one waits so long.
const ONE_WAIT: Duration = Duration::from_millis(900);

/// Verdicts as the operator has them, refreshed in the background until dropped.
struct Bench {
    client: Client,
    verdicts: Verdicts,
    metrics: Registry,
    _running: DropGuard,
}

impl Bench {
    fn start(config: &str) -> Result<Self> {
        let config = Config::parse(config)?.config;
        let client = client(&config);
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, &client);
        let verdicts = Verdicts::new(client.clone(), VerdictSettings::from(&config), metrics);
        let shutdown = CancellationToken::new();
        tokio::spawn(verdicts.clone().run(Arc::<Named>::default, shutdown.clone()));
        Ok(Self { client, verdicts, metrics: registry, _running: shutdown.drop_guard() })
    }

    async fn ask(&self, image: &Reference, credentials: &[Credential]) -> Verdict {
        let deadline = tokio::time::Instant::now() + 4 * SECOND;
        self.verdicts.ask(image, credentials, "team", deadline).await
    }

    /// What is remembered, also if its registry has to be checked before it serves.
    fn known(&self, image: &Reference) -> Option<Verdict> {
        remembered(self.verdicts.known(image, &[]))
    }

    fn page(&self) -> Result<String> {
        Ok(page::text(&self.metrics)?)
    }

    /// Waits until the image can be had by every caller.
    async fn finds(&self, image: &Reference, within: Duration) -> Result<()> {
        eventually(within, || async {
            let verdict = self.ask(image, &[]).await;
            ensure!(verdict.is_available(), "{verdict}");
            Ok(())
        })
        .await
    }

    /// Waits until this is known of the image, without ever asking the registry for it.
    async fn learns(&self, image: &Reference, within: Duration, kind: VerdictKind) -> Result<()> {
        eventually(within, || async {
            let known = self.known(image);
            ensure!(known.as_ref().is_some_and(|known| known.kind() == kind), "{known:?}");
            Ok(())
        })
        .await
    }
}

fn remembered(known: KnownVerdict) -> Option<Verdict> {
    match known {
        KnownVerdict::Verdict(verdict) | KnownVerdict::Unproven(verdict) => Some(verdict),
        KnownVerdict::Nothing => None,
    }
}

fn reference(registry: &FakeRegistry, rest: &str) -> Result<Reference> {
    Reference::parse(&format!("{}/{rest}", registry.host())).context("a reference")
}

fn login(image: &Reference, user: &str) -> Vec<Credential> {
    let mut keyring = Keyring::new(IdentityKey::new([9; 32]));
    assert!(keyring.add_login(image.host().as_str(), user.as_bytes(), b"secret"));
    keyring.lookup(&image.repository())
}

/// Manifests that were asked for, not counting how we said who we are.
fn questions(registry: &FakeRegistry) -> usize {
    registry.count("HEAD", "/manifests/")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pods_with_one_image_are_one_request() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &holding("a")?);
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(200))));
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    assert_eq!(bench.known(&image), None);
    let verdicts = join_all((0..50).map(|_| bench.ask(&image, &[]))).await;
    assert!(verdicts.iter().all(Verdict::is_available), "{verdicts:?}");
    assert_eq!(bench.known(&image).as_ref(), verdicts.first());
    for _ in 0..50 {
        bench.ask(&image, &[]).await;
    }
    assert_eq!(registry.requests().len(), 1);
    let page = bench.page()?;
    let counted = format!(
        "fairlead_probes_total{{registry=\"{}\",source=\"admission\",verdict=\"available\"}} 1",
        registry.host()
    );
    assert!(page.contains(&counted), "{page}");
    assert!(
        page.contains(&format!("fairlead_registry_down{{registry=\"{}\"}} 0", registry.host())),
        "{page}"
    );
    Ok(())
}

#[tokio::test]
async fn what_one_namespace_may_see_is_not_told_to_another() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &holding("a")?);
    registry.require(Auth::Basic(HashMap::from([("ada".to_owned(), "secret".to_owned())])));
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    let (ada, bob) = (login(&image, "ada"), login(&image, "bob"));
    assert!(bench.ask(&image, &ada).await.is_available());
    assert_eq!(bench.verdicts.known(&image, &bob), KnownVerdict::Nothing);
    assert_eq!(bench.known(&image), None);
    assert_eq!(bench.ask(&image, &bob).await.kind(), VerdictKind::Unauthorised);
    assert_eq!(bench.ask(&image, &[]).await.kind(), VerdictKind::Unauthorised);
    assert!(remembered(bench.verdicts.known(&image, &ada)).is_some_and(|known| known.is_available()));
    Ok(())
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_its_answer_behind() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &holding("a")?);
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(400))));
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);

    let hasty = tokio::time::Instant::now() + Duration::from_millis(100);
    let verdict = bench.verdicts.ask(&image, &[], "team", hasty).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "its own deadline passed");
    assert_eq!(bench.known(&image), None, "which is nobody else's business");
    bench.learns(&image, 2 * SECOND, VerdictKind::Available).await?;

    let other = reference(&registry, "other:1")?;
    registry.hold("other", "1", &holding("b")?);
    let task = {
        let (verdicts, other) = (bench.verdicts.clone(), other.clone());
        let deadline = tokio::time::Instant::now() + SECOND;
        tokio::spawn(async move { verdicts.ask(&other, &[], "team", deadline).await })
    };
    eventually(2 * SECOND, || async {
        ensure!(questions(&registry) == 2);
        Ok(())
    })
    .await?;
    task.abort();
    bench.learns(&other, 2 * SECOND, VerdictKind::Available).await?;
    assert_eq!(questions(&registry), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_registry_is_waited_for_once_and_used_again_when_it_is_back() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let mut images = Vec::new();
    for count in 0..50 {
        registry.hold("app", &count.to_string(), &holding(&count.to_string())?);
        images.push(reference(&registry, &format!("app:{count}"))?);
    }
    registry.inject(Fault::new(Effect::Hang));
    let bench = Bench::start("{}")?;
    let started = Instant::now();
    let first = join_all(images.iter().take(8).map(|image| bench.ask(image, &[]))).await;
    assert!(first.iter().all(|verdict| verdict.kind() == VerdictKind::Unreachable), "{first:?}");
    assert!(started.elapsed() < 4 * SECOND, "one after the other: {:?}", started.elapsed());

    // For longer than a trial takes, so that trials are part of it.
    let (silence, started) = (questions(&registry), Instant::now());
    let (mut asks, mut unknown) = (0, 0);
    while started.elapsed() < 3 * SECOND {
        for image in &images {
            let asked = Instant::now();
            let verdict = bench.ask(image, &[]).await;
            assert_eq!(verdict.kind(), VerdictKind::Unreachable);
            asks += 1;
            unknown += usize::from(bench.known(image).is_none());
            assert!(asked.elapsed() < ONE_WAIT, "waited {:?}", asked.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What is known ends with each trial, and is known again from the next question on.
    assert!(unknown * 20 < asks, "{unknown} of {asks}, also of images that were never asked for");
    assert_eq!(questions(&registry), silence, "a registry that is down is left alone");
    let down = format!("fairlead_registry_down{{registry=\"{}\"}} 1", registry.host());
    assert!(bench.page()?.contains(&down));

    registry.heal();
    let back = Instant::now();
    for image in &images {
        bench.finds(image, 9 * SECOND).await?;
    }
    assert!(back.elapsed() < 9 * SECOND, "used again after {:?}", back.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_dies_behind_good_news_is_found_out_by_a_refresh() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let mut images = Vec::new();
    for count in 0..5 {
        registry.hold("app", &count.to_string(), &holding("a")?);
        images.push(reference(&registry, &format!("app:{count}"))?);
    }
    let bench = Bench::start("routing: {probe: {refresh: 1s}}")?;
    for image in &images {
        assert!(bench.ask(image, &[]).await.is_available());
    }
    registry.inject(Fault::new(Effect::Hang));
    for image in &images {
        bench.learns(image, 4 * SECOND, VerdictKind::Unreachable).await?;
    }
    registry.heal();
    for image in &images {
        bench.finds(image, 5 * SECOND).await?;
    }
    Ok(())
}

#[tokio::test]
async fn whoever_waits_when_a_registry_is_found_dead_waits_no_longer() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.inject(Fault::new(Effect::Hang));
    let bench = Bench::start("{}")?;
    let (early, late) = (reference(&registry, "early:1")?, reference(&registry, "late:1")?);
    let late = async {
        // When the first question has been sent, so that the other one's time ends later.
        eventually(9 * SECOND, || async {
            ensure!(questions(&registry) == 1);
            Ok(())
        })
        .await?;
        tokio::time::sleep(SECOND / 2).await;
        anyhow::Ok(bench.ask(&late, &[]).await)
    };
    let (first, second) = tokio::join!(bench.ask(&early, &[]), late);
    assert_eq!(first.kind(), VerdictKind::Unreachable);
    let told = second?.to_string();
    assert!(told.contains("circuit open after"), "it waited for an answer of its own: {told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_only_looks_alive_makes_nobody_wait_twice() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &holding("a")?);
    registry.inject(Fault::new(Effect::Hang).on(Route::Manifests));
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    assert_eq!(bench.ask(&image, &[]).await.kind(), VerdictKind::Unreachable);
    let started = Instant::now();
    while started.elapsed() < 6 * SECOND {
        let asked = Instant::now();
        assert_eq!(bench.ask(&image, &[]).await.kind(), VerdictKind::Unreachable);
        assert!(asked.elapsed() < ONE_WAIT, "waited {:?} after {:?}", asked.elapsed(), started.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(questions(&registry) < 8, "{}", questions(&registry));
    registry.heal();
    bench.learns(&image, 4 * SECOND, VerdictKind::Available).await
}

#[tokio::test]
async fn an_image_that_was_deleted_is_noticed_without_anybody_waiting() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let digest = registry.hold("app", "1", &holding("a")?);
    registry.hold("unused", "1", &holding("b")?);
    let bench = Bench::start("routing: {probe: {refresh: 1s}}")?;
    let (image, unused) = (reference(&registry, "app:1")?, reference(&registry, "unused:1")?);
    assert!(bench.ask(&image, &[]).await.is_available());
    assert!(bench.ask(&unused, &[]).await.is_available());
    registry.lose_manifest("app", &digest);
    bench.learns(&image, 4 * SECOND, VerdictKind::NotFound).await?;
    assert_eq!(registry.count("HEAD", "/unused/"), 1, "what nobody asks for is not refreshed");
    assert!(registry.count("HEAD", "/app/") <= 3, "and the rest no more than once in the interval");
    Ok(())
}

#[tokio::test]
async fn an_image_that_was_just_pushed_is_found_within_seconds() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    for _ in 0..20 {
        assert_eq!(bench.ask(&image, &[]).await.kind(), VerdictKind::NotFound);
    }
    assert_eq!(questions(&registry), 1);
    registry.hold("app", "1", &holding("a")?);
    bench.finds(&image, 3 * SECOND).await
}

#[tokio::test]
async fn a_registry_that_wants_to_be_left_alone_is() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &holding("a")?);
    registry.inject(Fault::status(429).and(Effect::Header("retry-after", "2".into())).times(1));
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    let started = Instant::now();
    assert_eq!(bench.ask(&image, &[]).await.kind(), VerdictKind::RateLimited);
    while started.elapsed() < SECOND {
        assert_eq!(bench.ask(&image, &[]).await.kind(), VerdictKind::RateLimited);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(questions(&registry), 1);
    bench.finds(&image, 4 * SECOND).await
}

#[tokio::test]
async fn what_others_found_out_is_used() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    bench.verdicts.learn(&image, &[], Verdict::Available { digest: None });
    assert!(bench.ask(&image, &[]).await.is_available());
    bench.verdicts.learn(&image, &[], Verdict::NotFound { reason: "a copy was deleted".into() });
    assert_eq!(bench.ask(&image, &[]).await.kind(), VerdictKind::NotFound);
    assert_eq!(registry.requests().len(), 1, "of good news the registry has to prove that it is alive");
    assert_eq!(registry.count("GET", "/v2/"), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_names_stays_within_bounds() -> Result<()> {
    let bench = Bench::start("{}")?;
    for count in 0..40_000 {
        let image = Reference::parse(&format!("r.example/team/app-{count}:1"))?;
        bench.verdicts.learn(&image, &[], Verdict::Available { digest: None });
    }
    eventually(5 * SECOND, || async {
        let page = bench.page()?;
        let line = page.lines().find(|line| line.starts_with("fairlead_verdicts ")).context("no gauge")?;
        let kept: usize = line.rsplit(' ').next().unwrap_or_default().parse()?;
        ensure!((8_000..=16_384).contains(&kept), "{kept}");
        Ok(())
    })
    .await
}

/// Many images that were not asked about before, of one registry, in the same moment: the budget lets a hundred
/// requests through at once and the others one after the other. That is our own line, and no reason to call an image
/// unreachable.
#[tokio::test]
async fn waiting_in_our_own_line_does_not_count_against_the_registry() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = ImageBuilder::new().label("for", "the line").build()?;
    let names: Vec<String> = (0..120).map(|number| format!("team/app-{number}")).collect();
    for name in &names {
        registry.hold(name, "1", &image);
    }
    let bench = Bench::start("")?;
    let references: Vec<Reference> = names
        .iter()
        .map(|name| Ok(Reference::parse(&format!("{}/{name}:1", registry.host()))?))
        .collect::<Result<_>>()?;
    let verdicts = join_all(references.iter().map(|reference| bench.ask(reference, &[]))).await;
    let missed: Vec<_> = verdicts.iter().filter(|verdict| !verdict.is_available()).collect();
    ensure!(missed.is_empty(), "{} of 120, for instance: {:?}", missed.len(), missed.first());
    Ok(())
}

/// More images than the budget lets be refreshed before their verdicts end, and then a wave of Pods with all of them: a
/// refresh that gives way is not sent as well, and what one found is not asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wave_at_the_end_of_verdicts_asks_for_each_image_once() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let mut images = Vec::new();
    for count in 0..60 {
        registry.hold(&format!("app-{count}"), "1", &holding("a")?);
        images.push(reference(&registry, &format!("app-{count}:1"))?);
    }
    let host = registry.host();
    let bench = Bench::start(&format!(
        "routing: {{probe: {{refresh: 2s}}}}\nregistries: {{\"{host}\": {{requestsPerSecond: 10, burst: 4}}}}"
    ))?;
    let started = Instant::now();
    for image in &images {
        bench.verdicts.learn(image, &[], Verdict::Available { digest: None });
        bench.known(image);
    }
    let mut asked: HashMap<String, Vec<Duration>> = HashMap::new();
    let mut seen = 0;
    let mut wave = None;
    while started.elapsed() < 10 * SECOND {
        for request in registry.requests().iter().skip(seen) {
            seen += 1;
            if request.method == "HEAD" {
                asked.entry(request.path.clone()).or_default().push(started.elapsed());
            }
        }
        if wave.is_none() && started.elapsed() >= Duration::from_millis(5100) {
            let (verdicts, images) = (bench.verdicts.clone(), images.clone());
            wave = Some(tokio::spawn(async move {
                let deadline = tokio::time::Instant::now() + 5 * SECOND;
                join_all(images.iter().map(|image| verdicts.ask(image, &[], "team", deadline))).await
            }));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let verdicts = wave.context("a wave")?.await?;
    assert!(verdicts.iter().all(Verdict::is_available), "{verdicts:?}");
    for (image, times) in &asked {
        let often = times.windows(2).any(|pair| pair[1] < pair[0] + SECOND);
        assert!(!often, "{image} was asked for at {times:?}");
    }
    assert_eq!(asked.len(), images.len());
    Ok(())
}
