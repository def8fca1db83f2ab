//! The double of Harbor has the manners of a real one.

mod answers;

use std::time::{Duration, Instant};

use anyhow::Result;
use fairlead_testkit::FakeHarbor;
use fairlead_testkit::fake_registry::{FakeRegistry, Fault as RegistryFault};
use fairlead_testkit::harbor::{Effect, Fault, PASSWORD, Upstream};
use fairlead_testkit::images::holding;
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

/// A registry, and a public proxy project of it.
async fn proxied() -> Result<(Caller, FakeRegistry, String)> {
    let (caller, registry) = (Caller::start().await?, FakeRegistry::start().await?);
    let image = holding("a")?;
    registry.hold("team/app", "1", &image);
    let id = caller.harbor.hold_endpoint("hub", &format!("http://{}", registry.host()), |_| {});
    caller.harbor.hold_project("hub", Some(id), true);
    Ok((caller, registry, image.digest().clone()))
}

impl Caller {
    fn pull(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}/v2/{path}", self.harbor.url())).bearer_auth("hub")
    }

    /// Status and digest.
    async fn manifest(&self, reference: &str) -> Result<(u16, Option<String>)> {
        let answer = self.pull(Method::GET, &format!("hub/team/app/manifests/{reference}")).send().await?;
        let digest = answer.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        Ok((answer.status().as_u16(), digest.map(str::to_owned)))
    }
}

#[tokio::test]
async fn a_pull_goes_through_a_proxy_project_and_what_was_pulled_stays() -> Result<()> {
    let (caller, registry, digest) = proxied().await?;
    let url = format!("{}/v2/hub/team/app/manifests/1", caller.harbor.url());
    let refused = caller.http.get(&url).send().await?;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let challenge = refused.headers()["www-authenticate"].to_str()?.to_owned();
    assert!(challenge.contains("/service/token\",service=\"harbor-registry\""), "{challenge}");
    assert!(challenge.contains("scope=\"repository:hub/team/app:pull\""), "{challenge}");
    let token = format!("{}/service/token?scope=repository:hub/team/app:pull", caller.harbor.url());
    let token: Value = caller.http.get(token).send().await?.json().await?;
    let pulled = caller.http.get(&url).bearer_auth(token["token"].as_str().unwrap_or_default());
    let pulled = pulled.send().await?;
    assert_eq!((pulled.status(), pulled.headers()["docker-content-digest"].to_str()?), (StatusCode::OK, ""));

    let head = caller.pull(Method::HEAD, "hub/team/app/manifests/1").send().await?;
    assert_eq!(head.headers()["docker-content-digest"], *digest);
    assert_ne!(head.headers()["content-length"], "0");
    registry.forget_requests();
    assert_eq!(caller.manifest("1").await?, (200, Some(digest.clone())));
    assert_eq!(registry.count("HEAD", "/manifests/1"), 1, "a tag is compared each time");
    assert_eq!(registry.count("GET", "/manifests/"), 0, "and fetched only if it has moved");
    assert_eq!(caller.manifest(&digest).await?, (200, Some(digest.clone())));
    assert_eq!(registry.requests().len(), 1, "a digest that is here is not asked for again");

    let path = "projects/hub/repositories";
    assert_eq!(names(&caller.get(path).await?.1), Vec::<&str>::new());
    assert_eq!(names(&caller.get(path).await?.1), ["hub/team/app"], "the record comes late");
    let (_, quotas) = caller.get("quotas?reference=project").await?;
    assert!(quotas[0]["used"]["storage"].as_i64().is_some_and(|used| used > 0), "{quotas}");
    let push = caller.pull(Method::PUT, "hub/team/app/manifests/1").send().await?;
    assert_eq!(push.status(), StatusCode::FORBIDDEN);
    let absent = caller.pull(Method::GET, "other/team/app/manifests/1").send().await?;
    assert_eq!(absent.status(), StatusCode::UNAUTHORIZED, "that a project is absent is not said");

    caller.harbor.edit_project("hub", |one| one.public = false);
    let token = format!("{}/service/token?scope=repository:hub/team/app:pull", caller.harbor.url());
    let token: Value = caller.http.get(token).send().await?.json().await?;
    assert_ne!(token["token"], "hub", "a private project opens only for a login");
    Ok(())
}

