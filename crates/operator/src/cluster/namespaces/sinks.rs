//! Take the events of the two watches.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_api::names::fairlead::PIN;
use kube::api::ObjectMeta;

use super::{LeanNamespace, LeanWebhooks, NamespaceFacts, Namespaces};
use crate::cluster::watch::Tolerant;
use crate::cluster::watch::sink::{Counts, Sink};

type FactsByNamespace = HashMap<Arc<str>, Arc<NamespaceFacts>>;

#[derive(Debug)]
pub(crate) struct NamespaceSink {
    namespaces: Namespaces,
    known: FactsByNamespace,
    fresh: Option<FactsByNamespace>,
}

impl NamespaceSink {
    pub(crate) fn new(namespaces: Namespaces) -> Self {
        Self { namespaces, known: FactsByNamespace::new(), fresh: None }
    }
}

fn take(known: &mut FactsByNamespace, object: Tolerant<LeanNamespace>) {
    // One that cannot be read stays unknown, and nothing is copied to it.
    if let Ok(namespace) = object.0 {
        insert(known, namespace.metadata);
    }
}

pub(super) fn insert(known: &mut FactsByNamespace, metadata: ObjectMeta) {
    let Some(name) = metadata.name else { return };
    let pin = metadata.annotations.and_then(|mut annotations| annotations.remove(PIN));
    known.insert(name.into(), Arc::new(NamespaceFacts { labels: metadata.labels.unwrap_or_default(), pin }));
}

impl Sink<LeanNamespace> for NamespaceSink {
    fn begin(&mut self) {
        self.fresh = Some(FactsByNamespace::new());
    }

    fn listed(&mut self, object: Tolerant<LeanNamespace>) {
        take(self.fresh.get_or_insert_default(), object);
    }

    fn finish(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.known = fresh;
        }
    }

    fn applied(&mut self, object: Tolerant<LeanNamespace>) {
        take(&mut self.known, object);
    }

    fn deleted(&mut self, object: Tolerant<LeanNamespace>) {
        if let Ok(namespace) = object.0
            && let Some(name) = namespace.metadata.name
        {
            self.known.remove(name.as_str());
        }
    }

    fn publish(&mut self) -> Counts {
        self.namespaces.set_facts(self.known.clone());
        Counts { objects: self.known.len(), ..Counts::default() }
    }
}

/// Takes the events of the one configuration that is ours.
#[derive(Debug)]
pub(crate) struct WebhookSink {
    namespaces: Namespaces,
    current: Option<LeanWebhooks>,
    fresh: Option<LeanWebhooks>,
}

impl WebhookSink {
    pub(crate) fn new(namespaces: Namespaces) -> Self {
        Self { namespaces, current: None, fresh: None }
    }
}

impl Sink<LeanWebhooks> for WebhookSink {
    fn begin(&mut self) {
        self.fresh = None;
    }

    fn listed(&mut self, object: Tolerant<LeanWebhooks>) {
        self.fresh = object.0.ok();
    }

    fn finish(&mut self) {
        self.current = self.fresh.take();
    }

    fn applied(&mut self, object: Tolerant<LeanWebhooks>) {
        self.current = object.0.ok();
    }

    fn deleted(&mut self, _: Tolerant<LeanWebhooks>) {
        self.current = None;
    }

    fn publish(&mut self) -> Counts {
        let selectors = self.current.as_ref().map(|webhooks| webhooks.selectors.clone());
        self.namespaces.set_selectors(selectors.filter(|selectors| !selectors.is_empty()));
        Counts { objects: usize::from(self.current.is_some()), ..Counts::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairlead_plan::pull_secrets::Selection;
    use serde_json::{Value, json};

    use super::*;

    fn namespace(name: &str, labels: &Value) -> Tolerant<LeanNamespace> {
        let text =
            json!({"metadata": {"name": name, "labels": labels, "annotations": {"a": "b"}}}).to_string();
        serde_json::from_str(&text).expect("a namespace")
    }

    fn configuration(webhooks: &Value) -> Tolerant<LeanWebhooks> {
        let text = json!({"metadata": {"name": "fairlead"}, "webhooks": webhooks}).to_string();
        serde_json::from_str(&text).expect("a configuration")
    }

    fn list<K>(sink: &mut impl Sink<K>, objects: impl IntoIterator<Item = Tolerant<K>>) {
        sink.begin();
        objects.into_iter().for_each(|object| sink.listed(object));
        sink.finish();
        sink.publish();
    }

    #[test]
    fn a_namespace_is_covered_when_a_webhook_of_ours_selects_it() {
        let namespaces = Namespaces::default();
        let (mut labels, mut webhooks) =
            (NamespaceSink::new(namespaces.clone()), WebhookSink::new(namespaces.clone()));
        let selected = |name: &str| namespaces.selection(name);
        list(&mut labels, [namespace("shop", &json!({"team": "a"})), namespace("bare", &Value::Null)]);
        assert_eq!(selected("shop"), Selection::Unknown, "the configuration is not known");

        let teams = json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]});
        let theirs = json!({"name": "x.example.com", "namespaceSelector": {}});
        list(
            &mut webhooks,
            [configuration(&json!([theirs, {"name": "pods.fairlead.dev", "namespaceSelector": teams}]))],
        );
        assert_eq!(selected("shop"), Selection::Covered);
        assert_eq!(selected("bare"), Selection::LeftOut);
        assert_eq!(selected("nowhere"), Selection::Unknown);

