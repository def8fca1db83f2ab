//! `fairlead mirror status` against a real API server: ledgers and statuses as the operator writes them, rights of
//! people who may see less, and views that follow changes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_api::kuik::{ClusterImageSetMirror, ImageSetMirror};
use fairlead_testkit::{Cluster, eventually, unique};
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kubectl;
use crate::person::{Outcome, Person};
use crate::unread;

const SOON: Duration = Duration::from_secs(30);

fn spec() -> Value {
    json!({
        "imageFilter": {"include": [".*"]},
        "cleanup": {"enabled": true, "retention": "720h"},
        "mirrors": [{"registry": "near.example.com", "path": "/copies"}, {"registry": "far.example.com"}],
    })
}

fn object(kind: &str, name: &str, namespace: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec(),
    });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

fn copy(destination: &str, state: &str, error: Option<&str>) -> Value {
    let mut copy = json!({"destination": destination, "state": state, "since": "2026-01-01T00:00:00Z"});
    if state == "Mirrored" {
        copy["digest"] = json!(format!("sha256:{}", "a".repeat(64)));
        copy["written"] = json!([copy["digest"]]);
    }
    if let Some(error) = error {
        copy["lastError"] = json!(error);
    }
    copy
}

/// One image with two copies, as the operator writes it.
fn entry(name: &str, near: &Value, unused: Option<String>) -> Value {
    let far = copy(&format!("far.example.com/library/{name}"), "Mirrored", None);
    let mut entry = json!({"source": format!("docker.io/library/{name}"), "mirrors": [near, far]});
    if let Some(since) = unused {
        entry["unusedSince"] = json!(since);
    }
    entry
}

fn near(name: &str, state: &str, error: Option<&str>) -> Value {
    copy(&format!("near.example.com/copies/library/{name}"), state, error)
}

fn ledger(owner: &impl Resource<DynamicType = ()>, namespace: &str, number: usize, entries: &Value) -> Value {
    let (kind, name, uid) = (kind_of(owner), owner.name_any(), owner.uid().unwrap());
    let short = if kind == "ImageSetMirror" { "ism" } else { "cism" };
    let id: String = uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    let references = json!([{"apiVersion": "kuik.enix.io/v1alpha1", "kind": kind, "name": name, "uid": uid}]);
    json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageLedger",
        "metadata": {
            "name": format!("{short}-{name}-{id}-{number}"), "namespace": namespace, "ownerReferences": references,
            "labels": {"fairlead.dev/owner-kind": kind, "fairlead.dev/owner-uid": uid},
        },
        "spec": {"owner": {"kind": kind, "name": name, "uid": uid}, "entries": entries},
    })
}

fn kind_of<K: Resource<DynamicType = ()>>(_: &K) -> String {
    K::kind(&()).into_owned()
}

async fn write_status<K>(api: &Api<K>, name: &str, status: &Value) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn ready(generation: i64, status: &str, reason: &str, message: &str) -> Value {
    json!({"observedGeneration": generation, "imageCount": 3, "mirroredCount": 4, "failedCount": 1, "conditions": [{
        "type": "Ready", "status": status, "reason": reason, "message": message, "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]})
}

fn arguments<'a>(kubeconfig: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["mirror", "status", "--kubeconfig", kubeconfig.to_str().unwrap()], more].concat()
}

fn status(kubeconfig: &Path, more: &[&str]) -> Result<Outcome> {
    Person::new()?.run(&arguments(kubeconfig, more), "")
}

fn json_of(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.output).unwrap()
}

/// An `ImageSetMirror` with two ledgers and a status: two copies in place of each image, one failing, one image unused.
async fn team_mirror(cluster: &Cluster, namespace: &str) -> Result<ImageSetMirror> {
    kubectl::create(cluster, &[object("ImageSetMirror", "team", Some(namespace))], &[]).await?;
    let api: Api<ImageSetMirror> = Api::namespaced(cluster.client().await?, namespace);
    let team = api.get("team").await?;
    write_status(&api, "team", &ready(1, "False", "Degraded", "1 copy fails")).await?;
    let yesterday = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24);
    let ledgers = [
        ledger(
            &team,
            namespace,
            0,
            &json!([
                entry("a:1", &near("a:1", "Mirrored", None), None),
                entry("b:1", &near("b:1", "Failed", Some("there is no room")), None),
            ]),
        ),
        ledger(
            &team,
            namespace,
            1,
            &json!([entry("c:1", &near("c:1", "Mirrored", None), Some(yesterday.to_string())),]),
        ),
    ];
    kubectl::create(cluster, &ledgers, &[]).await?;
    Ok(team)
}

#[tokio::test]
async fn copies_are_counted_and_what_fails_is_explained() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("mirror-status").await?;
    team_mirror(cluster, &namespace).await?;
    let all = cluster.kubeconfig();

    let outcome = status(&all, &["ism/team", "-n", &namespace])?;
    let table = &outcome.is(3).output;
    for part in [
        &format!("ImageSetMirror/{namespace}/team: not ready for "),
        ", Degraded: 1 copy fails\n",
        "  images   2 in use, 1 unused\n",
        "  copies   5 of 6 in place, 1 failed\n",
        "near.example.com/copies  2 ",
        "near.example.com/copies/library/b:1",
        "there is no room\n",
        "docker.io/library/c:1  24h  go in 28d\n",
    ] {
        assert!(table.contains(part), "{part:?} is not in:\n{table}");
    }
    assert_eq!(outcome.errors, "", "nothing is hidden from somebody with all rights");

    let found = json_of(status(&all, &["team", "-n", &namespace, "-o", "json"])?.is(3));
    let [team] = found["objects"].as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!((&team["knownFrom"], &team["observed"]), (&json!("ledgers"), &json!(true)));
    assert_eq!(team["copies"]["mirrored"], json!(5));
    assert_eq!(team["failing"][0]["error"], json!("there is no room"));

    let failing = status(&all, &["team", "-n", &namespace, "--failed"])?;
    assert!(!failing.is(3).output.contains("library/c:1"), "{}", failing.output);

    for (name, told) in [
        (
            "nobody",
            format!(
                "there is no mirror nobody: no ClusterImageSetMirror, and no ImageSetMirror in namespace {namespace}"
            ),
        ),
        ("ism/nobody", format!("there is no ImageSetMirror nobody in namespace {namespace}")),
        ("cism/team", "there is no ClusterImageSetMirror team".to_owned()),
    ] {
        let outcome = status(&all, &[name, "-n", &namespace])?;
        assert!(outcome.is(1).errors.contains(&told), "{}", outcome.errors);
    }
    let outcome = status(&all, &["pod/x"])?;
    assert!(outcome.is(2).errors.contains("write cism/x or ism/x"), "{}", outcome.errors);
    Ok(())
}