#[tokio::test]
async fn a_proxy_project_serves_what_it_has_while_its_upstream_is_in_trouble() -> Result<()> {
    let (caller, registry, digest) = proxied().await?;
    assert_eq!(caller.manifest("1").await?.0, 200);
    registry.inject(RegistryFault::status(429));
    assert_eq!(caller.manifest("1").await?, (200, Some(digest.clone())));
    assert_eq!(caller.manifest("2").await?.0, 429);
    registry.heal();
    registry.inject(RegistryFault::status(500));
    assert_eq!(caller.manifest("1").await?, (200, Some(digest.clone())));
    assert_eq!(caller.manifest("2").await?.0, 404, "any other error reads as absence");
    registry.heal();
    caller.harbor.edit_endpoint("hub", |one| one.status = "unhealthy".to_owned());
    registry.forget_requests();
    assert_eq!((caller.manifest("1").await?.0, caller.manifest("2").await?.0), (200, 404));
    assert!(registry.requests().is_empty(), "nothing is asked of an unhealthy upstream");
    caller.harbor.edit_endpoint("hub", |one| one.status = "healthy".to_owned());
    registry.inject(RegistryFault::status(404));
    assert_eq!(caller.manifest("1").await?.0, 404, "a tag that is gone upstream is gone here");

    caller.harbor.edit_endpoint("hub", |one| one.kind = "docker-hub".to_owned());
    let without_redirects = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
    let url = format!("{}/v2/hub/app/manifests/1", caller.harbor.url());
    let moved = without_redirects.get(url).bearer_auth("hub").send().await?;
    assert_eq!(moved.headers()["location"], "/v2/hub/library/app/manifests/1");
    Ok(())
}

#[tokio::test]
async fn a_robot_may_do_what_it_was_given_and_nothing_on_projects_beside_rights_on_the_system() -> Result<()>
{
    let caller = Caller::start().await?;
    caller.harbor.hold_project("p", None, false);
    let robot = |name: &str, kinds: &[&str]| {
        let of = |kind: &&str| match *kind {
            "system" => json!({"kind": "system", "namespace": "/", "access": [
                {"resource": "registry", "action": "list"}, {"resource": "project", "action": "list"}]}),
            _ => json!({"kind": "project", "namespace": "*", "access": [
                {"resource": "project", "action": "read"}]}),
        };
        let permissions: Vec<_> = kinds.iter().map(of).collect();
        json!({"name": name, "duration": -1, "level": "system", "permissions": permissions})
    };
    let mut logins = Vec::new();
    for (name, kinds) in [("both", &["system", "project"][..]), ("reader", &["project"])] {
        let (status, made) = caller.send(Method::POST, "robots", Some(robot(name, kinds))).await?;
        assert_eq!((status, &made["name"]), (201, &json!(format!("robot${name}"))));
        logins.push((made["name"].clone(), made["secret"].clone()));
    }
    let status = async |login: &(Value, Value), method: Method, path: &str| {
        let (user, secret) = (login.0.as_str().unwrap_or_default(), login.1.as_str());
        anyhow::Ok(finish(caller.anonymous(method, path).basic_auth(user, secret)).await?.0)
    };
    let [both, reader] = &logins[..] else { anyhow::bail!("two robots") };
    assert_eq!(status(both, Method::GET, "registries").await?, 200);
    assert_eq!(status(both, Method::GET, "projects/p").await?, 403, "as 2.9.5 has it");
    assert_eq!(status(both, Method::DELETE, "registries/1").await?, 403);
    assert_eq!(status(reader, Method::GET, "registries").await?, 403);
    assert_eq!(status(reader, Method::GET, "projects/p").await?, 200);
    let (status, _) = caller.send(Method::POST, "robots", Some(robot("both", &[]))).await?;
    assert_eq!(status, 409);
    Ok(())
}
