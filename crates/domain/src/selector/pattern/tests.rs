use super::*;

fn matches(pattern: &str, text: &str) -> bool {
    Pattern::parse(pattern).unwrap().matches(text)
}

#[test]
fn the_whole_text_must_match() {
    for (pattern, text, expected) in [
        ("nginx", "nginx", true),
        ("nginx", "nginx-extra", false),
        ("nginx", "my-nginx", false),
        ("^nginx$", "nginx", true),
        ("a|ab", "abc", false),
        ("a|ab", "ab", true),
        ("ab|a", "ab", true),
        ("prod", "prod-1", false),
        (".*", "", true),
        (".+", "", false),
        (".*", "docker.io/library/nginx:1", true),
        (".*", "a\nb", false),
        ("(?s).*", "a\nb", true),
        (r"docker\.io/library/.+", "docker.io/library/nginx", true),
        (r"docker\.io/library/.+", "docker.io/library/", false),
        ("docker.io/library/.+", "dockerXio/library/nginx", true),
        ("", "", true),
        ("", "a", false),
        ("(?i)NGINX", "nginx", true),
        (r"\Qa.b\E+", "a.bbb", true),
        (r"\Qa.b\E+", "axb", false),
        (r"[[:alpha:]]+\pN{2}", "abc12", true),
        (r"\d+", "12", true),
        ("a{,2}", "a{,2}", true),
        ("x*$", "xx", true),
        ("a$b", "ab", false),
        (r"\bfoo\b", "foo", true),
        ("é|a", "a", true),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
    }
}

#[test]
fn untagged_images_and_patterns_for_tags() {
    let image = "docker.io/library/nginx";
    assert!(!matches(r"docker\.io/library/nginx:.+", image));
    assert!(matches(r"docker\.io/library/nginx(:.+)?", image));
}

#[test]
fn refusals_point_at_the_character() {
    for (pattern, position, problem) in [
        ("a)|(b", 2, PatternProblem::UnexpectedParenthesis),
        ("a(b", 2, PatternProblem::MissingParenthesis),
        ("é[b", 2, PatternProblem::MissingBracket),
        ("*a", 1, PatternProblem::NothingToRepeat),
        ("a**", 3, PatternProblem::DoubleRepeat),
        ("a{1001}", 2, PatternProblem::RepeatCount),
        ("(a{100}){100}", 9, PatternProblem::RepeatCount),
        ("a{2,1}", 2, PatternProblem::RepeatCount),
        ("(?P<n>a", 1, PatternProblem::MissingParenthesis),
        ("(?P<n a)", 1, PatternProblem::GroupName),
        ("a(?=b)", 2, PatternProblem::GroupSyntax),
        ("a(?x)b", 2, PatternProblem::GroupSyntax),
        (r"\p{Klingon}", 1, PatternProblem::ClassName),
        ("[[:beta:]]", 2, PatternProblem::ClassName),
        ("[z-a]", 2, PatternProblem::ClassRange),
        (r"(a)\1", 4, PatternProblem::Escape),
        (r"a\", 2, PatternProblem::TrailingBackslash),
    ] {
        let error = Pattern::parse(pattern).unwrap_err();
        assert_eq!((error.position(), error.problem()), (position, problem), "{pattern}");
    }
    assert_eq!(
        Pattern::parse("a)|(b").unwrap_err().to_string(),
        r#"regular expression "a)|(b": character 2: this ')' closes nothing; write '\)' for the character"#
    );
}

#[test]
fn size_is_bounded() {
    let refusal = |pattern: &str| Pattern::parse(pattern).unwrap_err().problem();
    assert_eq!(refusal(&"a".repeat(PATTERN_LIMIT + 1)), PatternProblem::TooLong);
    assert_eq!(refusal(&"(".repeat(500)), PatternProblem::TooDeep);
    assert_eq!(refusal(&"(?:[a-cx-z]|b){1000}".repeat(50)), PatternProblem::TooLarge);
    // A pattern that would take seconds for an image, though it fits into a custom resource.
    assert_eq!(refusal(&format!("(?:{}){{999}}[=!]", ".?".repeat(22))), PatternProblem::TooLarge);
    // Whatever fits into a custom resource and is not built to break things is fine.
    assert!(
        Pattern::parse(&"(".repeat(50).chars().chain(")".repeat(50).chars()).collect::<String>()).is_ok()
    );
    assert!(Pattern::parse(&"[a-z0-9._-]{1,255}/".repeat(6)).is_ok());
    assert!(Pattern::parse(".{1000}").is_ok());
}

#[test]
fn common_shapes_need_no_automaton() {
    let shape = |pattern: &str| match &Pattern::parse(pattern).unwrap().0.matcher {
        Matcher::Fixed(_) => "fixed",
        Matcher::Prefix { .. } => "prefix",
        Matcher::Classes { .. } => "classes",
        Matcher::Automaton(_) => "automaton",
    };
    assert_eq!(shape(r"^docker\.io/library/nginx:1$"), "fixed");
    assert_eq!(shape(r"docker\.io/(library/).*"), "prefix");
    assert_eq!(shape(".*"), "prefix");
    assert_eq!(shape("docker.io/.*"), "classes");
    assert_eq!(shape("[a-z]x:[0-9]"), "classes");
    assert_eq!(shape(".*/nginx:.+"), "automaton");
    let matches = |pattern: &str, text: &str| Pattern::parse(pattern).unwrap().matches(text);
    assert!(matches("docker.io/.+", "docker.io/a") && matches("docker.io/.+", "docker-io/a"));
    assert!(!matches("docker.io/.+", "docker.io/") && !matches("docker.io/.+", "docker.io"));
    assert!(!matches("docker.io/.+", "docker.io/\n") && !matches("docker.io/.+", "docker.io/é"));
    assert!(matches("a.c", "abc") && !matches("a.c", "abcd") && !matches("a.c", "ab"));
}

#[test]
fn needles_are_the_longest_texts_that_must_occur() {
    let needles = |pattern: &str| {
        let texts = Pattern::parse(pattern).unwrap().0.needles.clone();
        texts
            .into_iter()
            .next()
            .map(|texts| texts.into_iter().map(|text| String::from_utf8(text).unwrap()).collect::<Vec<_>>())
    };
    let some = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    assert_eq!(needles(r".*/app-17:.+"), some(&["/app-17:"]));
    assert_eq!(needles(r"docker.io/team-5/.*"), some(&["io/team-5/"]));
    assert_eq!(needles(r"(quay\.io|ghcr\.io)/x"), some(&["quay.io", "ghcr.io"]));
    assert_eq!(needles("ab(cd)+e"), some(&["ab"]));
    assert_eq!(needles("a?b*"), None);
    assert_eq!(needles("(?i)Docker-[ab]"), some(&["docker-"]));
    assert_eq!(needles("abc|.*"), None);
}
