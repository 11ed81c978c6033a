//! K1: a proxy that repeats what it was told, in its head and its page, shows nobody its password.

#[path = "fetch_kit/mod.rs"]
mod kit;
#[path = "support/mod.rs"]
mod support;

use std::fs;

use kit::Job;
use kit::wiretap::{Wiretap, say};
use support::origin::Origin;

const PASSWORD: &str = "Zk7p@ss/w0rd";
/// The password as it may come back: plain, with escapes, in Base64 behind the user name.
const FORMS: [&str; 3] = ["Zk7p@ss/w0rd", "Zk7p%40ss%2Fw0rd", "bWU6Wms3cEBzcy93MHJk"];

/// What the client said of itself to the proxy, in all its forms.
fn repeated(head: &str) -> String {
    let told = head.lines().find(|line| line.to_ascii_lowercase().starts_with("proxy-authorization:"));
    let told = told.expect("a client that says nothing tests nothing").trim();
    assert!(told.ends_with(FORMS[2]), "{told}");
    format!("{told}, which is {} or {}", FORMS[0], FORMS[1])
}

fn answer(stream: &mut std::net::TcpStream, status: &str, said: &str) -> std::io::Result<()> {
    let head =
        format!("HTTP/1.1 {status}\r\nX-You-Said: {said}\r\nRetry-After: 0\r\nContent-Type: text/plain");
    say(stream, &head, format!("<p>{said}</p>").as_bytes())
}

/// All that the run wrote, but for the tester's own files.
fn written(job: &Job) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut dirs = vec![job.dir.path().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if !path.ends_with("exits.txt") {
                found.push((path.display().to_string(), fs::read(&path).unwrap()));
            }
        }
    }
    found
}

fn assert_shown_nowhere(job: &Job, what: &str) {
    let files = written(job);
    assert!(files.iter().any(|(name, _)| name.ends_with("out.jsonl")), "{what}");
    for (name, bytes) in files {
        for form in FORMS {
            let shown = bytes.windows(form.len()).any(|window| window == form.as_bytes());
            assert!(!shown, "{what}: {name} shows {form}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_what_a_proxy_repeats_of_its_password_is_shown_nowhere() {
    for status in ["407 Who Are You", "502 Bad Gateway", "429 Slow Down", "403 No", "404 Nothing", "200 OK"] {
        let proxy =
            Wiretap::start([127, 0, 0, 1], move |head, stream| answer(stream, status, &repeated(head)));
        let job = Job::of(["http://127.0.0.1:9/a", "http://127.0.0.1:9/b", "https://127.0.0.1:9/c"])
            .env("FORBEAR_LOG", "trace");
        fs::write(job.path("exits.txt"), format!("http://me:{PASSWORD}@{}\n", proxy.addr())).unwrap();
        let flags =
            ["--proxies", "exits.txt", "-vv", "--max-attempts", "2", "--run-for", "3s", "--timeout", "2s"];
        let ran = job.run(&flags).await;
        assert!(!proxy.heads().is_empty(), "{status}: {}", ran.stderr);
        for (log, words) in [("show.log", ["job", "show", "job"]), ("export.log", ["job", "export", "job"])] {
            let out = job.command(&words).output().unwrap();
            fs::write(job.path(log), [out.stdout, out.stderr].concat()).unwrap();
        }
        assert_shown_nowhere(&job, status);
        if status == "200 OK" {
            let out = fs::read_to_string(job.path("out.jsonl")).unwrap();
            assert!(out.contains("\"done\"") && out.contains("which is *** or ***"), "{out}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_an_exits_own_answer_never_becomes_a_body() {
    let proxy =
        Wiretap::start([127, 0, 0, 1], |head, stream| answer(stream, "407 Who Are You", &repeated(head)));
    let job = Job::of(["http://127.0.0.1:9/a"]);
    fs::write(job.path("exits.txt"), format!("http://me:{PASSWORD}@{}\n", proxy.addr())).unwrap();
    let ran = job.run(&["--proxies", "exits.txt", "--bodies", "bodies", "--run-for", "2s"]).await;
    assert_eq!(ran.status, 5, "{}", ran.stderr);
    let pages = written(&job).into_iter().filter(|(_, bytes)| bytes.windows(3).any(|w| w == b"<p>"));
    assert_eq!(pages.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_what_came_through_tls_is_the_origins_and_left_as_it_is() {
    use forbear_zoo::proxy::{Proxy, ProxyOptions};
    // The exit's password is a word of the page and of its head: "nginx" must not come out as "***".
    let (origin, proxy) = (Origin::start(), Proxy::start(ProxyOptions::at(61)).await.unwrap());
    for (urls, shown) in [(origin.https("p", 1), true), (origin.http("p", 1), false)] {
        let job = Job::of(urls).env("SSL_CERT_FILE", &origin.ca());
        fs::write(job.path("exits.txt"), proxy.url("http", "me:nginx")).unwrap();
        let ran = job.run_all_done(1, &["--proxies", "exits.txt"]).await;
        let out = fs::read_to_string(job.path("out.jsonl")).unwrap();
        assert_eq!(out.contains("nginx"), shown, "{out}{}", ran.stderr);
        assert_eq!(out.contains("***"), !shown, "{out}");
    }
}
