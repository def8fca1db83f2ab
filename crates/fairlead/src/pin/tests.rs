#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a failed expectation is how a test reports"
)]

use std::fmt::Write as _;

use fairlead_domain::digest::Digest;
use proptest::prelude::*;

use super::{document, places};

fn digest() -> Digest {
    Digest::sha256(b"x")
}

fn workloads(text: &str) -> Vec<places::Workload> {
    places::workloads(&document::parse(text).unwrap()).unwrap()
}

/// Pins every tag, and names the fields.
fn pinned(text: &str) -> (String, Vec<String>) {
    let workloads = workloads(text);
    let fields: Vec<_> = workloads.iter().flat_map(|one| &one.images).collect();
    let insertions: Vec<_> = fields.iter().filter_map(|field| field.insertion(&digest())).collect();
    (document::insert(text, &insertions), fields.iter().map(|field| field.path.clone()).collect())
}

const MANIFESTS: &str = r#"# a comment with an image: nginx:1
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}   # flow
spec:
  selector: {matchLabels: {app: web}}
  template:
    spec:
      initContainers:
      - {name: setup, image: "busybox", command: [sh, -c, 'echo ü']}
      containers:
        - image: nginx:1      # the tag
          name: web
          env: [{name: image, value: nginx:1}]
        - name: side
          image:   'quay.io/a/b:2'
        - name: local
          image: local:1
          imagePullPolicy: Never
      volumes:
      - name: data
        image:
          reference: data.example.com/set:v1
          pullPolicy: IfNotPresent
---
# nothing here
---
kind: ConfigMap
apiVersion: v1
data:
  image: nginx:1
---
{"apiVersion": "v1", "kind": "List", "items": [
  {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}},
  {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"image": "a:1", "name": "d"}]}}}}}}
]}
"#;

#[test]
fn only_images_change() {
    let (text, fields) = pinned(MANIFESTS);
    let digest = digest();
    let expected = MANIFESTS
        .replacen("image: \"busybox\"", &format!("image: \"busybox:latest@{digest}\""), 1)
        .replacen("- image: nginx:1 ", &format!("- image: nginx:1@{digest} "), 1)
        .replacen("'quay.io/a/b:2'", &format!("'quay.io/a/b:2@{digest}'"), 1)
        .replacen("set:v1", &format!("set:v1@{digest}"), 1)
        .replacen("\"image\": \"nginx\"", &format!("\"image\": \"nginx:latest@{digest}\""), 1)
        .replacen("\"a:1\"", &format!("\"a:1@{digest}\""), 1);
    assert_eq!(text, expected);
    assert_eq!(
        fields,
        [
            "spec.template.spec.initContainers[0].image",
            "spec.template.spec.containers[0].image",
            "spec.template.spec.containers[1].image",
            "spec.template.spec.containers[2].image",
            "spec.template.spec.volumes[0].image.reference",
            "items[0].spec.containers[0].image",
            "items[1].spec.jobTemplate.spec.template.spec.containers[0].image",
        ]
    );
    assert_eq!(pinned(&text).0, text, "what has a digest stays");
    // Lines may end as Windows has them.
    let crlf = |text: &str| text.replace('\n', "\r\n");
    assert_eq!(pinned(&crlf(MANIFESTS)).0, crlf(&expected));
}

#[test]
fn long_comments_stay_where_they_are() {
    let comment = "    # - name: old\n    #   image: nginx:0\n".repeat(200);
    let text = format!(
        "# {}kind: Pod\nspec:\n{comment}  containers:\n{comment}  - image: nginx:1\n{comment}",
        "a\n# ".repeat(200) + "\n"
    );
    assert_eq!(pinned(&text).0, text.replace("nginx:1", &format!("nginx:1@{}", digest())));
}

#[test]
fn odd_ways_to_write_an_image_are_kept() {
    for (text, held) in [
        ("\u{feff}kind: Pod\nspec: {containers: [{image: nginx:1}]}", "nginx:1"),
        (
            "{\n\t\"kind\": \"Pod\",\n\t\"spec\": {\"containers\": [{\"image\": \"r.io\\/nginx:1\"}]}\n}",
            "nginx:1",
        ),
        ("--- {kind: Pod, spec: {containers: [{image: !!str nginx:1}]}}\n...\n", "nginx:1"),
        ("kind: Pod\nspec:\n  containers:\n  - ? image\n    : &a !!str \"nginx\\x3a1\"\n", "nginx\\x3a1"),
        ("kind: Pod\nspec:\n  containers:\n  -   image   :\n        'nginx:1'   # the tag\n", "nginx:1"),
    ] {
        assert_eq!(pinned(text).0, text.replace(held, &format!("{held}@{}", digest())), "{text}");
    }
}

#[test]
fn anchors_and_merges_are_followed_to_where_the_image_stands() {
    let text = "kind: Pod\nbase: &base\n  image: &image nginx:1\nspec:\n  containers:\n  - <<: *base\n    name: a\n  - name: b\n    image: *image\n";
    let (pinned, fields) = pinned(text);
    assert_eq!(pinned, text.replace("nginx:1", &format!("nginx:1@{}", digest())), "once");
    assert_eq!(fields.len(), 2);
}

