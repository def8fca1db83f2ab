//! Documents stored as artifacts.

use anyhow::Result;
use fairlead_domain::reference::Tag;
use fairlead_registry::manifest::Selector;
use fairlead_registry::{ErrorClass, Right};
use fairlead_testkit::{Registry, RegistryConfig, images};

use crate::real::releases;
use crate::support::{at, client, patiently, remote};

const TYPE: &str = "application/vnd.example.list.v1+json";

#[tokio::test]
async fn a_document_is_stored_read_and_replaced() -> Result<()> {
    for release in releases() {
        let registry = Registry::start(RegistryConfig::new().release(release).delete()).await?;
        let remote = remote(&client(), &at(&registry, "deep/path/list")?, Right::Delete)?;
        let tag = Selector::from(&Tag::parse("one")?);
        let missing = remote.artifact(&tag, TYPE, 100, &patiently()).await.unwrap_err();
        assert_eq!(missing.class(), ErrorClass::Absent, "{release:?}: {missing}");

        let first = remote.put_artifact(&tag, TYPE, "first".into(), &patiently()).await?;
        let read = remote.artifact(&tag, TYPE, 100, &patiently()).await?;
        assert_eq!((read.digest, &*read.document), (first, b"first".as_slice()), "{release:?}");
        let second = remote.put_artifact(&tag, TYPE, "the second".into(), &patiently()).await?;
        assert_ne!(first, second);
        remote.delete_digest(first, &patiently()).await?;
        assert_eq!(
            remote.artifact(&tag, TYPE, 100, &patiently()).await?.document,
            "the second",
            "{release:?}"
        );

        let long = remote.artifact(&tag, TYPE, 5, &patiently()).await.unwrap_err();
        assert!(long.to_string().contains("longer than 5 bytes"), "{release:?}: {long}");
    }
    Ok(())
}

#[tokio::test]
async fn another_kind_of_content_is_refused() -> Result<()> {
    let registry = Registry::start(RegistryConfig::new()).await?;
    registry.endpoint().push("list", "one", &images::empty()?).await?;
    let remote = remote(&client(), &at(&registry, "list")?, Right::Pull)?;
    let refused =
        remote.artifact(&Selector::from(&Tag::parse("one")?), TYPE, 100, &patiently()).await.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Broken, "{refused}");
    Ok(())
}
