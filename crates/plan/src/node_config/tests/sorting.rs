//! The sort by itself: letters are mirrors, pairs are neighbours in a list.

use super::{idms, plan};
use crate::node_config::PullKind;

fn sorted(pairs: &str) -> String {
    let lists = pairs.split(' ').map(|pair| pair.split('>').collect::<Vec<_>>());
    let config = plan(lists.map(|list| idms("source", &list)).collect());
    let entry = &config.entries.first_key_value().unwrap().1;
    let names = entry.mirrors(PullKind::Digest).list.iter().map(|mirror| mirror.location.as_str());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn neighbours_keep_their_order_and_the_alphabet_decides_the_rest() {
    for (pairs, expected) in [
        ("A>B A>C A>D", "A B C D"),
        ("A>D B>D C>D", "A B C D"),
        ("A>B B>C C>D D>E", "A B C D E"),
        ("A>B B>C C>D D>A", "A B C D"),
        ("A>B B>C C>D D>B D>E", "A B C D E"),
        ("b>b>a", "b a"),
        ("z>a>z", "z a"),
        ("t>source>u", "t source u"),
    ] {
        assert_eq!(sorted(pairs), expected, "{pairs}");
    }
}
