//! Many images: what a round costs follows their number.

use super::*;

const IMAGES: usize = 20_000;

#[test]
fn twenty_thousand_images_on_three_mirrors() {
    let mut world = World::one(cleaned(&["m.io/a", "n.io", "o.io/deep/path"], 100));
    let images: Vec<String> = (0..IMAGES).map(|number| format!("quay.io/team/app-{number}:v1")).collect();
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    world.uses(0, &images).round(1);
    assert_eq!(world.to_do(0).len(), 3 * IMAGES);
    world.work(0, 2);
    world.round(3);
    assert!(world.to_do(0).is_empty());

    let [object] = &mut world.objects[..] else { unreachable!() };
    for shard in object.ledger.dirty() {
        let crate::ledger::Draft::Write { ticket, .. } = object.ledger.draft(shard) else { unreachable!() };
        object.ledger.written(shard, ticket, Some("1".to_owned()));
    }
    assert_eq!(world.round(4)[0].changes, []);
    assert!(world.objects[0].ledger.dirty().is_empty(), "a round that changes nothing writes nothing");
    assert_eq!(world.uses(0, &images[1..]).round(5)[0].changes.len(), 1);
    assert_eq!(world.objects[0].ledger.dirty().len(), 1, "one image, one write");

    world.uses(0, &[]).round(6);
    assert_eq!(world.round(106)[0].next, None);
    assert_eq!(world.to_do(0).len(), 3 * IMAGES);
}
