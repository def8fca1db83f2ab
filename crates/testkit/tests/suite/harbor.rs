//! The double of Harbor has the manners of a real one.

use std::time::{Duration, Instant};

use anyhow::Result;
use fairlead_testkit::FakeHarbor;
use fairlead_testkit::harbor::{Effect, Fault, PASSWORD, Upstream};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

const QUAY: &str = "https://quay.example";

struct Caller {
    harbor: FakeHarbor,
    http: reqwest::Client,
}

impl Caller {
    async fn start() -> Result<Self> {
        fairlead_testkit::install_crypto();
        let harbor = FakeHarbor::start().await?;
        harbor.upstream(QUAY, Upstream::Open);
        Ok(Self { harbor, http: reqwest::Client::new() })
    }

    fn anonymous(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}/api/v2.0/{path}", self.harbor.url()))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anonymous(method, path).basic_auth("admin", Some(PASSWORD))
    }

    /// Status and body, which is null where there is none.
    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<(u16, Value)> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        finish(request).await
    }

    async fn get(&self, path: &str) -> Result<(u16, Value)> {
        self.send(Method::GET, path, None).await
    }

    async fn create(&self, name: &str) -> Result<u16> {
        let body = json!({"name": name, "type": "docker-registry", "url": QUAY});
        Ok(self.send(Method::POST, "registries", Some(body)).await?.0)
    }
}

async fn finish(request: RequestBuilder) -> Result<(u16, Value)> {
    let answer = request.send().await?;
    let status = answer.status().as_u16();
    let text = answer.text().await?;
    Ok((status, serde_json::from_str(&text).unwrap_or_default()))
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect()
}

#[tokio::test]
async fn an_upstream_is_tested_when_an_endpoint_is_made_or_changed_and_never_by_a_ping() -> Result<()> {
    let caller = Caller::start().await?;
    let private = "https://private.example";
    caller.harbor.upstream(private, Upstream::login("robot", "one"));
    let body = |password: &str| {
        json!({
            "name": "p", "type": "docker-registry", "url": format!(" {private}/ "), "region": "ignored",
            "credential": {"type": "basic", "access_key": "robot", "access_secret": password},
        })
    };
    let (status, error) = caller.send(Method::POST, "registries", Some(body("wrong"))).await?;
    assert_eq!((status, &error["errors"][0]["code"]), (400, &json!("BAD_REQUEST")));
    assert_eq!(caller.send(Method::POST, "registries", Some(body("one"))).await?.0, 201);
    let (_, listed) = caller.get("registries?name=p").await?;
    assert_eq!(listed[0]["url"], private, "blanks and slashes are trimmed");
    assert_eq!(listed[0]["credential"]["access_secret"], "*****");
    assert_eq!((&listed[0]["status"], &listed[0]["insecure"]), (&json!("healthy"), &Value::Null));
    let id = listed[0]["id"].as_i64().unwrap_or_default();

    caller.harbor.upstream(private, Upstream::login("robot", "two"));
    let stored = |caller: &Caller| caller.harbor.endpoint("p").map(|one| one.status).unwrap_or_default();
    assert_eq!(caller.send(Method::POST, "registries/ping", Some(json!({"id": id}))).await?.0, 400);
    assert_eq!(stored(&caller), "healthy", "a ping stores nothing");
    caller.harbor.check_health();
    assert_eq!(stored(&caller), "unhealthy");

    let put = |body: Value| caller.send(Method::PUT, "registries/1", Some(body));
    assert_eq!(put(json!({"access_secret": "three", "description": "d"})).await?.0, 400);
    assert_eq!(
        caller.harbor.endpoint("p").map(|one| one.description).as_deref(),
        Some(""),
        "nothing is stored"
    );
    assert_eq!(
        put(json!({"credential": {"access_secret": "two"}})).await?.0,
        400,
        "nested: an unknown field"
    );
    assert_eq!(put(json!({"access_secret": "two"})).await?.0, 200);
    assert_eq!(stored(&caller), "healthy");
    Ok(())
}

