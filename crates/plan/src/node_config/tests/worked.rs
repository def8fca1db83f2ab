//! Worked examples of the merge. Where the reference implementation does something else, the row says so.
//!
//! One difference holds for all: entries come in the order of the alphabet, not by the list that they came from.

use super::{MirrorPolicy, NodeConfig, icsp, idms, idms_never, inputs, isdp, istp, itms, shown};

struct Example {
    name: &'static str,
    policies: Vec<MirrorPolicy>,
    insecure: &'static [&'static str],
    blocked: &'static [&'static str],
    expected: &'static [&'static str],
}

fn example(name: &'static str, policies: Vec<MirrorPolicy>, expected: &'static [&'static str]) -> Example {
    Example { name, policies, insecure: &[], blocked: &[], expected }
}

fn check(examples: Vec<Example>) {
    for Example { name, policies, insecure, blocked, expected } in examples {
        let config = NodeConfig::plan(&inputs(policies, insecure, blocked));
        assert_eq!(shown(&config).lines().collect::<Vec<_>>(), expected, "{name}");
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn one_source_and_its_lists() {
    let app = "hub.test/app";
    check(vec![
        example(
            "W01 one digest set",
            vec![idms("hub.test/team/base", &["mirror.test/base"])],
            &["hub.test/team/base", "  mirror.test/base digest"],
        ),
        example(
            "W02 one tag set",
            vec![itms("hub.test/team", &["mirror.test/team"])],
            &["hub.test/team", "  mirror.test/team tag"],
        ),
        example(
            "W03 digest and tag sets for one source",
            vec![idms("hub.test", &["d1.test", "d2.test"]), itms("hub.test", &["t1.test", "t2.test"])],
            &["hub.test", "  d1.test digest", "  d2.test digest", "  t1.test tag", "  t2.test tag"],
        ),
        example(
            "W04 the source must not be contacted",
            vec![idms_never("hub.test/team/base", &["mirror.test/base"])],
            &["hub.test/team/base blocked", "  mirror.test/base digest"],
        ),
        example(
            "W05 two overlapping chains",
            vec![
                idms(app, &["a.test/x", "b.test/x", "c.test/x"]),
                idms(app, &["c.test/x", "d.test/x", "e.test/x"]),
            ],
            &[
                "hub.test/app",
                "  a.test/x digest",
                "  b.test/x digest",
                "  c.test/x digest",
                "  d.test/x digest",
                "  e.test/x digest",
            ],
        ),
        example(
            "W06 two lists with nothing in common",
            vec![idms(app, &["z.test", "y.test"]), idms(app, &["b.test", "a.test"])],
            &["hub.test/app", "  b.test digest", "  z.test digest", "  a.test digest", "  y.test digest"],
        ),
        example(
            "W07 lists of one from three objects of two kinds",
            vec![idms(app, &["o3.test"]), idms(app, &["o1.test"]), icsp(app, &["o2.test"])],
            &["hub.test/app", "  o1.test digest", "  o2.test digest", "  o3.test digest"],
        ),
        example(
            "W08 contradiction",
            vec![idms(app, &["a.test", "b.test"]), idms(app, &["b.test", "a.test"])],
            &["hub.test/app", "  a.test digest", "  b.test digest"],
        ),
        example(
            "W09 two kinds in opposite order",
            vec![icsp(app, &["a.test", "b.test", "c.test"]), idms(app, &["c.test", "b.test", "a.test"])],
            &["hub.test/app", "  a.test digest", "  b.test digest", "  c.test digest"],
        ),
        example(
            "W10 contradiction behind an agreed head; the reference puts the source before vend1",
            vec![
                idms(app, &["vend1.test", "vend2.test"]),
                idms(app, &["local.test", "vend2.test", "vend1.test"]),
            ],
            &["hub.test/app", "  local.test digest", "  vend1.test digest", "  vend2.test digest"],
        ),
        example(
            "W11 diamond",
            vec![
                idms(app, &["top.test", "right.test", "bottom.test"]),
                idms(app, &["top.test", "left.test", "bottom.test"]),
            ],
            &[
                "hub.test/app",
                "  top.test digest",
                "  left.test digest",
                "  right.test digest",
                "  bottom.test digest",
            ],
        ),
        example(
            "W12 loop with an entry and an exit",
            vec![
                idms(app, &["a.test", "b.test", "c.test", "d.test"]),
                idms(app, &["d.test", "b.test"]),
                idms(app, &["d.test", "e.test"]),
            ],
            &[
                "hub.test/app",
                "  a.test digest",
                "  b.test digest",
                "  c.test digest",
                "  d.test digest",
                "  e.test digest",
            ],
        ),
        example(
            "W13 breadth first",
            vec![idms(app, &["a.test", "m.test", "z.test"]), idms(app, &["b.test"])],
            &["hub.test/app", "  a.test digest", "  b.test digest", "  m.test digest", "  z.test digest"],
        ),
        example(
            "W14 the source in the middle of its own mirrors",
            vec![idms(app, &["z.test", app, "y.test"]), idms(app, &[app, "y.test", "x.test"])],
            &[
                "hub.test/app",
                "  z.test digest",
                "  hub.test/app digest",
                "  y.test digest",
                "  x.test digest",
            ],
        ),
        example(
            "W15 the source first",
            vec![idms(app, &[app, "m.test"])],
            &["hub.test/app", "  hub.test/app digest", "  m.test digest"],
        ),
        example(
            "W16 no real mirror; the second names its own source with NeverContactSource, is wrong, and stays closed",
            vec![idms_never("hub.test/one", &[]), idms_never("hub.test/two", &["hub.test/two"])],
            &["hub.test/two blocked"],
        ),
        example(
            "W17 duplicates; the reference puts the source before m1",
            vec![icsp(app, &["m1.test", "m1.test", "m2.test"])],
            &["hub.test/app", "  m1.test digest", "  m2.test digest"],
        ),
        example(
            "W18 two sets for one source",
            vec![idms(app, &["x.test"]), idms(app, &["w.test"])],
            &["hub.test/app", "  w.test digest", "  x.test digest"],
        ),
        example(
            "W29 contradiction where the source sorts first; the reference contacts the source first",
            vec![idms("a.test", &["b.test", "c.test"]), idms("a.test", &["c.test", "b.test"])],
            &["a.test", "  b.test digest", "  c.test digest"],
        ),
        example(
            "W36 cycle through the source",
            vec![idms(app, &["a.test", app, "b.test"]), idms(app, &["b.test"])],
            &["hub.test/app", "  a.test digest", "  b.test digest"],
        ),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn scopes_in_scopes() {
    let vendor = || idms("*.vendor.test", &["mirror.test/vendor"]);
    check(vec![
        example(
            "W19 nested sources with mirrors of their own",
            vec![idms("hub.test/team", &["m.test/team"]), idms("hub.test/team/box", &["m.test/box"])],
            &["hub.test/team", "  m.test/team digest", "hub.test/team/box", "  m.test/box digest"],
        ),
        Example {
            name: "W20 bare scopes inside a mirrored one",
            policies: vec![
                idms("hub.test/top", &["m.test/p"]),
                idms("hub.test/top/ins/deep", &["m.test/deep"]),
                itms("hub.test/top", &["mt.test/p"]),
                itms("hub.test/top/ins/deep", &["mt.test/deep"]),
            ],
            insecure: &["hub.test/top/ins"],
            blocked: &["hub.test/top/blk"],
            expected: &[
                "hub.test/top",
                "  m.test/p digest",
                "  mt.test/p tag",
                "hub.test/top/blk blocked",
                "  m.test/p/blk digest",
                "  mt.test/p/blk tag",
                "hub.test/top/ins insecure",
                "  m.test/p/ins digest",
                "  mt.test/p/ins tag",
                "hub.test/top/ins/deep insecure",
                "  m.test/deep digest",
                "  mt.test/deep tag",
            ],
        },
        example("W22 a domain", vec![vendor()], &["*.vendor.test", "  mirror.test/vendor digest"]),
        example(
            "W23 a domain and a place in it",
            vec![vendor(), idms("reg.vendor.test/ubi", &["mirror.test/ubi"])],
            &[
                "*.vendor.test",
                "  mirror.test/vendor digest",
                "reg.vendor.test/ubi",
                "  mirror.test/ubi digest",
            ],
        ),
        Example {
            name: "W24 a domain and bare places in it; the reference fails. A port is no part of the suffix",
            policies: vec![vendor()],
            insecure: &["reg.vendor.test", "reg.vendor.test:5000/a", "*.eu.vendor.test"],
            blocked: &[],
            expected: &[
                "*.eu.vendor.test insecure",
                "  mirror.test/vendor digest",
                "*.vendor.test",
                "  mirror.test/vendor digest",
                "reg.vendor.test insecure",
                "  mirror.test/vendor digest",
                "reg.vendor.test:5000/a insecure",
                "  mirror.test/vendor/a digest",
            ],
        },
        Example {
            name: "W25 a bare scope in a closed one; the reference leaves it open",
            policies: vec![idms_never("hub.test/team", &["m.test/team"])],
            insecure: &["hub.test/team/dev"],
            blocked: &[],
            expected: &[
                "hub.test/team blocked",
                "  m.test/team digest",
                "hub.test/team/dev blocked insecure",
                "  m.test/team/dev digest",
            ],
        },
        example(
            "W26 a scope with mirrors of its own in a closed one",
            vec![idms_never("hub.test", &["m.test"]), idms("hub.test/team", &["m.test/tm"])],
            &["hub.test blocked", "  m.test digest", "hub.test/team", "  m.test/tm digest"],
        ),
        example(
            "W27 one place for digests and for tags",
            vec![idms("hub.test", &["m.test/hub"]), itms("hub.test", &["m.test/hub"])],
            &["hub.test", "  m.test/hub digest", "  m.test/hub tag"],
        ),
        example(
            "W28 tag mirrors of the parent; the reference hides them",
            vec![idms("hub.test/team", &["d.test/tm"]), itms("hub.test", &["t.test"])],
            &["hub.test", "  t.test tag", "hub.test/team", "  d.test/tm digest", "  t.test/team tag"],
        ),
        Example {
            name: "W30 a bare scope below several; the reference takes the farthest, m.test/a/b/c",
            policies: vec![
                idms("hub.test", &["m.test"]),
                idms("hub.test/a", &["n.test/a"]),
                idms("hub.test/a/b", &["o.test/b"]),
            ],
            insecure: &["hub.test/a/b/c"],
            blocked: &[],
            expected: &[
                "hub.test",
                "  m.test digest",
                "hub.test/a",
                "  n.test/a digest",
                "hub.test/a/b",
                "  o.test/b digest",
                "hub.test/a/b/c insecure",
                "  o.test/b/c digest",
            ],
        },
        Example {
            name: "W37 tag mirrors and a bare scope",
            policies: vec![itms("hub.test", &["t.test"])],
            insecure: &["hub.test/team"],
            blocked: &[],
            expected: &["hub.test", "  t.test tag", "hub.test/team insecure", "  t.test/team tag"],
        },
        Example {
            name: "W38 each kind from its nearest scope; the reference finds digest mirrors only",
            policies: vec![idms("hub.test/a", &["d.test/a"]), itms("hub.test", &["t.test"])],
            insecure: &["hub.test/a/b"],
            blocked: &[],
            expected: &[
                "hub.test",
                "  t.test tag",
                "hub.test/a",
                "  d.test/a digest",
                "  t.test/a tag",
                "hub.test/a/b insecure",
                "  d.test/a/b digest",
                "  t.test/a/b tag",
            ],
        },
    ]);
}

#[test]
fn insecure_and_blocked_places() {
    check(vec![
        Example {
            name: "W21 insecure reaches mirrors, blocked does not",
            policies: vec![
                idms("ins.test/i1", &["blk.test/b1", "oth.test/o1"]),
                idms("blk.test/b/b2", &["oth.test/o2", "ins.test/i2"]),
                idms("oth.test/o3", &["ins.test/i2", "blk.test/b/b3", "foo.ins2.test/bar"]),
            ],
            insecure: &["ins.test", "*.ins2.test"],
            blocked: &["blk.test"],
            expected: &[
                "*.ins2.test insecure",
                "blk.test blocked",
                "blk.test/b/b2 blocked",
                "  oth.test/o2 digest",
                "  ins.test/i2 digest insecure",
                "ins.test insecure",
                "ins.test/i1 insecure",
                "  blk.test/b1 digest",
                "  oth.test/o1 digest",
                "oth.test/o3",
                "  ins.test/i2 digest insecure",
                "  blk.test/b/b3 digest",
                "  foo.ins2.test/bar digest insecure",
            ],
        },
        Example {
            name: "W31 insecure is found for inherited mirrors; the reference misses m.test/a/b",
            policies: vec![idms("hub.test/a", &["m.test/a"])],
            insecure: &["hub.test/a/b", "m.test/a/b"],
            blocked: &[],
            expected: &[
                "hub.test/a",
                "  m.test/a digest",
                "hub.test/a/b insecure",
                "  m.test/a/b digest insecure",
                "m.test/a/b insecure",
            ],
        },
        Example {
            name: "W32 lists only",
            policies: vec![],
            insecure: &["reg.test", "ins.test", "both.test"],
            blocked: &["blk.test", "both.test", "hub.test"],
            expected: &[
                "blk.test blocked",
                "both.test blocked insecure",
                "hub.test blocked",
                "ins.test insecure",
                "reg.test insecure",
            ],
        },
        Example {
            name: "W33 domains in domains",
            policies: vec![],
            insecure: &["ins.test", "*.i.test", "*.i.b.test"],
            blocked: &["blk.test", "*.b.i.test", "*.b.test"],
            expected: &[
                "*.b.i.test blocked insecure",
                "*.b.test blocked",
                "*.i.b.test blocked insecure",
                "*.i.test insecure",
                "blk.test blocked",
                "ins.test insecure",
            ],
        },
        Example {
            name: "W34 a blocked domain over a mirrored source",
            policies: vec![idms("reg.vendor.test", &["m.test"])],
            insecure: &[],
            blocked: &["*.vendor.test"],
            expected: &["*.vendor.test blocked", "reg.vendor.test blocked", "  m.test digest"],
        },
        Example {
            name: "W35 an insecure domain over a host with a port",
            policies: vec![idms("foo.vendor.test:443/bar", &["m.test"])],
            insecure: &["*.vendor.test"],
            blocked: &[],
            expected: &["*.vendor.test insecure", "foo.vendor.test:443/bar insecure", "  m.test digest"],
        },
    ]);
}

#[test]
fn source_policies_for_digests_and_for_tags() {
    let minimal = "registry.access.redhat.com/ubi8/ubi-minimal";
    let mirror = "example.io/example/ubi-minimal";
    check(vec![
        example(
            "ImageSourceDigestPolicy serves digests",
            vec![isdp(minimal, &[mirror])],
            &["registry.access.redhat.com/ubi8/ubi-minimal", "  example.io/example/ubi-minimal digest"],
        ),
        example(
            "ImageSourceTagPolicy serves tags and digests",
            vec![istp(minimal, &[mirror])],
            &[
                "registry.access.redhat.com/ubi8/ubi-minimal",
                "  example.io/example/ubi-minimal digest",
                "  example.io/example/ubi-minimal tag",
            ],
        ),
        example(
            "lists of all kinds for digests are merged: a, b, c and c, d, e",
            vec![
                isdp("q.test/l", &["a.test/l", "b.test/l", "c.test/l"]),
                istp("q.test/l", &["c.test/l", "d.test/l"]),
                icsp("q.test/l", &["d.test/l", "e.test/l"]),
            ],
            &[
                "q.test/l",
                "  a.test/l digest",
                "  b.test/l digest",
                "  c.test/l digest",
                "  d.test/l digest",
                "  e.test/l digest",
                "  c.test/l tag",
                "  d.test/l tag",
            ],
        ),
        example(
            "the most specific source counts, and others do not interact",
            vec![isdp("quay.io/libpod", &["m.test/p"]), isdp("quay.io/libpod/busybox", &["m.test/b"])],
            &["quay.io/libpod", "  m.test/p digest", "quay.io/libpod/busybox", "  m.test/b digest"],
        ),
        example("without mirrors nothing is configured", vec![isdp("quay.io/libpod", &[])], &[]),
    ]);
}