#[test]
fn a_value_that_also_stands_where_no_image_does_stays() {
    let deployment = |metadata: &str, containers: &str| {
        format!(
            "kind: Deployment\nx-images: {{web: &web nginx:1}}\nmetadata: {metadata}\nspec:\n  template:\n    spec:\n      containers: {containers}\n"
        )
    };
    let why = |text: &str| -> Vec<Option<String>> {
        let of = |field: &places::ImageField| match &field.tag {
            Ok(_) => None,
            Err(places::Left::Wrong(why)) => Some(why.clone()),
            Err(places::Left::Right(why)) => panic!("{why}"),
        };
        workloads(text).iter().flat_map(|one| &one.images).map(of).collect()
    };
    let plain = deployment("{}", "[{name: a, image: *web}, {name: b, image: *web}]");
    assert_eq!(why(&plain), [None, None], "objects have no such field as x-images");
    for (metadata, containers, place) in [
        ("{annotations: {web: *web}}", "[{name: a, image: *web}]", "metadata.annotations.web"),
        (
            "{}",
            "[{name: a, image: *web, env: [{name: I, value: *web}]}]",
            "spec.template.spec.containers[0].env[0].value",
        ),
        ("{annotations: &all {image: *web}}", "[{name: a, <<: *all}]", "metadata.annotations.image"),
        ("{annotations: &all {image: redis:1}}", "[{name: a, <<: [*all]}]", "metadata.annotations.image"),
        ("{}", "[{name: &name nginx:1, image: *name}]", "spec.template.spec.containers[0].name"),
    ] {
        let text = deployment(metadata, containers);
        let found = why(&text);
        let [Some(told)] = &found[..] else { panic!("{text} {found:?}") };
        assert!(told.starts_with(place), "{told}");
        assert_eq!(pinned(&text).0, text);
    }
    // The items of a list have their own kinds: a ConfigMap has other fields than a Deployment.
    let item = "kind: Deployment\n  x-images: {web: &web nginx:1}\n  \
                spec: {template: {spec: {containers: [{name: a, image: *web}]}}}";
    let list = |other: &str| format!("kind: List\nitems:\n- {item}\n- {other}\n");
    assert_eq!(why(&list("{kind: ConfigMap, data: {image: nginx:1}}")), [None]);
    assert_eq!(why(&list("{kind: Pod, x-images: [*web]}")), [None], "Pods have no such field either");
    for (other, place) in [
        ("{kind: ConfigMap, data: {image: *web}}", "items[1].data.image"),
        ("{kind: ConfigMapList, items: [{data: {image: *web}}]}", "items[1].items[0].data.image"),
        ("{kind: Widget, image: *web}", "items[1].image"),
        ("{kind: Pod, spec: {nodeName: *web}}", "items[1].spec.nodeName"),
    ] {
        let text = list(other);
        let found = why(&text);
        let [Some(told)] = &found[..] else { panic!("{text} {found:?}") };
        assert!(told.starts_with(place), "{told}");
        assert_eq!(pinned(&text).0, text);
    }
    // Nine lines with a billion places.
    let mut bomb = String::from("kind: Pod\nspec: {containers: [{name: a, image: &a0 nginx:1}]}\n");
    for level in 0..9 {
        let ten = vec![format!("*a{level}"); 10].join(", ");
        _ = writeln!(bomb, "x{level}: &a{} [{ten}]", level + 1);
    }
    assert!(why(&bomb)[0].as_ref().unwrap().contains("more aliases"));
}

#[test]
fn items_of_a_list_have_a_kind_or_that_of_the_list() {
    let item = "{metadata: {name: web}, spec: {containers: [{name: a, image: nginx:1}]}}";
    let of = |list: &str| places::workloads(&document::parse(list).unwrap());
    let pods = of(&format!("kind: PodList\nitems:\n- {item}\n")).unwrap();
    assert_eq!((&*pods[0].kind, &*pods[0].images[0].path), ("Pod", "items[0].spec.containers[0].image"));
    let others = of(&format!("kind: ConfigMapList\nitems:\n- {item}\n")).unwrap();
    assert!(others.is_empty(), "those have no images");
    let error = of(&format!("kind: List\nitems:\n- {{kind: Pod}}\n- {item}\n")).unwrap_err().to_string();
    assert_eq!(
        error,
        "line 4: items[1] has no kind, so it is not known whether it has images: write its kind"
    );
    assert!(of("image: nginx:1\n").unwrap().is_empty(), "other files are printed as they are");
}

