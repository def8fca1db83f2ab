//! Objects of the cluster, read so that a broken field hides nothing but itself.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// One field of a stored object, or its default and one more problem.
pub(crate) fn part<T: DeserializeOwned + Default>(
    data: &Value,
    field: &str,
    problems: &mut Vec<String>,
) -> T {
    let Some(value) = data.get(field) else { return T::default() };
    serde_path_to_error::deserialize(value).unwrap_or_else(|error| {
        let path = error.path().to_string();
        let path = if path == "." { field.to_owned() } else { format!("{field}.{path}") };
        problems.push(format!("{path} cannot be read: {}", error.into_inner()));
        T::default()
    })
}
