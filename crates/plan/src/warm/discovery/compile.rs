//! From the specification of a policy to what can be asked and calculated. Everything that can be wrong with a
//! specification shows here, before anything is asked.

mod registry;

use std::time::Duration;

use fairlead_api::conditions::reasons;
use fairlead_api::drop::{
    self, DiscoveryPolicySpec, MissingSignal, PrometheusQueryType, QueryType, RankingStrategy, SignalType,
    SourceType,
};
use fairlead_domain::duration::Duration as Span;
use fairlead_domain::selector::Search;
use jiff::civil::Time;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use thiserror::Error;

use super::events::EventFields;
use super::loki::LokiQuery;
use super::prometheus::{PrometheusQuery, Range};
use super::ranking::Ranking;
use super::signals::{HourWindow, Measure, Signal};
use super::{Discovery, ExposedNodes, Form, Query, Question, endpoint, quantity};

const DAY: Duration = Duration::from_hours(24);
const STEP: Duration = Duration::from_mins(5);

/// Why a policy cannot be in force.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    field: String,
    problem: String,
    is_filter: bool,
}

impl SpecError {
    pub(super) fn value(field: &str, problem: impl Into<String>) -> Self {
        Self { field: field.to_owned(), problem: problem.into(), is_filter: false }
    }

    fn filter(field: &str, problem: &impl ToString) -> Self {
        Self { field: field.to_owned(), problem: problem.to_string(), is_filter: true }
    }

    /// Reason of the `Ready` condition.
    pub fn reason(&self) -> &'static str {
        if self.is_filter { reasons::INVALID_FILTER } else { reasons::INVALID_SPEC }
    }
}

impl Discovery {
    pub fn compile(spec: &DiscoveryPolicySpec) -> Result<Self, SpecError> {
        let filter = search("spec.imageFilter", spec.image_filter.as_deref())?;
        let most = usize::try_from(spec.max_images).ok().filter(|most| *most > 0).unwrap_or(50);
        let (queries, form) = match (spec.queries.as_slice(), spec.sources.as_slice()) {
            ([], []) | ([_, ..], [_, ..]) => {
                return Err(SpecError::value("spec", "give either queries or sources"));
            }
            (queries, []) => (read_all("spec.queries", queries, query)?, signals_and_ranking(spec)?),
            ([], sources) => {
                let scores = sources.iter().map(|one| one.prometheus.as_ref()?.aggregation_method);
                let scores = scores.collect();
                (read_sources(sources)?, Form::Sources { scores })
            }
        };
        Ok(Self { queries, form, filter, most })
    }
}

fn read_all<S, T>(
    list: &str,
    all: &[S],
    read: impl Fn(&str, &S) -> Result<T, SpecError>,
) -> Result<Vec<T>, SpecError> {
    all.iter().enumerate().map(|(at, one)| read(&format!("{list}[{at}]"), one)).collect()
}

fn query(field: &str, query: &drop::Query) -> Result<Query, SpecError> {
    let question = match query.type_ {
        QueryType::Prometheus => {
            let block = block(field, "prometheus", query.prometheus.as_ref())?;
            let range = (block.query_type == PrometheusQueryType::Range).then(|| Range {
                lookback: block.lookback.as_ref().map_or(DAY, Span::as_std),
                step: block.step.as_ref().map_or(STEP, Span::as_std),
            });
            let endpoint = endpoint::parse(&format!("{field}.prometheus.endpoint"), &block.endpoint)?;
            Question::Prometheus(PrometheusQuery { endpoint, expression: block.query.clone(), range })
        }
        QueryType::Loki => Question::Loki(loki(field, block(field, "loki", query.loki.as_ref())?)?),
        QueryType::Registry => {
            let block = block(field, "registry", query.registry.as_ref())?;
            Question::Registry(registry::of_query(&format!("{field}.registry"), block)?)
        }
    };
    let secret = query.secret_ref.as_ref().map(|secret| secret.name.clone());
    Ok(Query { name: query.name.clone(), kind: query.type_, secret, question })
}

