//! What happens to the files of a job between its runs, and during one.

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::{
    fs::{self, OpenOptions},
    io::Write,
};

use kit::{Job, ms, pages, until, zoo};

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_run_ends_no_sooner_than_what_was_added_to_the_input() {
    let server = zoo("open", ms(0)).await;
    let job = Job::of(pages(&server, "p", 50));
    job.run_all_done(50, &[]).await;
    for more in 51..=55 {
        let mut input = OpenOptions::new().append(true).open(job.path("urls.txt")).unwrap();
        writeln!(input, "{}", server.url(&format!("/p/{more}"))).unwrap();
        job.run_all_done(more, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j4_records_of_a_deleted_output_do_not_count() {
    let server = zoo("open", ms(10)).await;
    let job = Job::of(pages(&server, "p", 400));
    let running = job.start(&["--host-concurrency", "2"]);
    until("a record", || !job.records().is_empty()).await;
    fs::rename(job.path("out.jsonl"), job.path("moved.jsonl")).unwrap();
    let ran = running.end().await;
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("out.jsonl was moved or deleted while this run wrote to it"),
        "{}",
        ran.stderr
    );
    fs::rename(job.path("moved.jsonl"), job.path("out.jsonl")).unwrap();
    job.run_all_done(400, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j4_a_mistyped_name_leaves_nothing_behind() {
    let job = Job::of(["http://127.0.0.1:9/"]);
    let words: [(&[&str], &str); 4] = [
        (&["fetch", "url.txt", "-o", "out.jsonl"], "cannot read url.txt"),
        (&["fetch", ".", "-o", "out.jsonl"], "is a directory"),
        (&["fetch", "-o", "out.jsonl"], "no INPUT"),
        (
            &["fetch", "urls.txt", "-o", "out.jsonl", "--job", "./out.jsonl"],
            "cannot be the job and its output",
        ),
    ];
    for (words, said) in words {
        let out = job.command(words).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains(said), "{words:?}: {stderr}");
    }
    let left: Vec<_> =
        fs::read_dir(job.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["urls.txt"], "nothing was made");
}
