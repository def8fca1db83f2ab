//! An operator that is killed at a random moment, again and again, and started again at once each time.

use anyhow::Result;
use fairlead_testkit::measure::Bar;

use super::compare;
use super::load::Load;
use super::stage::Stage;
use super::turn::Running;

pub(crate) async fn kills(load: &Load, times: usize, seed: u64) -> Result<Vec<Bar>> {
    println!("\n{load}, killed {times} times, seed {seed}");
    let stage = Stage::set_up(load).await?;
    let undisturbed = Running::begin(&stage, load, "undisturbed").await?.end().await?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut turns = vec![undisturbed];
    for number in 0..times {
        let moment = undisturbed.gone.mul_f64(random.f64());
        let mut running = Running::begin(&stage, load, &format!("kill-{number}")).await?;
        tokio::time::sleep(moment).await;
        running.kill().await?;
        let turn = running.end().await?;
        println!(
            "  killed after {:.2} s: gone after {:.2} s, {} of {} Pod writes refused, {:?}, {} missing, {} left",
            moment.as_secs_f64(),
            turn.gone.as_secs_f64(),
            turn.refused,
            turn.writes,
            turn.deviation,
            turn.missing,
            turn.left
        );
        turns.push(turn);
    }
    Ok(compare::outcome(&format!("{load}, {times} kills"), &turns))
}
