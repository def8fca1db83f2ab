//! What a `DiscoveryPolicy` accepts in its two forms, and what it refuses because discovery would not find what was
//! meant.

use anyhow::Result;
use serde_json::{Value, json};

use crate::refused::{Change, Refusal, assert_accepted, assert_refused, change, refusal, without};
use crate::table;

fn policy(spec: &Value) -> Value {
    json!({
        "apiVersion": "drop.corewire.io/v1alpha1", "kind": "DiscoveryPolicy", "metadata": { "name": "good" }, "spec": spec,
    })
}

fn queries() -> Value {
    policy(&json!({
        "queries": [
            {
                "name": "usage",
                "type": "prometheus",
                "prometheus": { "endpoint": "http://prometheus:9090", "query": "up", "lookback": "24h", "step": "5m" },
                "secretRef": { "name": "login" },
            },
            {
                "name": "events",
                "type": "loki",
                "loki": { "endpoint": "https://loki.example.com/x", "query": "{}", "parser": { "type": "kubernetesEvents" } },
            },
            {
                "name": "tags",
                "type": "registry",
                "registry": {
                    "url": "https://registry.example.com", "repositories": ["team/app"], "tagFilter": "^v", "topX": 3,
                    "maxScan": 10, "versionPattern": "v(.+)", "imageTemplate": "{{ .Registry }}/{{ .Repository }}:{{ .Tag }}",
                },
            },
        ],
        "signals": [
            { "name": "count", "query": "tags", "type": "aggregate", "aggregate": { "method": "count" } },
            {
                "name": "hours",
                "query": "usage",
                "type": "timeWeightedAggregate",
                "timeWeightedAggregate": {
                    "method": "sum", "timezone": "Europe/Berlin", "defaultWeight": "0.1",
                    "windows": [{ "startHour": 8, "endHour": 18, "weight": 1 }],
                },
            },
            {
                "name": "night",
                "query": "usage",
                "type": "windowAggregate",
                "windowAggregate": { "method": "max", "timezone": "UTC", "window": { "start": "22:00", "end": "06:00" } },
            },
            { "name": "pull", "query": "events", "type": "eventPullTime", "eventPullTime": { "statistic": "p90" } },
        ],
        "ranking": {
            "strategy": "weightedSum",
            "weightedSum": { "terms": [{ "signal": "count", "weight": "0.7" }, { "signal": "pull", "weight": 1 }] },
        },
        "imageFilter": "^registry[.]example[.]com/",
        "syncInterval": "1h",
        "maxImages": 30,
    }))
}

fn sources() -> Value {
    policy(&json!({
        "sources": [
            {
                "type": "prometheus",
                "prometheus": { "endpoint": "http://prometheus:9090", "query": "up", "lookback": "24h", "aggregationMethod": "sum" },
            },
            { "type": "registry", "registry": { "url": "https://registry.example.com", "repositories": ["team/app"] } },
        ],
    }))
}

fn exposure() -> Value {
    json!({
        "strategy": "modelExposure",
        "modelExposure": {
            "nodes": { "count": 10, "selector": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "pool", "operator": "Exists" }] }] } },
            "preWindowUsageSignal": "night",
            "targetWindowUsageSignal": "hours",
            "pullTimeSignal": "pull",
        },
    })
}

fn bad_endpoints(pointer: &'static str, path: &'static str) -> Vec<Refusal> {
    [
        "prometheus:9090",
        "prometheus.example.com",
        "ftp://prometheus",
        "//prometheus",
        "https://",
        "http://a b",
    ]
    .map(|value| refusal(change(pointer, value), path, "write it with its scheme"))
    .into_iter()
    .chain([
        refusal(change(pointer, ""), path, "at least 1 chars long"),
        refusal(without(pointer), path, "Required value"),
    ])
    .collect()
}

fn bad_repositories(pointer: &'static str, path: &'static str) -> Vec<Refusal> {
    let mut refusals: Vec<_> = [
        "",
        "/team/app",
        "team/app/",
        "Team/App",
        "team/app:v1",
        "https://registry.example.com/team/app",
        "team/*",
    ]
    .map(|value| refusal(change(pointer, json!([value])), path, "such as team/app"))
    .into();
    refusals.push(refusal(change(pointer, json!(["team//app"])), path, "remove the second of two slashes"));
    refusals.push(refusal(change(pointer, json!([])), path, "at least 1 items"));
    refusals.push(refusal(change(pointer, "team/app"), path, "must be of type array"));
    refusals
}

