//! Explanations of Pods that a real operator admitted: both must come to the same choice, and tell the same story.

use anyhow::Result;
use fairlead_testkit::RegistryConfig;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::order;
use crate::person::Person;
use crate::route::rig;

#[tokio::test]
async fn a_pod_that_was_rewritten_is_told_why_and_what_would_happen_now() -> Result<()> {
    let rig = rig::shared().await?;
    let namespace = rig.namespace().await?;
    let first = rig.registry(RegistryConfig::new(), "explained").await?;
    let second = rig.registry(RegistryConfig::new(), "explained").await?;
    rig.apply(&rig::replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    first.kill().await?;
    let pod = rig.create_until(&namespace, &rig::pod(&asked), |pod| rig::image(pod) == other).await?;
    let name = format!("pod/{}", pod.name_any());
    let (person, kubeconfig) = (Person::new()?, rig.cluster.kubeconfig());

    for target in [name.as_str(), asked.as_str()] {
        let explained =
            person.explain_from(&kubeconfig, &[target, "-n", &namespace, "-o", "json"])?.is(0).json();
        let image = &explained["images"][0];
        assert_eq!(image["asked"], json!(asked), "{target}");
        assert_eq!(order(&explained, 0), [&asked, &other], "{target}");
        assert_eq!(image["choice"]["image"], json!(other), "{target}: {explained}");
        assert_eq!(explained["warnings"], json!([]), "{target}");
        if target == name {
            assert_eq!(image["image"], json!(other));
            assert_eq!(image["record"]["believable"], json!(true));
            assert_eq!(image["record"]["entry"], rig::route(&pod, "app"));
        } else {
            assert_eq!(image["record"], Value::Null);
        }
    }

    // What is recorded is about then; what is chosen is about now.
    first.start_again().await?;
    let table = person.explain_from(&kubeconfig, &[&name, "-n", &namespace])?;
    let told = table.is(0);
    assert!(told.output.contains(&format!("{other}, asked for as {asked}")), "{}", told.output);
    assert!(
        told.output.contains(&format!("record  rewritten from {asked} by ClusterReplicatedImageSet/")),
        "{}",
        told.output
    );
    assert!(told.output.contains(&format!("choice  {asked}, as it was asked for")), "{}", told.output);

    // Pods of the operator itself are left alone.
    let own = person.explain_from(&kubeconfig, &[&asked, "-n", &rig.operator.0.namespace, "--no-probe"])?;
    assert!(own.is(0).output.contains("never routed"), "{}", own.output);
    Ok(())
}