#[tokio::test]
async fn ledgers_of_cluster_wide_objects_are_read_where_the_operator_is_and_nowhere_else() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let (home, elsewhere) =
        (cluster.namespace("mirror-home").await?, cluster.namespace("mirror-other").await?);
    let name = unique("global");
    kubectl::create(cluster, &[object("ClusterImageSetMirror", &name, None)], &[]).await?;
    let api: Api<ClusterImageSetMirror> = Api::all(cluster.client().await?);
    let global = api.get(&name).await?;
    let entries = json!([entry("a:1", &near("a:1", "Pending", None), None)]);
    kubectl::create(
        cluster,
        &[ledger(&global, &home, 0, &entries), ledger(&global, &elsewhere, 0, &entries)],
        &[],
    )
    .await?;
    let outcome = status(
        &cluster.kubeconfig(),
        &[&format!("cism/{name}"), "--operator-namespace", &home, "-o", "json"],
    )?;
    let found = json_of(outcome.is(0));
    let global = &found["objects"][0];
    assert_eq!(
        global["copies"],
        json!({"total": 2, "mirrored": 1, "pending": 1, "failed": 0, "refused": 0, "deleting": 0})
    );
    assert_eq!((&global["oldestWaiting"], &global["ready"]), (&json!("2026-01-01T00:00:00Z"), &Value::Null));
    kubectl::delete(cluster, &[object("ClusterImageSetMirror", &name, None)]).await
}

/// A user who may see the objects of a namespace and nothing else still learns what their statuses say.
#[tokio::test]
async fn who_may_see_less_is_told_what_is_left_out() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("mirror-status").await?;
    team_mirror(cluster, &namespace).await?;
    let role = |kind: &str| {
        let metadata = json!({"name": "reader", "namespace": namespace});
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata})
    };
    let (mut rules, mut binding) = (role("Role"), role("RoleBinding"));
    rules["rules"] = json!([{"apiGroups": ["kuik.enix.io"], "resources": ["imagesetmirrors"], "verbs": ["list", "watch"]}]);
    binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"});
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": "default", "namespace": namespace}]);
    kubectl::create(cluster, &[rules, binding], &[]).await?;
    let kubeconfig = cluster.kubeconfig_as(&namespace, "default").await?;
    // The authoriser sees new rights a moment after they are stored.
    let outcome = eventually(SOON, || async {
        let outcome = status(&kubeconfig, &["-n", &namespace])?;
        ensure!(outcome.status == Some(3), "{}{}", outcome.output, outcome.errors);
        Ok(outcome)
    })
    .await?;
    for told in ["you may not see objects of kind ClusterImageSetMirror", "a hundred images at most"] {
        assert!(outcome.errors.contains(told), "{}", outcome.errors);
    }
    assert!(
        outcome.output.contains("  copies   4 of 6 in place, 1 waiting, 1 failed\n"),
        "{}",
        outcome.output
    );
    assert!(outcome.output.contains("the object's own status"), "{}", outcome.output);

    let outcome = status(&kubeconfig, &["-n", "default"])?;
    assert!(outcome.is(1).errors.contains("you may not see"), "{}", outcome.errors);
    Ok(())
}

