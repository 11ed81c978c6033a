//! Hints: dates by any clock, budgets before they are used up (H1-H4).

use forbear_zoo::Answer;

use crate::kit::{GRACE, Job, assert_pauses_kept, ms, pages, scripted, secs, zoo};

#[tokio::test(flavor = "multi_thread")]
async fn h1_every_form_of_a_wait_is_obeyed() {
    let forms = [
        ("retry-after", "1", 1000),
        ("retry-after", "1.2", 1200),
        ("retry-after", "1s", 1000),
        ("retry-after-ms", "400", 400),
        ("x-retry-after", "1", 1000),
    ];
    let server = scripted(move |before, _| match forms.get(before / 2) {
        Some((name, value, least)) if before % 2 == 0 => {
            let mut answer = Answer::refused(429).header(*name, *value);
            answer.told = Some(ms(*least));
            answer
        }
        _ => Answer::ok(),
    })
    .await;
    let job = Job::of(pages(&server, "p", 10)).unlearned("");
    job.run_all_done(10, &["--workers", "1"]).await;
    let log = server.stop().await;
    assert_eq!(log.refused().count(), forms.len());
    assert!(log.sent_into_pause(ms(0)).is_empty(), "{:#?}", log.sent_into_pause(ms(0)));
}

/// The server's clock is an hour ahead, or behind; its `Date` says so. Told are two seconds, and neither an hour nor nothing.
async fn date_by_a_wrong_clock(skew: &str) {
    let spec = format!("fixed-window:limit=6/2s,phase=first-request,hint=http-date,skew={skew}");
    let server = zoo(&spec, ms(5)).await;
    Job::of(pages(&server, "p", 15)).unlearned("").run_all_done(15, &[]).await;
    let log = server.stop().await;
    assert!(log.refused().count() > 0);
    assert_pauses_kept(&log);
    let longest = log.gaps().max().unwrap();
    assert!(longest < secs(600), "{longest:?} of silence for a window of 2 s");
}

#[tokio::test(flavor = "multi_thread")]
async fn h3_a_date_by_a_clock_that_is_an_hour_off_means_what_it_meant() {
    tokio::join!(date_by_a_wrong_clock("1h"), date_by_a_wrong_clock("-1h"));
}

/// A budget is told with every answer; nothing is sent once it is used up, and next to nothing is refused.
async fn budget(hint: &str) {
    let spec = format!("fixed-window:limit=10/1s,phase=first-request,hint={hint}");
    let server = zoo(&spec, ms(5)).await;
    Job::of(pages(&server, "p", 40)).run_all_done(40, &[]).await;
    let log = server.stop().await;
    let past = log.sent_past_empty_budget(GRACE);
    assert!(past.is_empty(), "{hint}: {past:#?}");
    let refused = log.refused().count();
    // Answers to the first four, sent together, come back in any order.
    assert!(refused <= 3, "{hint}: {refused} refused of {}", log.hits().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_an_empty_budget_closes_the_scope_before_anything_is_refused() {
    tokio::join!(
        budget("reset-epoch"),
        budget("reset-epoch,skew=1h"),
        budget("reset-delta,skew=-1h"),
        budget("draft-3"),
        budget("draft-7"),
        budget("structured"),
    );
}
