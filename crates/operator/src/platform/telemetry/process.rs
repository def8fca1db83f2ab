//! Memory, processor time and age of the process, read from the kernel at each scrape.
//!
//! The names are those that Prometheus' own client libraries use, so that common dashboards work.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The kernel counts processor time for user space in hundredths of a second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn register(registry: &mut Registry) {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    registry.register_collector(Box::new(Process { started }));
}

#[derive(Debug)]
struct Process {
    started: f64,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = |encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        gauge(&mut encoder, "process_start_time_seconds", "When the process started", self.started)?;
        // Outside Linux there is nothing to read, and nothing is shown.
        if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
            for (field, name, help) in [
                ("VmRSS:", "process_resident_memory_bytes", "Memory in use now"),
                ("VmHWM:", "process_resident_memory_peak_bytes", "Most memory that was ever in use"),
            ] {
                if let Some(bytes) = kibibytes(&status, field) {
                    gauge(&mut encoder, name, help, bytes * 1024.0)?;
                }
            }
        }
        if let Some(seconds) =
            std::fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(cpu_seconds)
        {
            let metric = encoder.encode_descriptor(
                "process_cpu_seconds",
                "Processor time spent",
                None,
                MetricType::Counter,
            )?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        Ok(())
    }
}

fn kibibytes(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Time in user and kernel mode: the 14th and 15th field. The second is the program's name in brackets and may hold
/// anything, so counting starts behind the last bracket.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let kernel: f64 = fields.next()?.parse().ok()?;
    Some((user + kernel) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_where_the_kernel_puts_them() {
        assert_eq!(kibibytes("Name:\tx\nVmHWM:\t   12345 kB\nVmRSS:\t  99 kB\n", "VmRSS:"), Some(99.0));
        assert_eq!(kibibytes("Name:\tx\n", "VmRSS:"), None);
        let stat = "77 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("nonsense"), None);
    }
}
