//! Two replicas that do not know of each other, but for the API server.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::NAME;
use fairlead_testkit::registry::Access;
use fairlead_testkit::{Cluster, Registry, RegistryConfig, eventually};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{asked, create_with_warnings, held, owned, owner, pinned, pins, retag};
use crate::installed::Operator;
use crate::route::rig::{Rig, SOON, image, route};

const PODS: usize = 200;

/// Sends Pods with the label `replica=b` to the second operator, and all others to the first.
async fn split(cluster: &Cluster, [first, second]: [&Operator; 2]) -> Result<()> {
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(cluster.client().await?);
    let selector = |operator: &str| json!({"matchExpressions": [{"key": "replica", "operator": operator, "values": ["b"]}]});
    fairlead_testkit::operator::point_webhook_at(cluster, first.0.webhook).await?;
    let mut copy = webhooks.get(NAME).await?;
    copy.metadata = serde_json::from_value(json!({"name": format!("{NAME}-second")}))?;
    let webhook = copy.webhooks.as_mut().and_then(|all| all.first_mut()).context("a webhook")?;
    webhook.object_selector = serde_json::from_value(selector("In"))?;
    let url = webhook.client_config.url.as_mut().context("an address")?;
    let registered = url.splitn(4, '/').nth(3).context("a path")?.to_owned();
    *url = format!("https://{}/{registered}", second.0.webhook);
    webhooks.create(&PostParams::default(), &copy).await?;
    let patch = json!([{"op": "add", "path": "/webhooks/0/objectSelector", "value": selector("NotIn")}]);
    let patch = format!("--patch={patch}");
    cluster.kubectl(["patch", "mutatingwebhookconfiguration", NAME, "--type=json", &patch]).await.map(drop)
}

/// How often the watch of any replica has looked at an image of a registry.
async fn looks(replicas: [&Operator; 2], registry: &Registry) -> Result<usize> {
    let (series, host) = ("fairlead_watch_looks_total{", format!("registry=\"{}\"", registry.host()));
    let mut looks = 0;
    for replica in replicas {
        let page = replica.0.page().await?;
        for line in page.lines().filter(|line| line.starts_with(series) && line.contains(&host)) {
            looks += line.rsplit(' ').next().context("a value")?.parse::<usize>()?;
        }
    }
    Ok(looks)
}

