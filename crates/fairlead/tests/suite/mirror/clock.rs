//! A lease holder whose clock is wrong.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::{ImageLedger, LedgerEntry};
use fairlead_operator::controller::events::INTERNAL_ERRORS;
use fairlead_testkit::{RegistryConfig, eventually};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use super::rig::{
    Rig, SOON, delete_pod, digest_at, fresh, mirror_of, pod_of, push, wait_for_copy, wait_for_removal,
    wait_for_status,
};

/// Shifts the wall clock of a program by so many seconds, as the C library tells it. The monotonic clock is left alone.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    const char *shift = getenv("SHIFT_CLOCK");
    if (result == 0 && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += atol(shift);
    return result;
}
"#;

fn library(rig: &Rig) -> Result<PathBuf> {
    let directory = rig.cluster.directory();
    let (source, library) = (directory.join("shift.c"), directory.join("shift.so"));
    std::fs::write(&source, SHIFT)?;
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    ensure!(built.context("cannot run cc, which Rust links with")?.success(), "the library does not compile");
    Ok(library)
}

async fn entry(rig: &Rig, part: &str) -> Result<LedgerEntry> {
    let ledgers: Api<ImageLedger> = Api::all(rig.client().await?);
    let all = ledgers.list(&ListParams::default()).await?.items.into_iter().flat_map(|one| one.spec.entries);
    all.into_iter().find(|entry| entry.source.contains(part)).with_context(|| format!("no row of {part}"))
}

#[tokio::test]
async fn a_lease_holder_with_a_wrong_clock_removes_nothing_and_says_so() -> Result<()> {
    let mut rig = fresh().await?;
    let namespace = rig.namespace().await?;
    let [source] = rig.registries().await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let cleanup = json!({"cleanup": {"enabled": true, "retention": "1h"}});
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &cleanup);
    rig.apply(&mirror).await?;
    let mut pods = Vec::new();
    for name in ["early", "late"] {
        push(&source, &format!("team/{name}"), "1").await?;
        pods.push(rig.create(&namespace, &pod_of(&source, &format!("team/{name}:1"))).await?);
    }
    wait_for_status(&rig, &mirror, |status| status["mirroredCount"] == 2).await?;
    delete_pod(&rig, &pods[0]).await?;
    let unused =
        eventually(SOON, || async { entry(&rig, "early").await?.unused_since.context("in use") }).await?;
    rig.operator.0.stop().await?;

    // Two hours ahead: by its own clock the retention is over.
    let library = library(&rig)?;
    let shifted = |seconds: &str| {
        [
            ("LD_PRELOAD".to_owned(), library.display().to_string()),
            ("SHIFT_CLOCK".to_owned(), seconds.to_owned()),
        ]
    };
    rig.operator = rig.start_operator_with(&shifted("7200")).await?;
    eventually(SOON, || async {
        let skew = rig.operator.0.metric("fairlead_clock_skew_seconds").await?.unwrap_or_default();
        ensure!((7100.0..7300.0).contains(&skew), "{skew}");
        let events: Api<Event> = Api::namespaced(rig.client().await?, "fairlead-system");
        let told = events.get(INTERNAL_ERRORS).await?.message.unwrap_or_default();
        ensure!(told.contains("s ahead of the API server's"), "{told}");
        Ok(())
    })
    .await?;
    let digest = push(&source, "team/new", "1").await?;
    rig.create(&namespace, &pod_of(&source, "team/new:1")).await?;
    wait_for_copy(&target, "team/new", "1", &digest).await?;
    delete_pod(&rig, &pods[1]).await?;
    let late =
        eventually(SOON, || async { entry(&rig, "late").await?.unused_since.context("in use") }).await?;
    let error = Timestamp::now().duration_since(late.0).abs();
    ensure!(error < SignedDuration::from_mins(5), "unused since {}, which is {error} off", late.0);
    ensure!(entry(&rig, "early").await?.unused_since == Some(unused), "the time was changed");
    ensure!(digest_at(&target, "team/early", "1").await?.is_some(), "it was removed before its time");

    // The object itself goes, if slowly, and says what it waits for.
    rig.delete(&mirror).await?;
    let status = wait_for_status(&rig, &mirror, |status| status.to_string().contains("API server's")).await?;
    ensure!(status.to_string().contains("still to be deleted"), "{status}");
    ensure!(digest_at(&target, "team/early", "1").await?.is_some(), "it was removed by a wrong clock");

    // Once the clock is right, clean-up goes on.
    rig.operator.0.stop().await?;
    rig.operator = rig.start_operator().await?;
    wait_for_removal(&target, "team/early", "1").await?;
    ensure!(rig.operator.0.metric("fairlead_clock_skew_seconds").await? == Some(0.0));
    Ok(())
}