fn loki(field: &str, block: &drop::LokiQuery) -> Result<LokiQuery, SpecError> {
    let named = |field: &Option<String>| field.clone().filter(|name| !name.is_empty());
    let events = block.parser.as_ref().map(|parser| EventFields {
        reason: named(&parser.reason_field).unwrap_or_else(|| "reason".to_owned()),
        message: named(&parser.message_field).unwrap_or_else(|| "message".to_owned()),
        image: named(&parser.image_field),
    });
    Ok(LokiQuery {
        endpoint: endpoint::parse(&format!("{field}.loki.endpoint"), &block.endpoint)?,
        expression: block.query.clone(),
        lookback: block.lookback.as_ref().map_or(DAY, Span::as_std),
        events,
    })
}

/// Sources are named by their type and place, since they have no name of their own.
fn read_sources(sources: &[drop::Source]) -> Result<Vec<Query>, SpecError> {
    let read = |field: &str, source: &drop::Source| {
        let (kind, question) = match source.type_ {
            SourceType::Prometheus => {
                let block = block(field, "prometheus", source.prometheus.as_ref())?;
                let range = match (block.query_type, &block.lookback) {
                    (PrometheusQueryType::Instant, _) => None,
                    (PrometheusQueryType::Range, Some(lookback)) => {
                        Some(Range { lookback: lookback.as_std(), step: block.step.as_std() })
                    }
                    (PrometheusQueryType::Range, None) => {
                        let field = format!("{field}.prometheus.lookback");
                        return Err(SpecError::value(&field, "a range query needs the time it covers"));
                    }
                };
                let endpoint = endpoint::parse(&format!("{field}.prometheus.endpoint"), &block.endpoint)?;
                let query = PrometheusQuery { endpoint, expression: block.query.clone(), range };
                (QueryType::Prometheus, Question::Prometheus(query))
            }
            SourceType::Registry => {
                let block = block(field, "registry", source.registry.as_ref())?;
                let query = registry::of_source(&format!("{field}.registry"), block)?;
                (QueryType::Registry, Question::Registry(query))
            }
        };
        let secret = source.secret_ref.as_ref().map(|secret| secret.name.clone());
        Ok(Query { name: String::new(), kind, secret, question })
    };
    let mut queries = read_all("spec.sources", sources, read)?;
    for (at, query) in queries.iter_mut().enumerate() {
        query.name = format!("{}[{at}]", query.kind_name());
    }
    Ok(queries)
}

fn signals_and_ranking(spec: &DiscoveryPolicySpec) -> Result<Form, SpecError> {
    let signals = read_all("spec.signals", &spec.signals, |field, one| signal(field, one, spec))?;
    let signal = |field: &str, name: &str| {
        let place = signals.iter().position(|signal| signal.name == name);
        place.ok_or_else(|| SpecError::value(field, format!("there is no signal {name:?}")))
    };
    let mut nodes = ExposedNodes::default();
    let ranking = match &spec.ranking {
        None => Ranking::Largest,
        Some(ranking) => match ranking.strategy {
            RankingStrategy::Signal => {
                Ranking::Signal(signal("spec.ranking.signal", ranking.signal.as_deref().unwrap_or_default())?)
            }
            RankingStrategy::WeightedSum => {
                let block = block("spec.ranking", "weightedSum", ranking.weighted_sum.as_ref())?;
                let term = |field: &str, term: &drop::WeightedTerm| {
                    let weight = number(&format!("{field}.weight"), &term.weight.0)?;
                    Ok((signal(&format!("{field}.signal"), &term.signal)?, weight))
                };
                Ranking::WeightedSum {
                    terms: read_all("spec.ranking.weightedSum.terms", &block.terms, term)?,
                    drops_missing: block.missing_signal == MissingSignal::Drop,
                }
            }
            RankingStrategy::ModelExposure => {
                let block = block("spec.ranking", "modelExposure", ranking.model_exposure.as_ref())?;
                if let Some(exposed) = &block.nodes {
                    let count = exposed.count.and_then(|count| u32::try_from(count).ok());
                    nodes = ExposedNodes { count, selector: exposed.selector.clone() };
                }
                let field = "spec.ranking.modelExposure";
                Ranking::Exposure {
                    before: signal(field, &block.pre_window_usage_signal)?,
                    target: signal(field, &block.target_window_usage_signal)?,
                    pull_time: signal(field, &block.pull_time_signal)?,
                }
            }
        },
    };
    Ok(Form::Queries { signals, ranking, nodes })
}