fn bad_queries() -> Result<Vec<Refusal>> {
    let mut refusals =
        bad_endpoints("/spec/queries/0/prometheus/endpoint", "spec.queries[0].prometheus.endpoint");
    refusals.extend(bad_endpoints("/spec/queries/1/loki/endpoint", "spec.queries[1].loki.endpoint"));
    refusals.extend(bad_endpoints("/spec/queries/2/registry/url", "spec.queries[2].registry.url"));
    refusals.extend(bad_repositories(
        "/spec/queries/2/registry/repositories",
        "spec.queries[2].registry.repositories",
    ));
    refusals.extend(table::refusals(
        r#"
        /spec/queries/0/type | "loki" | spec.queries[0] | give the block that type names
        /spec/queries/0/prometheus | - | spec.queries[0] | type and block do not fit
        /spec/queries/0/registry | {"url": "https://r", "repositories": ["a"]} | spec.queries[0] | and no other
        /spec/queries/0/type | "graphite" | spec.queries[0].type | supported values: "prometheus"
        /spec/queries/0/type | - | spec.queries[0].type | Required value
        /spec/queries/0/name | "" | spec.queries[0].name | at least 1 chars long
        /spec/queries/1/name | "usage" | spec.queries | two queries have the same name
        /spec/queries/0/secretRef | {} | spec.queries[0].secretRef.name | name a Secret
        /spec/queries/0/prometheus/query | "" | spec.queries[0].prometheus.query | at least 1 chars long
        /spec/queries/0/prometheus/queryType | "rate" | queryType | supported values: "range", "instant"
        /spec/queries/0/prometheus/lookback | "7d" | spec.queries[0].prometheus.lookback | 168h
        /spec/queries/0/prometheus/step | "0s" | spec.queries[0].prometheus.step | longer than zero
        /spec/queries/1/loki/queryType | "instant" | spec.queries[1].loki.queryType | supported values: "range"
        /spec/queries/1/loki/parser/type | "json" | spec.queries[1].loki.parser.type | "kubernetesEvents"
        /spec/queries/2/registry/tagFilter | "v[" | spec.queries[2].registry.tagFilter | check brackets
        /spec/queries/2/registry/versionPattern | "v.+" | versionPattern | in parentheses
        /spec/queries/2/registry/versionPattern | "v(?:.+)" | versionPattern | in parentheses
        /spec/queries/2/registry/versionPattern | "v(.+" | versionPattern | check brackets
        /spec/queries/2/registry/imageTemplate | "{{.Registry}/{{.Tag}}" | imageTemplate | every {{ needs its }}
        /spec/queries/2/registry/imageTemplate | "{{.Host}}/x:{{.Tag}}" | imageTemplate | .Registry, .Repository and .Tag
        /spec/queries/2/registry/imageTemplate | "x:{{ .Version }}" | imageTemplate | does not exist
        /spec/queries/2/registry/topX | 0 | spec.queries[2].registry.topX | greater than or equal to 1
        /spec/queries/2/registry/maxScan | 0 | spec.queries[2].registry.maxScan | greater than or equal to 1
        "#,
    )?);
    Ok(refusals)
}

