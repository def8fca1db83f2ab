//! What Harbor holds of a proxy cache: a registry endpoint, and a project that serves from it.
//!
//! The client reads these values and planners compare them, so neither needs to know the other.

use std::fmt;

/// A registry endpoint: where Harbor fetches from, and how it logs in there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub id: i64,
    pub name: String,
    /// Harbor's word for the adapter: `docker-registry`, `aws-ecr`.
    pub adapter: String,
    pub url: String,
    /// User name of the login, if there is one. The password is never shown.
    pub access_key: Option<String>,
    pub insecure: bool,
    pub description: String,
    pub health: Health,
}

/// A project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    pub id: i64,
    pub name: String,
    /// Endpoint that it serves from; none for a project that images are pushed to.
    pub endpoint: Option<i64>,
    /// Whether it can be pulled from without a login.
    pub public: bool,
}

/// What Harbor last found out about an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Healthy,
    Unhealthy,
    /// Harbor says nothing, or something else.
    Unknown,
}

impl Health {
    pub fn parse(text: &str) -> Self {
        match text {
            "healthy" => Self::Healthy,
            "unhealthy" => Self::Unhealthy,
            _ => Self::Unknown,
        }
    }
}

/// A login. Debugging it shows the user only.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_words_are_definite() {
        assert_eq!(Health::parse("healthy"), Health::Healthy);
        assert_eq!(Health::parse("unhealthy"), Health::Unhealthy);
        for other in ["", "Healthy", "unknown"] {
            assert_eq!(Health::parse(other), Health::Unknown);
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        let login = Login { user: "robot".to_owned(), password: "pa55".to_owned() };
        assert!(!format!("{login:?}").contains("pa55"));
    }
}
