//! The registry's access log: the judge of who was contacted, for what, and in which order.

/// One request that a registry answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub method: String,
    /// Path and query.
    pub path: String,
    pub status: u16,
    pub user_agent: String,
}

/// Reads the lines in the common log format, as both releases write them; everything else in the log is skipped.
pub(super) fn parse(log: &str) -> Vec<Access> {
    log.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Access> {
    // host - - [time] "METHOD path HTTP/1.1" status size "referer" "agent"
    let mut quoted = line.split('"');
    let (origin, request, outcome) = (quoted.next()?, quoted.next()?, quoted.next()?);
    if !origin.trim_end().ends_with(']') {
        return None;
    }
    let mut request = request.split(' ');
    let (method, path) = (request.next()?, request.next()?);
    request.next().filter(|protocol| protocol.starts_with("HTTP/"))?;
    let status = outcome.split_whitespace().next()?.parse().ok()?;
    let user_agent = quoted.nth(2).unwrap_or_default();
    Some(Access {
        method: method.to_owned(),
        path: path.to_owned(),
        status,
        user_agent: user_agent.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_are_read() {
        let log = concat!(
            "time=\"2026-01-01T00:00:00Z\" level=info msg=\"listening on 127.0.0.1:1\"\n",
            "127.0.0.1 - - [01/Jan/2026:00:00:00 +0000] \"HEAD /v2/a/manifests/1?ns=x HTTP/1.1\" 404 0 \"\" \"skopeo/1\"\n",
            "127.0.0.1:4711 - - [01/Jan/2026:00:00:00 +0000] \"GET /v2/ HTTP/1.1\" 401 87 \"\" \"\"\n",
        );
        let read = parse(log);
        let short: Vec<_> = read.iter().map(|a| (a.method.as_str(), a.path.as_str(), a.status)).collect();
        assert_eq!(short, [("HEAD", "/v2/a/manifests/1?ns=x", 404), ("GET", "/v2/", 401)]);
        assert_eq!(read[0].user_agent, "skopeo/1");
    }
}