fn bad_signals() -> Result<Vec<Refusal>> {
    table::refusals(
        r#"
        /spec/signals/0/name | "pull" | spec.signals | two signals have the same name
        /spec/signals/0/query | "nothing" | spec.signals | the name of one of spec.queries
        /spec/signals/3/query | "usage" | spec.signals | eventPullTime needs a query of type loki
        /spec/signals/1/query | "tags" | spec.signals | need prometheus or loki
        /spec/signals/0/aggregate | - | spec.signals[0] | give the block that type names
        /spec/signals/0/eventPullTime | {"statistic": "max"} | spec.signals[0] | and no other
        /spec/signals/0/type | "median" | spec.signals[0].type | supported values: "aggregate"
        /spec/signals/0/aggregate/method | "median" | spec.signals[0].aggregate.method | supported values: "sum"
        /spec/signals/0/aggregate/method | - | spec.signals[0].aggregate.method | Required value
        /spec/signals/1/timeWeightedAggregate/timezone | "+02:00" | timezone | its IANA name
        /spec/signals/1/timeWeightedAggregate/timezone | "" | timezone | at least 1 chars long
        /spec/signals/1/timeWeightedAggregate/defaultWeight | "much" | defaultWeight | not a number
        /spec/signals/1/timeWeightedAggregate/defaultWeight | 0.5 | defaultWeight | must be of type integer,string
        /spec/signals/1/timeWeightedAggregate/defaultWeight | - | defaultWeight | Required value
        /spec/signals/1/timeWeightedAggregate/windows | [] | windows | at least 1 items
        /spec/signals/1/timeWeightedAggregate/windows/0/startHour | 18 | windows[0] | end it later
        /spec/signals/1/timeWeightedAggregate/windows/0/startHour | 24 | windows[0].startHour | less than or equal to 23
        /spec/signals/1/timeWeightedAggregate/windows/0/startHour | -1 | windows[0].startHour | greater than or equal to 0
        /spec/signals/1/timeWeightedAggregate/windows/0/startHour | "8" | windows[0].startHour | must be of type integer
        /spec/signals/1/timeWeightedAggregate/windows/0/endHour | 0 | windows[0].endHour | greater than or equal to 1
        /spec/signals/1/timeWeightedAggregate/windows/0/endHour | 25 | windows[0].endHour | less than or equal to 24
        /spec/signals/1/timeWeightedAggregate/windows/0/weight | - | windows[0].weight | Required value
        /spec/signals/2/windowAggregate/relativeWindow | "2h" | spec.signals[2].windowAggregate | remove one of them
        /spec/signals/2/windowAggregate/timezone | - | spec.signals[2].windowAggregate | window needs a timezone
        /spec/signals/2/windowAggregate/window/start | "9:00" | windowAggregate.window.start | two digits each
        /spec/signals/2/windowAggregate/window/end | "24:00" | windowAggregate.window.end | from 00:00 to 23:59
        /spec/signals/2/windowAggregate/window/end | "22:00" | windowAggregate.window | end it later
        /spec/signals/2/windowAggregate/window/end | - | windowAggregate.window.end | Required value
        /spec/signals/2/windowAggregate | {"method": "max", "relativeWindow": "0s"} | relativeWindow | longer than zero
        /spec/signals/3/eventPullTime/statistic | "p99" | statistic | supported values: "p50"
        /spec/signals/3/eventPullTime/metric | "size" | metric | supported values: "pullTime"
        "#,
    )
}

fn bad_weighted_sums() -> Result<Vec<Refusal>> {
    table::refusals(
        r#"
        /spec/ranking | {} | spec.ranking.strategy | Required value
        /spec/ranking | {"strategy": "product"} | spec.ranking.strategy | supported values: "signal"
        /spec/ranking | {"strategy": "signal"} | spec.ranking | give the field that strategy names
        /spec/ranking | {"strategy": "signal", "signal": ""} | spec.ranking | strategy and field do not fit
        /spec/ranking | {"strategy": "signal", "signal": "nothing"} | spec.ranking | one of spec.signals
        /spec/ranking | {"strategy": "weightedSum"} | spec.ranking | strategy and field do not fit
        /spec/ranking/signal | "count" | spec.ranking | and no other
        /spec/ranking/weightedSum/terms/0/signal | "nothing" | spec.ranking | one of spec.signals
        /spec/ranking/weightedSum/terms | [] | spec.ranking.weightedSum.terms | at least 1 items
        /spec/ranking/weightedSum/terms/0/weight | "0,7" | terms[0].weight | not a number
        /spec/ranking/weightedSum/normalize | "zScore" | normalize | supported values: "minMax"
        /spec/ranking/weightedSum/missingSignal | "skip" | missingSignal | supported values: "zero"
        "#,
    )
}

fn bad_exposures() -> Result<Vec<Refusal>> {
    table::refusals(
        r#"
        /spec/ranking/modelExposure/pullTimeSignal | "nothing" | spec.ranking | names a signal that does not exist
        /spec/ranking/modelExposure/pullTimeSignal | - | pullTimeSignal | Required value
        /spec/ranking/modelExposure/preWindowUsageSignal | "" | preWindowUsageSignal | at least 1 chars long
        /spec/ranking/modelExposure/nodes/count | 0 | spec.ranking.modelExposure.nodes.count | greater than or equal to 1
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms | [] | nodeSelectorTerms | at least 1 items
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms | - | nodeSelectorTerms | Required value
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchExpressions/0/operator | "Is" | operator | write In, NotIn
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchExpressions/0/operator | "In" | values | In and NotIn need at least one
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchExpressions/0/operator | "Gt" | values | Gt and Lt exactly one
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchExpressions/0/values | ["a"] | values | Exists and DoesNotExist none
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchExpressions/0/key | "a b" | key | not the key of a label
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchExpressions/0/key | - | key | Required value
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchFields | [{"key": "metadata.uid", "operator": "In", "values": ["a"]}] | matchFields[0].key | write metadata.name
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchFields | [{"key": "metadata.name", "operator": "Exists"}] | matchFields[0].values | one name in values
        "#,
    )
}

