//! K1: the password of an exit, plain or in any dress, is in nothing that was written.

use std::fs;
use std::path::Path;

use forbear_zoo::proxy::{Behaviour, Proxy, ProxyOptions};

use crate::kit::{Job, ms, pages, zoo};
use crate::support::origin::Origin;

/// A password with everything in it that needs an escape somewhere.
const PASSWORD: &str = "Zk7p@ss:w/o%r#d ü";
/// Part of it that no escape changes, for logs that cut a text in two.
const CORE: &str = "Zk7p";
const USER: &str = "customer";

fn escaped(text: &str, upper: bool) -> String {
    let byte = |byte: u8| match (byte.is_ascii_alphanumeric(), upper) {
        (true, _) => char::from(byte).to_string(),
        (false, true) => format!("%{byte:02X}"),
        (false, false) => format!("%{byte:02x}"),
    };
    text.bytes().map(byte).collect()
}

/// Base64 (RFC 4648), for whatever a log may show of a header.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: usize| char::from(DIGITS[bits & 63]);
    let group = |three: &[u8]| {
        let bits =
            three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        let text: String = [18, 12, 6, 0].into_iter().map(|shift| digit(bits >> shift)).collect();
        text[..=three.len()].to_owned()
    };
    bytes.chunks(3).map(group).collect()
}

/// Every dress that the password may wear.
fn forms() -> Vec<String> {
    let pair = format!("{USER}:{PASSWORD}");
    let mut forms = vec![
        CORE.to_owned(),
        PASSWORD.to_owned(),
        escaped(PASSWORD, true),
        escaped(PASSWORD, false),
        base64(PASSWORD.as_bytes()),
        base64(pair.as_bytes()),
    ];
    // Inside a longer text base64 has three beginnings; what does not touch an edge is the same in all.
    for lead in 0..3 {
        let text = base64(&[&vec![b'x'; lead][..], PASSWORD.as_bytes()].concat());
        forms.push(text[4..text.len() - 4].to_owned());
    }
    forms.push(PASSWORD.bytes().map(|byte| format!("{byte}, ")).collect()); // a list of bytes, as Debug shows one
    forms.push(PASSWORD.bytes().map(|byte| format!("{byte:02x}")).collect());
    forms
}

