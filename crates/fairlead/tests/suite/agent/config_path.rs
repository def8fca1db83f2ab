//! Which spellings of `config_path` the node's containerd reads files by, and that detection agrees with it.

use anyhow::{Context, Result, ensure};
use fairlead_node::detect::detect;
use fairlead_testkit::Part;
use serde_json::json;
use tempfile::TempDir;

use super::node::{image, policy, reads, shared};

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn files_are_written_only_where_containerd_reads_them() -> Result<()> {
    let node = shared().await?;
    let _agent = node.alone().await?;
    let [source, mirror] = node.take()?;
    let item = json!({"source": source.host(), "mirrors": [mirror.host()],
        "mirrorSourcePolicy": "NeverContactSource"});
    node.apply(&policy("ImageTagMirrorSet", "imageTagMirrors", "config-path", &item), source).await?;
    let file = node.cluster.directory().join("containerd.toml");
    let usual = std::fs::read_to_string(&file)?;
    let line = usual.lines().find(|line| line.starts_with("config_path")).context("a config_path")?;
    let one = line.trim_start_matches("config_path = ").trim_matches('"');
    let part = node.cluster.directory().join("part.toml");
    let table = "[plugins.'io.containerd.cri.v1.images'.registry]";
    std::fs::write(&part, format!("version = 3\n{table}\nconfig_path = '{one}'\n"))?;
    let imports = format!("version = 3\nimports = ['{}']\n", part.display());
    let local = format!(
        "config_path = '/nowhere:{one}'\n\n[plugins.\"io.containerd.cri.v1.images\"]\n\
        use_local_image_pull = true"
    );
    for (number, (config, is_read)) in [
        // The image of sandboxes is pulled as well, so what is read comes first.
        (usual.clone(), true),
        (usual.replace(line, &format!("config_path = '{one}:/nowhere'")), false),
        (usual.replace(line, "config_path = ''"), false),
        (usual.replace(line, &local), true),
        (usual.replace(line, "").replace("version = 3\n", &imports), true),
        (usual.clone(), true),
    ]
    .into_iter()
    .enumerate()
    {
        let root = TempDir::new()?;
        let detected = root.path().join("etc/containerd");
        std::fs::create_dir_all(&detected)?;
        std::fs::write(detected.join("config.toml"), &config)?;
        let copy = root.path().join(part.strip_prefix("/")?);
        std::fs::create_dir_all(copy.parent().context("a directory")?)?;
        std::fs::copy(&part, copy)?;
        // An agent believes that a directory is empty only where it sees the directory.
        std::fs::create_dir_all(root.path().join(one.trim_start_matches('/')))?;
        std::fs::write(&file, &config)?;
        node.cluster.restart(Part::Containerd).await?;
        let repository = format!("app{number}");
        mirror.endpoint().push(&repository, "1", &image(&repository)?).await?;
        let pull = node.pull(&format!("{}/{repository}:1", source.host())).await?;
        if is_read {
            pull.runs(node).await?;
        } else {
            let said = pull.fails(node).await?;
            println!("{said}");
            ensure!(said.contains("server gave HTTP response to HTTPS client"), "{said}");
        }
        ensure!(is_read != reads(mirror, &repository)?.is_empty(), "{config}");
        let found = detect(root.path(), None, Some("2.2.0".parse()?));
        ensure!(found.is_ok() == is_read, "{config}: {found:?}");
    }
    Ok(())
}