fn bad_sources() -> Result<Vec<Refusal>> {
    let mut refusals =
        bad_endpoints("/spec/sources/0/prometheus/endpoint", "spec.sources[0].prometheus.endpoint");
    refusals.extend(bad_endpoints("/spec/sources/1/registry/url", "spec.sources[1].registry.url"));
    refusals.extend(bad_repositories(
        "/spec/sources/1/registry/repositories",
        "spec.sources[1].registry.repositories",
    ));
    refusals.extend(table::refusals(
        r#"
        /spec/sources | [] | spec.sources | at least 1 items
        /spec/sources/0/prometheus/lookback | - | spec.sources[0].prometheus.lookback | set queryType to instant
        /spec/sources/0/prometheus/lookback | "7d" | spec.sources[0].prometheus.lookback | 168h
        /spec/sources/0/prometheus/step | "0s" | spec.sources[0].prometheus.step | such as 5m
        /spec/sources/0/prometheus/aggregationMethod | "min" | aggregationMethod | supported values: "sum"
        /spec/sources/0/type | "registry" | spec.sources[0] | give the block that type names
        /spec/sources/0/type | "loki" | spec.sources[0].type | supported values: "prometheus", "registry"
        /spec/sources/0/secretRef | {"name": ""} | spec.sources[0].secretRef.name | name a Secret
        /spec/sources/1/registry/tagFilter | "(?!a)b" | spec.sources[1].registry.tagFilter | no look-around
        /spec/sources/1/registry/topX | -1 | spec.sources[1].registry.topX | greater than or equal to 1
        /spec/sources/1/registry/imageTemplate | "{{.Name}}" | imageTemplate | does not exist
        /spec/sources/1/registry/maxScan | 10 | spec.sources[1].registry.maxScan | unknown field
        /spec/ranking | {"strategy": "signal", "signal": "a"} | spec.ranking | replace sources by queries
        "#,
    )?);
    let ours = queries();
    refusals.push(refusal(
        change("/spec/queries", ours["spec"]["queries"].clone()),
        "spec",
        "either queries or sources",
    ));
    refusals.push(refusal(
        change("/spec/signals", ours["spec"]["signals"].clone()),
        "spec.signals",
        "replace sources by queries",
    ));
    Ok(refusals)
}

fn bad_everywhere() -> Result<Vec<Refusal>> {
    table::refusals(
        r#"
        /spec | - | spec | Required value
        /spec | {} | spec | either queries or sources
        /spec | {"queries": []} | spec | give one of the two lists
        /spec/imageFilter | "registry([" | spec.imageFilter | check brackets
        /spec/imageFilter | "*" | spec.imageFilter | not a regular expression
        /spec/syncInterval | "1d" | spec.syncInterval | there is no unit for days
        /spec/maxImages | 0 | spec.maxImages | greater than or equal to 1
        /spec/maxImages | "all" | spec.maxImages | must be of type integer
        /spec/filter | ".*" | spec.filter | unknown field
        "#,
    )
}

fn good_anywhere() -> Result<Vec<Change>> {
    table::changes(
        r#"
        /spec/imageFilter | ""
        /spec/imageFilter | "(?i)team|app$"
        /spec/syncInterval | "0s"
        /spec/maxImages | 2147483647
        "#,
    )
}