        labels.applied(namespace("shop", &json!({"other": "a"})));
        labels.publish();
        assert_eq!(selected("shop"), Selection::LeftOut, "labels change");
        webhooks.applied(configuration(&json!([{"name": "pods.fairlead.dev"}])));
        webhooks.publish();
        assert_eq!(selected("shop"), Selection::Covered, "no selector selects everything");
        for gone in [configuration(&json!([theirs])), configuration(&Value::Null)] {
            webhooks.applied(gone);
            webhooks.publish();
            assert_eq!(selected("shop"), Selection::Unknown, "no webhook of ours");
        }
        labels.deleted(namespace("shop", &Value::Null));
        labels.publish();
        assert_eq!(namespaces.names(), ["bare".into()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_says_whether_it_is_pinned() {
        let namespaces = Namespaces::default();
        let soon = || tokio::time::Instant::now() + Duration::from_mins(1);
        let said = async |name: &str| {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            namespaces.on_pinning(name, soon(), |said| (owned(said.annotation), owned(said.label))).await
        };
        assert_eq!(said("shop").await, (None, None), "no namespace is known, and none is waited for");
        let text = r#"{"metadata": {"name": "a", "annotations": {"fairlead.dev/pin": "true", "x": "y"}}}"#;
        let annotated = serde_json::from_str(text).expect("a namespace");
        let labelled = namespace("shop", &json!({"fairlead.dev/pin": "false"}));
        list(&mut NamespaceSink::new(namespaces.clone()), [annotated, labelled]);
        assert_eq!(said("a").await, (Some("true".to_owned()), None));
        assert_eq!(said("shop").await, (None, Some("false".to_owned())));
        assert_eq!(said("later").await, (None, None), "it was waited for in vain");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_is_not_known_yet_is_waited_for() {
        let namespaces = Namespaces::default();
        let mut webhooks = WebhookSink::new(namespaces.clone());
        list(&mut webhooks, [configuration(&json!([{"name": "pods.fairlead.dev"}]))]);
        let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
        let waiting = tokio::spawn({
            let namespaces = namespaces.clone();
            async move { namespaces.selection_by("new", deadline).await }
        });
        tokio::task::yield_now().await;
        list(&mut NamespaceSink::new(namespaces), [namespace("new", &Value::Null)]);
        assert_eq!(waiting.await.expect("no panic"), Selection::Covered);
    }

    /// A watch that is broken would hold up every Pod of the namespaces that it does not tell of.
    #[tokio::test(start_paused = true)]
    async fn a_namespace_is_waited_for_in_vain_once() {
        let namespaces = Namespaces::default();
        list(&mut NamespaceSink::new(namespaces.clone()), [namespace("other", &Value::Null)]);
        let soon = || tokio::time::Instant::now() + Duration::from_mins(1);
        let (at_once, second) = (Duration::ZERO, Duration::from_secs(1));
        assert_eq!(waited(namespaces.on_pinning("new", soon(), |_| ())).await, second);
        assert_eq!(waited(namespaces.on_pinning("new", soon(), |_| ())).await, at_once);
        assert_eq!(waited(namespaces.selection_by("new", soon())).await, at_once, "of the same watch");
        let mut webhooks = WebhookSink::new(namespaces.clone());
        list(&mut webhooks, [configuration(&json!([{"name": "pods.fairlead.dev"}]))]);
        let both = [namespace("new", &Value::Null), namespace("other", &Value::Null)];
        list(&mut NamespaceSink::new(namespaces.clone()), both);
        assert_eq!(waited(namespaces.selection_by("new", soon())).await, at_once, "it is known");
        list(&mut NamespaceSink::new(namespaces.clone()), [namespace("other", &Value::Null)]);
        assert_eq!(waited(namespaces.selection_by("new", soon())).await, second, "it may come back");
        assert_eq!(waited(namespaces.selection_by("new", soon())).await, at_once);
    }

    async fn waited<T>(for_what: impl Future<Output = T>) -> Duration {
        let begun = tokio::time::Instant::now();
        for_what.await;
        begun.elapsed()
    }
}
