//! Signals: the values of each image in one number.

use fairlead_api::drop::{AggregateMethod, EventMetric, EventStatistic};
use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;

use super::sample::{Sample, Series, bounded, count};

/// One number per image, from the values of one query.
#[derive(Clone, Debug)]
pub(super) struct Signal {
    pub(super) name: String,
    /// Place of the query among the queries.
    pub(super) query: usize,
    pub(super) measure: Measure,
}

/// How values become a number.
#[derive(Clone, Debug)]
pub(super) enum Measure {
    All(AggregateMethod),
    Weighted { method: AggregateMethod, zone: TimeZone, default: f64, windows: Vec<HourWindow> },
    Recent { method: AggregateMethod, window: std::time::Duration },
    Daily { method: AggregateMethod, zone: TimeZone, start: Time, end: Time },
    Events { metric: EventMetric, statistic: EventStatistic },
}

/// Hours from the first to the one before the last. Over midnight if the last is before the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HourWindow {
    pub(super) start: i32,
    pub(super) end: i32,
    pub(super) weight: f64,
}

impl Measure {
    /// The number of an image, if there is anything to make it of.
    pub(super) fn of(&self, series: &Series, now: Timestamp) -> Option<f64> {
        let values = || series.values.iter();
        match self {
            Self::All(method) => aggregate(*method, values().map(|sample| sample.value)),
            Self::Weighted { method: AggregateMethod::Count, .. } => {
                aggregate(AggregateMethod::Count, values().map(|sample| sample.value))
            }
            Self::Weighted { method, zone, default, windows } => {
                let weighted = values().map(|sample| {
                    let hour = i32::from(sample.at.to_zoned(zone.clone()).hour());
                    let window = windows.iter().find(|window| window.covers(hour));
                    bounded(sample.value * window.map_or(*default, |window| window.weight))
                });
                aggregate(*method, weighted)
            }
            Self::Recent { method, window } => {
                let since = now.checked_sub(*window).unwrap_or(Timestamp::MIN);
                let recent = values().filter(|sample| sample.at >= since);
                aggregate(*method, recent.map(|sample| sample.value))
            }
            Self::Daily { method, zone, start, end } => {
                let within = values().filter(|sample| is_between(sample, zone, *start, *end));
                aggregate(*method, within.map(|sample| sample.value))
            }
            Self::Events { metric, statistic } => {
                let values = match metric {
                    EventMetric::PullTime => values().map(|sample| sample.value).collect(),
                    EventMetric::ImageSize => series.sizes.clone(),
                };
                of_events(*statistic, values)
            }
        }
    }
}

impl HourWindow {
    fn covers(self, hour: i32) -> bool {
        if self.start <= self.end {
            (self.start..self.end).contains(&hour)
        } else {
            hour >= self.start || hour < self.end
        }
    }
}

/// Whether a value is from a time of day, on the clock of its own day. The last minute is part of the window.
fn is_between(sample: &Sample, zone: &TimeZone, start: Time, end: Time) -> bool {
    let local = sample.at.to_zoned(zone.clone()).time();
    let minute = |time: Time| (time.hour(), time.minute());
    let (at, start, end) = (minute(local), minute(start), minute(end));
    if start <= end { (start..=end).contains(&at) } else { at >= start || at <= end }
}

pub(super) fn aggregate(method: AggregateMethod, values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let number = count(values.clone().count());
    if number == 0.0 {
        return None;
    }
    let sum = || bounded(values.clone().sum());
    Some(match method {
        AggregateMethod::Sum => sum(),
        AggregateMethod::Count => number,
        AggregateMethod::Avg => sum() / number,
        AggregateMethod::Max => values.fold(f64::MIN, f64::max),
        AggregateMethod::Min => values.fold(f64::MAX, f64::min),
    })
}

