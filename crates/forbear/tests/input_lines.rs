//! One line of input: what it may be, and what is said when it is nothing.

use forbear::{
    config::SecretNames,
    input::{BadInput, ItemSpec, Line, parse_line},
    secrets::Redactor,
};
use proptest::prelude::*;

fn item(line: impl AsRef<[u8]>) -> ItemSpec {
    match parse_line(line.as_ref()) {
        Line::Item(item) => *item,
        other => panic!("{}: {other:?}", String::from_utf8_lossy(line.as_ref())),
    }
}

fn bad(line: impl AsRef<[u8]>) -> BadInput {
    match parse_line(line.as_ref()) {
        Line::Bad(bad) => bad,
        other => panic!("{}: {other:?}", String::from_utf8_lossy(line.as_ref())),
    }
}

fn shown(bad: &BadInput) -> Option<String> {
    bad.shown_url(&Redactor::new(&SecretNames::default()))
}

#[test]
fn j5_blank_lines_and_comments_are_nothing() {
    for line in ["", " ", "\t\r", "# http://h/", "  #x", "\r\n"] {
        assert!(matches!(parse_line(line.as_bytes()), Line::Nothing), "{line:?}");
    }
}

#[test]
fn a_url_is_kept_as_it_is_written() {
    for (line, url, on_the_wire) in [
        ("http://h", "http://h", "http://h/"),
        ("  HTTP://H/a b%2Fc+d \r\n", "HTTP://H/a b%2Fc+d", "http://h/a%20b%2Fc+d"),
        ("http://h/#part", "http://h/#part", "http://h/"),
        ("http://h/a%zzb;p=1?", "http://h/a%zzb;p=1?", "http://h/a%zzb;p=1?"),
        ("https://münchen.example/ü", "https://münchen.example/ü", "https://xn--mnchen-3ya.example/%C3%BC"),
    ] {
        let item = item(line);
        assert_eq!((item.request.url.as_str(), item.target.as_str()), (url, on_the_wire));
        assert_eq!((item.id, item.not_before), (None, None));
    }
}

#[test]
fn bytes_that_are_not_utf_8_go_out_byte_for_byte() {
    assert_eq!(item(b"http://h/caf\xe9").target.as_str(), "http://h/caf%E9");
    assert_eq!(item(b"http://h/\xc3\xa9\xff").target.as_str(), "http://h/%C3%A9%FF");
    assert_eq!(item(b"http://h/\xc3\xa9\xff").request.url, "http://h/é%FF");
}

#[test]
fn json_says_everything_about_an_item() {
    let item = item(
        r#"{"url":"http://h/x","id":"a\"0","method":"put","headers":{"X-B":"1","x-a":["2","3"],"n":4},
            "body":"é","account":"team a","endpoint":"search","cost":3,"priority":-2,
            "not_before":"2026-11-29T14:00:00+01:00","idempotent":true}"#
            .replace('\n', " "),
    );
    let r = &item.request;
    assert_eq!(
        (r.url.as_str(), item.id.as_deref(), r.method.as_deref()),
        ("http://h/x", Some("a\"0"), Some("PUT"))
    );
    let headers: Vec<_> = r.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(headers, [("X-B", "1"), ("x-a", "2"), ("x-a", "3"), ("n", "4")]);
    assert_eq!(r.body.as_deref(), Some("é".as_bytes()));
    assert_eq!((r.account.as_deref(), r.endpoint.as_deref()), (Some("team a"), Some("search")));
    assert_eq!((r.cost, r.priority, r.idempotent), (Some(3), -2, Some(true)));
    assert_eq!(item.not_before.map(|at| at.as_micros()), Some(1_795_957_200_000_000));
}

