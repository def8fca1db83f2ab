//! JSON as programs written in Go read it.
//!
//! Registries, runtimes, docker and the kubelet agree about documents that our decoder refuses or reads differently: of
//! fields that come twice the last counts, their names are compared without regard to case, `null` is like a field that
//! is missing, and invalid Unicode inside strings is replaced. What they accept must be accepted here.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, Visitor};
use zeroize::Zeroizing;

const REPLACEMENT: &str = "\u{fffd}";
const ESCAPED_REPLACEMENT: &str = "\\ufffd";
/// Length of an escaped code unit: a backslash, `u` and four digits.
const ESCAPE: usize = 6;

/// Reads a document. Only one that cannot be read as it is gets its strings repaired.
pub fn from_slice<T: DeserializeOwned>(data: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(data).or_else(|error| {
        let text = tidied(data);
        if text.as_bytes() == data { Err(error) } else { serde_json::from_str(&text) }
    })
}

/// The text with everything that is not valid Unicode inside strings replaced. Elsewhere such bytes are errors to Go's
/// decoder as well.
pub(crate) fn tidied(data: &[u8]) -> Zeroizing<String> {
    // Room for all of it at once: a buffer that grows leaves copies of what it holds behind.
    let room =
        data.utf8_chunks().map(|chunk| chunk.valid().len() + chunk.invalid().len() * REPLACEMENT.len());
    let mut text = Zeroizing::new(String::with_capacity(room.sum()));
    for chunk in data.utf8_chunks() {
        text.push_str(chunk.valid());
        // One for each byte, which is what Go does.
        chunk.invalid().iter().for_each(|_| text.push_str(REPLACEMENT));
    }
    if !text.contains("\\u") {
        return text;
    }
    let mut paired = Zeroizing::new(String::with_capacity(text.len()));
    let mut rest = text.as_str();
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        paired.push_str(before);
        let (kept, length) = match (surrogate(escape), escape.get(ESCAPE..).and_then(surrogate)) {
            (Some(Half::High), Some(Half::Low)) => (escape.get(..2 * ESCAPE), 2 * ESCAPE),
            (Some(_), _) => (Some(ESCAPED_REPLACEMENT), ESCAPE),
            // Any other escape: its second character must not be taken for the start of one.
            (None, _) => {
                let length = 1 + escape.chars().nth(1).map_or(0, char::len_utf8);
                (escape.get(..length), length)
            }
        };
        paired.push_str(kept.unwrap_or_default());
        rest = escape.get(length..).unwrap_or_default();
    }
    paired.push_str(rest);
    paired
}

enum Half {
    High,
    Low,
}

/// Whether the text starts with an escaped half of a surrogate pair.
fn surrogate(text: &str) -> Option<Half> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let valid = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    match u16::from_str_radix(digits, 16).ok().filter(|_| valid)? {
        0xd800..=0xdbff => Some(Half::High),
        0xdc00..=0xdfff => Some(Half::Low),
        _ => None,
    }
}

/// Field names are compared without regard to case, over all of Unicode: two letters beyond ASCII fold into it.
pub fn is_field(key: &str, name: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(name.chars().map(fold))
}

/// A struct that is filled field by field; [`json_object`](crate::json_object) implements it.
pub trait Object: Default {
    const FIELDS: &'static [&'static str];

    /// Reads the value of one of the fields.
    fn read<'de, A: MapAccess<'de>>(&mut self, field: &str, map: &mut A) -> Result<(), A::Error>;
}

/// What a field does with its value, which may be there several times.
pub trait Field {
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error>;
}

impl<T: DeserializeOwned> Field for Option<T> {
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        if let Some(value) = map.next_value()? {
            *self = Some(value);
        }
        Ok(())
    }
}

impl Field for String {
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        if let Some(value) = map.next_value()? {
            *self = value;
        }
        Ok(())
    }
}

/// Given twice they are merged; given as `null` they are forgotten.
impl<K: Ord + DeserializeOwned, V: DeserializeOwned> Field for BTreeMap<K, V> {
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        match map.next_value::<Option<Self>>()? {
            Some(entries) => self.extend(entries),
            None => self.clear(),
        }
        Ok(())
    }
}

