//! Programs under test are read, signalled and awaited.

use std::time::Duration;

use anyhow::Result;
use fairlead_testkit::{Ending, Program, Signal};

const DEADLINE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_program_is_read_signalled_and_awaited() -> Result<()> {
    let script = r#"trap 'echo leaving; exit 3' TERM; echo "ready: $GREETING"; while :; do sleep 0.02; done"#;
    let process = Program::new("/bin/sh").args(["-c", script]).env("GREETING", "hello").start().await?;
    assert_eq!(process.wait_for_log("ready", DEADLINE).await?, "ready: hello");
    assert!(process.peak_memory()? > 0);
    process.signal(Signal::Terminate).await?;
    assert_eq!(process.wait(DEADLINE).await?, Ending { code: Some(3), signal: None });
    assert!(process.logs()?.ends_with("leaving\n"));

    process.start_again().await?;
    process.kill().await?;
    assert_eq!(process.ending(), Some(Ending { code: None, signal: Some(9) }));
    Ok(())
}

#[tokio::test]
async fn waiting_ends_when_the_program_does() -> Result<()> {
    let process = Program::new("/bin/sh").args(["-c", "echo no such thing; exit 1"]).start().await?;
    let error = process.wait_for_log("never", Duration::from_mins(10)).await.unwrap_err();
    assert!(format!("{error:#}").contains("no such thing"), "{error:#}");
    let missing = Program::new("/does/not/exist").start().await.unwrap_err();
    assert!(format!("{missing:#}").contains("/does/not/exist"), "{missing:#}");
    Ok(())
}

#[tokio::test]
async fn nobodys_kubeconfig_leaks_in() -> Result<()> {
    let process = Program::new("/usr/bin/env").start().await?;
    process.wait(DEADLINE).await?;
    let mut names: Vec<String> =
        process.logs()?.lines().filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect();
    names.retain(|name| !["PATH", "HOME", "TMPDIR", "GOMAXPROCS", "GOGC"].contains(&name.as_str()));
    assert_eq!(names, Vec::<String>::new());
    Ok(())
}