#[test]
fn json_forms_that_mean_the_same() {
    let same = |a: &str, b: &str| {
        let (a, b) =
            (item(format!(r#"{{"url":"http://h/",{a}}}"#)), item(format!(r#"{{"url":"http://h/",{b}}}"#)));
        assert_eq!(a.request, b.request);
        assert_eq!((a.id, a.not_before), (b.id, b.not_before));
    };
    same(r#""headers":[["A","1"],["B","2"],["A","3"]]"#, r#""headers":{"A":"1","B":"2","A":"3"}"#);
    same(r#""body":"abc","method":"PUT""#, r#""method":"PUT","body_base64":"YWJj""#);
    same(r#""not_before":1795957200"#, r#""not_before":"2026-11-29T13:00:00Z""#);
    same(r#""method":"get","body":null,"body_base64":null,"headers":null,"cost":null"#, r#""headers":{}"#);
    same(r#""body":"x""#, r#""method":"POST","body":"x""#);
    assert_eq!(item(r#"{"url":"http://h/","method":"get"}"#).request, item("http://h/").request);
}

#[test]
fn an_id_keeps_its_kind() {
    for (json, stored) in [
        ("7", "7"),
        ("-7", "-7"),
        (r#""7""#, r#""7""#),
        (r#""007""#, "007"),
        (r#""a""#, "a"),
        (r#""""#, ""),
        (r#""\"q""#, r#""\"q""#),
    ] {
        let item = item(format!(r#"{{"id":{json},"url":"http://h/"}}"#));
        assert_eq!(item.id.as_deref(), Some(stored), "{json}");
    }
}

#[test]
fn j5_a_bad_line_says_what_is_wrong_and_what_to_do() {
    for (line, error, url) in [
        ("example.com/", "not an absolute URL; begin it with http:// or https://", None),
        ("ftp://h/x", "the scheme is not http or https; no other is fetched", Some("ftp://h/x")),
        (
            "data:text/plain,x",
            "the scheme is not http or https; no other is fetched",
            Some("data:text/plain,x"),
        ),
        (
            "http://",
            "the host is missing or malformed; look at what stands between `//` and the path",
            Some("http://"),
        ),
        (
            "http://h:99999/x",
            "the port is malformed; it is a number from 1 to 65535",
            Some("http://h:99999/x"),
        ),
        ("[{\"url\":\"http://h/\"}]", "a JSON list; write one object a line, as `jq -c '.[]'` does", None),
        ("{", "not valid JSON: EOF while parsing an object at character 1", None),
        (r#"{"url":"http://h/"} x"#, "not valid JSON: trailing characters at character 21", None),
        (r#"{"id":1}"#, "no field `url`; every item needs one", None),
        (r#"{"url":""}"#, "field `url` must be a URL", None),
        (r#"{"url":7}"#, "field `url` must be a string", None),
        (
            r#"{"url":"http://h/","cots":1}"#,
            "unknown field `cots`; known are url, id, method, headers, body, body_base64, account, endpoint, cost, \
             priority, not_before, idempotent",
            Some("http://h/"),
        ),
        (
            r#"{"url":"http://h/","url":"http://h/"}"#,
            "field `url` is there twice; leave one out",
            Some("http://h/"),
        ),
        (
            r#"{"cost":0,"url":"http://h/"}"#,
            "field `cost` must be a whole number from 1 on",
            Some("http://h/"),
        ),
        (
            r#"{"url":"http://h:0/"}"#,
            "the port is malformed; it is a number from 1 to 65535",
            Some("http://h:0/"),
        ),
    ] {
        let bad = bad(line);
        assert_eq!((bad.error.to_string().as_str(), shown(&bad).as_deref()), (error, url), "{line}");
    }
}

#[test]
fn values_that_a_field_cannot_have() {
    for (field, value) in [
        ("id", "1.5"),
        ("id", "true"),
        ("id", "[]"),
        ("method", r#""GE T""#),
        ("method", r#""""#),
        ("method", r#""CONNECT""#),
        ("headers", r#""A: b""#),
        ("headers", r#"{"A":null}"#),
        ("headers", r#"{"A":{"b":"c"}}"#),
        ("headers", r#"{"A":[["b"]]}"#),
        ("headers", r#"[["A"]]"#),
        ("headers", r#"[["A","b","c"]]"#),
        ("headers", r#"["A: b"]"#),
        ("header A: b", r#"{"A b":"c"}"#),
        ("header", r#"{"A":"b\nc"}"#),
        ("header", r#"{"":"b"}"#),
        ("body", "{}"),
        ("body_base64", r#""YW""#),
        ("body_base64", "1"),
        ("account", r#""""#),
        ("account", r#""a\tb""#),
        ("account", r#""~0123""#),
        ("endpoint", "1"),
        ("cost", "-1"),
        ("cost", "4294967296"),
        ("cost", "1.5"),
        ("priority", "2147483648"),
        ("priority", r#""high""#),
        ("not_before", r#""tomorrow""#),
        ("not_before", "1795957200000"),
        ("not_before", "-1"),
        ("idempotent", r#""yes""#),
    ] {
        let name = if field.starts_with("header ") { "headers" } else { field };
        let name = if name == "header" { "headers" } else { name };
        let bad = bad(format!(r#"{{"url":"http://h/","{name}":{value}}}"#));
        let error = bad.error.to_string();
        assert!(error.contains(field.split(' ').next().unwrap()), "{field}: {value}: {error}");
    }
}

/// K1: whatever is wrong with a line, what is said does not hold what stands in it.
#[test]
fn k1_no_message_about_a_bad_line_holds_a_secret() {
    const SECRET: &str = "S3cr3tXYZ";
    let lines = [
        "API_KEY=S3cr3tXYZ",
        "S3cr3tXYZ",
        "Authorization: Bearer S3cr3tXYZ",
        "user:S3cr3tXYZ",
        "proxy.example:8080:user:S3cr3tXYZ",
        "proxy.example:8080@user:S3cr3tXYZ",
        "ftp://user:S3cr3tXYZ@h/",
        "http://user:S3cr3tXYZ/more@h/",
        "http://user:S3cr3tXYZ@:1/",
        "http://h:0/?token=S3cr3tXYZ",
        "gopher://h/?a=1&api_key=S3cr3tXYZ&b=2",
        "{S3cr3tXYZ}",
        r#"{"url": S3cr3tXYZ}"#,
        r#"{"url":"http://h/","headers":"S3cr3tXYZ"}"#,
        r#"{"url":"http://h/","headers":{"Authorization: S3cr3tXYZ":"x"}}"#,
        r#"{"url":"http://h/","headers":{"Authorization":"S3cr3tXYZ\n"}}"#,
        r#"{"url":"http://h/","headers":{"Authorization":{"S3cr3tXYZ":1}}}"#,
        r#"{"url":"http://h/","cost":"S3cr3tXYZ"}"#,
        r#"{"url":"http://h/","body_base64":"S3cr3tXYZ!"}"#,
        r#"{"url":"http://u:S3cr3tXYZ@h/","cost":0}"#,
        r#"{"url":"http://h/?sig=S3cr3tXYZ","cost":0}"#,
        r#"{"url":["S3cr3tXYZ"]}"#,
        r#"{"url":"http://h/","id":["S3cr3tXYZ"]}"#,
    ];
    for line in lines {
        let bad = bad(line);
        let said = format!("{} {bad:?} {:?}", bad.error, shown(&bad));
        assert!(!said.contains(SECRET), "{line}: {said}");
    }
}

#[test]
fn k1_an_item_prints_none_of_its_secrets() {
    let item = item(
        r#"{"url":"http://u:s3cret@h/?token=s3cret","headers":{"Authorization":"s3cret"},"body":"s3cret"}"#,
    );
    assert!(!format!("{item:?}").contains("s3cret"));
}

fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "http://[a-z]{1,3}/\\PC{0,8}".prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec(("\\PC{0,6}", inner), 0..4)
                .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    })
}

const FIELDS: [&str; 13] = [
    "url",
    "id",
    "method",
    "headers",
    "body",
    "body_base64",
    "account",
    "endpoint",
    "cost",
    "priority",
    "not_before",
    "idempotent",
    "other",
];

proptest! {
    /// Hostile bytes: every line is one of three things, and never a panic.
    #[test]
    fn j5_any_bytes_are_an_item_or_a_bad_line_or_nothing(line in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Line::Bad(bad) = parse_line(&line) {
            prop_assert!(!bad.error.to_string().is_empty());
            let _ = shown(&bad);
        }
    }

    #[test]
    fn j5_any_text_after_a_scheme_is_one_of_three_things(line in "(https?|ftp|x)?(:|//|://)?\\PC{0,60}") {
        let is_nothing = line.trim_ascii().is_empty() || line.trim_ascii().starts_with('#');
        prop_assert_eq!(matches!(parse_line(line.as_bytes()), Line::Nothing), is_nothing);
        if let Line::Bad(bad) = parse_line(line.as_bytes()) {
            let _ = shown(&bad);
        }
    }

    /// Any object: no panic, and an item only if all of it was understood.
    #[test]
    fn j5_any_object_is_an_item_or_a_bad_line(fields in prop::collection::vec((prop::sample::select(&FIELDS[..]), json_value()), 0..6)) {
        let body: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        match parse_line(format!("{{{}}}", body.join(",")).as_bytes()) {
            Line::Nothing => prop_assert!(false, "an object is not nothing"),
            Line::Bad(_) => {}
            Line::Item(item) => {
                let url = fields.iter().find(|(name, _)| *name == "url").and_then(|(_, v)| v.as_str()).unwrap();
                prop_assert_eq!(item.request.url, url.trim());
                prop_assert!(fields.iter().all(|(name, _)| *name != "other"));
            }
        }
    }
}
