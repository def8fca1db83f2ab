//! How single values are read from the text of the file, and how they are shown in the reference.

use fairlead_domain::{duration::Duration, reference::HostPattern, selector::Selector};
use fairlead_plan::owners::ApiGroup;
use serde_json::json;

use super::{
    registries::check_host,
    tree::{Content, Node},
};

/// A value that a key can hold.
pub(super) trait Value: Sized {
    /// What to write, in the words of the reference and of messages.
    fn kind() -> String;
    /// The same as a JSON schema. What a single value has to be beyond its type is left to [`Value::read`].
    fn schema() -> serde_json::Value;
    /// Reads the value; the error says what is wrong and what to do, without naming the key.
    fn read(node: &Node) -> Result<Self, String>;
    /// The value as one would write it.
    fn show(&self) -> String;
    /// Whether the value says "none" where a key allows that.
    fn is_nothing(&self) -> bool {
        false
    }
}

/// The text of a single value.
pub(super) fn scalar<'a>(node: &'a Node, wanted: &str) -> Result<&'a str, String> {
    match &node.content {
        Content::Scalar { text, .. } => Ok(text),
        Content::List(_) | Content::Map(_) => Err(format!("is {}, but must be {wanted}", node.what())),
    }
}

/// The text of a single value that was not put in quotes: `"5"` is a text, not a number.
fn plain<'a>(node: &'a Node, wanted: &str) -> Result<&'a str, String> {
    match &node.content {
        Content::Scalar { text, quoted: true } => {
            Err(format!("is the text \"{text}\", but must be {wanted}: take the quotes away"))
        }
        _ => scalar(node, wanted),
    }
}

impl Value for bool {
    fn kind() -> String {
        "true or false".to_owned()
    }

    fn schema() -> serde_json::Value {
        json!({"type": "boolean"})
    }

