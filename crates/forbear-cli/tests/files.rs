//! What happens to the files of a job between its runs, and during one.

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::{fs::OpenOptions, io::Write};

use kit::{Job, ms, pages, zoo};

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