#[test]
fn fields_behind_one_anchor_are_pinned_to_one_digest_or_stay() {
    let text = "kind: Pod\nspec:\n  containers:\n  - {name: a, image: &image nginx:1}\n  - {name: b, image: *image}\n  - {name: c, image: redis:1}\n";
    let workloads = workloads(text);
    let (one, other) = (Digest::sha256(b"1"), Digest::sha256(b"2"));
    let agreed = |second| places::agree(&workloads, &[Ok(Some(one)), second, Ok(Some(other))]);
    assert_eq!(agreed(Ok(Some(one))), [Ok(Some(one)), Ok(Some(one)), Ok(Some(other))]);
    let differing = agreed(Ok(Some(other)));
    for (number, told) in [(0, "containers[1].image has"), (1, "containers[0].image has")] {
        assert!(differing[number].as_ref().unwrap_err().contains(told), "{differing:?}");
    }
    assert_eq!(differing[2], Ok(Some(other)), "the third has a value of its own");
    for stays in [Ok(None), Err("no Pod of it runs".to_owned())] {
        let agreed = agreed(stays.clone());
        assert!(agreed[0].as_ref().unwrap_err().contains("stays as it is"), "{agreed:?}");
        assert_eq!(agreed[1], stays);
    }
}

#[test]
fn a_replication_controller_selects_by_labels() {
    let template =
        "template: {metadata: {labels: {app: template}}, spec: {containers: [{name: a, image: nginx:1}]}}";
    for (kind, selector, label) in [
        ("ReplicationController", "{app: web}", Some("web")),
        ("ReplicationController", "", Some("template")),
        ("DeploymentConfig", "{app: web}", Some("web")),
        ("Deployment", "{matchLabels: {app: web}}", Some("web")),
        ("Rollout", "{matchLabels: {app: web}}", Some("web")),
        ("Deployment", "{app: web}", None),
    ] {
        let text = format!("kind: {kind}\nspec:\n  selector: {selector}\n  {template}\n");
        let workloads = workloads(&text);
        let labels = workloads[0].selector.clone().and_then(|selector| selector.match_labels);
        assert_eq!(labels.as_ref().and_then(|labels| labels.get("app")).map(String::as_str), label, "{text}");
    }
}

#[test]
fn other_kinds_are_pinned_where_they_have_a_pod_template() {
    let of = |kind: &str, spec: &str| format!("kind: {kind}\nmetadata: {{name: web}}\nspec: {spec}\n");
    let template = "{template: {spec: {containers: [{name: a, image: nginx:1}], volumes: [{name: m, image: {reference: llm:1}}]}}}";
    let text = of("Rollout", template);
    let (result, fields) = pinned(&text);
    let held = |image: &str| format!("{image}@{}", digest());
    assert_eq!(result, text.replace("nginx:1", &held("nginx:1")).replace("llm:1", &held("llm:1")));
    assert_eq!(
        fields,
        ["spec.template.spec.containers[0].image", "spec.template.spec.volumes[0].image.reference"]
    );
    assert!(!workloads(&text)[0].tells_pods(), "it selects none");
    let selecting = text.replace("{template", "{selector: {matchLabels: {app: web}}, template");
    assert!(workloads(&selecting)[0].tells_pods());
    for (kind, spec) in [
        ("VirtualMachine", "{template: {spec: {volumes: [{containerDisk: {image: disk:1}}]}}}"),
        ("Widget", "{template: {spec: nginx:1}}"),
        ("Widget", "{image: nginx:1, containers: [{image: nginx:1}]}"),
    ] {
        assert!(workloads(&of(kind, spec)).is_empty(), "{kind} {spec}");
    }
    // What its other fields are is not known, so a value that one of them has as well stays.
    let shared =
        format!("kind: Rollout\nx-image: &image nginx:1\nspec: {}\n", template.replace("nginx:1", "*image"));
    assert_eq!(pinned(&shared).0, shared.replace("llm:1", &held("llm:1")));
}

#[test]
fn what_cannot_be_pinned_says_why() {
    let text = "kind: Pod\nspec:\n  containers:\n  - name: a\n    image: >-\n      nginx:1\n  - name: b\n    image: Not An Image\n  - name: c\n    image:\n";
    let workloads = workloads(text);
    let wrong: Vec<_> = workloads[0].images.iter().map(|field| format!("{:?}", field.tag)).collect();
    assert!(wrong[0].contains("on one line") && wrong[1].contains("Not An Image"), "{wrong:?}");
    assert_eq!(wrong.len(), 2, "an empty image is none");
    let error = document::parse("a: [1\nb: 2\n").unwrap_err().to_string();
    assert!(error.starts_with("line ") && error.contains("this is not YAML"), "{error}");
}

proptest! {
    #[test]
    fn any_text_is_survived(text in "(?s)(kind: Pod\nspec:\n  containers:\n  - image: )?[a-z:'\"\\n&*<|> {}\\[\\]#,-]{0,80}") {
        if let Ok(documents) = document::parse(&text) {
            let Ok(workloads) = places::workloads(&documents) else { return Ok(()) };
            let fields = workloads.iter().flat_map(|one| &one.images);
            let insertions: Vec<_> = fields.filter_map(|field| field.insertion(&digest())).collect();
            let result = document::insert(&text, &insertions);
            let again = self::workloads(&result);
            let open = again.iter().flat_map(|one| &one.images).filter(|field| field.insertion(&digest()).is_some());
            prop_assert_eq!(open.count(), 0, "{}", result);
        }
    }
}
