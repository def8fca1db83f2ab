//! Conditions of policies, from what nodes report.

use std::collections::BTreeMap;
use std::sync::Arc;

use fairlead_api::fairlead::{NodeMirrorReportSpec, ReportedSource};
use jiff::{SignedDuration, Timestamp};

use super::super::History;
use super::super::report::{InForce, Reporter};
use super::super::status::{AgentNode, AgentPod, Observed, Statuses, is_selected};
use super::*;
use crate::node::{ImageList, Node, Taint};

struct World {
    inputs: Inputs,
    config: NodeConfig,
    history: History,
    hash: String,
}

impl World {
    fn new(policies: Vec<MirrorPolicy>) -> Self {
        let mut history = History::default();
        let inputs = inputs(policies, &[], &[]);
        let hash = history.note(&inputs);
        Self { config: NodeConfig::plan(&inputs), inputs, history, hash }
    }

    fn change(&mut self, policies: Vec<MirrorPolicy>) {
        self.inputs.policies = policies;
        self.hash = self.history.note(&self.inputs);
        self.config = NodeConfig::plan(&self.inputs);
    }

    fn report(&self) -> NodeMirrorReportSpec {
        let in_force =
            InForce { policies: self.hash.clone(), config: self.config.hash(), ..InForce::default() };
        Reporter::default().report(Ok(&in_force))
    }

