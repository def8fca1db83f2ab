//! What values must be besides well-formed. A check says what is wrong and what to do, without naming the key.

use std::fmt::Display;

use fairlead_domain::duration::Duration;
use fairlead_domain::reference::Reference;
use fairlead_plan::node_config::Scope;

use super::registries::check_host;

pub(super) fn at_least<T: PartialOrd + Display>(least: T) -> impl Fn(&T) -> Result<(), String> {
    move |value| {
        if *value >= least { Ok(()) } else { Err(format!("is {value}, but must be at least {least}")) }
    }
}

pub(super) fn above<T: PartialOrd + Display>(bound: T) -> impl Fn(&T) -> Result<(), String> {
    move |value| {
        if *value > bound { Ok(()) } else { Err(format!("is {value}, but must be above {bound}")) }
    }
}

pub(super) fn not_zero(value: &Duration) -> Result<(), String> {
    if value.is_zero() { Err("is 0, but must be longer than that".to_owned()) } else { Ok(()) }
}

#[expect(clippy::unnecessary_wraps, reason = "it is used where other checks find something wrong")]
pub(super) fn anything<T>(_: &T) -> Result<(), String> {
    Ok(())
}

/// A check of texts for keys that hold texts.
pub(super) fn text(check: impl Fn(&str) -> Result<(), String>) -> impl Fn(&String) -> Result<(), String> {
    move |value| check(value)
}

pub(super) fn check_image(image: &str) -> Result<(), String> {
    Reference::parse(image).map(drop).map_err(|error| format!("is `{image}`, which is no image: {error}"))
}

pub(super) fn check_url(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    match host {
        Some(host) if !host.is_empty() && !host.contains(char::is_whitespace) && !host.contains('@') => {
            Ok(())
        }
        Some(host) if host.contains('@') => {
            Err("holds a password: take it out, it belongs into the Secret".to_owned())
        }
        _ => Err(format!("is `{url}`, but must be a URL, such as https://harbor.example.com")),
    }
}

/// A name such as that of a namespace.
pub(super) fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || c == '-')
}

pub(super) fn check_namespace(name: &str) -> Result<(), String> {
    if is_dns_label(name) {
        Ok(())
    } else {
        Err(format!(
            "is `{name}`, but must be the name of a namespace: lower-case letters, digits and `-`, at most 63"
        ))
    }
}

/// A registry, or a repository in it, or all hosts below a domain (`*.example.com`).
pub(super) fn check_scope(scope: &str) -> Result<(), String> {
    if scope.contains("://") {
        return check_host(scope);
    }
    let host = scope.split('/').next().unwrap_or_default();
    check_host(host.strip_prefix("*.").unwrap_or(host))?;
    Scope::parse(scope).map(drop).map_err(|error| format!("names no place: {error}"))
}
