//! What went through each exit: the table at the end of a run, and what the job keeps of all its runs.
//!
//! What a test claims is compared with the logs of the proxies and with the records.

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::fs;

use forbear_zoo::proxy::{Behaviour, Proxy, ProxyOptions};
use kit::{Job, Ran, ms, pages, until, zoo};
use serde_json::Value;

const PASSWORD: &str = "pl4nted-passw0rd";

async fn proxies<const N: usize>(first: u8) -> [Proxy; N] {
    let mut all = Vec::new();
    for last in (first..).take(N) {
        all.push(Proxy::start(ProxyOptions::at(last)).await.unwrap());
    }
    all.try_into().unwrap()
}

/// Puts them into a list beside the job, each with what is said of it; flags that name it.
fn listed(job: &Job, proxies: &[Proxy], said: &[&str]) -> [&'static str; 2] {
    let line = |(proxy, said): (&Proxy, &&str)| {
        let login = format!("me:{PASSWORD}");
        format!("{} {said}\n", proxy.url("http", &login))
    };
    let lines: String = proxies.iter().zip(said).map(line).collect();
    fs::write(job.path("exits.txt"), lines).unwrap();
    ["--proxies", "exits.txt"]
}

fn name(proxy: &Proxy) -> String {
    format!("http://{}", proxy.addr())
}

/// A row of a table: the cells behind its first word or words.
fn row<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let row = text.lines().find_map(|line| line.strip_prefix(first).filter(|rest| rest.starts_with(' ')));
    row.unwrap_or_else(|| panic!("no row of {first}:\n{text}")).split_whitespace().collect()
}

/// What `job show --json` says of the exits.
fn kept(job: &Job) -> Vec<Value> {
    let shown = job.say(&["job", "show", "job", "--json"]);
    assert!(!shown.contains(PASSWORD), "K1: {shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown["exits"].as_array().unwrap().clone()
}

fn of<'a>(rows: &'a [Value], proxy: &Proxy) -> &'a Value {
    let name = name(proxy);
    rows.iter().find(|row| row["exit"] == *name).unwrap_or_else(|| panic!("no {name} in {rows:#?}"))
}

/// Bytes of the bodies that came by an exit, by the records.
fn bytes(job: &Job, proxy: &Proxy) -> u64 {
    let name = name(proxy);
    let records = job.records();
    records
        .iter()
        .filter(|record| record["exit"] == *name)
        .map(|record| record["bytes"].as_u64().unwrap())
        .sum()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.000_06
}

