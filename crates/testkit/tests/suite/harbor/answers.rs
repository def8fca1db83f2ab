//! Every kind of answer: its status, its headers, and what it leaves out.

use super::*;

#[tokio::test]
async fn answers_have_the_form_of_a_real_harbors() -> Result<()> {
    let caller = Caller::start().await?;
    let made = caller.request(Method::POST, "registries");
    let made = made.json(&json!({"name": "a", "type": "docker-registry", "url": QUAY})).send().await?;
    assert_eq!(
        (made.status(), made.headers()["location"].to_str()?),
        (StatusCode::CREATED, "/api/v2.0/registries/1")
    );
    assert_eq!(made.headers()["content-length"], "0");
    assert_eq!(made.text().await?, "");

    let read = caller.request(Method::GET, "registries/1").send().await?;
    assert_eq!(read.headers()["content-type"], "application/json");
    assert!(read.headers().contains_key("x-request-id"));
    let text = read.text().await?;
    assert!(text.ends_with("}\n"), "{text:?}");
    let shown: Value = serde_json::from_str(&text)?;
    assert_eq!((&shown["credential"], shown["status"].as_str()), (&json!({}), Some("healthy")));
    for left_out in ["insecure", "description"] {
        assert_eq!(shown.get(left_out), None, "false and empty values are left out");
    }
    let created = shown["creation_time"].as_str().unwrap_or_default();
    assert!(created.ends_with('Z') && created.rfind('.') == Some(created.len() - 5), "{created}");

    let refused = caller.request(Method::GET, "registries/7").send().await?;
    assert_eq!(refused.headers()["content-type"], "application/json; charset=utf-8");
    let text = refused.text().await?;
    assert_eq!(text, "{\"errors\":[{\"code\":\"NOT_FOUND\",\"message\":\"registry 7 not found\"}]}\n");
    let (status, unknown) =
        caller.send(Method::POST, "registries", Some(endpoint("b", "nonsense", QUAY))).await?;
    let expected = json!({"errors": [{"code": "UNKNOWN", "message": "internal server error"}]});
    assert_eq!((status, unknown), (500, expected), "always the same words");
    Ok(())
}

fn endpoint(name: &str, kind: &str, url: &str) -> Value {
    json!({"name": name, "type": kind, "url": url})
}

#[tokio::test]
async fn endpoints_are_refused_for_every_reason_that_there_is() -> Result<()> {
    let caller = Caller::start().await?;
    let post = |body: Value| caller.send(Method::POST, "registries", Some(body));
    for (what, body, status) in [
        ("no address", endpoint("a", "docker-registry", " "), 400),
        ("an odd scheme", endpoint("a", "docker-registry", "ftp://quay.example"), 400),
        ("an upstream that does not answer", endpoint("a", "docker-registry", "https://gone.example"), 400),
        ("an address that is not Amazon's", endpoint("a", "aws-ecr", QUAY), 400),
        ("an unknown type", endpoint("a", "nonsense", QUAY), 500),
    ] {
        assert_eq!(post(body).await?.0, status, "{what}");
    }
    // Without a scheme it is plain HTTP, and without a login an upstream that wants one counts as healthy.
    caller.harbor.upstream("http://quay.example:5000", Upstream::login("u", "p"));
    assert_eq!(post(endpoint("a", "docker-registry", "quay.example:5000//")).await?.0, 201);
    assert_eq!(caller.harbor.endpoint("a").map(|one| one.url).as_deref(), Some("http://quay.example:5000"));
    caller.harbor.check_health();
    assert_eq!(caller.harbor.endpoint("a").map(|one| one.status).as_deref(), Some("healthy"));
    assert_eq!(caller.create("b").await?, 201);
    let put = |path: &'static str, body: Value| caller.send(Method::PUT, path, Some(body));
    assert_eq!(put("registries/2", json!({"name": "a"})).await?.0, 409);
    assert_eq!(put("registries/9", json!({"name": "c"})).await?.0, 404);
    assert_eq!(put("registries/2", json!({"type": "harbor"})).await?.0, 200);
    assert_eq!(caller.harbor.endpoint("b").map(|one| one.kind).as_deref(), Some("docker-registry"));

    let ping = |body: Value| caller.send(Method::POST, "registries/ping", Some(body));
    assert_eq!(ping(json!({"id": 2})).await?.0, 200);
    assert_eq!(ping(json!({"id": 9})).await?.0, 404);
    assert_eq!(ping(json!({"type": "docker-registry", "url": QUAY})).await?.0, 200);
    assert_eq!(ping(json!({"type": "docker-registry"})).await?.0, 400);
    assert_eq!(ping(json!({"type": "nonsense", "url": QUAY})).await?.0, 500);
    assert_eq!(caller.get("registries/2/info").await?.1["type"], "docker-registry");
    assert_eq!(caller.get("registries/9/info").await?.0, 404);
    let (_, adapters) = caller.get("replication/adapters").await?;
    assert!(adapters.as_array().is_some_and(|all| all.contains(&json!("aws-ecr"))), "{adapters}");
    Ok(())
}