fn search(dir: &Path, found: &mut Vec<String>, looked_at: &mut usize) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            search(&path, found, looked_at);
            continue;
        }
        if ["exits.txt", "broken.txt", "forbear.toml"].contains(&name.as_str()) {
            continue; // the tester's own
        }
        *looked_at += 1;
        let bytes = fs::read(&path).unwrap();
        for form in forms() {
            if bytes.windows(form.len()).any(|window| window == form.as_bytes()) {
                found.push(format!("{name} holds {form}"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_the_passwords_of_exits_are_in_nothing_that_was_written() {
    let (server, origin) = (zoo("open", ms(0)).await, Origin::start());
    // Each in a way of its own, the last one does its work.
    let faults = [
        Behaviour::status(407),
        Behaviour::status(429).header("retry-after", "1"),
        Behaviour::status(503).closing(),
        Behaviour::status(502),
        Behaviour::ResetBefore,
        Behaviour::ResetAfter,
        Behaviour::Stall,
        Behaviour::OwnPage,
        Behaviour::Reply(1),
        Behaviour::Carry,
    ];
    let mut lines = String::new();
    let mut proxies = Vec::new();
    for (index, fault) in faults.into_iter().enumerate() {
        let options = ProxyOptions::at(101 + u8::try_from(index).unwrap());
        let proxy = Proxy::start(options).await.unwrap();
        proxy.behave(move |_| fault.clone());
        for scheme in ["http", "socks5h"] {
            lines += &format!("{}\n", proxy.url(scheme, &format!("{USER}:{}", escaped(PASSWORD, true))));
        }
        proxies.push(proxy);
    }
    // One that nobody answers, one whose TLS is none.
    lines += &format!("http://{USER}:{}@127.0.0.1:1\n", escaped(PASSWORD, false));
    lines += &proxies[9].url("https", &format!("{USER}:{}", escaped(PASSWORD, true)));
    lines += "\n";
    let urls = [pages(&server, "p", 40), origin.https("p", 20), vec!["https://127.0.0.1:9/".into()]].concat();
    let job = Job::of(urls)
        .env("FORBEAR_LOG", "trace")
        .env("RUST_LOG", "trace")
        .env("SSL_CERT_FILE", &origin.ca())
        .config("scope = [\"origin+exit\"]\n");
    fs::write(job.path("exits.txt"), lines).unwrap();
    let flags =
        ["--proxies", "exits.txt", "-vv", "--timeout", "1s", "--max-attempts", "2", "--run-for", "30s"];
    let ran = job.run(&flags).await;
    fs::rename(job.path("stderr.log"), job.path("first.log")).unwrap();
    let right = |asked: &forbear_zoo::proxy::Asked| asked.password.as_deref() == Some(PASSWORD.as_bytes());
    let sent = proxies[9].asked();
    assert!(!sent.is_empty() && sent.iter().all(right), "never sent: nothing was tested\n{}", ran.stderr);
    assert!(ran.stderr.len() > 2_000, "the finest level says little:\n{}", ran.stderr);

    // What fails before anything is sent, and what is shown of a job.
    fs::write(
        job.path("broken.txt"),
        format!("http://{USER}:{PASSWORD}@[nowhere:80\nsocks9://{USER}:{PASSWORD}@h:1\n"),
    )
    .unwrap();
    let flag = format!("http://{USER}:{PASSWORD}@host:port");
    for (log, words) in [
        ("file.log", &["fetch", "urls.txt", "-o", "x.jsonl", "--proxies", "broken.txt"][..]),
        ("flag.log", &["fetch", "urls.txt", "-o", "y.jsonl", "--proxy", &flag]),
        ("show.log", &["job", "show", "job"]),
        ("list.log", &["job", "list", "job"]),
        ("export.log", &["job", "export", "job"]),
        ("check.log", &["check", "--proxies", "exits.txt"]),
        ("plan.log", &["fetch", "urls.txt", "-o", "z.jsonl", "--proxies", "exits.txt", "--plan"]),
    ] {
        let out = job.command(words).output().unwrap();
        fs::write(job.path(log), [out.stdout, out.stderr].concat()).unwrap();
    }
    for refused in ["file.log", "flag.log"] {
        assert!(
            fs::metadata(job.path(refused)).unwrap().len() > 0,
            "{refused}: no word about what was wrong"
        );
    }
    let (mut found, mut looked_at) = (Vec::new(), 0);
    search(job.dir.path(), &mut found, &mut looked_at);
    assert!(found.is_empty(), "{found:#?}");
    assert!(looked_at >= 10, "{looked_at} files");
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_the_password_of_an_exit_goes_to_that_exit_alone() {
    use crate::kit::wiretap::{Wiretap, say};
    let server = Wiretap::start([127, 0, 0, 1], |_, stream| say(stream, "HTTP/1.1 200 OK", b"fine"));
    for scheme in ["http", "socks5"] {
        let proxy = Proxy::start(ProxyOptions::at(33)).await.unwrap();
        // An item that carries the field by mistake does not send it on either.
        let line = serde_json::json!({ "url": server.url("/p"), "headers": { "Proxy-Authorization": "Basic bWlzdGFrZQ==" } });
        let job = Job::of([line.to_string(), server.url("/q")]);
        let flags = ["--proxy", &proxy.url(scheme, &format!("{USER}:secret"))];
        let _ = job.run(&flags).await;
        assert!(proxy.asked().iter().all(|asked| asked.password.as_deref() == Some(b"secret")));
    }
    let heads = server.heads();
    assert!(heads.len() >= 2, "{heads:?}");
    assert!(heads.iter().all(|head| !head.to_lowercase().contains("proxy-authorization")), "{heads:?}");
}
