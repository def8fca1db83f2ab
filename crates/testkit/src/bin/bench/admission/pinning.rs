//! The operator that pins every tag beside one that pins none: warm, so that all pins and verdicts are known. And two
//! replicas that give the Pods of one revision one digest while its tag moves.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_testkit::eventually;
use fairlead_testkit::images::ImageBuilder;
use fairlead_testkit::measure::Bar;

use super::compare::{table, take_turns};
use super::reviews::{self, REVIEWS, Shape};
use super::server::{Patience, Server};
use super::stage::{Stage, measured};
use super::{POLICIES, SOON};

const MOST_MEDIAN: f64 = 1.3;
/// Time in which every Pod of the load comes by at least once.
const WARMING: f64 = 2.0;
/// Pods of one revision, and how often its tag moves while they come.
const PODS: usize = 200;
const MOVES: usize = 10;
/// A repository that no policy is about.
const MOVING: &str = "moving/app";
const TAG: &str = "1";

pub(crate) async fn pinning(stage: &mut Stage, rounds: usize, seconds: f64) -> Result<Vec<Bar>> {
    stage.policies(POLICIES).await?;
    let plain = stage.warm_operator(stage.operator(), Patience(SOON)).await?;
    let pinning = stage.warm_operator(stage.pinning_operator()?, Patience(SOON)).await?;
    let mut demands = Vec::new();
    for shape in [Shape::of(1), Shape::of(3)] {
        eventually(SOON, || async {
            let mut load = stage.load(&pinning, shape, WARMING);
            load.expect = Some(stage.first());
            measured(&pinning, &load).await?;
            let pins = stage.pins().await?;
            let (found, wanted) =
                ((pins.len(), pins.iter().sum::<usize>()), (REVIEWS, REVIEWS * shape.containers));
            ensure!(found == wanted, "{} pins of {} images instead of {wanted:?}", found.0, found.1);
            Ok(())
        })
        .await?;
        let servers = [(&plain, Some(stage.first())), (&pinning, Some(stage.first()))];
        let [of_plain, of_pinning] = take_turns(stage, servers, shape, rounds, seconds).await?;
        println!(
            "\nAdmission of {shape} with and without pinning, {POLICIES} policies, medians of {rounds} rounds\n{}",
            table(("unpinned", &of_plain), ("pinned", &of_pinning))
        );
        let ratio = of_pinning.middle(|turn| turn.median) / of_plain.middle(|turn| turn.median);
        demands.push(Bar::at_most(
            format!("{shape}: median with pinning, of the median without"),
            ratio,
            MOST_MEDIAN,
        ));
    }
    let second = stage.warm_operator(stage.pinning_operator()?, Patience(SOON)).await?;
    demands.extend(one_revision(stage, [&pinning, &second]).await?);
    Ok(demands)
}

/// Pods of one revision that come by at two replicas, half each, while their tag moves.
async fn one_revision(stage: &Stage, [first, second]: [&Server; 2]) -> Result<Vec<Bar>> {
    let image = format!("{}/{MOVING}:{TAG}", stage.source());
    let registry = stage.source_registry();
    let move_to = async |content: usize| {
        let moved = ImageBuilder::new().label("content", &content.to_string()).build()?;
        registry.endpoint().push(MOVING, TAG, &moved).await
    };
    move_to(0).await?;
    let (pins, accesses) = (stage.pins().await?.len(), registry.accesses()?.len());
    let probes = async || anyhow::Ok([first.probes().await?, second.probes().await?]);
    let before = probes().await?;
    let mut of_first = reviews::revision(&image, PODS)?;
    let of_second = of_first.split_off(PODS / 2);
    let moving = async {
        for content in 1..=MOVES {
            move_to(content).await?;
        }
        anyhow::Ok(())
    };
    let (mut images, others, ()) =
        tokio::try_join!(stage.images_of(first, of_first), stage.images_of(second, of_second), moving)?;
    images.extend(others);
    ensure!(images.len() == PODS, "{} of {PODS} Pods", images.len());
    let unpinned = images.iter().filter(|image| !image.contains('@')).count();
    let digests = images.iter().collect::<HashSet<_>>().len();
    let path = format!("/{MOVING}/manifests/{TAG}");
    // A registry writes some of its log after it has answered.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = registry.accesses()?;
    let asked =
        asked.iter().skip(accesses).filter(|access| access.method != "PUT" && access.path.contains(&path));
    let asked = asked.count();
    // The registry's log does not tell the replicas apart, and theirs is not to be believed where it knows of more.
    let resolved = probes().await?.into_iter().zip(before).map(|(now, before)| now.saturating_sub(before));
    let resolved: Vec<usize> = resolved.collect();
    let counted: usize = resolved.iter().sum();
    ensure!(asked <= counted, "{asked} requests about the tag, of which the replicas count {counted}");
    ensure!(asked > 0, "no replica asked about the tag");
    let pins = stage.pins().await?.len() - pins;
    let of =
        |what: &str| format!("{PODS} Pods of one revision through two replicas while its tag moves: {what}");
    Ok(vec![
        Bar::at_most(of("Pods that keep the tag"), count(unpinned), 0.0),
        Bar::at_most(of("digests"), count(digests), 1.0),
        Bar::at_most(of("ImagePins"), count(pins), 1.0),
        Bar::at_most(
            of("times that a replica resolves the tag, of the one that does so more often"),
            count(resolved.into_iter().max().unwrap_or_default()),
            1.0,
        ),
    ])
}

fn count(found: usize) -> f64 {
    u32::try_from(found).map_or(f64::INFINITY, f64::from)
}