/// Both rows of a run's table say what the proxies saw; gives what was paid by it.
fn assert_table(ran: &Ran, proxies: &[Proxy], before: [u64; 2]) -> f64 {
    for (proxy, before) in proxies.iter().zip(before) {
        let cells = row(&ran.stderr, &name(proxy));
        let asked = (proxy.count() - before).to_string();
        assert_eq!(cells[..6], ["ok", &asked, &asked, "0", "0", "0"], "{}", ran.stderr);
    }
    assert!(!ran.stderr.contains(PASSWORD), "K1: {}", ran.stderr);
    row(&ran.stderr, "all 2 exits").last().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_the_table_and_the_job_say_what_went_through_each_exit_and_what_it_cost() {
    let server = zoo("open", ms(2)).await;
    let proxies: [Proxy; 2] = proxies(31).await;
    let job = Job::of(pages(&server, "p", 60));
    let flags = listed(&job, &proxies, &["price_per_request=0.5", "price_per_gb=2000"]);
    let ran = job.run_all_done(60, &flags).await;

    let counts = [proxies[0].count(), proxies[1].count()];
    assert_eq!(counts.iter().sum::<u64>(), 60, "one request an item");
    let price = |requests: u64, bytes: u64| requests as f64 * 0.5 + bytes as f64 / 1e9 * 2000.0;
    let paid = price(counts[0], bytes(&job, &proxies[1]));
    let told = assert_table(&ran, &proxies, [0, 0]);
    assert!(near(told, paid), "{told}, not {paid}:\n{}", ran.stderr);

    let rows = kept(&job);
    assert_eq!(rows.len(), 2);
    for (proxy, count) in proxies.iter().zip(counts) {
        let row = of(&rows, proxy);
        let numbers = ["requests", "done", "refused", "blocked", "faults", "bytes"];
        let numbers = numbers.map(|key| row[key].as_u64().unwrap());
        assert_eq!(numbers, [count, count, 0, 0, 0, bytes(&job, proxy)], "{row}");
        assert_eq!(row["state"], "ok");
    }
    assert!(near(of(&rows, &proxies[0])["cost"].as_f64().unwrap(), price(counts[0], 0)), "{rows:?}");
    assert!(
        near(of(&rows, &proxies[1])["cost"].as_f64().unwrap(), price(0, bytes(&job, &proxies[1]))),
        "{rows:?}"
    );

    // A second run, of lines that were added: its own table, and the sum of both in the job.
    let more = pages(&server, "q", 40).join("\n") + "\n";
    let lines = fs::read_to_string(job.path("urls.txt")).unwrap();
    fs::write(job.path("urls.txt"), lines + &more).unwrap();
    let again = job.run_all_done(100, &flags).await;
    let paid_again = assert_table(&again, &proxies, counts);
    let shown = job.say(&["job", "show", "job"]);
    for proxy in &proxies {
        let count = proxy.count().to_string();
        assert_eq!(row(&shown, &name(proxy))[..3], ["ok", &count, &count], "{shown}");
    }
    let sum: f64 = row(&shown, "all 2 exits").last().unwrap().parse().unwrap();
    assert!((sum - told - paid_again).abs() < 0.001, "{sum} is not {told} and {paid_again}:\n{shown}");
    assert!(!shown.contains(PASSWORD), "K1: {shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_an_exit_that_turned_us_away_is_out_in_both_tables() {
    let server = zoo("open", ms(2)).await;
    let proxies: [Proxy; 2] = proxies(33).await;
    proxies[1].behave(|_| Behaviour::status(407));
    let job = Job::of(pages(&server, "p", 40));
    let ran = job.run_all_done(40, &listed(&job, &proxies, &["", ""])).await;
    let asked = proxies[1].count().to_string();
    let shown = job.say(&["job", "show", "job"]);
    for text in [&ran.stderr, &shown] {
        assert_eq!(row(text, &name(&proxies[0]))[..4], ["ok", "40", "40", "0"], "{text}");
        assert_eq!(row(text, &name(&proxies[1]))[..6], ["out", &asked, "0", "0", "0", &asked], "{text}");
        assert!(!text.contains("cost"), "no price, no cost:\n{text}");
    }
    assert_eq!(of(&kept(&job), &proxies[1])["cost"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_without_exits_nothing_is_said_of_them() {
    let server = zoo("open", ms(2)).await;
    let job = Job::of(pages(&server, "p", 10));
    let ran = job.run_all_done(10, &[]).await;
    let shown = job.say(&["job", "show", "job"]);
    for text in [&ran.stderr, &shown] {
        assert!(!text.contains("exit"), "{text}");
    }
    assert_eq!(kept(&job), [] as [Value; 0]);
}

/// What a killed run had saved of its requests, and what the next one sent, is what the job knows at the end.
#[tokio::test(flavor = "multi_thread")]
async fn j1_a_kill_costs_little_of_what_is_known_of_the_exits() {
    let server = zoo("open", ms(2)).await;
    let proxies: [Proxy; 2] = proxies(35).await;
    let job = Job::of(pages(&server, "p", 600));
    let flags = listed(&job, &proxies, &["", ""]);
    let slowly = [&flags[..], &["--rate", "20/s", "--progress", "plain"]].concat();
    let mut running = job.start(&slowly);
    // No job is there at first.
    until("a job", || job.path("out.jsonl").exists()).await;
    until("what is saved while it runs", || !kept(&job).is_empty()).await;
    running.kill();
    assert!(running.said().contains(", exits 2/2"), "{}", running.said());
    let requests = |rows: &[Value]| rows.iter().map(|row| row["requests"].as_u64().unwrap()).sum::<u64>();
    let saved = requests(&kept(&job));
    let sent: u64 = proxies.iter().map(Proxy::count).sum();
    assert!(saved > 0 && saved <= sent, "{saved} of {sent}");

    let ran = job.run_all_done(600, &flags).await;
    let own: u64 =
        proxies.iter().map(|proxy| row(&ran.stderr, &name(proxy))[1].parse::<u64>().unwrap()).sum();
    assert_eq!(requests(&kept(&job)), saved + own);
}
