//! Signals of a `DiscoveryPolicy`: one number per image, computed from the values of one query.

use fairlead_domain::duration::Duration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use kube::core::Rule;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::queries::{MAX_NAME_LENGTH, block_fits_type};
use crate::schema;

/// One number per image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = block_fits_type(&["aggregate", "timeWeightedAggregate", "windowAggregate", "eventPullTime"]))]
pub struct Signal {
    /// Name that the ranking refers to, unique within the policy.
    #[schemars(length(min = 1, max = MAX_NAME_LENGTH))]
    pub name: String,
    /// Name of the query whose values are used.
    #[schemars(length(min = 1, max = MAX_NAME_LENGTH))]
    pub query: String,
    /// How the values become one number. The block of the same name has the details.
    #[serde(rename = "type")]
    pub type_: SignalType,
    /// All values count the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<Aggregate>,
    /// Values count by the hour of the day they are from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_weighted_aggregate: Option<TimeWeightedAggregate>,
    /// Only values from some time count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_aggregate: Option<WindowAggregate>,
    /// What events say about finished pulls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_pull_time: Option<EventPullTime>,
}

/// Ways from values to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SignalType {
    Aggregate,
    TimeWeightedAggregate,
    WindowAggregate,
    EventPullTime,
}

/// All values of an image in one number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Aggregate {
    /// How the values are put together.
    pub method: AggregateMethod,
}

/// How values are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AggregateMethod {
    Sum,
    Count,
    Avg,
    Max,
    Min,
}

/// Values multiplied by a weight of their hour, then put together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimeWeightedAggregate {
    /// How the weighted values are put together. `count` does not look at weights.
    pub method: AggregateMethod,
    /// Time zone of the hours, by its IANA name: `Europe/Berlin`.
    #[schemars(schema_with = "time_zone", length(min = 1))]
    pub timezone: String,
    /// Weight of hours that no window covers.
    #[serde(deserialize_with = "number")]
    #[schemars(schema_with = "quantity")]
    pub default_weight: Quantity,
    /// Hours with a weight of their own. The first window that covers an hour counts.
    #[schemars(length(min = 1, max = 64))]
    pub windows: Vec<HourWindow>,
}

/// Hours of the day with one weight. A window whose end is before its start goes over midnight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.startHour != self.endHour").message("startHour and endHour are equal, so the window is empty: end it later (startHour 0 and endHour 24 is the whole day)"))]
pub struct HourWindow {
    /// First hour of the window.
    #[schemars(range(min = 0, max = 23))]
    pub start_hour: i32,
    /// First hour after the window.
    #[schemars(range(min = 1, max = 24))]
    pub end_hour: i32,
    /// Number that values of these hours are multiplied by.
    #[serde(deserialize_with = "number")]
    #[schemars(schema_with = "quantity")]
    pub weight: Quantity,
}

/// Values of the last while, or of a time of day. With neither, all values count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.relativeWindow) || !has(self.window)")
        .message("relativeWindow and window exclude each other: remove one of them"),
    validation = Rule::new("!has(self.window) || (has(self.timezone) && self.timezone != '')")
        .message("window needs a timezone: write its IANA name, such as Europe/Berlin")
)]
pub struct WindowAggregate {
    /// How the values are put together.
    pub method: AggregateMethod,
    /// Only values that are at most this old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('[1-9]')").message("relativeWindow must be longer than zero, such as 2h"))]
    pub relative_window: Option<Duration>,
    /// Time zone of the window, by its IANA name: `Europe/Berlin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_zone")]
    pub timezone: Option<String>,
    /// Only values from this time of every day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<ClockWindow>,
}

/// A time of day. A window whose end is before its start goes over midnight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.start != self.end").message("start and end are equal, so the window is empty: end it later (00:00 and 23:59 is the whole day)"))]
pub struct ClockWindow {
    /// Begin, on a clock of 24 hours: `09:00`.
    #[schemars(schema_with = "clock_time")]
    pub start: String,
    /// End, on a clock of 24 hours: `17:30`.
    #[schemars(schema_with = "clock_time")]
    pub end: String,
}

/// What events say about finished pulls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventPullTime {
    /// What is measured: how long the pull took, or how large the image is.
    #[serde(default)]
    pub metric: EventMetric,
    /// How the values of an image become one number.
    pub statistic: EventStatistic,
}

/// What an event says about a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EventMetric {
    #[default]
    PullTime,
    ImageSize,
}

/// How the values of events become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EventStatistic {
    P50,
    P90,
    P95,
    Avg,
    Max,
    Count,
}

/// Reads a quantity that is written without quotes, too: the schema allows whole numbers.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Whole(i64),
        Text(String),
    }
    Ok(Quantity(match Written::deserialize(deserializer)? {
        Written::Whole(number) => number.to_string(),
        Written::Text(text) => text,
    }))
}

/// A number as Kubernetes writes quantities.
pub(super) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 64,
        "pattern": "^([+]|-)?(([0-9]+([.][0-9]*)?)|([.][0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE]([+]|-)?(([0-9]+([.][0-9]*)?)|([.][0-9]+))))?$",
        "x-kubernetes-validations": schema::rules([
            Rule::new("type(self) == int || isQuantity(self)")
                .message("not a number: write a whole number as it is and any other in quotes, such as 2, \"0.7\" or \"700m\""),
        ]),
    })
}

/// Name of a time zone. Whether it exists is not for the API server to know: not all of them carry the list.
fn time_zone(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 64,
        "x-kubernetes-validations": schema::rules([
            Rule::new("self == '' || self.matches('^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$')")
                .message("not a time zone: write its IANA name, such as Europe/Berlin, America/New_York or UTC"),
        ]),
    })
}

fn clock_time(_: &mut SchemaGenerator) -> Schema {
    const PATTERN: &str = "^([01][0-9]|2[0-3]):[0-5][0-9]$";
    json_schema!({
        "type": "string",
        "maxLength": 16,
        "pattern": PATTERN,
        "x-kubernetes-validations": schema::rules([
            Rule::new(format!("self.matches('{PATTERN}')"))
                .message("not a time of day: write hours and minutes with two digits each, from 00:00 to 23:59, in quotes"),
        ]),
    })
}
