//! Noticing that a registry has died while what is known of its images still sounds well.

use fairlead_testkit::registry::{Registry as RealRegistry, RegistryConfig};
use tokio::time::sleep;

use super::*;

const ASKED_EVERY: Duration = Duration::from_millis(100);

/// Signs of life that the registry was asked for.
fn checks(registry: &FakeRegistry) -> usize {
    registry.requests().iter().filter(|request| request.method == "GET" && request.path == "/v2/").count()
}

impl Bench {
    /// Asks as Pods that keep coming do, for so long. Every answer must be of this kind.
    async fn stays(
        &self,
        images: &[Reference],
        credentials: &[Credential],
        time: Duration,
        kind: VerdictKind,
    ) {
        let started = Instant::now();
        while started.elapsed() < time {
            for image in images {
                let known = self.verdicts.known(image, credentials);
                let found = known.as_ref().map(Verdict::kind);
                assert_eq!(found, Some(kind), "{known:?} after {:?}", started.elapsed());
            }
            sleep(ASKED_EVERY).await;
        }
    }

    /// Asks as Pods that keep coming do, until the image is known to be unreachable. Returns how long that took.
    async fn notices(&self, image: &Reference, within: Duration) -> Result<Duration> {
        let started = Instant::now();
        loop {
            let known = self.known(image).context("it was known before")?;
            if known.kind() == VerdictKind::Unreachable {
                return Ok(started.elapsed());
            }
            ensure!(started.elapsed() < within, "still {known} after {:?}", started.elapsed());
            sleep(ASKED_EVERY).await;
        }
    }
}

/// A registry and images of it that are known to be available.
async fn available(count: usize) -> Result<(FakeRegistry, Bench, Vec<Reference>)> {
    let registry = FakeRegistry::start().await?;
    let bench = Bench::start("{}")?;
    let mut images = Vec::new();
    for number in 0..count {
        registry.hold("app", &number.to_string(), &holding("a")?);
        images.push(reference(&registry, &format!("app:{number}"))?);
    }
    for image in &images {
        assert!(bench.ask(image, &[]).await.is_available());
    }
    Ok((registry, bench, images))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_is_killed_is_known_to_be_down_within_seconds() -> Result<()> {
    let registry = RealRegistry::start(RegistryConfig::new()).await?;
    registry.endpoint().push("app", "1", &holding("a")?).await?;
    let bench = Bench::start("{}")?;
    let image = Reference::parse(&format!("{}/app:1", registry.host()))?;
    assert!(bench.ask(&image, &[]).await.is_available());
    registry.kill().await?;
    let noticed = bench.notices(&image, 3 * SECOND).await?;
    println!("killed, known to be down after {noticed:?}");

    registry.start_again().await?;
    let back = Instant::now();
    bench.learns(&image, 5 * SECOND, VerdictKind::Available).await?;
    println!("back, used again after {:?}", back.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_registry_that_falls_silent_is_known_to_be_down_within_seconds() -> Result<()> {
    let (registry, bench, images) = available(1).await?;
    registry.inject(Fault::new(Effect::Hang));
    let noticed = bench.notices(&images[0], 4 * SECOND).await?;
    println!("silent, known to be down after {noticed:?}");
    registry.heal();
    bench.learns(&images[0], 5 * SECOND, VerdictKind::Available).await
}

#[tokio::test]
async fn a_healthy_registry_is_seldom_asked_and_only_while_somebody_wants_to_know() -> Result<()> {
    let (registry, bench, images) = available(1).await?;
    let connections = registry.connections();
    bench.stays(&images, &[], 7 * SECOND, VerdictKind::Available).await;
    let asked = checks(&registry);
    assert!((2..=3).contains(&asked), "{asked} in 7 s");
    assert_eq!(registry.connections(), connections, "and over the connection that is there");
    sleep(3 * SECOND).await;
    assert_eq!(checks(&registry), asked, "nobody wanted to know");
    Ok(())
}

#[tokio::test]
async fn all_images_of_a_registry_share_a_check() -> Result<()> {
    let (registry, bench, images) = available(50).await?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(300))).on(Route::Base));
    bench.stays(&images, &[], 3 * SECOND, VerdictKind::Available).await;
    assert_eq!(checks(&registry), 1);
    Ok(())
}

#[tokio::test]
async fn a_registry_that_wants_to_know_who_we_are_is_alive() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &holding("a")?);
    registry.require(Auth::Basic(HashMap::from([("ada".to_owned(), "secret".to_owned())])));
    let (bench, image) = (Bench::start("{}")?, reference(&registry, "app:1")?);
    let ada = login(&image, "ada");
    assert!(bench.ask(&image, &ada).await.is_available());
    registry.forget_requests();
    bench.stays(&[image], &ada, 5 * SECOND, VerdictKind::Available).await;
    assert!(checks(&registry) >= 1, "it was asked");
    Ok(())
}

#[tokio::test]
async fn one_check_that_goes_wrong_proves_nothing() -> Result<()> {
    let (registry, bench, images) = available(1).await?;
    registry.inject(Fault::new(Effect::Drop).on(Route::Base).times(1));
    bench.stays(&images, &[], 3 * SECOND, VerdictKind::Available).await;
    assert_eq!(checks(&registry), 2, "it was asked again at once");
    registry.inject(Fault::new(Effect::Hang).on(Route::Base).times(1));
    bench.stays(&images, &[], 3 * SECOND, VerdictKind::Available).await;
    Ok(())
}

#[tokio::test]
async fn errors_of_a_server_count_only_where_it_used_to_answer() -> Result<()> {
    let (registry, bench, images) = available(1).await?;
    registry.inject(Fault::status(503).on(Route::Base));
    bench.stays(&images, &[], 5 * SECOND, VerdictKind::Available).await;
    assert!(checks(&registry) >= 2, "it was asked");
    registry.heal();
    bench.stays(&images, &[], 3 * SECOND, VerdictKind::Available).await;
    // As a proxy does that lost the registry behind it.
    registry.inject(Fault::status(503));
    bench.notices(&images[0], 3 * SECOND).await?;
    Ok(())
}

#[tokio::test]
async fn a_registry_that_does_not_want_to_be_checked_is_not_and_pods_do_not_suffer_from_it() -> Result<()> {
    let (registry, bench, images) = available(1).await?;
    let refusal = Fault::status(429).and(Effect::Header("retry-after", "60".into()));
    registry.inject(refusal.on(Route::Base));
    bench.stays(&images, &[], 7 * SECOND, VerdictKind::Available).await;
    assert_eq!(checks(&registry), 1);
    registry.hold("other", "1", &holding("b")?);
    assert!(bench.ask(&reference(&registry, "other:1")?, &[]).await.is_available());
    Ok(())
}