/// Unusual, and still what a user may have meant.
fn good_queries() -> Result<Vec<Change>> {
    table::changes(
        r#"
        /spec/ranking | -
        /spec/ranking | {"strategy": "signal", "signal": "hours"}
        /spec/ranking/weightedSum/terms/0/weight | 2
        /spec/ranking/weightedSum/terms/0/weight | -1
        /spec/ranking/weightedSum/terms/0/weight | "0.7"
        /spec/ranking/weightedSum/terms/0/weight | "-.5"
        /spec/ranking/weightedSum/terms/0/weight | "700m"
        /spec/ranking/weightedSum/terms/0/weight | "1e3"
        /spec/ranking/weightedSum/terms/0/weight | "1Ki"
        /spec/ranking/weightedSum/terms/0/weight | "+2."
        /spec/queries/0/prometheus/endpoint | "HTTPS://user:secret@mimir.example.com:8443/prometheus?tenant=a"
        /spec/queries/0/prometheus/endpoint | "http://[::1]:9090/"
        /spec/queries/0/prometheus/lookback | -
        /spec/queries/0/prometheus/step | "500ms"
        /spec/queries/1/loki/queryType | "range"
        /spec/queries/2/registry/versionPattern | "^(?P<version>[0-9]+)"
        /spec/queries/2/registry/versionPattern | ""
        /spec/queries/2/registry/tagSeek | "x86_64-u~"
        /spec/queries/2/registry/imageTemplate | ""
        /spec/queries/2/registry/imageTemplate | "registry.example.com/{{.Repository}}@{{.Tag}}"
        /spec/queries/2/registry/imageTemplate | "{{- .Registry -}}/{{.Repository | printf \"%s\"}}:{{ printf \"v%s\" .Tag }}"
        /spec/queries/2/registry/imageTemplate | "{{if .Tag}}{{.Repository}}:{{.Tag}}{{end}}"
        /spec/signals/0/query | "usage"
        /spec/signals/2/query | "events"
        /spec/signals/1/timeWeightedAggregate/windows/0 | {"startHour": 22, "endHour": 6, "weight": "0"}
        /spec/signals/1/timeWeightedAggregate/windows/0 | {"startHour": 0, "endHour": 24, "weight": "0"}
        /spec/signals/1/timeWeightedAggregate/timezone | "Etc/GMT+1"
        /spec/signals/2/windowAggregate | {"method": "max"}
        /spec/signals/2/windowAggregate | {"method": "max", "relativeWindow": "2h", "timezone": "UTC"}
        /spec/signals/2/windowAggregate/window | {"start": "00:00", "end": "23:59"}
        /spec/signals/3/eventPullTime/metric | "imageSize"
        /spec | {"queries": [{"name": "A query", "type": "registry", "registry": {"url": "https://r", "repositories": ["a"]}}]}
        "#,
    )
}

#[tokio::test]
async fn policy_with_queries() -> Result<()> {
    let mut refusals = bad_everywhere()?;
    refusals.extend(bad_queries()?);
    refusals.extend(bad_signals()?);
    refusals.extend(bad_weighted_sums()?);
    assert_refused(&queries(), refusals).await?;
    let mut accepted = good_anywhere()?;
    accepted.extend(good_queries()?);
    let many: Vec<_> = (0..512).map(|n| format!("team/app-{n}")).collect();
    accepted.push(change("/spec/queries/2/registry/repositories", many));
    assert_accepted(&queries(), accepted).await
}

#[tokio::test]
async fn policy_by_model_exposure() -> Result<()> {
    let mut good = queries();
    good["spec"]["ranking"] = exposure();
    assert_refused(&good, bad_exposures()?).await?;
    let accepted = table::changes(
        r#"
        /spec/ranking/modelExposure/nodes | -
        /spec/ranking/modelExposure/nodes/count | -
        /spec/ranking/modelExposure/nodes/selector | -
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0 | {}
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchFields | [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]
        /spec/ranking/modelExposure/nodes/selector/nodeSelectorTerms/0/matchExpressions/0 | {"key": "example.com/cpus", "operator": "Gt", "values": ["8"]}
        "#,
    )?;
    assert_accepted(&good, accepted).await
}

#[tokio::test]
async fn policy_with_sources() -> Result<()> {
    let mut refusals = bad_everywhere()?;
    refusals.extend(bad_sources()?);
    assert_refused(&sources(), refusals).await?;
    let mut accepted = good_anywhere()?;
    accepted.extend(table::changes(
        r#"
        /spec/queries | []
        /spec/sources/0/prometheus | {"endpoint": "http://p", "query": "up", "queryType": "instant"}
        /spec/sources/0/prometheus/aggregationMethod | -
        /spec/sources/1/registry/repositories | ["a", "a", "b__c/d--e.f"]
        /spec/sources/1/registry/topX | 2147483647
        "#,
    )?);
    assert_accepted(&sources(), accepted).await
}
