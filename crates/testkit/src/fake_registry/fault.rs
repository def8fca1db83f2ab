//! Faults on demand: which requests they strike, how often, and what they do.

use std::time::Duration;

use super::auth::password_of;
use super::handler::Target;
use super::log::Logged;

/// The parts of the API that faults are aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/v2/`.
    Base,
    Manifests,
    Blobs,
    Uploads,
    Tags,
    Referrers,
    /// The token endpoint.
    Token,
}

/// What a fault does to a request.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Answers only after this time.
    Delay(Duration),
    /// Never answers.
    Hang,
    /// Closes the connection without an answer.
    Drop,
    /// Answers with this status and nothing of substance.
    Status(u16),
    /// Answers with this status, type and body.
    Answer(u16, &'static str, Vec<u8>),
    /// Sends the client elsewhere.
    Redirect(String),
    /// Adds a header to the answer, or replaces it.
    Header(&'static str, String),
    /// Takes a header off the answer.
    WithoutHeader(&'static str),
    /// Changes the first byte of the body.
    Corrupt,
    /// Sends this many bytes of the body and closes the connection, having promised all of it.
    Truncate(usize),
    /// Sends this many bytes of the body as if they were all.
    Shorten(usize),
    /// Sends this many bytes of the body and then nothing more, keeping the connection.
    Stall(usize),
    /// Sends the body byte by byte, each after this time.
    Drip(Duration),
}

/// Strikes every request that fits all of its conditions, as often as it was told to.
#[derive(Clone, Debug, Default)]
pub struct Fault {
    effects: Vec<Effect>,
    route: Option<Route>,
    method: Option<&'static str>,
    path: Option<String>,
    query: Option<String>,
    larger_than: Option<u64>,
    user: Option<String>,
    skip: usize,
    left: Option<usize>,
}

impl Fault {
    pub fn new(effect: Effect) -> Self {
        Self { effects: vec![effect], ..Self::default() }
    }

    pub fn status(status: u16) -> Self {
        Self::new(Effect::Status(status))
    }

    /// Another effect on the same requests.
    #[must_use]
    pub fn and(mut self, effect: Effect) -> Self {
        self.effects.push(effect);
        self
    }

    #[must_use]
    pub fn on(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    #[must_use]
    pub fn method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// Only requests whose path contains this.
    #[must_use]
    pub fn path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Only requests whose query contains this.
    #[must_use]
    pub fn query(mut self, part: &str) -> Self {
        self.query = Some(part.to_owned());
        self
    }

    /// Only requests whose body is longer, by what they say of it.
    #[must_use]
    pub fn larger_than(mut self, length: u64) -> Self {
        self.larger_than = Some(length);
        self
    }

    /// Only requests that come with this user's password.
    #[must_use]
    pub fn user(mut self, name: &str) -> Self {
        self.user = Some(name.to_owned());
        self
    }

    /// Lets the first requests that fit pass.
    #[must_use]
    pub fn after(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Strikes so many requests and is then used up.
    #[must_use]
    pub fn times(mut self, count: usize) -> Self {
        self.left = Some(count);
        self
    }

    /// The effects, if this fault strikes this request.
    pub(super) fn strike(&mut self, request: &Logged, target: &Target) -> Option<Vec<Effect>> {
        let length = request.header("content-length").parse::<u64>().unwrap_or_default();
        let user = password_of(request.header("authorization")).map(|(user, _)| user);
        let fits = self.route.is_none_or(|route| target.route() == Some(route))
            && self.method.is_none_or(|wanted| wanted == request.method)
            && self.path.as_ref().is_none_or(|part| request.path.contains(part))
            && self.query.as_ref().is_none_or(|part| request.query.contains(part))
            && self.larger_than.is_none_or(|bound| length > bound)
            && (self.user.is_none() || self.user == user);
        if !fits || self.left == Some(0) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.left = self.left.map(|left| left - 1);
        Some(self.effects.clone())
    }
}
