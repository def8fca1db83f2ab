//! Commands whose output is not read: the reader is gone, or is there and does not read.

use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::{eventually, images};

use crate::person::{Outcome, Person};

/// Far more than anything here takes, and less than a command that waits for a reader.
const SOON: Duration = Duration::from_secs(20);

/// A pipe without room, whose reader has yet to read anything.
pub fn full_pipe() -> Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = pipe()?;
    rustix::io::ioctl_fionbio(&writer, true)?;
    while (&writer).write(&[b' '; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false)?;
    Ok((reader, writer))
}

pub fn signal(child: &Child, name: &str) -> Result<()> {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status()?;
    ensure!(sent.success(), "the signal could not be sent");
    Ok(())
}

/// Whether a command stands at a standard output that has no room.
pub fn is_stuck(child: &Child) -> Result<()> {
    for thread in fs::read_dir(format!("/proc/{}/task", child.id()))? {
        // The number of a system call and its arguments, of which the first is where to write.
        let call = fs::read_to_string(thread?.path().join("syscall"))?;
        if call.split(' ').nth(1) == Some("0x1") {
            return Ok(());
        }
    }
    bail!("it does not wait for a reader")
}

/// The status that a command ends with, soon. One that does not is ended.
pub async fn end(child: &mut Child) -> Result<Option<i32>> {
    let ended = eventually(SOON, || {
        std::future::ready(
            child.try_wait().map_err(Into::into).and_then(|status| status.context("it does not end")),
        )
    })
    .await;
    if ended.is_err() {
        child.kill()?;
        child.wait()?;
    }
    Ok(ended?.code())
}

/// Two registries, of which the first holds three images, and a list to copy them.
async fn three_images() -> Result<(FakeRegistry, FakeRegistry, String)> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let mut lines = Vec::new();
    for tag in ["1", "2", "3"] {
        from.hold("app", tag, &images::empty()?);
        lines.push(format!("{}/app:{tag} {}/app:{tag}", from.host(), to.host()));
    }
    Ok((from, to, lines.join("\n")))
}

fn copied(to: &FakeRegistry, tags: &[&str]) -> Result<()> {
    for tag in tags {
        ensure!(to.digest_of("app", tag).is_some(), "{tag} is not copied");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warnings_that_nobody_reads_stop_nothing() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &images::empty()?);
    let person = Person::new()?;
    person.write(".docker/config.json", "broken")?;
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    for (args, expected) in [
        (&["copy", &source, &target][..], 0),
        (&["probe", &source], 0),
        (&["probe", "--timeout", "0s", &source], 2),
        (&["config", "check", "/nowhere/config.yaml"], 1),
    ] {
        let gone = pipe()?.1;
        let full = File::create("/dev/full")?;
        for mut child in
            [person.command(args).stderr(gone).spawn()?, person.command(args).stderr(full).spawn()?]
        {
            assert_eq!(end(&mut child).await?, Some(expected), "{args:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_cannot_be_kept_are_a_failure_and_no_misuse() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &images::empty()?);
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    for args in [&["probe", &source][..], &["probe", "--json", &source], &["copy", &source, &target]] {
        let mut child = Person::new()?.command(args).stdout(File::create("/dev/full")?).spawn()?;
        assert_eq!(end(&mut child).await?, Some(1), "{args:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interruption_that_nobody_hears_of_still_says_farewell() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let image = images::empty()?;
    from.hold("app", "1", &image);
    to.inject(Fault::new(Effect::Hang).on(Route::Uploads).method("PUT"));
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    let mut child = Person::new()?.command(&["copy", &source, &target]).stderr(pipe()?.1).spawn()?;
    eventually(SOON, || async {
        ensure!(to.count("PUT", "") == image.blobs().len(), "the blobs are not being sent");
        Ok(())
    })
    .await?;
    signal(&child, "INT")?;
    assert_eq!(end(&mut child).await?, Some(1));
    assert_eq!(to.open_uploads(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_do_not_wait_for_a_reader_who_gets_everything_in_the_end() -> Result<()> {
    let (_from, to, list) = three_images().await?;
    let person = Person::new()?;
    let file = person.write("list", &list)?;
    let (mut reader, writer) = full_pipe()?;
    let args = ["copy", "--jobs", "1", "--file", file.to_str().unwrap()];
    let mut child = person.command(&args).stdout(writer).spawn()?;
    eventually(SOON, || async { copied(&to, &["1", "2", "3"]) }).await?;
    assert!(child.try_wait()?.is_none(), "nobody has read what it has to say");

    let reading = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    assert_eq!(end(&mut child).await?, Some(0));
    let text = reading.await??;
    let states: Vec<_> = text.lines().map(|line| line.split_whitespace().next()).collect();
    assert_eq!(states, [Some("copied"); 3], "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_who_does_not_read_does_not_keep_a_command_from_ending() -> Result<()> {
    let (_from, to, list) = three_images().await?;
    to.inject(Fault::new(Effect::Hang).on(Route::Manifests).method("PUT").path("/3"));
    let person = Person::new()?;
    let file = person.write("list", &list)?;
    for (wish, both) in [("INT", false), ("TERM", true)] {
        let (_reader, writer) = full_pipe()?;
        let mut command = person.command(&["copy", "--file", file.to_str().unwrap()]);
        if both {
            command.stderr(writer.try_clone()?);
        }
        to.forget_requests();
        let mut child = command.stdout(writer).spawn()?;
        eventually(SOON, || async {
            copied(&to, &["1", "2"])?;
            ensure!(to.count("PUT", "/3") == 1, "the third is not being copied");
            Ok(())
        })
        .await?;
        let begun = Instant::now();
        signal(&child, wish)?;
        assert_eq!(end(&mut child).await?, Some(1), "{wish}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{wish}: {:?}", begun.elapsed());
        if !both {
            let errors = Outcome::of(child)?.errors;
            assert!(errors.starts_with("Interrupted: 2 of 3 images"), "{errors}");
        }
    }
    Ok(())
}