/// Lets a struct be read as Go reads one: `json_object!(Type { "nameInJson" => field, … })`. Other fields are skipped.
#[macro_export]
macro_rules! json_object {
    ($type:ty { $($name:literal => $field:ident),+ $(,)? }) => {
        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::json::object(deserializer)
            }
        }

        impl $crate::json::Object for $type {
            const FIELDS: &'static [&'static str] = &[$($name),+];

            fn read<'de, A: ::serde::de::MapAccess<'de>>(
                &mut self,
                field: &str,
                map: &mut A,
            ) -> Result<(), A::Error> {
                match field {
                    $($name => $crate::json::Field::read(&mut self.$field, map),)+
                    _ => map.next_value::<::serde::de::IgnoredAny>().map(drop),
                }
            }
        }
    };
}

pub fn object<'de, D: Deserializer<'de>, T: Object>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(Fields(PhantomData))
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Object> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with {}", T::FIELDS.join(", "))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut object = T::default();
        while let Some(field) = map.next_key_seed(Name(T::FIELDS))? {
            object.read(field, &mut map)?;
        }
        Ok(object)
    }
}

/// The field that a key means; none of them is called "".
struct Name(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        let exact = self.0.iter().find(|name| **name == key);
        Ok(exact.or_else(|| self.0.iter().find(|name| is_field(key, name))).copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_broken_changes() {
        for (input, expected) in [
            (&br#"{"a":"b"}"#[..], r#"{"a":"b"}"#),
            (b"\"\xff\xfe\"", "\"\u{fffd}\u{fffd}\""),
            (br#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (br#""\ud83dx""#, r#""\ufffdx""#),
            (br#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
            (br#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (br#""\\ud83d""#, r#""\\ud83d""#),
            (br#""\u00e9\n""#, r#""\u00e9\n""#),
            (br#""\u12"#, r#""\u12"#),
            (b"\\", "\\"),
        ] {
            assert_eq!(*tidied(input), expected);
        }
    }

    #[derive(Debug, Default, PartialEq)]
    struct Thing {
        name: String,
        size: Option<u64>,
        labels: BTreeMap<String, Option<String>>,
    }

    json_object!(Thing { "theName" => name, "size" => size, "labels" => labels });

    fn thing(text: &[u8]) -> Option<(String, Option<u64>, Vec<String>)> {
        let labels = |thing: &Thing| {
            let text = |(key, value): (&String, &Option<String>)| {
                format!("{key}={}", value.as_deref().unwrap_or("null"))
            };
            thing.labels.iter().map(text).collect()
        };
        from_slice(text).ok().map(|thing: Thing| (thing.name.clone(), thing.size, labels(&thing)))
    }

    #[test]
    fn objects_are_read_as_go_reads_them() {
        let with = |name: &str, size: Option<u64>, labels: &[&str]| {
            Some((name.to_owned(), size, labels.iter().map(ToString::to_string).collect()))
        };
        for (text, expected) in [
            (&br#"{"theName":"a","size":1,"other":[{}],"":0}"#[..], with("a", Some(1), &[])),
            (br#"{"theName":"a","theName":"b","size":1,"SIZE":2}"#, with("b", Some(2), &[])),
            (br#"{"THENAME":"a","\u017fize":3}"#, with("a", Some(3), &[])),
            (br#"{"theName":null,"size":null,"labels":null}"#, with("", None, &[])),
            (br#"{"size":1,"size":null}"#, with("", Some(1), &[])),
            (
                br#"{"labels":{"a":"1","b":"2"},"Labels":{"b":"3","B":null}}"#,
                with("", None, &["B=null", "a=1", "b=3"]),
            ),
            (br#"{"labels":{"a":"1"},"labels":null}"#, with("", None, &[])),
            (b"{\"theName\":\"\xff\",\"\xfe\":1}", with("\u{fffd}", None, &[])),
            (br#"{"theName":"\udc00x","\ud800":1}"#, with("\u{fffd}x", None, &[])),
            (b"{\"other\":\"\xff\\ud800\"}", with("", None, &[])),
            (br#"{"size":"1"}"#, None),
            (br#"{"size":1,"size":"1"}"#, None),
            (b"[]", None),
            (b"null", None),
            (b"{}\xff", None),
            (b"{", None),
        ] {
            assert_eq!(thing(text), expected, "{}", String::from_utf8_lossy(text));
        }
    }
}