fn on_replica(mut pod: Value, replica: &str) -> Value {
    pod["metadata"]["labels"]["replica"] = json!(replica);
    pod
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_give_a_revision_one_digest_while_its_tag_moves() -> Result<()> {
    let rig = Rig::install(Cluster::builder().audit(true).start().await?).await?;
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let other = rig.start_operator().await?;
    other.0.wait_until_ready(SOON).await?;
    split(cluster, [&rig.operator, &other]).await?;
    let registry = rig.registry(RegistryConfig::new(), "first").await?;
    for replica in ["a", "b"] {
        let bare = on_replica(pinned(&asked(&registry)), replica);
        rig.create_until(&namespace, &bare, |pod| image(pod).contains('@')).await?;
    }
    let digests = BTreeSet::from([retag(&registry, "first").await?, retag(&registry, "moving").await?]);
    let before = registry.accesses()?.len();
    let looks_before = looks([&rig.operator, &other], &registry).await?;

    let owner_of_all = owner(cluster, &namespace).await?;
    let revision = json!({"pod-template-hash": "5d4f6"});
    let pod = |number: usize| {
        let pod = owned(pinned(&asked(&registry)), &owner_of_all, &revision);
        on_replica(pod, if number.is_multiple_of(2) { "a" } else { "b" })
    };
    let creating = stream::iter(0..PODS).map(async |number| rig.create(&namespace, &pod(number)).await);
    let creating = creating.buffer_unordered(32).try_collect::<Vec<_>>();
    let moving = async {
        for round in 0..10 {
            retag(&registry, if round % 2 == 0 { "first" } else { "moving" }).await?;
        }
        anyhow::Ok(())
    };
    let (pods, moved) = futures::join!(creating, moving);
    moved?;
    let pods = pods?;
    let images: BTreeSet<_> = pods.iter().map(image).collect();
    ensure!(pods.len() == PODS && images.len() == 1, "{images:?}");
    let all = pins(cluster, &namespace).await?;
    ensure!(all.len() == 1, "{} pins", all.len());
    let [(reference, digest)] = held(&all[0])[..] else { anyhow::bail!("{:?}", all[0].spec) };
    ensure!(reference == asked(&registry) && digests.contains(digest), "{reference} {digest}");
    ensure!(images.contains(&*format!("{reference}@{digest}")), "{images:?}");

    // Each replica looked the tag up once at most. The watch of the one that leads looks at pinned tags as well, and
    // counts its looks.
    let lookups = async |before: usize, looks_before: usize, most: usize| {
        eventually(SOON, || async {
            let accesses = registry.accesses()?;
            let of_tag =
                |access: &&Access| access.method != "PUT" && access.path.contains("/team/app/manifests/1");
            let requests = accesses[before..].iter().filter(of_tag).count();
            let looks = looks([&rig.operator, &other], &registry).await? - looks_before;
            ensure!(requests <= looks + most, "{requests} requests, {looks} by the watch");
            Ok(requests)
        })
        .await
    };
    ensure!(lookups(before, looks_before, 2).await? > 0, "the tag was not looked up");
    // And the API server says that pins were created and read, and nothing else.
    let requests = cluster.audit_events()?;
    let of_pin =
        requests.iter().filter(|event| event.resource == "imagepins" && event.namespace == namespace);
    let creates = of_pin.clone().filter(|event| event.verb == "create").count();
    ensure!((1..=2).contains(&creates), "{creates} creates");

    // The replica that did not create it knows it from its watch, and asks no registry.
    let reads = || {
        anyhow::Ok(
            cluster
                .audit_events()?
                .iter()
                .filter(|event| event.resource == "imagepins" && event.verb == "get")
                .count(),
        )
    };
    let (known, asked_before) = (reads()?, registry.accesses()?.len());
    let looks_before = looks([&rig.operator, &other], &registry).await?;
    for number in 0..4 {
        let pod = rig.create(&namespace, &pod(number)).await?;
        ensure!(images.contains(image(&pod)) && route(&pod, "app")["digest"] == digest, "{}", image(&pod));
    }
    ensure!(reads()? == known, "a pin was read");
    lookups(asked_before, looks_before, 0).await?;
    other.0.stop().await
}

#[tokio::test]
async fn without_the_right_to_pin_tags_stay_with_a_warning() -> Result<()> {
    let rig = Rig::install(Cluster::builder().audit(true).start().await?).await?;
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let registry = rig.registry(RegistryConfig::new(), "denied").await?;
    let role: Value =
        serde_json::from_str(&cluster.kubectl(["get", "clusterrole", NAME, "--output=json"]).await?)?;
    let rules = role["rules"].as_array().context("rules")?;
    let creates_pins = |rule: &&Value| {
        let holds =
            |list: &str, text: &str| rule[list].as_array().is_some_and(|all| all.contains(&json!(text)));
        holds("resources", "imagepins") && holds("verbs", "create")
    };
    let kept: Vec<_> = rules.iter().filter(|rule| !creates_pins(rule)).collect();
    ensure!(kept.len() + 1 == rules.len(), "no rule about ImagePins");
    let patch = format!("--patch={}", json!({"rules": kept}));
    cluster.kubectl(["patch", "clusterrole", NAME, "--type=merge", &patch]).await?;

    let pod = owned(pinned(&asked(&registry)), &owner(cluster, &namespace).await?, &json!({}));
    let told = eventually(SOON, || async {
        let (created, told) = create_with_warnings(cluster, &namespace, &pod, &[]).await?;
        ensure!(image(&created) == asked(&registry), "{}: {told}", created.name_any());
        Ok(told)
    })
    .await?;
    ensure!(told.contains("Warning: fairlead: app: ") && told.contains("is not pinned: ImagePin "), "{told}");
    ensure!(told.contains("could not be stored"), "{told}");
    ensure!(
        rig.operator.0.metric("fairlead_image_pins_total{action=\"failed\"}").await? >= Some(1.0),
        "not counted"
    );

    // Where there is no such kind one request for each Pod finds it out.
    let patch = format!("--patch={}", json!({"rules": rules}));
    cluster.kubectl(["patch", "clusterrole", NAME, "--type=merge", &patch]).await?;
    cluster.kubectl(["delete", "crd", "imagepins.fairlead.dev"]).await?;
    let asked_for = || {
        let events = cluster.audit_events()?;
        let pins = events.iter().filter(|event| event.resource == "imagepins" && event.verb == "create");
        anyhow::Ok(pins.count())
    };
    eventually(SOON, || async {
        let pod = owned(pinned(&asked(&registry)), &owner(cluster, &namespace).await?, &json!({}));
        let before = asked_for()?;
        let (pod, told) = create_with_warnings(cluster, &namespace, &pod, &[]).await?;
        ensure!(image(&pod) == asked(&registry), "{}", image(&pod));
        ensure!(told.contains("could not be stored") && !told.contains("forbidden"), "{told}");
        ensure!(asked_for()? == before + 1, "{} requests", asked_for()? - before);
        Ok(())
    })
    .await?;

    // Switched off, pinning leaves tags to themselves and says so; digests of image volumes are noted all the same.
    rig.configure("account: {pinning: off}\n")?;
    let off = rig.start_operator().await?;
    off.0.wait_until_ready(SOON).await?;
    let mut pod = pinned(&asked(&registry));
    pod["spec"]["volumes"] = json!([{"name": "data", "image": {"reference": asked(&registry)}}]);
    let (pod, told) = create_with_warnings(cluster, &namespace, &pod, &[]).await?;
    ensure!(image(&pod) == asked(&registry), "{}", image(&pod));
    ensure!(told.contains("account.pinning is off"), "{told}");
    ensure!(pod.annotations().contains_key("fairlead.dev/volume-digests"), "{pod:?}");
    off.0.stop().await
}