#[tokio::test]
async fn refused_insertions_use_up_numbers_and_deletion_waits_for_what_refers() -> Result<()> {
    let caller = Caller::start().await?;
    assert_eq!(
        (caller.create("a").await?, caller.create("a").await?, caller.create("b").await?),
        (201, 409, 201)
    );
    assert_eq!(caller.harbor.endpoint("b").map(|one| one.id), Some(3), "a refused one has used up 2");
    let long = "x".repeat(65);
    assert_eq!((caller.create(&long).await?, caller.create("").await?), (400, 400));

    let project =
        |name: &str, registry: i64| json!({"project_name": name, "public": true, "registry_id": registry});
    let post = |body: Value| caller.send(Method::POST, "projects", Some(body));
    assert_eq!(post(project("a", 1)).await?.0, 201);
    assert_eq!(post(project("a", 1)).await?.0, 409);
    assert_eq!(post(project("A", 1)).await?.0, 400);
    assert_eq!(post(project("none", 99)).await?.0, 500);
    assert_eq!(post(project("none", 0)).await?.0, 400);
    let delete = |path: &'static str| caller.send(Method::DELETE, path, None);
    assert_eq!(delete("registries/1").await?.0, 412, "a project refers to it");
    caller.harbor.hold_repository("a", "library/nginx");
    assert_eq!(delete("projects/a").await?.0, 412, "it has a repository");
    assert_eq!(delete("projects/a/repositories/library%2Fnginx").await?.0, 200);
    assert_eq!(delete("projects/a").await?.0, 200);
    assert_eq!(delete("projects/a").await?.0, 404);
    assert_eq!(post(project("a", 3)).await?.0, 201, "the name is free at once");
    caller.harbor.replicate(1, true);
    assert_eq!(delete("registries/1").await?.0, 412, "a policy refers to it");
    caller.harbor.replicate(1, false);
    assert_eq!((delete("registries/1").await?.0, delete("registries/1").await?.0), (200, 404));
    assert_eq!(
        (delete("registries/x").await?.0, caller.get("registries/0").await?.1["name"].as_str()),
        (422, Some("Local"))
    );
    let put = caller.send(
        Method::PUT,
        "projects/a",
        Some(json!({"registry_id": 1, "metadata": {"public": "false"}})),
    );
    assert_eq!(put.await?.0, 200);
    let (_, shown) = caller.get("projects/a").await?;
    assert_eq!((&shown["registry_id"], &shown["metadata"]["public"]), (&json!(3), &json!("false")));
    Ok(())
}

#[tokio::test]
async fn names_are_matched_as_parts_and_lists_come_in_pages() -> Result<()> {
    let caller = Caller::start().await?;
    for number in 0..120 {
        caller.harbor.hold_endpoint(&format!("cache-{number:03}"), QUAY, |_| ());
    }
    caller.harbor.hold_endpoint("CACHE", QUAY, |_| ());
    let answer = caller.request(Method::GET, "registries?name=cache&page_size=100&page=2").send().await?;
    assert_eq!(answer.headers()["x-total-count"], "121");
    assert_eq!(answer.headers()["link"].to_str()?.matches("rel=").count(), 1);
    assert_eq!(names(&answer.json().await?).len(), 21);
    assert_eq!(
        names(&caller.get("registries?name=cache-00").await?.1).len(),
        10,
        "ten unless told otherwise"
    );
    assert_eq!(names(&caller.get("registries?q=name%3Dcache-007").await?.1), ["cache-007"]);
    assert_eq!(names(&caller.get("registries?q=name%3D~ACHE&page_size=100").await?.1).len(), 100);
    assert_eq!(caller.get("registries?page_size=101").await?.0, 422);
    assert_eq!(caller.get("registries?name=zzz").await?, (200, json!([])));

    caller.harbor.hold_project("12", Some(1), true);
    let by_number = caller.get("projects/2").await?.1;
    assert_eq!(by_number["name"], "12", "digits are a number");
    assert_eq!(caller.get("projects/12").await?.0, 404);
    let named = caller.request(Method::GET, "projects/12").header("X-Is-Resource-Name", "true");
    assert_eq!(finish(named).await?.1["project_id"], 2);
    Ok(())
}

