//! What the queue is given, and what an object is said to wait for.

use super::*;

const SOURCE: &str = "docker.io/library/nginx:1";

fn store(world: &mut World) {
    let ledger = &mut world.objects[0].ledger;
    for shard in ledger.dirty() {
        let ticket = ledger.draft(shard).ticket();
        ledger.written(shard, ticket, Some("1".to_owned()));
    }
}

fn wanted(world: &World, held_back: bool, down: &str) -> (usize, Vec<String>) {
    let registry = |host: fairlead_domain::reference::Host| Registry {
        trouble: (host.as_str() == down).then(|| format!("{host} is down")),
        host: host.as_str().into(),
    };
    let Jobs { jobs, waiting } = jobs(&world.planned(0), None, held_back, false, registry);
    let waiting = waiting.iter().map(|one| format!("{}: {} ({})", one.registry, one.reason, one.tasks));
    (jobs.len(), waiting.collect())
}

#[test]
fn a_copy_waits_until_its_row_is_stored_and_its_registries_answer() {
    let mut world = World::one(cleaned(&["m.io", "n.io"], 5));
    world.uses(0, &[SOURCE]).round(1);
    assert_eq!(wanted(&world, false, "").0, 0, "a crash would leave a copy that no ledger knows of");
    store(&mut world);
    assert_eq!(wanted(&world, false, ""), (2, vec![]));
    assert_eq!(wanted(&world, false, "m.io"), (2, vec!["m.io: m.io is down (1)".to_owned()]));
    assert_eq!(wanted(&world, false, "docker.io"), (2, vec!["docker.io: docker.io is down (2)".to_owned()]));
}

#[test]
fn nothing_is_removed_while_that_is_held_back() {
    let mut world = World::one(cleaned(&["m.io"], 5));
    world.uses(0, &[SOURCE]).round(1);
    world.work(0, 2).uses(0, &[]).round(3);
    world.round(10);
    store(&mut world);
    assert_eq!(wanted(&world, false, "").0, 1);
    assert_eq!(wanted(&world, true, "").0, 0);
}