    fn read(node: &Node) -> Result<Self, String> {
        match plain(node, &Self::kind())? {
            "true" | "True" | "TRUE" => Ok(true),
            "false" | "False" | "FALSE" => Ok(false),
            other => {
                let meant = match other.to_ascii_lowercase().as_str() {
                    "yes" | "y" | "on" | "1" => ": write true",
                    "no" | "n" | "off" | "0" => ": write false",
                    _ => "",
                };
                Err(format!("is `{other}`, but must be {}{meant}", Self::kind()))
            }
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn kind() -> String {
        "text".to_owned()
    }

    /// Without quotes, a number or a boolean is a text as well.
    fn schema() -> serde_json::Value {
        json!({"type": ["string", "number", "boolean"]})
    }

    fn read(node: &Node) -> Result<Self, String> {
        let text = scalar(node, "a text")?.trim();
        if text.is_empty() {
            Err("is an empty text: give it a value, or leave the key out".to_owned())
        } else {
            Ok(text.to_owned())
        }
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Value for u32 {
    fn kind() -> String {
        "whole number".to_owned()
    }

    fn schema() -> serde_json::Value {
        json!({"type": "integer", "minimum": 0, "maximum": Self::MAX})
    }

    fn read(node: &Node) -> Result<Self, String> {
        let text = plain(node, "a whole number")?;
        text.parse().map_err(|_| {
            if text.strip_prefix('-').is_some_and(|digits| digits.parse::<u64>().is_ok()) {
                format!("is {text}, but must not be negative")
            } else if text.parse::<f64>().is_ok_and(|number| number > f64::from(u32::MAX)) {
                format!("is {text}, but must not be above {}", u32::MAX)
            } else {
                format!("is `{text}`, but must be a whole number")
            }
        })
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn is_nothing(&self) -> bool {
        *self == 0
    }
}

impl Value for f64 {
    fn kind() -> String {
        "number".to_owned()
    }

    fn schema() -> serde_json::Value {
        json!({"type": "number"})
    }

    fn read(node: &Node) -> Result<Self, String> {
        let text = plain(node, "a number")?;
        match text.parse::<Self>() {
            Ok(number) if number.is_finite() => Ok(number),
            _ => Err(format!("is `{text}`, but must be a number, such as 1.5")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A bare whole number is nanoseconds: kuik read durations so, and configurations that rely on it exist.
impl Value for Duration {
    fn kind() -> String {
        "duration".to_owned()
    }

    fn schema() -> serde_json::Value {
        json!({"type": ["string", "integer"]})
    }

    fn read(node: &Node) -> Result<Self, String> {
        let text = scalar(node, "a duration, such as 90s or 1h30m")?.trim();
        let quoted = matches!(node.content, Content::Scalar { quoted: true, .. });
        match text.parse::<i64>() {
            Ok(nanoseconds) if !quoted => match u64::try_from(nanoseconds) {
                Ok(nanoseconds) => Ok(std::time::Duration::from_nanos(nanoseconds).into()),
                Err(_) => Err(format!("is {text}, but a duration must not be negative")),
            },
            _ => text.parse::<Self>().map_err(|error| error.to_string()),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn is_nothing(&self) -> bool {
        self.is_zero()
    }
}

impl Value for Selector {
    fn kind() -> String {
        "selector".to_owned()
    }

    fn schema() -> serde_json::Value {
        json!({"type": "string"})
    }

    fn read(node: &Node) -> Result<Self, String> {
        let selector = scalar(node, "a selector, such as `app=web` or `tier in (a,b)`")?
            .parse::<Self>()
            .map_err(|error| error.to_string())?;
        if selector.is_empty() {
            return Err("is empty, and so would match every Pod: write for example `app=web`".to_owned());
        }
        Ok(selector)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for ApiGroup {
    fn kind() -> String {
        "API group".to_owned()
    }

    fn schema() -> serde_json::Value {
        json!({"type": "string"})
    }

    fn read(node: &Node) -> Result<Self, String> {
        let text = scalar(node, "an API group, such as `postgresql.cnpg.io`")?;
        text.parse::<Self>().map_err(|error| error.to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for HostPattern {
    fn kind() -> String {
        "registry pattern".to_owned()
    }

    fn schema() -> serde_json::Value {
        json!({"type": "string"})
    }

    fn read(node: &Node) -> Result<Self, String> {
        let text = scalar(node, "a registry, such as `reg.example.com:5000` or `*.example.com`")?;
        check_host(&text.replace('*', "1"))
            .and_then(|()| Self::parse(text).map_err(|error| error.to_string()))
            .map_err(|error| {
                format!("is `{text}`: {error}; `*` stands for any characters, as in `*.example.com`")
            })
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A choice between fixed words.
pub(super) trait Choice: Copy + Eq + 'static {
    const ALL: &'static [(&'static str, Self)];
}

impl<T: Choice> Value for T {
    fn kind() -> String {
        let words: Vec<String> = T::ALL.iter().map(|(word, _)| format!("`{word}`")).collect();
        match words.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        }
    }

    fn schema() -> serde_json::Value {
        json!({"enum": T::ALL.iter().map(|(word, _)| *word).collect::<Vec<_>>()})
    }

    fn read(node: &Node) -> Result<Self, String> {
        let wanted = Self::kind();
        let text = scalar(node, &wanted)?;
        T::ALL
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("is `{text}`, but must be {wanted}"))
    }

    fn show(&self) -> String {
        T::ALL.iter().find(|(_, value)| value == self).map(|(word, _)| (*word).to_owned()).unwrap_or_default()
    }
}

/// Text for the "default" column when there is nothing to show.
pub(super) fn show_or(value: Option<&impl Value>, nothing: &str) -> String {
    value.map_or_else(|| nothing.to_owned(), Value::show)
}

pub(super) fn show_list<T: Value>(values: &[T]) -> String {
    format!("[{}]", values.iter().map(Value::show).collect::<Vec<_>>().join(", "))
}
