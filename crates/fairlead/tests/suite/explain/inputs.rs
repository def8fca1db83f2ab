//! What people hand over by mistake: manifests that are broken, missing, double, or not what they seem.

use anyhow::Result;

use super::{mirror, order};
use crate::person::Person;

#[test]
fn a_broken_manifest_is_left_out_and_named() -> Result<()> {
    let person = Person::new()?;
    let good = mirror("m.example.com", "");
    let broken = "\
---
apiVersion: kuik.enix.io/v1alpha1
kind: ClusterImageSetMirror
metadata: {name: wrong-type}
spec: {priority: high}
---
apiVersion: kuik.enix.io/v1alpha1
kind: ClusterImageSetMirror
metadata: {name: wrong-pattern}
spec:
  filter: {include: [{image: '('}]}
---
spec: [unclosed
---
apiVersion: kuik.enix.io/v1alpha1
kind: ClusterReplicatedImageSet
metadata: {name: half}
spec:
  upstreams:
  - {registry: 'https://quay.io', path: /library}
  - {registry: docker.io, path: /library, imageFilter: {include: ['.*']}}
  - {registry: mirror.gcr.io, path: /library}
";
    let lines = good.lines().count();
    let file = person.policies(&format!("{good}{broken}"))?;
    let arguments = ["nginx:1", "-n", "team", "--policies", &file, "--no-probe"];
    let explained = person.explain(&[&arguments[..], &["-o", "json"]].concat())?.is(0).json();
    assert_eq!(
        order(&explained, 0),
        [
            "m.example.com/copies/library/nginx:1",
            "docker.io/library/nginx:1",
            "mirror.gcr.io/library/nginx:1"
        ]
    );
    let found: Vec<_> = explained["broken"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["place"].as_str().unwrap(), one["object"].as_str(), one["field"].as_str()))
        .collect();
    let place = |line: usize| format!("{file}:{}", lines + line);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(
        found.contains(&(&place(2), Some("ClusterImageSetMirror/wrong-type"), Some("spec.priority"))),
        "{found:?}"
    );
    assert!(
        found.contains(&(
            &place(7),
            Some("ClusterImageSetMirror/wrong-pattern"),
            Some("spec.filter.include[0].image")
        )),
        "{found:?}"
    );
    assert!(
        found.contains(&(
            &place(15),
            Some("ClusterReplicatedImageSet/half"),
            Some("spec.upstreams[0].registry")
        )),
        "{found:?}"
    );
    assert!(found.iter().any(|one| one.1.is_none() && one.0.starts_with(&file)), "{found:?}");

    let table = person.explain(&arguments)?;
    let told = format!("{}: ClusterImageSetMirror/wrong-type: spec.priority: ", place(2));
    assert!(table.is(0).output.contains(&told), "{}", table.output);
    Ok(())
}

#[test]
fn what_cannot_be_explained_is_an_error_that_says_why() -> Result<()> {
    let person = Person::new()?;
    let file = |name: &str, text: &str| -> Result<String> {
        Ok(person.write(name, text)?.to_str().unwrap().to_owned())
    };
    let policies = person.policies("")?;
    let malformed = file("malformed.yaml", "apiVersion: v1\nkind: Pod\nspec:\n  containers: [{name: a\n")?;
    let wrong = file(
        "wrong.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: [x]}]}\n",
    )?;
    let no_pod = file("no-pod.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n")?;
    let no_image =
        file("no-image.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n")?;
    let odd_config = file("config.yaml", "rooting: {}\n")?;
    let empty = person.path("empty");
    std::fs::create_dir(&empty)?;
    for (arguments, status, said) in [
        (&["-f", &malformed][..], 1, "malformed.yaml:4: this is not YAML"),
        (&["-f", &wrong], 1, "wrong.yaml:1: Pod/p: spec.containers[0].image: "),
        (&["-f", &no_pod], 1, "no Pod"),
        (&["-f", &no_image], 1, "names no image"),
        (&["-f", "/does/not/exist.yaml"], 1, "/does/not/exist.yaml"),
        (&["Not_An/Image"], 1, "Not_An/Image"),
        (&["nginx", "--config", &odd_config], 1, "rooting"),
        (&["nginx", "--policies", "/does/not/exist"], 1, "/does/not/exist"),
        (&["nginx", "--policies", empty.to_str().unwrap()], 1, "holds no files"),
        (&["nginx", "--timeout", "0s"], 1, "--timeout"),
        (&["nginx", "--labels", "app"], 2, "'='"),
        (&[], 2, "IMAGE"),
    ] {
        let outcome = person.explain(&[arguments, &["--policies", &policies]].concat())?;
        assert!(outcome.is(status).errors.contains(said), "{arguments:?}: {}", outcome.errors);
        assert_eq!(outcome.output, "", "{arguments:?}");
    }
    // Without files a cluster is needed, and there is none.
    let outcome = person.explain(&["nginx"])?;
    assert!(outcome.is(1).errors.contains("--policies"), "{}", outcome.errors);
    let nobody = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
                  clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n";
    let nobody = file("kubeconfig", nobody)?;
    for target in ["nginx", "pod/nginx"] {
        let outcome = person.explain(&[target, "--kubeconfig", &nobody])?;
        assert!(outcome.is(1).errors.contains("Connection refused"), "{}", outcome.errors);
    }
    Ok(())
}

#[test]
fn policies_beside_the_pod_count_only_where_they_are_asked_for() -> Result<()> {
    let person = Person::new()?;
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: team}\nspec: {containers: [{name: c, image: 'nginx:1'}]}\n";
    let both = person.write("both.yaml", &format!("{}{pod}", mirror("m.example.com", "")))?;
    let both = both.to_str().unwrap();
    let other = person.policies("")?;
    let outcome = person.explain(&["-f", both, "--policies", &other, "--no-probe"])?;
    assert!(outcome.is(0).errors.contains("name their file with --policies"), "{}", outcome.errors);
    let outcome = person.explain(&["-f", both, "--policies", both, "--no-probe", "-o", "json"])?;
    assert_eq!(order(&outcome.is(0).json(), 0).len(), 2);
    assert_eq!(outcome.errors, "");
    Ok(())
}

#[test]
fn of_two_policies_of_one_name_the_last_counts_and_both_are_named() -> Result<()> {
    let person = Person::new()?;
    let (first, second) = (mirror("first.example.com", ""), mirror("second.example.com", ""));
    let file = person.policies(&format!("{first}---\n{second}"))?;
    let outcome =
        person.explain(&["nginx:1", "-n", "team", "--policies", &file, "--no-probe", "-o", "json"])?;
    let explained = outcome.is(0).json();
    assert_eq!(order(&explained, 0)[0], "second.example.com/copies/library/nginx:1");
    let warning = explained["warnings"][0].as_str().unwrap();
    let line = first.lines().count() + 2;
    for part in ["ImageSetMirror/team/near", &format!("{file}:1 "), &format!("{file}:{line}")] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    Ok(())
}