fn of_events(statistic: EventStatistic, mut values: Vec<f64>) -> Option<f64> {
    let percentile = match statistic {
        EventStatistic::P50 => 50,
        EventStatistic::P90 => 90,
        EventStatistic::P95 => 95,
        EventStatistic::Avg => return aggregate(AggregateMethod::Avg, values.into_iter()),
        EventStatistic::Max => return aggregate(AggregateMethod::Max, values.into_iter()),
        EventStatistic::Count => return aggregate(AggregateMethod::Count, values.into_iter()),
    };
    values.sort_by(f64::total_cmp);
    // Between the two values beside the place, in proportion.
    let place = percentile * values.len().checked_sub(1)?;
    let below = values.get(place / 100)?;
    let above = values.get(place / 100 + 1).unwrap_or(below);
    Some(below + (above - below) * count(place % 100) / 100.0)
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::Reference;
    use jiff::tz::TimeZoneDatabase;
    use proptest::prelude::*;

    use super::*;

    fn series(values: &[(&str, f64)]) -> Series {
        let values =
            values.iter().map(|(at, value)| Sample { at: at.parse().unwrap(), value: *value }).collect();
        Series { image: Reference::parse("a/b").unwrap(), values, sizes: vec![3.0, 1.0] }
    }

    fn berlin() -> TimeZone {
        TimeZoneDatabase::bundled().get("Europe/Berlin").unwrap()
    }

    fn now() -> Timestamp {
        "2026-03-10T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn percentiles_lie_between_values() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        for (statistic, expected) in [
            (EventStatistic::P50, 5.5),
            (EventStatistic::P90, 9.1),
            (EventStatistic::P95, 9.55),
            (EventStatistic::Avg, 5.5),
            (EventStatistic::Max, 10.0),
            (EventStatistic::Count, 10.0),
        ] {
            let found = of_events(statistic, values.iter().rev().copied().collect()).unwrap();
            assert!((found - expected).abs() < 1e-12, "{statistic:?}: {found}");
            assert_eq!(of_events(statistic, Vec::new()), None);
        }
        let sizes = Measure::Events { metric: EventMetric::ImageSize, statistic: EventStatistic::Max };
        assert_eq!(sizes.of(&series(&[]), now()), Some(3.0));
    }

    #[test]
    fn values_are_put_together_by_every_method() {
        let series = series(&[("2026-03-10T10:00:00Z", 1.0), ("2026-03-10T11:00:00Z", 5.0)]);
        for (method, expected) in [
            (AggregateMethod::Sum, 6.0),
            (AggregateMethod::Count, 2.0),
            (AggregateMethod::Avg, 3.0),
            (AggregateMethod::Max, 5.0),
            (AggregateMethod::Min, 1.0),
        ] {
            assert_eq!(Measure::All(method).of(&series, now()), Some(expected));
        }
        let recent = |window| Measure::Recent {
            method: AggregateMethod::Sum,
            window: std::time::Duration::from_mins(window),
        };
        assert_eq!(recent(120).of(&series, now()), Some(6.0), "the edge is part of the window");
        assert_eq!(recent(119).of(&series, now()), Some(5.0));
        assert_eq!(recent(30).of(&series, now()), None);
    }

    #[test]
    fn hours_are_those_of_the_zone_and_may_go_over_midnight() {
        let weighted = |start, end, method| Measure::Weighted {
            method,
            zone: berlin(),
            default: 1.0,
            windows: vec![
                HourWindow { start, end, weight: 10.0 },
                HourWindow { start: 0, end: 24, weight: 2.0 },
            ],
        };
        // Berlin is one hour ahead in winter and two in summer.
        for (at, start, end, expected) in [
            ("2026-01-15T07:30:00Z", 8, 18, 10.0),
            ("2026-07-15T07:30:00Z", 8, 18, 10.0),
            ("2026-07-15T06:30:00Z", 8, 18, 10.0),
            ("2026-01-15T06:30:00Z", 8, 18, 2.0),
            ("2026-01-15T17:00:00Z", 8, 18, 2.0),
            ("2026-01-15T22:00:00Z", 22, 6, 10.0),
            ("2026-01-15T04:59:00Z", 22, 6, 10.0),
            ("2026-01-15T05:00:00Z", 22, 6, 2.0),
        ] {
            let measure = weighted(start, end, AggregateMethod::Sum);
            assert_eq!(measure.of(&series(&[(at, 1.0)]), now()), Some(expected), "{at} {start}-{end}");
        }
        let counting = weighted(0, 24, AggregateMethod::Count);
        assert_eq!(counting.of(&series(&[("2026-01-15T22:00:00Z", 1.0)]), now()), Some(1.0));
    }

    #[test]
    fn a_time_of_day_counts_on_every_day() {
        let daily = |start: &str, end: &str| Measure::Daily {
            method: AggregateMethod::Count,
            zone: berlin(),
            start: start.parse().unwrap(),
            end: end.parse().unwrap(),
        };
        // The clock goes forward on 29 March: nine o'clock is 08:00 UTC before, and 07:00 UTC after.
        let all = series(&[
            ("2026-03-27T08:00:00Z", 1.0),
            ("2026-03-28T16:30:59Z", 1.0),
            ("2026-03-28T07:59:59Z", 1.0),
            ("2026-03-30T07:00:00Z", 1.0),
            ("2026-03-30T06:59:59Z", 1.0),
            ("2026-03-30T23:00:00Z", 1.0),
        ]);
        for (start, end, expected) in [
            ("09:00", "17:30", Some(3.0)),
            ("17:31", "08:59", Some(3.0)),
            ("00:00", "23:59", Some(6.0)),
            ("03:00", "04:00", None),
        ] {
            assert_eq!(daily(start, end).of(&all, now()), expected, "{start} {end}");
        }
    }

    proptest! {
        #[test]
        fn what_is_finite_stays_finite(values in proptest::collection::vec(-f64::MAX..f64::MAX, 1..20)) {
            for method in [
                AggregateMethod::Sum, AggregateMethod::Avg, AggregateMethod::Max, AggregateMethod::Min,
            ] {
                prop_assert!(aggregate(method, values.iter().copied()).unwrap().is_finite());
            }
        }

        #[test]
        fn percentiles_lie_within_the_values(values in proptest::collection::vec(0.0..1e9, 1..50)) {
            let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            for statistic in [EventStatistic::P50, EventStatistic::P90, EventStatistic::P95] {
                let found = of_events(statistic, values.clone()).unwrap();
                prop_assert!((low..=high).contains(&found));
            }
        }
    }
}
