//! A registry that dies while what is known of its images still sounds well.

use fairlead_testkit::ApiProxy;
use fairlead_testkit::registry::{Registry as RealRegistry, RegistryConfig};
use tokio::time::sleep;

use super::*;

/// Longer than proof of life lasts.
const QUIET: Duration = Duration::from_millis(3100);

/// Liveness checks that the registry has seen.
fn checks(registry: &FakeRegistry) -> usize {
    registry.requests().iter().filter(|request| request.method == "GET" && request.path == "/v2/").count()
}

impl Bench {
    /// Asks about all images as a wave of Pods does: fifty at once.
    async fn wave(&self, images: &[Reference]) -> Vec<Verdict> {
        join_all(images.iter().cycle().take(50).map(|image| self.ask(image, &[]))).await
    }

    /// How old proof of life of the image's registry is.
    fn proof_age(&self, image: &Reference) -> Option<Duration> {
        let health = self.client.health(&image.host())?;
        health.proof_age(tokio::time::Instant::now())
    }
}

fn all(verdicts: &[Verdict], kind: VerdictKind) {
    let others: Vec<_> = verdicts.iter().filter(|verdict| verdict.kind() != kind).collect();
    assert!(others.is_empty(), "{} of {}: {:?}", others.len(), verdicts.len(), others.first());
}

/// A registry and images of it that are known to be available.
async fn available(count: usize, config: &str) -> Result<(FakeRegistry, Bench, Vec<Reference>)> {
    let registry = FakeRegistry::start().await?;
    let bench = Bench::start(config)?;
    let mut images = Vec::new();
    for number in 0..count {
        registry.hold("app", &number.to_string(), &holding("a")?);
        images.push(reference(&registry, &format!("app:{number}"))?);
    }
    for image in &images {
        bench.finds(image, 20 * SECOND).await?;
    }
    Ok((registry, bench, images))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_pod_gets_a_registry_that_died_while_the_cluster_was_quiet() -> Result<()> {
    let registry = RealRegistry::start(RegistryConfig::new()).await?;
    registry.endpoint().push("app", "1", &holding("a")?).await?;
    let target = ([127, 0, 0, 1], registry.endpoint().port()).into();
    let wires =
        [ApiProxy::start(target).await?, ApiProxy::start(target).await?, ApiProxy::start(target).await?];
    let [killed, refusing, resetting] = &wires;
    let bench = Bench::start("{}")?;
    let hosts = wires.iter().map(|wire| wire.address().to_string()).chain([registry.host()]);
    let images: Vec<Reference> =
        hosts.map(|host| Ok(Reference::parse(&format!("{host}/app:1"))?)).collect::<Result<_>>()?;
    for image in &images {
        bench.finds(image, 20 * SECOND).await?;
    }
    sleep(QUIET).await;
    killed.kill();
    refusing.refuse_new();
    resetting.reset_new();
    // The wires lead to it, too: what it stops is what went through before.
    for image in &images[..3] {
        let verdicts = bench.wave(std::slice::from_ref(image)).await;
        all(&verdicts, VerdictKind::Unreachable);
    }
    registry.pause().await?;
    all(&bench.wave(&images[3..]).await, VerdictKind::Unreachable);

    registry.resume().await?;
    wires.iter().for_each(ApiProxy::heal);
    for image in &images {
        bench.finds(image, 20 * SECOND).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_registry_costs_the_first_wave_after_a_quiet_time_one_connection_and_request() -> Result<()>
{
    let (registry, bench, images) = available(50, "{}").await?;
    registry.inject(Fault::new(Effect::Delay(SECOND / 10)).on(Route::Base));
    sleep(QUIET).await;
    let connections = registry.connections();
    registry.forget_requests();
    all(&bench.wave(&images).await, VerdictKind::Available);
    assert_eq!((registry.connections() - connections, registry.requests().len()), (1, 1));
    assert_eq!(checks(&registry), 1);
    let page = bench.page()?;
    assert!(page.contains("fairlead_verdict_lookups_total{result=\"checked\"} 50"), "{page}");
    Ok(())
}

/// Proof is renewed from two to three seconds after the connection was opened that gave it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_the_check_runs_ahead_of_time_and_without_load_it_does_not() -> Result<()> {
    let (registry, bench, images) = available(1, "{}").await?;
    let image = &images[0];
    registry.inject(Fault::new(Effect::Delay(SECOND / 10)).on(Route::Base));
    // A machine with other things to do may sleep through the moment; then the next proof has such a moment again.
    let mut renewed = 0;
    for _ in 0..20 {
        all(&[bench.ask(image, &[]).await], VerdictKind::Available);
        registry.forget_requests();
        let age = bench.proof_age(image).context("it was asked")?;
        sleep((SECOND * 21 / 10).saturating_sub(age)).await;
        let known = bench.verdicts.known(image, &[]);
        if bench.proof_age(image).is_some_and(|age| age < SECOND * 29 / 10) {
            assert!(matches!(&known, KnownVerdict::Verdict(verdict) if verdict.is_available()), "{known:?}");
            renewed += 1;
        }
        eventually(9 * SECOND, || async {
            ensure!(checks(&registry) == 1, "{}", checks(&registry));
            ensure!(bench.proof_age(image).is_some_and(|age| age < 2 * SECOND));
            Ok(())
        })
        .await?;
        if renewed == 2 {
            break;
        }
    }
    assert_eq!(renewed, 2);
    sleep(QUIET).await;
    assert_eq!(checks(&registry), 1, "nothing asked for its images");
    Ok(())
}

#[tokio::test]
async fn established_connections_prove_nothing() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let wire = ApiProxy::start(registry.address()).await?;
    for tag in ["1", "2"] {
        registry.hold("app", tag, &holding("a")?);
    }
    let bench = Bench::start("routing: {probe: {refresh: 1s}}")?;
    let image = |tag| Reference::parse(&format!("{}/app:{tag}", wire.address()));
    let (known, new) = (image("1")?, image("2")?);
    assert!(bench.ask(&known, &[]).await.is_available());
    wire.reset_new();
    // Asked about all the while, so that refreshes keep the connection busy.
    let started = Instant::now();
    while bench.ask(&known, &[]).await.is_available() {
        ensure!(started.elapsed() < 9 * SECOND, "it stays available");
        sleep(SECOND / 20).await;
    }
    all(&[bench.ask(&new, &[]).await], VerdictKind::Unreachable);
    wire.heal();
    bench.finds(&known, 20 * SECOND).await?;
    bench.finds(&new, 20 * SECOND).await
}

#[tokio::test]
async fn an_image_that_is_new_needs_proof_as_well() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let wire = ApiProxy::start(registry.address()).await?;
    for tag in ["1", "2"] {
        registry.hold("app", tag, &holding("a")?);
    }
    let bench = Bench::start("{}")?;
    let image = |tag| Reference::parse(&format!("{}/app:{tag}", wire.address()));
    assert!(bench.ask(&image("1")?, &[]).await.is_available());
    wire.reset_new();
    sleep(QUIET).await;
    all(&[bench.ask(&image("2")?, &[]).await], VerdictKind::Unreachable);
    assert_eq!(registry.count("HEAD", "/manifests/2"), 1, "it was found over the connection that is there");
    Ok(())
}