fn signal(field: &str, signal: &drop::Signal, spec: &DiscoveryPolicySpec) -> Result<Signal, SpecError> {
    let refuse = |problem: String| SpecError::value(field, problem);
    // Of two queries with the same name the later one counts.
    let query = spec.queries.iter().rposition(|query| query.name == signal.query);
    let query = query.ok_or_else(|| refuse(format!("there is no query {:?}", signal.query)))?;
    let kind = spec.queries.get(query).map(|query| query.type_);
    let fits = match signal.type_ {
        SignalType::Aggregate => true,
        SignalType::TimeWeightedAggregate | SignalType::WindowAggregate => kind != Some(QueryType::Registry),
        SignalType::EventPullTime => kind == Some(QueryType::Loki),
    };
    if !fits {
        return Err(refuse(format!("its type does not fit query {:?}", signal.query)));
    }
    let measure = match signal.type_ {
        SignalType::Aggregate => Measure::All(block(field, "aggregate", signal.aggregate.as_ref())?.method),
        SignalType::TimeWeightedAggregate => {
            let block = block(field, "timeWeightedAggregate", signal.time_weighted_aggregate.as_ref())?;
            let window = |field: &str, window: &drop::HourWindow| {
                let weight = number(&format!("{field}.weight"), &window.weight.0)?;
                Ok(HourWindow { start: window.start_hour, end: window.end_hour, weight })
            };
            let field = format!("{field}.timeWeightedAggregate");
            Measure::Weighted {
                method: block.method,
                zone: zone(&format!("{field}.timezone"), &block.timezone)?,
                default: number(&format!("{field}.defaultWeight"), &block.default_weight.0)?,
                windows: read_all(&format!("{field}.windows"), &block.windows, window)?,
            }
        }
        SignalType::WindowAggregate => {
            let block = block(field, "windowAggregate", signal.window_aggregate.as_ref())?;
            window(&format!("{field}.windowAggregate"), block)?
        }
        SignalType::EventPullTime => {
            let block = block(field, "eventPullTime", signal.event_pull_time.as_ref())?;
            Measure::Events { metric: block.metric, statistic: block.statistic }
        }
    };
    Ok(Signal { name: signal.name.clone(), query, measure })
}

/// Of both forms of a window the relative one counts.
fn window(field: &str, block: &drop::WindowAggregate) -> Result<Measure, SpecError> {
    let method = block.method;
    Ok(match (&block.relative_window, &block.window) {
        (Some(window), _) => Measure::Recent { method, window: window.as_std() },
        (None, None) => Measure::All(method),
        (None, Some(window)) => {
            let clock = |end: &str, text: &str| {
                let refuse = |_| SpecError::value(&format!("{field}.window.{end}"), "not a time of day");
                text.parse::<Time>().map_err(refuse)
            };
            Measure::Daily {
                method,
                zone: zone(&format!("{field}.timezone"), block.timezone.as_deref().unwrap_or_default())?,
                start: clock("start", &window.start)?,
                end: clock("end", &window.end)?,
            }
        }
    })
}

fn block<'s, T>(field: &str, name: &str, block: Option<&'s T>) -> Result<&'s T, SpecError> {
    block.ok_or_else(|| SpecError::value(&format!("{field}.{name}"), "is missing"))
}

fn number(field: &str, text: &str) -> Result<f64, SpecError> {
    quantity::parse(text).ok_or_else(|| SpecError::value(field, format!("{text:?} is not a number")))
}

/// The list of zones is part of the program: machines need not have one.
fn zone(field: &str, name: &str) -> Result<TimeZone, SpecError> {
    let refuse = |_| SpecError::value(field, format!("{name:?} is not the name of a time zone"));
    TimeZoneDatabase::bundled().get(name).map_err(refuse)
}

/// An empty pattern is none.
fn search(field: &str, pattern: Option<&str>) -> Result<Option<Search>, SpecError> {
    let pattern = pattern.filter(|pattern| !pattern.is_empty());
    pattern
        .map(|pattern| Search::parse(pattern).map_err(|error| SpecError::filter(field, &error)))
        .transpose()
}
