//! Templates of references, in the part of Go's notation that a reference can need: fields, texts and trimming.

use super::compile::SpecError;

/// `{{.Registry}}/{{.Repository}}:{{.Tag}}`, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Registry,
    Repository,
    Tag,
}

impl Default for Template {
    fn default() -> Self {
        let text = |text: &str| Piece::Text(text.to_owned());
        Self(vec![Piece::Registry, text("/"), Piece::Repository, text(":"), Piece::Tag])
    }
}

impl Template {
    pub(super) fn parse(field: &str, text: &str) -> Result<Self, SpecError> {
        let mut pieces = Vec::new();
        let (mut rest, mut trims) = (text, false);
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((action, after)) = after.split_once("}}") else {
                return Err(SpecError::value(field, "every {{ needs its }}"));
            };
            let (action, trims_before) = match action.strip_prefix("- ") {
                Some(action) => (action, true),
                None => (action, false),
            };
            let (action, trims_after) = match action.strip_suffix(" -") {
                Some(action) => (action, true),
                None => (action, false),
            };
            push_text(&mut pieces, before, trims, trims_before);
            pieces.push(match action.trim() {
                ".Registry" => Piece::Registry,
                ".Repository" => Piece::Repository,
                ".Tag" => Piece::Tag,
                other => Piece::Text(literal(other).ok_or_else(|| unknown(field, other))?),
            });
            (rest, trims) = (after, trims_after);
        }
        push_text(&mut pieces, rest, trims, false);
        Ok(Self(pieces))
    }

    pub(super) fn render(&self, registry: &str, repository: &str, tag: &str) -> String {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => text,
            Piece::Registry => registry,
            Piece::Repository => repository,
            Piece::Tag => tag,
        });
        pieces.collect()
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str, trims_start: bool, trims_end: bool) {
    let text = if trims_start { text.trim_start() } else { text };
    let text = if trims_end { text.trim_end() } else { text };
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

/// A quoted text. References have no characters that would have to be escaped in one.
fn literal(action: &str) -> Option<String> {
    let inner = ['"', '`'].iter().find_map(|quote| action.strip_prefix(*quote)?.strip_suffix(*quote))?;
    (!inner.contains(['"', '`', '\\'])).then(|| inner.to_owned())
}

fn unknown(field: &str, action: &str) -> SpecError {
    let problem = format!(
        "{{{{{action}}}}} is not known: there are {{{{.Registry}}}}, {{{{.Repository}}}} and {{{{.Tag}}}}"
    );
    SpecError::value(field, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_in() {
        for (template, expected) in [
            ("{{.Registry}}/{{.Repository}}:{{.Tag}}", "r.example:5000/team/app:1"),
            ("mirror.example/{{ .Repository }}:{{- .Tag -}}  ", "mirror.example/team/app:1"),
            ("{{\"m.example\"}}/{{`x`}}:{{.Tag}}-alpine", "m.example/x:1-alpine"),
            ("fixed", "fixed"),
        ] {
            let template = Template::parse("f", template).unwrap();
            assert_eq!(template.render("r.example:5000", "team/app", "1"), expected);
        }
        assert_eq!(
            Template::default(),
            Template::parse("", "{{.Registry}}/{{.Repository}}:{{.Tag}}").unwrap()
        );
    }

    #[test]
    fn what_cannot_be_filled_in_is_refused() {
        for template in
            ["{{.Tag", "{{.Tags}}", "{{.Tag | lower}}", "{{if .Tag}}x{{end}}", "{{\"a\\n\"}}", "{{}}"]
        {
            assert!(Template::parse("f", template).is_err(), "{template}");
        }
    }
}
