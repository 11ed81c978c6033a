use base64::Engine as _;
use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<String, TargetError> {
    Target::parse(text).map(|target| target.as_str().to_owned())
}

#[test]
fn s2_one_spelling_for_every_origin() {
    for (text, expected) in [
        ("http://example.com", "http://example.com/"),
        ("HTTP://EXAMPLE.com:80/", "http://example.com/"),
        ("https://example.com:443/", "https://example.com/"),
        ("https://example.com:80/", "https://example.com:80/"),
        ("http://example.com:00080/", "http://example.com/"),
        ("http://example.com:000000000008080/", "http://example.com:8080/"),
        ("http://example.com:/", "http://example.com/"),
        ("http://example.com./a", "http://example.com/a"),
        ("http://ex%41mple.com/", "http://example.com/"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://BÜCHER.example/", "http://xn--bcher-kva.example/"),
        ("http://xn--bcher-kva.example/", "http://xn--bcher-kva.example/"),
        ("http://faß.example/", "http://xn--fa-hia.example/"),
        ("http://ｅｘａｍｐｌｅ。com/", "http://example.com/"),
        ("http://under_score.example/", "http://under_score.example/"),
        ("http://127.1/", "http://127.0.0.1/"),
        ("http://0x7f.0.0.1/", "http://127.0.0.1/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://127.0.0.1./", "http://127.0.0.1/"),
        ("http://[0:0:0::0001]:8080/", "http://[::1]:8080/"),
        ("http://[2001:DB8::A]/", "http://[2001:db8::a]/"),
        ("  http://example.com/a \n", "http://example.com/a"),
        ("http://user:pass@example.com/", "http://example.com/"),
        ("http://a@b@example.com/", "http://example.com/"),
    ] {
        assert_eq!(parse(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn paths_go_out_as_they_are_written() {
    for (path, expected) in [
        ("", "/"),
        ("/", "/"),
        ("/a b", "/a%20b"),
        ("/a%20b", "/a%20b"),
        ("/a+b", "/a+b"),
        ("/a%2Bb", "/a%2Bb"),
        ("/a%2fb%2F", "/a%2fb%2F"),
        ("/a%e9b", "/a%e9b"),
        ("/a%zzb%", "/a%zzb%"),
        ("/%2e%2e/x", "/%2e%2e/x"),
        ("/a/../b/./c", "/a/../b/./c"),
        ("/a;p=1", "/a;p=1"),
        ("/a?", "/a?"),
        ("?q", "/?q"),
        ("/a//b", "/a//b"),
        ("/a#b?c", "/a"),
        ("#b", "/"),
        ("/é", "/%C3%A9"),
        ("/\"<>`{}", "/%22%3C%3E%60%7B%7D"),
        ("/|^[]\\'()*!$&,:@=~", "/|^[]\\'()*!$&,:@=~"),
        ("/?a={b}&c=`|^'\"<>", "/?a={b}&c=`|^'%22%3C%3E"),
        ("/?q=é ü", "/?q=%C3%A9%20%C3%BC"),
        ("/a\tb\nc\rd", "/abcd"),
        ("/\u{1}\u{7f}", "/%01%7F"),
    ] {
        let target = Target::parse(&format!("http://h{path}")).unwrap();
        assert_eq!(target.path_and_query().as_str(), expected, "{path:?}");
        assert_eq!(target.as_str(), format!("http://h{expected}"));
    }
}

#[test]
fn what_is_no_target_is_refused_with_a_reason() {
    for (text, error) in [
        ("", TargetError::NotAbsolute),
        ("example.com/a", TargetError::NotAbsolute),
        ("/a", TargetError::NotAbsolute),
        ("//example.com/", TargetError::NotAbsolute),
        ("1http://h/", TargetError::NotAbsolute),
        ("file:///etc/passwd", TargetError::Scheme),
        ("gopher://127.0.0.1:9/x", TargetError::Scheme),
        ("data:text/plain,x", TargetError::Scheme),
        ("unix:/tmp/x", TargetError::Scheme),
        ("javascript:alert(1)", TargetError::Scheme),
        ("ws://h/", TargetError::Scheme),
        ("localhost:80/a", TargetError::Scheme), // as RFC 3986 reads it
        ("http:", TargetError::Host),
        ("http:/a", TargetError::Host),
        ("http:h/a", TargetError::Host),
        ("http:///a", TargetError::Host),
        ("http://user@/a", TargetError::Host),
        ("http://a b/", TargetError::Host),
        ("http://a..b/", TargetError::Host),
        ("http://./", TargetError::Host),
        ("http://a%00b/", TargetError::Host),
        ("http://a\\@b/", TargetError::Host),
        ("http://[::1/", TargetError::Host),
        ("http://[::1]x/", TargetError::Host),
        ("http://[fe80::1%25eth0]/", TargetError::Host),
        ("http://1.2.3.4.5/", TargetError::Host),
        ("http://256.1.1.1/", TargetError::Host),
        ("http://h:0/", TargetError::Port),
        ("http://h:65536/", TargetError::Port),
        ("http://h:+80/", TargetError::Port),
        ("http://h:80a/", TargetError::Port),
    ] {
        assert_eq!(parse(text), Err(error), "{text}");
    }
    assert_eq!(parse(&format!("http://{}.example/", "a".repeat(64))), Err(TargetError::Host));
    assert_eq!(parse(&format!("http://h/{}", "a".repeat(URL_BYTES_MAX))), Err(TargetError::TooLong));
}

#[test]
fn k2_a_location_is_joined() {
    let base = Target::parse("https://user:pw@example.com:8443/a/b/c?q=1").unwrap();
    for (location, expected) in [
        (&b"https://other.example/x"[..], "https://other.example/x"),
        (b"HTTP://other.example", "http://other.example/"),
        (b"//other.example:443/x", "https://other.example/x"),
        (b"/x?y#z", "https://example.com:8443/x?y"),
        (b"/x/../y/./z", "https://example.com:8443/y/z"),
        (b"/%2e%2e/x", "https://example.com:8443/%2e%2e/x"),
        (b"/a//b", "https://example.com:8443/a//b"),
        (b"d", "https://example.com:8443/a/b/d"),
        (b"d/e:f", "https://example.com:8443/a/b/d/e:f"),
        (b"./d", "https://example.com:8443/a/b/d"),
        (b"../d", "https://example.com:8443/a/d"),
        (b"../../../../d", "https://example.com:8443/d"),
        (b"..", "https://example.com:8443/a/"),
        (b".", "https://example.com:8443/a/b/"),
        (b"?y", "https://example.com:8443/a/b/c?y"),
        (b"?", "https://example.com:8443/a/b/c?"),
        (b"", "https://example.com:8443/a/b/c?q=1"),
        (b"#z", "https://example.com:8443/a/b/c?q=1"),
        (b"/caf\xe9", "https://example.com:8443/caf%E9"),
        (b"/caf\xc3\xa9", "https://example.com:8443/caf%C3%A9"),
        (b"http://b\xc3\xbccher.example/\xe9", "http://xn--bcher-kva.example/%E9"),
        (b"/a b", "https://example.com:8443/a%20b"),
        (b"\\\\evil.example/", "https://example.com:8443/a/b/\\\\evil.example/"),
    ] {
        let joined = base.join(location).unwrap();
        assert_eq!(joined.as_str(), expected, "{}", String::from_utf8_lossy(location));
    }
    for (location, error) in [
        (&b"file:///etc/passwd"[..], TargetError::Scheme),
        (b"javascript:alert(1)", TargetError::Scheme),
        (b"http:x", TargetError::Host),
        (b"///x", TargetError::Host),
        (b"http://b\xfccher.example/", TargetError::Host),
    ] {
        assert_eq!(base.join(location), Err(error), "{}", String::from_utf8_lossy(location));
    }
}

#[test]
fn k1_credentials_of_a_url_are_sent_and_not_shown() {
    let target = Target::parse("http://us%40er:p%3Aw@example.com/a").unwrap();
    let value = target.authorization().unwrap();
    assert_eq!(value, &format!("Basic {}", base64::engine::general_purpose::STANDARD.encode("us@er:p:w")));
    assert!(value.is_sensitive());
    assert_eq!(target.as_str(), "http://example.com/a");
    assert_eq!(format!("{target:?} {target}"), "Target(http://example.com/a) http://example.com/a");
    assert!(target.has_credentials());

    assert!(target.join(b"/b").unwrap().has_credentials(), "the same origin");
    assert!(!target.join(b"http://other.example/").unwrap().has_credentials());
    assert!(!target.join(b"//other.example/").unwrap().has_credentials());
    assert!(
        !target.join(b"https://example.com/").unwrap().has_credentials(),
        "another scheme is another origin"
    );
    assert!(
        target.join(b"http://example.com:80/c").unwrap().has_credentials(),
        "the same origin, written out"
    );
    assert!(!Target::parse("http://@example.com/").unwrap().has_credentials());
    assert_eq!(Target::parse("http://only@h/").unwrap().authorization().unwrap(), "Basic b25seTo=");
}

proptest! {
    #[test]
    fn every_text_is_a_target_or_an_error(text in any::<String>(), location in any::<Vec<u8>>()) {
        let _ = Target::parse(&text);
        let base = Target::parse("http://h/a/b").unwrap();
        if let Ok(joined) = base.join(&location) {
            let again = Target::parse(joined.as_str()).unwrap();
            prop_assert_eq!(again.as_str(), joined.as_str());
        }
    }

    /// What is canonical stays as it is, and is fit for a request line.
    #[test]
    fn s2_canonical_is_a_fixed_point(path in "(/|[?]|%|é|[ -~]|[\u{0}-\u{1f}]){0,20}") {
        let target = Target::parse(&format!("http://Ex.com/{path}")).unwrap();
        let again = Target::parse(target.as_str()).unwrap();
        prop_assert_eq!(&again, &target);
        let sent = target.path_and_query();
        prop_assert_eq!(sent.as_str(), &target.as_str()[target.origin().len()..]);
        prop_assert!(sent.as_str().bytes().all(|byte| (b'!'..=b'~').contains(&byte)));
    }
}
