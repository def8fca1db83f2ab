//! Installing over a cluster that kube-image-keeper left: its definitions become ours, its objects stay what they were,
//! and stay when we go, too.

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_testkit::Cluster;
use serde_json::Value;

use crate::install::{is_uninstalled, manifests, to_uninstall};
use crate::installed::Operator;
use crate::release::{helm, uninstall};
use crate::yaml::title;
use crate::{kubectl, kuik};

#[tokio::test]
async fn plain_manifests_take_over_from_kuik_and_leave_its_objects_when_they_go() {
    let cluster = Cluster::builder().start().await.unwrap();
    let legacy = Legacy::prepare(&cluster).await.unwrap();
    let refused = kubectl::apply(&cluster, &manifests(&[]).unwrap(), &[]).await.unwrap_err().to_string();
    assert!(refused.contains("conflict"), "{refused}");
    kubectl::apply(&cluster, &manifests(&[]).unwrap(), &["--force-conflicts"]).await.unwrap();
    legacy.is_taken_over(&cluster).await.unwrap();

    kubectl::delete(&cluster, &to_uninstall().unwrap()).await.unwrap();
    is_uninstalled(&cluster).await.unwrap();
    legacy.is_still_there(&cluster).await.unwrap();
}

#[tokio::test]
async fn the_chart_takes_over_from_kuik_and_leaves_its_objects_when_it_goes() {
    let cluster = Cluster::builder().start().await.unwrap();
    let legacy = Legacy::prepare(&cluster).await.unwrap();
    let refused = helm(&cluster, "install", &[]).await.unwrap_err().to_string();
    assert!(refused.contains("ownership"), "{refused}");
    helm(&cluster, "install", &["--take-ownership", "--server-side=false"]).await.unwrap();
    legacy.is_taken_over(&cluster).await.unwrap();
    helm(&cluster, "upgrade", &["--set", "manager.replicas=3"]).await.unwrap();

    uninstall(&cluster).await.unwrap();
    is_uninstalled(&cluster).await.unwrap();
    legacy.is_still_there(&cluster).await.unwrap();
}

/// What kuik left in a cluster.
struct Legacy {
    objects: Vec<Value>,
}

impl Legacy {
    /// Installs kuik's definitions and the objects, status included, that were made while it ran.
    async fn prepare(cluster: &Cluster) -> Result<Self> {
        kubectl::create(cluster, &kuik::definitions(), &["--field-manager=helm"]).await?;
        kubectl::definitions_are_served(cluster).await?;
        let objects = kuik::objects(&cluster.namespace("kuik").await?);
        kubectl::create(cluster, &objects, &["--field-manager=person"]).await?;
        let with_status =
            objects.iter().filter(|object| object.get("status").is_some()).cloned().collect::<Vec<_>>();
        let options = ["--field-manager=kuik", "--subresource=status", "--force-conflicts"];
        kubectl::apply(cluster, &with_status, &options).await?;
        Ok(Self { objects })
    }

    async fn is_taken_over(&self, cluster: &Cluster) -> Result<()> {
        kubectl::definitions_are_served(cluster).await?;
        self.is_untouched(cluster).await?;
        self.can_still_be_changed(cluster).await?;
        self.cannot_be_repeated(cluster).await?;
        let operator = Operator::start(cluster, DEFAULT_NAMESPACE).await?;
        operator.works(cluster).await?;
        operator.stop(cluster).await
    }

    /// What people wrote is there, whatever has been said and done about it since.
    async fn is_still_there(&self, cluster: &Cluster) -> Result<()> {
        let found = kubectl::get_all(cluster, &self.objects).await.context("something is gone")?;
        for (object, found) in self.objects.iter().zip(&found) {
            let (found, before) = (&found["spec"], &object["spec"]);
            ensure!(holds(found, before), "spec of {} is {found}, was {before}", title(object));
        }
        Ok(())
    }

    /// Everything that was there is there. Defaults may have joined it.
    async fn is_untouched(&self, cluster: &Cluster) -> Result<()> {
        self.is_still_there(cluster).await?;
        let found = kubectl::get_all(cluster, &self.objects).await?;
        for (object, found) in self.objects.iter().zip(&found) {
            let (status, before) = (&found["status"], &object["status"]);
            ensure!(holds(status, before), "status of {} is {status}, was {before}", title(object));
            let finalizers = |object: &Value| object["metadata"]["finalizers"].clone();
            ensure!(
                finalizers(found) == finalizers(object),
                "{} has other finalizers: {found}",
                title(object)
            );
        }
        Ok(())
    }

    /// A stricter rule is no obstacle to a change of something else.
    async fn can_still_be_changed(&self, cluster: &Cluster) -> Result<()> {
        kubectl::annotate(cluster, &self.objects, "example.com/seen=yes").await
    }

    /// Values that kuik could not act on are refused in new objects, with the name of each field.
    async fn cannot_be_repeated(&self, cluster: &Cluster) -> Result<()> {
        let mut loose = self.objects.iter().find(|object| object["metadata"]["name"] == "loose").cloned();
        let again = loose.as_mut().context("no object with mistakes")?;
        again["metadata"]["name"] = "again".into();
        let refused = kubectl::create(cluster, std::slice::from_ref(again), &[]).await.err();
        let refused = refused.context("the mistakes were accepted")?.to_string();
        for field in ["spec.cleanup.retention", "spec.mirrors[0].priority", "spec.mirrors[0].registry"] {
            ensure!(refused.contains(field), "{field} is not named: {refused}");
        }
        Ok(())
    }
}

/// Whether a value has everything that another one has.
fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (_, Value::Null) => true,
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| found.get(key).is_some_and(|found| holds(found, wanted)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|(found, wanted)| holds(found, wanted))
        }
        _ => found == wanted,
    }
}
