//! What is accepted but should be known to the author of the configuration.

use super::types::Config;

/// kuik's native histogram has settings that the metrics format in use here cannot express.
const NATIVE_HISTOGRAM: [&str; 3] = ["bucketFactor", "zeroThreshold", "maxBucketNumber"];

pub(super) fn of(config: &Config, given: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    for key in NATIVE_HISTOGRAM {
        let path = format!("metrics.imageLastMonitorAgeMinutes.{key}");
        if given.contains(&path) {
            warnings.push(format!("{path} has no effect: native histograms are not exported, use `legacy` to choose classic buckets"));
        }
    }
    let everywhere = ("default", &config.registries.default);
    for (host, options) in
        config.registries.hosts.iter().map(|(host, options)| (host.as_str(), options)).chain([everywhere])
    {
        if options.insecure_skip_verify == Some(true) {
            warnings.push(format!("registries.{host}.insecureSkipVerify is on: a host in between can read and change what is pulled"));
        }
        if options.plain_http == Some(true)
            && (options.ca_file.is_some() || options.insecure_skip_verify == Some(true))
        {
            warnings.push(format!(
                "registries.{host}: caFile and insecureSkipVerify have no effect beside plainHttp: true"
            ));
        }
    }
    warnings
}
