//! The envelope check under generated documents: never a panic, and a yes at a glance is the verdict of a full parse,
//! unless that finds damage, which may pass.

use engine::envelope::{parse, recognise};
use proptest::prelude::*;

const HEAD: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n";

fn verdict(data: &[u8]) -> Result<usize, String> {
    parse(data, &|| false).map(|envelope| envelope.results.len())
}

fn check(data: &[u8]) -> Result<(), TestCaseError> {
    let parsed = verdict(data);
    if recognise(data).is_some() {
        let is_damaged = matches!(&parsed, Err(why) if why.starts_with("yaml: ") || why.contains("nested deeper"));
        prop_assert!(parsed.is_ok() || is_damaged, "{:?}: {:?}", String::from_utf8_lossy(data), parsed);
    }
    Ok(())
}

fn lines() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        4 => prop::sample::select(vec![
            "apiVersion: config.kubernetes.io/v1", "kind: ResourceList", "kind: Deployment", "kind: ResourceList # c",
            "  kind: ResourceList", "kind:", "  ResourceList", "items:", "- a: b", "-", "- |", "  text", "---", "---#",
            "--- # c", "...", "# c", "", " ", "\t", "text: |", "text: >", "q: \"", "\"", " \"", "{", "}", "[]", "a: [",
            "]", " ]", "a: b: c", "word", "'kind': ResourceList", "? kind", ": ResourceList", "%YAML 1.1",
            "a: 'it''s'", "&a b: c", "k\u{e9}y: v", "\tx: y", "- kind: ResourceList", "a: {}", "<<: *a", "a: &a",
            "  kind: Other", "<<: {kind: Other}", "results:", "- severity: error", "{\"kind\": \"ResourceList\"}",
            "a: b #c", "a: b#c", "kind: \"ResourceList\"", "kind: ''", "\u{feff}", "a:\u{a0}b", "!!str kind: x",
        ]).prop_map(str::to_owned),
        1 => "[ -~]{0,12}",
        1 => "\\PC{0,6}",
    ];
    let line_break = prop_oneof![8 => Just("\n"), 2 => Just("\r\n"), 1 => Just("\r"), 1 => Just("\u{2028}")];
    (prop::collection::vec((line, line_break), 0..9), any::<bool>()).prop_map(|(lines, has_head)| {
        let head = if has_head { HEAD } else { "" };
        lines.into_iter().fold(head.to_owned(), |text, (line, line_break)| text + &line + line_break)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_lines_never_make_a_full_parse_say_otherwise(text in lines()) {
        check(text.as_bytes())?;
    }

    #[test]
    fn no_bytes_do_any_harm(data in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&data)?;
    }

    #[test]
    fn json_like_texts_do_no_harm(text in "[\\[\\]{}\",:kindResourceList\\\\u0-9truefalsn \\n-]{0,60}") {
        check(text.as_bytes())?;
        check(format!("{{\"kind\":\"ResourceList\",\"a\":{text}}}").as_bytes())?;
    }
}

#[test]
fn common_shapes_are_recognised_at_a_glance() {
    for text in [
        HEAD.to_owned(),
        format!("{HEAD}items:\n- a: 1\n-\n  b: 2\n"),
        format!("# c\n\n---\n# d\n{HEAD}"),
        format!("--- # c\n{HEAD}"),
        format!("\u{feff}{HEAD}"),
        HEAD.replace('\n', "\r\n"),
        "kind: 'ResourceList'\napiVersion: \"config.kubernetes.io/v1\"\n".to_owned(),
        "apiVersion: config.kubernetes.io/v1 # why\nkind: ResourceList   # why not\n\n\nitems: []\n".to_owned(),
        format!("{HEAD}text: |\n  kind: Other\n\n  more\nlast: >-\n  folded\n"),
        " {\"items\":[1,2,{\"kind\":\"Other\"}],\"kind\":\"ResourceList\"}\n".to_owned(),
    ] {
        assert!(recognise(text.as_bytes()).is_some(), "{text}");
        assert_eq!(verdict(text.as_bytes()), Ok(0), "{text}");
    }
}

#[test]
fn merge_keys_count_wherever_what_they_merge_stands() {
    for (text, expected) in [
        ("<<: {kind: ResourceList}\n", Ok(0)),
        ("base: &base {kind: ResourceList}\n<<: *base\n", Ok(0)),
        ("a: &a {kind: Other}\nb: &b {kind: ResourceList}\n<<: [*b, *a]\n", Ok(0)),
        (
            "a: &a {kind: ResourceList}\n<<: *a\nkind: Other\n",
            Err("its kind is \"Other\", not ResourceList".to_owned()),
        ),
        ("a: &a {kind: ResourceList}\nb: &b {<<: *a}\n<<: *b\n", Ok(0)),
    ] {
        assert_eq!(verdict(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn what_stands_for_more_than_any_memory_holds_ends_soon() {
    let levels = |entry: fn(usize) -> String| -> String {
        (1..200).map(|level| format!("a{level}: &a{level} {}\n", entry(level - 1))).collect()
    };
    let merges = "a0: &a0 {x: y}\n".to_owned() + &levels(|before| format!("{{<<: [*a{before}, *a{before}]}}"));
    let lists = "a0: &a0 [x, x]\n".to_owned() + &levels(|before| format!("[*a{before}, *a{before}]"));
    let _ = verdict(format!("{merges}<<: *a199\nkind: ResourceList\n").as_bytes());
    let _ = verdict(format!("{lists}b: &b {{kind: *a199}}\n<<: *b\n").as_bytes());
    let deep = "[".repeat(100_000);
    assert!(verdict(deep.as_bytes()).unwrap_err().contains("nested deeper than 1000 levels"));
    assert!(verdict(format!("{{\"kind\":{deep}").as_bytes()).is_err());
}