    fn statuses(&self, nodes: Option<&[AgentNode<'_>]>) -> Statuses {
        let config_hash = self.config.hash();
        let observed = Observed {
            config: &self.config,
            config_hash: &config_hash,
            policies_hash: &self.hash,
            history: &self.history,
            nodes,
        };
        observed.statuses(self.inputs.policies.iter().map(|policy| &policy.id))
    }

    /// Each condition of the policy of this name, in words.
    fn said(&self, name: &str, nodes: &[AgentNode<'_>]) -> Vec<String> {
        let statuses = self.statuses(Some(nodes));
        let (_, conditions) = statuses.conditions.iter().find(|(id, _)| id.name == name).unwrap();
        let shown = |one: &fairlead_api::conditions::Finding| {
            format!("{} {:?} {}: {}", one.type_, one.status, one.reason, one.message)
        };
        conditions.iter().map(shown).collect()
    }
}

fn node<'a>(name: &'a str, report: Option<&'a NodeMirrorReportSpec>) -> AgentNode<'a> {
    AgentNode { name, report, is_lost: false }
}

#[test]
fn nodes_are_counted_and_those_that_do_not_follow_are_named() {
    let world = World::new(vec![istp("a.test", &["m.test"])]);
    let good = world.report();
    let failing = Reporter::default().report(Err("the disk is full"));
    let both = [node("a", Some(&good)), node("b", Some(&good))];
    assert_eq!(
        world.said("a.test", &both),
        [
            "Accepted True Merged: 1 sources are merged",
            "Applied True Applied: 2 of 2 nodes",
            "Exact True Exact: the runtimes of nodes that follow it express all of it",
        ]
    );
    let some = [node("a", Some(&good)), node("b", None), node("c", Some(&failing))];
    assert_eq!(
        world.said("a.test", &some)[1],
        "Applied False Failed: 1 of 3 nodes; not on c: the disk is full; b: it has not reported so far"
    );
    let waiting = [node("a", Some(&good)), node("b", None)];
    assert!(world.said("a.test", &waiting)[1].starts_with("Applied False Progressing: 1 of 2 nodes"));
    let counts = world.statuses(Some(&some)).nodes.unwrap();
    assert_eq!((counts.applied, counts.behind, counts.failing), (1, 1, 1));
    let lost = [AgentNode { is_lost: true, ..node("a", Some(&good)) }];
    assert!(world.said("a.test", &lost)[1].contains("has not been ready for ten minutes"));
    assert!(world.said("a.test", &[])[1].starts_with("Applied Unknown NoNodes"));
}

#[test]
fn without_agents_conditions_say_so() {
    let world = World::new(vec![istp("a.test", &["m.test"])]);
    let statuses = world.statuses(None);
    let conditions = statuses.conditions.values().next().unwrap();
    assert!(conditions.iter().any(|one| one.type_ == "Applied" && one.reason == "NoAgents"));
    assert!(conditions.iter().any(|one| one.type_ == "Accepted" && one.reason == "Merged"));
}

#[test]
fn a_change_of_one_policy_leaves_the_others_applied() {
    let mut world = World::new(vec![istp("a.test", &["m.test"]), istp("b.test", &["m.test"])]);
    let before = world.report();
    world.change(vec![istp("a.test", &["n.test"]), istp("b.test", &["m.test"]), istp("c.test", &["m.test"])]);
    let nodes = [node("a", Some(&before))];
    assert!(world.said("a.test", &nodes)[1].starts_with("Applied False Progressing: 0 of 1"));
    assert!(world.said("b.test", &nodes)[1].starts_with("Applied True"));
    assert!(world.said("c.test", &nodes)[1].starts_with("Applied False"));
    let unknown = NodeMirrorReportSpec { policies: Some("elsewhere".to_owned()), ..world.report() };
    assert!(world.said("b.test", &[node("a", Some(&unknown))])[1].starts_with("Applied False"));
}

#[test]
fn a_wrong_object_reports_itself_and_nothing_else() {
    let world = World::new(vec![icsp("bad.test/UPPER", &["m.test"]), icsp("good.test", &["m.test"])]);
    let report = world.report();
    let nodes = [node("a", Some(&report))];
    let bad = world.said("bad.test/UPPER", &nodes);
    assert!(bad[0].starts_with("Accepted False Failed: source \"bad.test/UPPER\""), "{bad:?}");
    assert!(bad[1].starts_with("Applied False Failed"), "{bad:?}");
    let good = world.said("good.test", &nodes);
    assert!(good[0].starts_with("Accepted True") && good[1].starts_with("Applied True"), "{good:?}");
}

#[test]
fn what_is_odd_is_accepted_and_said() {
    let world =
        World::new(vec![idms("a.test", &["m.test"]), itms_never("a.test", &["n.test"]), istp("b.test", &[])]);
    let said = world.said("b.test", &[]);
    assert!(said[0].starts_with("Accepted True NoEffect"), "{said:?}");
    let statuses = world.statuses(Some(&[]));
    let reasons: Vec<&str> = statuses
        .conditions
        .iter()
        .filter(|(id, _)| id.name == "a.test")
        .filter_map(|(_, all)| all.iter().find(|one| one.type_ == "Accepted"))
        .map(|one| one.reason.as_str())
        .collect();
    assert_eq!(reasons, ["Conflict", "Conflict"]);
}

#[test]
fn sources_that_are_skipped_or_inexact_concern_their_policies_only() {
    let world = World::new(vec![istp("a.test", &["m.test"]), istp("b.test", &["m.test"])]);
    let note = |text: &str| ReportedSource { source: "a.test".to_owned(), message: text.to_owned() };
    let skipped = NodeMirrorReportSpec { skipped: vec![note("taken")], ..world.report() };
    let inexact = NodeMirrorReportSpec { inexact: vec![note("not quite")], ..world.report() };
    assert!(world.said("a.test", &[node("x", Some(&skipped))])[1].contains("x: a.test: taken"));
    assert!(world.said("b.test", &[node("x", Some(&skipped))])[1].starts_with("Applied True"));
    assert_eq!(
        world.said("a.test", &[node("x", Some(&inexact))])[2],
        "Exact False NotExpressed: a.test: not quite (on 1 nodes)"
    );
    assert!(world.said("b.test", &[node("x", Some(&inexact))])[2].starts_with("Exact True"));
    assert_eq!(world.statuses(Some(&[node("x", Some(&skipped))])).nodes.unwrap().failing, 1);
}

#[test]
fn an_agent_that_merges_otherwise_is_named() {
    let world = World::new(vec![istp("a.test", &["m.test"])]);
    let other = NodeMirrorReportSpec {
        config: Some("other".to_owned()),
        agent: "0.0.9".to_owned(),
        ..world.report()
    };
    let said = world.said("a.test", &[node("x", Some(&other))]);
    assert!(said[1].contains("version 0.0.9, merges the policies otherwise"), "{said:?}");
}

#[test]
fn hashes_do_not_depend_on_the_order_and_tell_everything_apart() {
    let (one, two) = (istp("a.test", &["m.test"]), idms("b.test", &["n.test"]));
    let hash = |policies| inputs(policies, &[], &[]).hash();
    assert_eq!(hash(vec![one.clone(), two.clone()]), hash(vec![two.clone(), one.clone()]));
    assert_ne!(hash(vec![one.clone()]), hash(vec![two.clone()]));
    assert_ne!(hash(vec![idms("b.test", &["n.test"])]), hash(vec![idms_never("b.test", &["n.test"])]));
    assert_ne!(inputs(vec![], &["a.test"], &[]).hash(), inputs(vec![], &[], &["a.test"]).hash());
    assert_ne!(
        hash(vec![idms("b.test", &["n.test", "m.test"])]),
        hash(vec![idms("b.test", &["m.test", "n.test"])])
    );
    let same =
        [icsp("a.test", &["m.test"]), isdp("a.test", &["m.test"])].map(|policy| plan(vec![policy]).hash());
    assert_eq!(same[0], same[1], "the same result, whatever the kind");
}

#[test]
fn reports_are_bounded() {
    let notes = |count: usize| {
        let scope = |number| Scope::parse(&format!("r{number}.test")).unwrap();
        (0..count).map(|number| (scope(number), "ä".repeat(2000))).collect::<Vec<_>>()
    };
    let in_force = InForce { skipped: notes(300), inexact: notes(3), ..InForce::default() };
    let report = Reporter::default().report(Ok(&in_force));
    assert_eq!((report.skipped.len(), report.inexact.len(), report.unlisted), (256, 3, 44));
    assert!(report.skipped.iter().all(|note| note.message.len() <= 512));
}

#[test]
fn sources_that_do_not_fit_a_report_do_not_count_as_applied() {
    let world = World::new(vec![istp("a.test", &["m.test"]), istp("z.test", &["m.test"])]);
    let taken = |number| (Scope::parse(&format!("r{number}.test")).unwrap(), "taken".to_owned());
    let skipped = (0..300).rev().map(taken).collect();
    let (policies, config) = (world.hash.clone(), world.config.hash());
    let in_force = InForce { policies, config, skipped, ..InForce::default() };
    let report = Reporter::default().report(Ok(&in_force));
    let nodes = [node("x", Some(&report))];
    assert!(world.said("a.test", &nodes)[1].starts_with("Applied True"), "it would be listed first");
    let said = world.said("z.test", &nodes);
    assert!(said[1].starts_with("Applied False Failed: 0 of 1 nodes; not on x: more sources"), "{said:?}");
}

fn real_node(taints: &[(&str, &str)], ready: bool, os: &str) -> Node {
    let taint = |(key, effect): &(&str, &str)| Taint {
        key: (*key).into(),
        value: "".into(),
        effect: (*effect).into(),
    };
    Node {
        name: "n".into(),
        uid: "u".into(),
        created: Timestamp::UNIX_EPOCH,
        labels: Arc::from([("pool".into(), "a".into())]),
        taints: taints.iter().map(taint).collect(),
        unschedulable: false,
        ready,
        disk_pressure: false,
        os: os.into(),
        architecture: "amd64".into(),
        runtime: "containerd://2.2.0".into(),
        images: Arc::new(ImageList::default()),
    }
}

#[test]
fn nodes_count_that_are_ready_have_linux_and_are_selected() {
    let any = BTreeMap::new();
    let pool = |name: &str| BTreeMap::from([("pool".to_owned(), name.to_owned())]);
    let plain = real_node(&[], true, "linux");
    assert!(is_selected(&plain, &any, &[]) && is_selected(&plain, &pool("a"), &[]));
    assert!(!is_selected(&plain, &pool("b"), &[]));
    assert!(!is_selected(&real_node(&[], false, "linux"), &any, &[]));
    assert!(!is_selected(&real_node(&[], true, "windows"), &any, &[]));
    let tainted = real_node(&[("gpu", "NoSchedule")], true, "linux");
    let all =
        k8s_openapi::api::core::v1::Toleration { operator: Some("Exists".to_owned()), ..Default::default() };
    assert!(!is_selected(&tainted, &any, &[]) && is_selected(&tainted, &any, &[all]));
    assert!(is_selected(
        &real_node(&[("node.kubernetes.io/disk-pressure", "NoSchedule")], true, "linux"),
        &any,
        &[]
    ));
}

#[test]
fn an_agent_is_lost_after_ten_minutes_without_being_ready() {
    let (now, minute) = (Timestamp::from_second(10_000).unwrap(), SignedDuration::from_mins(1));
    let since = |minutes: i32| AgentPod::NotReady { since: now - minute * minutes };
    assert!(!since(9).is_lost(now) && since(10).is_lost(now) && !AgentPod::Ready.is_lost(now));
    assert_eq!(since(20).better(AgentPod::Ready), AgentPod::Ready);
    assert!(!since(20).better(since(1)).is_lost(now));
}
