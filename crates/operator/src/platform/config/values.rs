//! How single values are read from the text of the file, and how they are shown in the reference.

use std::fmt::Display;

use fairlead_domain::duration::Duration;
use fairlead_domain::reference::HostPattern;
use fairlead_domain::selector::Selector;
use fairlead_plan::owners::ApiGroup;
use serde_json::json;

use super::registries::check_host;
use super::tree::{NodeContent, YamlNode};

/// A value that a key can hold. `Display` writes it as a person would.
pub(super) trait Value: Sized + Display {
    /// What to write, in the words of the reference and of messages.
    fn kind() -> String;
    /// The same as a JSON schema. What a single value has to be beyond its type is left to [`Value::read`].
    fn schema() -> serde_json::Value;
    /// Reads the value; the error says what is wrong and what to do, without naming the key.
    fn read(node: &YamlNode) -> Result<Self, String>;
    /// Whether the value says "none" where a key allows that.
    fn is_nothing(&self) -> bool {
        false
    }
}

macro_rules! described {
    ($kind:literal, $schema:tt) => {
        fn kind() -> String {
            $kind.to_owned()
        }

        fn schema() -> serde_json::Value {
            json!($schema)
        }
    };
}

/// The text of a single value.
pub(super) fn scalar<'a>(node: &'a YamlNode, wanted: &str) -> Result<&'a str, String> {
    match &node.content {
        NodeContent::Scalar { text, .. } => Ok(text),
        NodeContent::List(_) | NodeContent::Map(_) => {
            Err(format!("is {}, but must be {wanted}", node.what()))
        }
    }
}

/// The text of a single value that was not put in quotes: `"5"` is a text, not a number.
fn plain<'a>(node: &'a YamlNode, wanted: &str) -> Result<&'a str, String> {
    match &node.content {
        NodeContent::Scalar { text, quoted: true } => {
            Err(format!("is the text \"{text}\", but must be {wanted}: take the quotes away"))
        }
        _ => scalar(node, wanted),
    }
}

impl Value for bool {
    described!("true or false", {"type": "boolean"});

    fn read(node: &YamlNode) -> Result<Self, String> {
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
}

impl Value for String {
    // Without quotes, a number or a boolean is a text as well.
    described!("text", {"type": ["string", "number", "boolean"]});

    fn read(node: &YamlNode) -> Result<Self, String> {
        let text = scalar(node, "a text")?.trim();
        if text.is_empty() {
            Err("is an empty text: give it a value, or leave the key out".to_owned())
        } else {
            Ok(text.to_owned())
        }
    }
}

impl Value for u32 {
    described!("whole number", {"type": "integer", "minimum": 0, "maximum": u32::MAX});

    fn read(node: &YamlNode) -> Result<Self, String> {
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

    fn is_nothing(&self) -> bool {
        *self == 0
    }
}

impl Value for f64 {
    described!("number", {"type": "number"});

    fn read(node: &YamlNode) -> Result<Self, String> {
        let text = plain(node, "a number")?;
        match text.parse::<Self>() {
            Ok(number) if number.is_finite() => Ok(number),
            _ => Err(format!("is `{text}`, but must be a number, such as 1.5")),
        }
    }
}

/// A bare whole number is nanoseconds: kuik read durations so, and configurations that rely on it exist.
impl Value for Duration {
    described!("duration", {"type": ["string", "integer"]});

    fn read(node: &YamlNode) -> Result<Self, String> {
        let text = scalar(node, "a duration, such as 90s or 1h30m")?.trim();
        let quoted = matches!(node.content, NodeContent::Scalar { quoted: true, .. });
        match text.parse::<i64>() {
            Ok(nanoseconds) if !quoted => match u64::try_from(nanoseconds) {
                Ok(nanoseconds) => Ok(std::time::Duration::from_nanos(nanoseconds).into()),
                Err(_) => Err(format!("is {text}, but a duration must not be negative")),
            },
            _ => text.parse::<Self>().map_err(|error| error.to_string()),
        }
    }

    fn is_nothing(&self) -> bool {
        self.is_zero()
    }
}

impl Value for Selector {
    described!("selector", {"type": "string"});

    fn read(node: &YamlNode) -> Result<Self, String> {
        let selector = scalar(node, "a selector, such as `app=web` or `tier in (a,b)`")?
            .parse::<Self>()
            .map_err(|error| error.to_string())?;
        if selector.is_empty() {
            return Err("is empty, and so would match every Pod: write for example `app=web`".to_owned());
        }
        Ok(selector)
    }
}

impl Value for ApiGroup {
    described!("API group", {"type": "string"});

    fn read(node: &YamlNode) -> Result<Self, String> {
        let text = scalar(node, "an API group, such as `postgresql.cnpg.io`")?;
        text.parse::<Self>().map_err(|error| error.to_string())
    }
}

impl Value for HostPattern {
    described!("registry pattern", {"type": "string"});

    fn read(node: &YamlNode) -> Result<Self, String> {
        let text = scalar(node, "a registry, such as `reg.example.com:5000` or `*.example.com`")?;
        check_host(&text.replace('*', "1"))
            .and_then(|()| Self::parse(text).map_err(|error| error.to_string()))
            .map_err(|error| {
                format!("is `{text}`: {error}; `*` stands for any characters, as in `*.example.com`")
            })
    }
}

/// A choice between fixed words.
macro_rules! choice {
    ($type:ident: $($word:literal is $variant:ident),+) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl super::values::Value for $type {
            fn kind() -> String {
                super::values::one_of(&[$($word),+])
            }

            fn schema() -> serde_json::Value {
                serde_json::json!({"enum": [$($word),+]})
            }

            fn read(node: &super::tree::YamlNode) -> Result<Self, String> {
                let wanted = Self::kind();
                match super::values::scalar(node, &wanted)? {
                    $($word => Ok(Self::$variant),)+
                    other => Err(format!("is `{other}`, but must be {wanted}")),
                }
            }
        }
    };
}
pub(super) use choice;

pub(super) fn one_of(words: &[&str]) -> String {
    match words {
        [others @ .., last] if !others.is_empty() => format!("`{}` or `{last}`", others.join("`, `")),
        words => format!("`{}`", words.concat()),
    }
}