#[tokio::test]
async fn projects_show_what_they_are_and_whether_they_can_go() -> Result<()> {
    let caller = Caller::start().await?;
    caller.create("a").await?;
    let post = |body: Value| caller.send(Method::POST, "projects", Some(body));
    caller.harbor.lose_jobs(true);
    assert_eq!(post(json!({"project_name": "a", "registry_id": 1})).await?.0, 500, "no job service");
    caller.harbor.lose_jobs(false);
    let by_name = caller.request(Method::POST, "projects").header("X-Resource-Name-In-Location", "true");
    let made = by_name.json(&json!({"project_name": "a", "registry_id": 1, "metadata": {"public": "true"}}));
    assert_eq!(made.send().await?.headers()["location"], "/api/v2.0/projects/a");
    assert_eq!(post(json!({"project_name": "b", "metadata": {"public": "yes"}})).await?.0, 400);
    assert_eq!(post(json!({"project_name": "plain"})).await?.0, 201);
    let (_, proxy) = caller.get("projects/a").await?;
    let text = |value: &Value| value.is_string();
    assert!(text(&proxy["metadata"]["public"]) && text(&proxy["metadata"]["retention_id"]), "{proxy}");
    let (_, plain) = caller.get("projects/plain").await?;
    assert_eq!((plain.get("registry_id"), plain["metadata"].get("retention_id")), (None, None));
    assert_eq!(names(&caller.get("projects?public=true").await?.1), ["a"]);
    assert_eq!(names(&caller.get("projects?sort=-name").await?.1), ["plain", "a"]);

    let head = async |name: &str| {
        let path = format!("projects?project_name={name}");
        anyhow::Ok(caller.request(Method::HEAD, &path).send().await?.status().as_u16())
    };
    assert_eq!((head("a").await?, head("lai").await?), (200, 404), "a whole name");
    for name in ["a", "absent"] {
        let anonymous = caller.anonymous(Method::HEAD, &format!("projects?project_name={name}"));
        assert_eq!(anonymous.send().await?.status(), StatusCode::UNAUTHORIZED, "{name}");
    }
    assert_eq!(caller.get("projects/a/_deletable").await?.1, json!({"deletable": true}));
    caller.harbor.hold_repository("a", "team/app");
    let (_, deletable) = caller.get("projects/a/_deletable").await?;
    assert!(deletable.get("deletable").is_none() && text(&deletable["message"]), "{deletable}");
    let (_, summary) = caller.get("projects/a/summary").await?;
    assert_eq!((&summary["repo_count"], &summary["quota"]["hard"]["storage"]), (&json!(1), &json!(-1)));
    let registry = &summary["registry"];
    assert_eq!(
        (&registry["id"], &registry["name"], &registry["url"]),
        (&json!(1), &json!("a"), &json!(QUAY))
    );
    assert!(registry.get("credential").is_none(), "{registry}");
    let (_, summary) = caller.get("projects/plain/summary").await?;
    assert!(summary.get("registry").is_none(), "{summary}");
    caller.harbor.keep_repository("a", "team/app", true);
    let delete = || caller.send(Method::DELETE, "projects/a/repositories/team%252Fapp", None);
    assert_eq!(delete().await?.0, 412, "its tags are immutable");
    caller.harbor.keep_repository("a", "team/app", false);
    assert_eq!((delete().await?.0, delete().await?.0), (200, 404));
    // Not even that a project is absent is said to those who may not know.
    assert_eq!(finish(caller.anonymous(Method::GET, "projects/absent")).await?.0, 401);
    assert_eq!(caller.get("projects/2/repositories").await?.0, 404, "a name, never a number");
    Ok(())
}

#[tokio::test]
async fn pages_lead_to_their_neighbours_and_everything_says_how_it_is() -> Result<()> {
    let caller = Caller::start().await?;
    for number in 0..30 {
        caller.harbor.hold_endpoint(&format!("cache_{number}"), QUAY, |_| ());
    }
    let page = caller.request(Method::GET, "registries?page=2").send().await?;
    let link = page.headers()["link"].to_str()?.to_owned();
    assert!(link.contains("page=1&page_size=10>; rel=\"prev\"") && link.contains("rel=\"next\""), "{link}");
    let whole = caller.request(Method::GET, "registries?page_size=100").send().await?;
    assert!(!whole.headers().contains_key("link"));
    assert_eq!(names(&caller.get("registries?name=%25").await?.1), [""; 0], "no pattern");
    assert_eq!(names(&caller.get("registries?name=cache-1").await?.1), [""; 0], "an underscore is one");
    assert_eq!(names(&caller.get("registries?name=&page_size=100").await?.1).len(), 30, "blank means all");

    let pong = caller.anonymous(Method::GET, "ping").send().await?;
    assert_eq!(pong.text().await?, "Pong");
    let (_, health) = finish(caller.anonymous(Method::GET, "health")).await?;
    assert_eq!(
        (&health["status"], health["components"].as_array().map(Vec::len)),
        (&json!("healthy"), Some(7))
    );
    let (_, known) = caller.get("systeminfo").await?;
    let (_, public) = finish(caller.anonymous(Method::GET, "systeminfo")).await?;
    assert!(known.get("harbor_version").is_some() && public.get("harbor_version").is_none());
    Ok(())
}
