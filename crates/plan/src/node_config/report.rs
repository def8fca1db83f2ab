//! What an agent reports about its node.

use fairlead_api::fairlead::{
    MAX_REPORT_MESSAGE, MAX_REPORTED_SOURCES, NodeMirrorReportSpec, ReportedSource,
};

use super::Scope;

/// What the files of a node hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// Hash of the policies and registries that they were made from.
    pub policies: String,
    /// Hash of what these come to.
    pub config: String,
    /// Sources that are left alone, each with the reason.
    pub skipped: Vec<(Scope, String)>,
    /// Sources that the runtime does not treat exactly as their policies say.
    pub inexact: Vec<(Scope, String)>,
}

/// Which agent reports about what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reporter {
    pub version: String,
    pub runtime: String,
    pub directory: String,
}

impl Reporter {
    /// The report on what is in force, or on why nothing is.
    pub fn report(&self, outcome: Result<&InForce, &str>) -> NodeMirrorReportSpec {
        let mut report = NodeMirrorReportSpec {
            agent: self.version.clone(),
            runtime: self.runtime.clone(),
            directory: self.directory.clone(),
            ..NodeMirrorReportSpec::default()
        };
        match outcome {
            Ok(in_force) => {
                (report.policies, report.config) =
                    (Some(in_force.policies.clone()), Some(in_force.config.clone()));
                (report.skipped, report.inexact) = (listed(&in_force.skipped), listed(&in_force.inexact));
                let listed = report.skipped.len() + report.inexact.len();
                let all = in_force.skipped.len() + in_force.inexact.len();
                report.unlisted = u32::try_from(all - listed).unwrap_or(u32::MAX);
            }
            Err(error) => report.error = Some(short(error)),
        }
        report
    }
}

/// In the order of the sources, so that what is left out comes after what is listed.
fn listed(notes: &[(Scope, String)]) -> Vec<ReportedSource> {
    let mut listed: Vec<_> = notes.iter().collect();
    listed.sort();
    listed
        .into_iter()
        .take(MAX_REPORTED_SOURCES)
        .map(|(source, message)| ReportedSource { source: source.to_string(), message: short(message) })
        .collect()
}

/// The schema counts characters; bytes are never fewer.
fn short(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_REPORT_MESSAGE)).unwrap_or_default().to_owned()
}
