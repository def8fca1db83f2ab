//! Places that are declared to hold the same image and do not.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{RegistryConfig, eventually};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::rig::{SOON, image, pod, push, replicas, route, shared};
use crate::person::Person;

/// What differs is looked at again every half minute.
const LOOKED_AT_AGAIN: Duration = Duration::from_mins(2);

#[tokio::test]
async fn different_digests_under_one_tag_are_told_until_they_agree() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let first = rig.registry(RegistryConfig::new(), "one").await?;
    let second = rig.registry(RegistryConfig::new(), "another").await?;
    let policy = replicas(&first, &second);
    rig.apply(&policy).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    let digest_of_other = push(&second, "team/app", "another").await?;
    let condition = async || -> Result<Value> {
        let name = policy["metadata"]["name"].as_str().context("a name")?;
        let object = rig.policies(&policy).await?.get(name).await?;
        let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.into_iter().find(|one| one["type"] == "Consistent").unwrap_or_default())
    };
    ensure!(condition().await? == Value::Null, "nothing was ever wrong");

    // One Pod is enough for the policy to say it.
    let pod_of_first = rig.create(&namespace, &pod(&asked)).await?;
    ensure!(image(&pod_of_first) == asked, "{}", image(&pod_of_first));
    eventually(SOON, || async {
        let found = condition().await?;
        ensure!(found["status"] == "False" && found["reason"] == "DigestsDiffer", "{found}");
        let message = found["message"].as_str().unwrap_or_default();
        for part in [&asked, &other, &digest_of_other] {
            ensure!(message.contains(part.as_str()), "no {part} in {message}");
        }
        Ok(())
    })
    .await?;
    // By then the operator knows it when the next Pod comes.
    let differs = |pod: &_| route(pod, "app")["differs"][0].clone();
    let recorded = rig.create_until(&namespace, &pod(&asked), |pod| differs(pod) != Value::Null).await?;
    let by = format!("ClusterReplicatedImageSet//{}", policy["metadata"]["name"].as_str().context("a name")?);
    let expected = json!({"image": other, "digest": digest_of_other, "by": by});
    ensure!(differs(&recorded) == expected, "{}", route(&recorded, "app"));

    let (person, kubeconfig) = (Person::new()?, rig.cluster.kubeconfig());
    let name = format!("pod/{}", recorded.name_any());
    let explained = person.explain_from(&kubeconfig, &[&name, "-n", &namespace])?;
    ensure!(
        explained.is(0).output.contains(&format!("differs {other} is {digest_of_other}, {asked} is sha256:")),
        "{}",
        explained.output
    );

    // The same image is pushed to both.
    push(&second, "team/app", "one").await?;
    eventually(LOOKED_AT_AGAIN, || async {
        let found = condition().await?;
        ensure!(found["status"] == "True" && found["reason"] == "DigestsAgree", "{found}");
        Ok(())
    })
    .await?;
    let explained = person.explain_from(&kubeconfig, &[&name, "-n", &namespace])?;
    ensure!(!explained.is(0).output.contains("differs "), "{}", explained.output);
    Ok(())
}