#[tokio::test]
async fn a_slash_reaches_it_encoded_once_or_twice_and_a_plain_one_is_another_route() -> Result<()> {
    let caller = Caller::start().await?;
    caller.harbor.hold_project("p", None, true);
    for (written, status) in [("a%2Fb", 200), ("a%252Fb", 200), ("a/b", 404)] {
        caller.harbor.hold_repository("p", "a/b");
        let (answered, body) =
            caller.send(Method::DELETE, &format!("projects/p/repositories/{written}"), None).await?;
        assert_eq!(answered, status, "{written}");
        if status == 404 {
            let message = body["errors"][0]["message"].as_str().unwrap_or_default();
            assert!(message.starts_with("path "), "{message}");
        }
    }
    caller.harbor.hold_late_repository("p", "late");
    let path = "projects/p/repositories";
    assert_eq!(names(&caller.get(path).await?.1), ["p/a/b"]);
    assert_eq!(
        names(&caller.get(path).await?.1),
        ["p/late", "p/a/b"],
        "newest first, and the record came late"
    );
    Ok(())
}

#[tokio::test]
async fn a_failed_login_takes_a_while_and_locks_its_user() -> Result<()> {
    let caller = Caller::start().await?;
    let begun = Instant::now();
    let wrong = caller.anonymous(Method::GET, "registries").basic_auth("admin", Some("wrong"));
    let failing = tokio::spawn(async move { Ok::<_, reqwest::Error>(wrong.send().await?.status()) });
    while !caller.harbor.is_locked("admin") {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        caller.get("registries").await?.0,
        401,
        "the right password does not help while the user is locked"
    );
    assert_eq!(failing.await??, StatusCode::UNAUTHORIZED);
    assert!(begun.elapsed() >= Duration::from_millis(1500));
    assert_eq!(caller.get("registries").await?.0, 200);

    caller.harbor.hold_project("open", None, true);
    caller.harbor.hold_project("closed", None, false);
    let anonymous = finish(caller.anonymous(Method::GET, "projects")).await?;
    assert_eq!((anonymous.0, names(&anonymous.1)), (200, vec!["open"]), "no login is no error here");
    assert_eq!(finish(caller.anonymous(Method::GET, "registries")).await?.0, 401);
    Ok(())
}

#[tokio::test]
async fn a_session_cookie_needs_a_token_and_read_only_refuses_writes() -> Result<()> {
    let caller = Caller::start().await?;
    let answer = caller.request(Method::GET, "registries").header("X-Request-Id", "mine").send().await?;
    assert_eq!(answer.headers()["x-request-id"], "mine");
    assert!(answer.headers()["set-cookie"].to_str()?.starts_with("sid="));
    let body = json!({"name": "a", "type": "docker-registry", "url": QUAY});
    let with_cookie = caller.request(Method::POST, "registries").header("Cookie", "sid=double").json(&body);
    let answer = with_cookie.send().await?;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert!(answer.headers().contains_key("x-harbor-csrf-token"));
    let read = caller.request(Method::GET, "registries").header("Cookie", "sid=double");
    assert_eq!(finish(read).await?.0, 200);

    let plain = caller.request(Method::POST, "registries").body(body.to_string());
    assert_eq!(finish(plain).await?.0, 422, "not said to be JSON");
    caller.harbor.set_read_only(true);
    let (status, error) = caller.send(Method::POST, "registries", Some(body)).await?;
    assert_eq!((status, &error["errors"][0]["code"]), (403, &json!("DENIED")));
    let (status, error) = caller.get("nothing").await?;
    assert_eq!(status, 404);
    assert!(error["errors"][0]["message"].as_str().unwrap_or_default().starts_with("path "));
    Ok(())
}

#[tokio::test]
async fn faults_strike_as_often_as_they_should() -> Result<()> {
    let caller = Caller::start().await?;
    caller.harbor.inject(Fault {
        method: Some("GET"),
        path: "registries",
        times: Some(1),
        effect: Effect::Status(500),
    });
    assert_eq!(caller.get("registries").await?.0, 500);
    assert_eq!(caller.get("registries").await?.0, 200);
    caller.harbor.inject(Fault { method: None, path: "", times: None, effect: Effect::BadGateway });
    assert_eq!(caller.get("projects").await?.0, 502);
    caller.harbor.heal();
    assert_eq!(caller.get("projects").await?.0, 200);
    assert_eq!(caller.harbor.requests().len(), 4);
    assert!(caller.harbor.writes().is_empty());
    Ok(())
}
