//! Prints manifests as one YAML stream that a person can read: each object under the reason why it is there.

use std::fmt::Write;

use super::{InstallError, Manifest, VERSION};

const COMMENT_WIDTH: usize = 100;

/// The objects in the order given, as one stream for `kubectl apply -f -`.
pub fn render(manifests: &[Manifest]) -> Result<String, InstallError> {
    let mut text = format!("# Fairlead {VERSION}, printed by `fairlead manifests`.\n");
    for Manifest { why, object } in manifests {
        let field = |pointer| object.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default();
        let failed = |message: String| InstallError::Render {
            what: format!("{} {:?}", field("/kind"), field("/metadata/name")),
            message,
        };
        text.push_str("---\n");
        for line in wrap(why) {
            writeln!(text, "# {line}").map_err(|error| failed(error.to_string()))?;
        }
        let body = serde_saphyr::to_string(object).map_err(|error| failed(error.to_string()))?;
        text.push_str(body.trim_end());
        text.push('\n');
    }
    Ok(text)
}

fn wrap(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.len() + 1 + word.len() > COMMENT_WIDTH {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}
