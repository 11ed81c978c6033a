//! Secrets and trust: what is never written, never carried abroad, never without a bound (K1, K2, K4).

use std::fs;
use std::io::Write as _;

use forbear_zoo::{Answer, Server, ServerOptions};
use serde_json::json;

use crate::kit::wiretap::{Wiretap, say};
use crate::kit::{Job, ms, pages, read, scripted, started, zoo};

/// The planted secrets, each made so that it cannot occur by chance.
const ITEM_HEADER: &str = "Zk7planted-item-header";
const ITEM_QUERY: &str = "Zk7planted-item-query";
const ITEM_OWN_QUERY: &str = "Zk7planted-own-query";
const ITEM_PASSWORD: &str = "Zk7planted-item-password";
const ITEM_COOKIE: &str = "Zk7planted-item-cookie";
const CONFIG_HEADER: &str = "Zk7planted-config-header";
const SERVER_COOKIE: &str = "Zk7planted-server-cookie";
const SERVER_TOKEN: &str = "Zk7planted-server-token";
const BAD_LINE: &str = "Zk7planted-bad-line";

/// `user:password` as Basic credentials carry it.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits =
            chunk.iter().chain([0, 0].iter()).take(3).fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let digits = (0..4).map(|i| DIGITS[(bits >> (18 - 6 * i) & 63) as usize] as char);
        out.extend(digits.take(chunk.len() + 1));
    }
    out
}

