//! One probe, and the way back (B1-B4, X1).

use forbear_zoo::{Answer, Fault, peak};

use crate::kit::{Job, assert_pauses_kept, ms, pages, quiet_after, scripted, secs, started, until, zoo};

#[tokio::test(flavor = "multi_thread")]
async fn b1_after_a_pause_exactly_one_request_probes() {
    // The answers are slow, so a second probe would be seen beside the first.
    let server = zoo("fixed-window:limit=12/1s,phase=first-request,hint=seconds", ms(150)).await;
    let job = Job::of(pages(&server, "p", 36));
    let ran = job.run_all_done(36, &["--workers", "64"]).await;
    let row = ran.row(&server);
    let log = server.stop().await;
    assert!(!log.probes().is_empty());
    assert_pauses_kept(&log);
    assert_eq!(row.probes, log.probes().len(), "the client calls them the same: {row:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_a_probe_on_the_wire_keeps_its_lease_as_long_as_it_lasts() {
    // It takes four leases to be answered; nobody else may ask meanwhile.
    let server = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(1)),
        1 => Answer::ok().after(ms(2000)),
        _ => Answer::ok(),
    })
    .await;
    let job = Job::of(pages(&server, "p", 10)).unlearned("probe_lease = \"500ms\"\nhost_concurrency = 1\n");
    job.run_all_done(10, &[]).await;
    let log = server.stop().await;
    assert_pauses_kept(&log);
    assert!(log.hits()[2].at >= log.hits()[1].answered.unwrap(), "{:#?}", &log.hits()[..3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_whoever_takes_over_from_a_killed_probe_is_one_probe_again() {
    let server = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(1)),
        1 => Answer::ok().after(secs(60)),
        _ => Answer::ok().after(ms(300)),
    })
    .await;
    let job = Job::of(pages(&server, "p", 10)).unlearned("workers = 8\n");
    let mut first = job.start(&["--host-concurrency", "1"]);
    until("the probe is on the wire", || server.log().hits().len() == 2).await;
    first.kill();
    job.run_all_done(10, &[]).await;
    let log = server.stop().await;
    assert_pauses_kept(&log);
    let hits = log.hits();
    assert!(hits[3].at >= hits[2].answered.unwrap(), "the scope was still shut for all others: {hits:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_a_probe_opens_nothing_but_its_own_scope() {
    // Two hosts pause at the same time; the first one's probe is admitted long before the second one's time is over.
    let short = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(1)),
        _ => Answer::ok(),
    })
    .await;
    let long = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(3)),
        _ => Answer::ok(),
    })
    .await;
    let urls = [pages(&short, "p", 5), pages(&long, "p", 5)].concat();
    Job::of(urls).unlearned("host_concurrency = 1\n").run_all_done(10, &[]).await;
    for server in [short, long] {
        let log = server.stop().await;
        assert_pauses_kept(&log);
        assert_eq!(log.probes().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b3_each_refused_probe_makes_the_pause_longer() {
    let server = scripted(|before, _| if before < 5 { Answer::refused(503) } else { Answer::ok() }).await;
    let config =
        "workers = 1\nbackoff_base = \"100ms\"\nbackoff_cap = \"400ms\"\njitter = 0\nrefusals_per_item = 9\n";
    let ran = Job::of(pages(&server, "p", 3)).unlearned(config).run_all_done(3, &[]).await;
    assert_eq!(ran.row(&server).probes, 5);
    let log = server.stop().await;
    // The cap doubles with each refused probe, so it never stands in the way of the exponential.
    for (index, least) in [100, 200, 400, 800, 1600].into_iter().enumerate() {
        let quiet = quiet_after(&log, index);
        assert!(quiet >= ms(least), "after refusal {index}: {quiet:?}, at least {least} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b3_a_probe_without_an_answer_is_no_reopening() {
    let server = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(1)),
        1 | 2 => Answer::fault(Fault::Reset).after(ms(100)),
        _ => Answer::ok().after(ms(100)),
    })
    .await;
    let config = "host_concurrency = 1\nbackoff_base = \"300ms\"\n";
    let ran = Job::of(pages(&server, "p", 10)).unlearned(config).run_all_done(10, &[]).await;
    let row = ran.row(&server);
    assert_eq!((row.pauses, row.probes), (1, 3), "still the same incident, and three probes: {row:?}");
    let log = server.stop().await;
    for index in [1, 2] {
        let hits = log.hits();
        let quiet = hits[index + 1].at - hits[index].finished.unwrap();
        assert!(quiet >= ms(300), "a probe soon is not a probe at once: {quiet:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b4_the_backlog_comes_back_one_by_one() {
    // Sixty-four workers wait with 300 pages. The server would take them all at once.
    let server = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(2)),
        _ => Answer::ok().after(ms(5)),
    })
    .await;
    let job = Job::of(pages(&server, "p", 300));
    job.run_all_done(300, &["--workers", "64"]).await;
    let log = server.stop().await;
    assert_pauses_kept(&log);
    let probe = log.probes()[0].hit.at;
    let back = || log.hits().iter().filter(|hit| hit.at >= probe);
    let first_second = back().filter(|hit| hit.at < probe + secs(1));
    let herd = peak(first_second, ms(100));
    assert!(herd <= 3, "{herd} of them in one tenth of a second right after the pause");
    assert!(back().count() > 290);
}

#[tokio::test(flavor = "multi_thread")]
async fn b4_no_herd_comes_back_to_a_known_pace() {
    // The pace is told: 20 in a second. So no tenth of a second has many more than two, at any time after the pause.
    let server = zoo("gcra:rate=20/s,burst=10,hint=draft-7,hint=seconds", ms(5)).await;
    Job::of(pages(&server, "p", 80)).run_all_done(80, &["--workers", "64"]).await;
    let log = server.stop().await;
    assert_pauses_kept(&log);
    if let Some(probe) = log.probes().first() {
        let herd = peak(log.hits().iter().filter(|hit| hit.at >= probe.hit.at), ms(200));
        assert!(herd <= 8, "{herd} in a fifth of a second, of 20 in a second");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x1_a_host_that_refuses_again_and_again_trips_and_one_probe_closes_the_circuit() {
    let server = started(
        {
            let mut before = 0;
            move |_now: std::time::Duration, _: &forbear_zoo::Facts<'_>| {
                before += 1;
                if before <= 4 { Answer::refused(429) } else { Answer::ok().after(ms(100)) }
            }
        },
        forbear_zoo::ServerOptions::default(),
    )
    .await;
    let config = "workers = 1\nbackoff_base = \"100ms\"\nbackoff_cap = \"100ms\"\npause_cap = \"100ms\"\njitter = 0\n\
                  refusals_per_item = 9\n[circuit]\nrefusals = 4\nincidents = 3\npause = \"2s\"\n";
    let ran = Job::of(pages(&server, "p", 10)).unlearned(config).run_all_done(10, &["-v"]).await;
    assert!(ran.stderr.contains("refuses again and again, pause of 2.0 s"), "{}", ran.stderr);
    let log = server.stop().await;
    let quiet: Vec<bool> = (0..4).map(|index| quiet_after(&log, index) >= secs(2)).collect();
    assert_eq!(quiet, [false, false, false, true], "the fourth in a row trips");
    assert_eq!(log.refused().count(), 4, "one success after it, and all is open");
}