/// What a program prints, line by line or as it comes, read beside the test.
pub(crate) fn read_along(mut source: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = source.read(&mut piece) {
            if sender.send(String::from_utf8_lossy(&piece[..count]).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Reads until a text has come, and returns everything up to there.
pub(crate) fn read_until(pieces: &mpsc::Receiver<String>, wanted: &str) -> Result<String> {
    let mut all = String::new();
    while !all.contains(wanted) {
        let piece =
            pieces.recv_timeout(SOON).with_context(|| format!("{wanted:?} does not come after:\n{all}"))?;
        all.push_str(&piece);
    }
    Ok(all)
}

/// Ends it as Ctrl-C does, and returns its status.
pub(crate) fn interrupt(mut child: Child) -> Result<Option<i32>> {
    unread::signal(&child, "INT")?;
    Ok(child.wait()?.code())
}

#[tokio::test]
async fn changes_are_printed_as_they_come() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("mirror-status").await?;
    let team = team_mirror(cluster, &namespace).await?;
    let kubeconfig = cluster.kubeconfig();
    let mut child = Person::new()?
        .start(&arguments(&kubeconfig, &["team", "-n", &namespace, "-o", "json", "--watch"]))?;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = move || -> Result<Value> {
        let line: Value = serde_json::from_str(&lines.next().context("nothing more is said")??)?;
        Ok(line["objects"][0]["copies"].clone())
    };
    assert_eq!(next()?["failed"], json!(1));
    let mended = ledger(&team, &namespace, 0, &json!([entry("b:1", &near("b:1", "Mirrored", None), None)]));
    kubectl::apply(cluster, &[mended], &["--force-conflicts"]).await?;
    let mut copies = next()?;
    // The API server may tell of one write twice: of its own and of the manager's fields.
    while copies["failed"] != json!(0) {
        copies = next()?;
    }
    assert_eq!((&copies["mirrored"], &copies["total"]), (&json!(4), &json!(4)));
    assert_eq!(interrupt(child)?, Some(0));
    Ok(())
}

#[tokio::test]
async fn changes_that_nobody_reads_do_not_keep_it_from_ending() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("mirror-status").await?;
    team_mirror(cluster, &namespace).await?;
    let kubeconfig = cluster.kubeconfig();
    let (_reader, writer) = unread::full_pipe()?;
    let mut child = Person::new()?
        .command(&arguments(&kubeconfig, &["team", "-n", &namespace, "--watch"]))
        .stdout(writer)
        .spawn()?;
    eventually(SOON, || async { unread::is_stuck(&child) }).await?;
    unread::signal(&child, "TERM")?;
    assert_eq!(unread::end(&mut child).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn on_a_terminal_the_view_is_live_and_cleans_up_after_itself() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("mirror-status").await?;
    let team = team_mirror(cluster, &namespace).await?;
    let (terminal, screen) = terminal(20, 100)?;
    let kubeconfig = cluster.kubeconfig();
    let child = Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .args(arguments(&kubeconfig, &["team", "-n", &namespace]))
        .env_clear()
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(screen)
        .stderr(Stdio::null())
        .spawn()?;
    let pieces = read_along(terminal);
    let first = read_until(&pieces, "there is no room")?;
    assert!(first.contains("\x1b[?1049h") && first.contains("] 83 %"), "{first:?}");
    let mended = ledger(&team, &namespace, 0, &json!([entry("b:1", &near("b:1", "Mirrored", None), None)]));
    kubectl::apply(cluster, &[mended], &["--force-conflicts"]).await?;
    let later = read_until(&pieces, "4 of 4 in place")?;
    assert!(!later.contains("\x1b[?1049"), "it is the same screen still: {later:?}");
    // The way back, and what there is to see now, without a bar and for good.
    let ending = tokio::task::spawn_blocking(move || interrupt(child));
    let rest: String = std::iter::from_fn(|| pieces.recv_timeout(SOON).ok()).collect();
    let (_, last) = rest.split_once("\x1b[?1049l").with_context(|| format!("no way back in {rest:?}"))?;
    assert!(last.contains("4 of 4 in place") && last.contains("go in 28d"), "{last:?}");
    assert!(!last.contains('\x1b') && !last.contains("] 100 %"), "{last:?}");
    assert_eq!(ending.await??, Some(0));
    Ok(())
}

/// A terminal of a size: the end of its user, and the one that programs write to.
pub(crate) fn terminal(rows: u16, columns: u16) -> Result<(File, OwnedFd)> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&person)?;
    unlockpt(&person)?;
    tcsetwinsize(&person, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let name = ptsname(&person, Vec::new())?.into_string()?;
    let program = File::options().read(true).write(true).open(name)?;
    Ok((person.into(), program.into()))
}