fn contains(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_planted_secrets_are_in_nothing_that_was_written() {
    // It refuses, redirects, fails and sets cookies, so that every way to say something is taken.
    let server = Wiretap::start([127, 0, 0, 1], |head, stream| {
        let path = head.split(' ').nth(1).unwrap_or("/");
        let cookie = format!("Set-Cookie: session={SERVER_COOKIE}; Path=/\r\nX-Auth-Token: {SERVER_TOKEN}");
        match path.split(['/', '?']).nth(1).unwrap_or_default() {
            "moved" => {
                let to = format!("/p?access_token={SERVER_TOKEN}");
                say(stream, &format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n{cookie}"), b"")
            }
            "loop" => {
                let to = format!("/loop?access_token={SERVER_TOKEN}");
                say(stream, &format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n{cookie}"), b"")
            }
            "denied" => {
                say(stream, &format!("HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer\r\n{cookie}"), b"no")
            }
            "reset" => Ok(()),
            "late" => say(stream, &format!("HTTP/1.1 429 No\r\nRetry-After: 4000\r\n{cookie}"), b"later"),
            _ => say(stream, &format!("HTTP/1.1 200 OK\r\n{cookie}"), b"fine"),
        }
    });
    let authority = server.addr().to_string();
    let line = |path: &str| {
        json!({
            "url": format!("http://me:{ITEM_PASSWORD}@{authority}/{path}?api_key={ITEM_QUERY}&sesame={ITEM_OWN_QUERY}"),
            "headers": { "Authorization": format!("Bearer {ITEM_HEADER}"), "Cookie": format!("c={ITEM_COOKIE}") },
        })
        .to_string()
    };
    let mut lines: Vec<String> = ["p", "moved", "loop", "denied", "reset", "late", "p"].map(line).to_vec();
    lines.push(format!(
        "{{\"url\": \"http://me:{BAD_LINE}@h/\", \"headers\": {{\"Authorization\": \"{BAD_LINE}\""
    ));
    lines.push(format!("http://me:{BAD_LINE}@[not-a-host/?token={BAD_LINE}"));
    lines.push(format!(
        "{{\"url\": \"http://h/\", \"headers\": {{\"Authorization\": \"{BAD_LINE}\\u0007\"}}}}"
    ));
    let job = Job::of(lines).unlearned(&format!(
        "cookies = true\nbackoff_base = \"50ms\"\nbackoff_cap = \"50ms\"\n[secrets]\nquery = [\"sesame\"]\n\
         headers = [\"x-door\"]\n[hosts.\"{authority}\"]\nheaders = {{ X-Door = \"{CONFIG_HEADER}\" }}\n"
    ));
    let ran = job.run(&["-vv", "--max-attempts", "2"]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    let sent = server.heads().concat();
    for secret in [ITEM_HEADER, ITEM_QUERY, ITEM_OWN_QUERY, ITEM_COOKIE, CONFIG_HEADER] {
        assert!(sent.contains(secret), "{secret} was never sent, so nothing was tested");
    }
    for (command, words) in [
        ("show.txt", &["job", "show", "job"][..]),
        ("list.txt", &["job", "list", "job"]),
        ("export.txt", &["job", "export", "job"]),
        ("check.txt", &["check"]),
    ] {
        let out = job.command(words).output().unwrap();
        fs::write(job.path(command), [out.stdout, out.stderr].concat()).unwrap();
    }
    let in_requests = [ITEM_HEADER, ITEM_QUERY, ITEM_OWN_QUERY, ITEM_PASSWORD, ITEM_COOKIE];
    let elsewhere = [CONFIG_HEADER, SERVER_COOKIE, SERVER_TOKEN, BAD_LINE];
    let mut looked_at = 0;
    for entry in fs::read_dir(job.dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "urls.txt" || name == "forbear.toml" {
            continue; // they are the tester's own
        }
        looked_at += 1;
        let bytes = read(&path);
        // The item's own request is the job's, and nobody else may read that file.
        let own = name == "job" || name.starts_with("job-");
        let secrets = elsewhere.iter().chain(in_requests.iter().filter(|_| !own));
        for secret in secrets {
            for form in [(*secret).to_owned(), base64(secret), base64(&format!("me:{secret}"))] {
                assert!(!contains(&bytes, &form), "{name} holds {form}");
            }
        }
        #[cfg(unix)]
        if own {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(
                path.metadata().unwrap().permissions().mode() & 0o077,
                0,
                "{name} can be read by others"
            );
        }
    }
    assert!(looked_at >= 7, "{looked_at} files");
}

#[tokio::test(flavor = "multi_thread")]
async fn k2_secrets_do_not_follow_a_redirect_to_another_origin() {
    let abroad = Wiretap::start([127, 0, 0, 2], |_, stream| say(stream, "HTTP/1.1 200 OK", b"abroad"));
    let to = abroad.url("/abroad");
    let home = Wiretap::start([127, 0, 0, 1], move |head, stream| match head.starts_with("GET /away") {
        true => say(
            stream,
            &format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nSet-Cookie: s={SERVER_COOKIE}"),
            b"",
        ),
        false if head.starts_with("GET /near") => say(stream, "HTTP/1.1 302 Found\r\nLocation: /here", b""),
        false => say(stream, "HTTP/1.1 200 OK", b"home"),
    });
    let line = |path: &str| {
        json!({
            "url": format!("http://me:{ITEM_PASSWORD}@{}/{path}", home.addr()),
            "headers": {
                "X-Api-Key": ITEM_HEADER, "X-Door": ITEM_HEADER, "Cookie": format!("c={ITEM_COOKIE}"),
                "Accept-Language": "en",
            },
        })
        .to_string()
    };
    let job = Job::of([line("away"), line("near")]).config(&format!(
        "cookies = true\n[secrets]\nheaders = [\"x-door\"]\n[hosts.\"{}\"]\nheaders = {{ X-Ours = \"{CONFIG_HEADER}\" }}\n",
        home.addr()
    ));
    job.run_all_done(2, &[]).await;
    let heads = abroad.heads();
    assert_eq!(heads.len(), 1, "{heads:?}");
    assert!(heads[0].to_lowercase().contains("accept-language: en"), "{}", heads[0]);
    assert!(!heads[0].contains("Zk7planted"), "{}", heads[0]);
    assert!(!heads[0].to_lowercase().contains("authorization"), "{}", heads[0]);
    let here = home.heads().into_iter().find(|head| head.starts_with("GET /here")).unwrap();
    for secret in [ITEM_HEADER, ITEM_COOKIE, CONFIG_HEADER] {
        assert!(here.contains(secret), "on the same origin they stay:\n{here}");
    }
    let record = job.records().into_iter().find(|record| record["body"] == "abroad").unwrap();
    assert_eq!(record["final_url"], abroad.url("/abroad"));
}

#[tokio::test(flavor = "multi_thread")]
async fn k2_a_redirect_to_a_link_local_address_is_not_followed() {
    let targets = [
        "http://169.254.169.254/latest/",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "file:///etc/passwd",
    ];
    let server = scripted(move |before, _| {
        Answer { status: 302, ..Answer::ok() }.header("location", targets[before % targets.len()])
    })
    .await;
    let job = Job::of(pages(&server, "p", targets.len() as u32));
    let ran = job.run(&["--max-attempts", "2", "--timeout", "5s"]).await;
    assert_eq!((ran.status, job.count("failed")), (3, targets.len()), "{}", ran.stderr);
    assert_eq!(server.stop().await.hits().len(), targets.len(), "asked once each: the answer is final");
}

#[tokio::test(flavor = "multi_thread")]
async fn k2_public_only_reaches_no_address_of_ones_own() {
    let server = zoo("open", ms(0)).await;
    let urls = [server.url("/1"), format!("http://localhost:{}/2", server.addr().port())];
    let job = Job::of(urls).config("public_only = true\n");
    let ran = job.run(&[]).await;
    assert_eq!((ran.status, job.count("failed")), (3, 2), "{}", ran.stderr);
    assert_eq!(server.stop().await.hits().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn k2_each_hop_of_a_redirect_waits_for_its_own_scope() {
    // The target's host is paused when the redirect leads there.
    let abroad = scripted(|before, _| match before {
        0 => Answer::refused(429).header("retry-after-ms", "2000"),
        _ => Answer::ok(),
    })
    .await;
    let to = abroad.url("/abroad");
    let home: Server = scripted(move |_, _| {
        Answer { status: 302, ..Answer::ok() }.header("location", to.clone()).after(ms(500))
    })
    .await;
    let urls = [vec![abroad.url("/first")], pages(&home, "p", 4)].concat();
    Job::of(urls).run_all_done(5, &[]).await;
    let log = abroad.stop().await;
    let told = log.refused().next().unwrap();
    let until = told.answered.unwrap() + ms(2000);
    assert!(log.hits()[1..].iter().all(|hit| hit.at >= until), "{:#?}", log.hits());
    assert_eq!(log.hits().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_a_body_over_the_bound_is_a_failure_that_names_the_size() {
    let limiter = |_: std::time::Duration, _: &forbear_zoo::Facts<'_>| Answer::ok();
    let server = started(limiter, ServerOptions { body_size: 200_000, ..ServerOptions::default() }).await;
    let job = Job::of(pages(&server, "p", 2)).config("body_max = \"64KiB\"\n");
    let ran = job.run(&[]).await;
    assert_eq!((ran.status, job.count("failed")), (3, 2), "{}", ran.stderr);
    for record in job.records() {
        assert!(record["error"].as_str().unwrap().contains("65536"), "{record}");
        assert!(record.get("body").is_none(), "{record}");
    }
    assert_eq!(server.stop().await.hits().len(), 2, "it will not be shorter the next time");
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_redirects_heads_and_time_are_bounded() {
    let server = Wiretap::start([127, 0, 0, 1], |head, stream| match head.split(' ').nth(1).unwrap_or("/") {
        "/loop" => say(stream, "HTTP/1.1 302 Found\r\nLocation: /loop", b""),
        "/head" => {
            write!(stream, "HTTP/1.1 200 OK\r\n")?;
            let line = format!("X-Long: {}\r\n", "x".repeat(1000));
            loop {
                stream.write_all(line.as_bytes())?;
            }
        }
        "/drip" => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")?;
            loop {
                stream.write_all(b"x")?;
                drip();
            }
        }
        _ => say(stream, "HTTP/1.1 200 OK", b"fine"),
    });
    let job = Job::of(["/loop", "/head", "/drip", "/fine"].map(|path| server.url(path)));
    let ran = job.run(&["--max-attempts", "1", "--timeout", "2s"]).await;
    assert_eq!((ran.status, job.count("failed"), job.count("done")), (3, 3, 1), "{}", ran.stderr);
    let hops = server.heads().iter().filter(|head| head.starts_with("GET /loop")).count();
    assert_eq!(hops, 11, "ten redirects of one item");
    for record in job.records().iter().filter(|record| record["outcome"] == "failed") {
        assert!(record["error"].as_str().is_some_and(|error| !error.is_empty()), "{record}");
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread of the server's own: slowness is its subject")]
fn drip() {
    std::thread::sleep(ms(50));
}