#[tokio::test]
async fn a_hasty_caller_leaves_and_the_check_goes_on() -> Result<()> {
    let (registry, bench, images) = available(1, "routing: {activeCheck: {timeout: 100ms}}").await?;
    registry.inject(Fault::new(Effect::Delay(SECOND / 2)).on(Route::Base));
    sleep(QUIET).await;
    all(&[bench.ask(&images[0], &[]).await], VerdictKind::Unreachable);
    bench.finds(&images[0], 9 * SECOND).await
}

#[tokio::test]
async fn refusals_at_the_door_are_signs_of_life() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &holding("a")?);
    registry.require(Auth::Basic(HashMap::from([("ada".to_owned(), "secret".to_owned())])));
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    let ada = login(&image, "ada");
    assert!(bench.ask(&image, &ada).await.is_available());
    registry.forget_requests();
    sleep(QUIET).await;
    assert!(bench.ask(&image, &ada).await.is_available(), "401");
    registry.inject(Fault::status(429).and(Effect::Header("retry-after", "60".into())).on(Route::Base));
    sleep(QUIET).await;
    assert!(bench.ask(&image, &ada).await.is_available(), "429");
    sleep(QUIET).await;
    assert!(bench.ask(&image, &ada).await.is_available(), "429 again");
    assert_eq!(checks(&registry), 3);
    registry.hold("other", "1", &holding("b")?);
    assert!(bench.ask(&reference(&registry, "other:1")?, &ada).await.is_available(), "Pods go on");
    Ok(())
}

/// As behind a load balancer that knows the repositories alone.
#[tokio::test]
async fn without_a_first_page_the_image_itself_is_asked_for() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &holding("a")?);
    registry.inject(Fault::status(503).on(Route::Base));
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    assert!(bench.ask(&image, &[]).await.is_available());
    sleep(QUIET).await;
    let connections = registry.connections();
    all(&bench.wave(std::slice::from_ref(&image)).await, VerdictKind::Available);
    assert_eq!(registry.connections(), connections + 2, "the check and one probe");
    registry.inject(Fault::status(503));
    sleep(QUIET).await;
    all(&[bench.ask(&image, &[]).await], VerdictKind::Unreachable);
    Ok(())
}

#[tokio::test]
async fn errors_at_a_first_page_that_was_there_are_an_outage() -> Result<()> {
    let (registry, bench, images) = available(1, "{}").await?;
    sleep(QUIET).await;
    assert!(bench.ask(&images[0], &[]).await.is_available());
    registry.inject(Fault::status(503).on(Route::Base));
    sleep(QUIET).await;
    all(&[bench.ask(&images[0], &[]).await], VerdictKind::Unreachable);
    registry.heal();
    bench.finds(&images[0], 20 * SECOND).await
}

#[tokio::test]
async fn a_hanging_registry_is_checked_once_and_then_tried_less_and_less() -> Result<()> {
    let (registry, bench, images) = available(1, "{}").await?;
    registry.inject(Fault::new(Effect::Hang));
    sleep(QUIET).await;
    registry.forget_requests();
    let begun = Instant::now();
    let mut seen = Vec::new();
    // The check, and trials that are given two seconds each: after 1, 2 and 4 s.
    while seen.len() < 4 {
        bench.ask(&images[0], &[]).await;
        let asked = registry.requests().len();
        assert!(asked <= seen.len() + 1, "sent in pairs after {seen:?}");
        if asked > seen.len() {
            seen.push(begun.elapsed());
        }
        ensure!(begun.elapsed() < 60 * SECOND, "{seen:?}");
        sleep(SECOND / 50).await;
    }
    let distances: Vec<Duration> = seen.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    assert!(distances.is_sorted() && distances[2] > distances[0] + SECOND, "{distances:?}");
    assert_eq!(checks(&registry), 4, "and nothing else is asked");
    Ok(())
}
