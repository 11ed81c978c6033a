//! Plays the sets of instances and writes their tables: how much of each limit was used, and how much was refused.
//!
//! ```text
//! cargo run --release -p forbear-sim --example table -- write                # all of it, into docs/reference/learning-figures.md
//! cargo run --release -p forbear-sim --example table -- told gate            # set A with Retry-After, one client
//! cargo run --release -p forbear-sim --example table -- silent gate fixed-window         # each instance of one kind
//! cargo run --release -p forbear-sim --example table -- silent gate fixed-window 7       # one instance: a replay
//! cargo run --release -p forbear-sim --example table -- held told gate       # the set that nothing is tuned on
//! cargo run --release -p forbear-sim --example table -- further 3 told gate  # another draw, to tune on
//! cargo run --release -p forbear-sim --example table -- wide silent gate     # set B
//! cargo run --release -p forbear-sim --example table -- jobs gate            # short jobs, each
//! cargo run --release -p forbear-sim --example table -- rows gate            # bans, tenants, nodes, each
//! cargo run --release -p forbear-sim --example table -- load                 # a hundred thousand workers for an hour
//! ```

#![allow(clippy::print_stdout, reason = "a table is what it is for")]

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use forbear_core::policy::ScopePolicy;
use forbear_sim::{
    Gated, Work, run,
    sets::{self, Kind},
};

mod page;
mod play;
mod show;

use play::{CLIENTS, Set};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["load"] => load(),
        ["write", path @ ..] => page::write(path.first().copied()),
        ["jobs", client] => {
            let runs = show::play_jobs(client);
            show::each_job(&runs);
            print(show::jobs(&runs))
        }
        ["rows", client] => print(show::rows(client)),
        ["further", draw, rest @ ..] => match draw.parse() {
            Ok(draw) => tables(Set::Further(draw), rest),
            Err(_) => wrong("a further draw has a number"),
        },
        ["held", rest @ ..] => tables(Set::Held, rest),
        ["wide", rest @ ..] => tables(Set::Wide, rest),
        rest => tables(Set::A, rest),
    }
}

fn print(text: String) -> ExitCode {
    print!("{text}");
    ExitCode::SUCCESS
}

fn tables(set: Set, args: &[&str]) -> ExitCode {
    let hints = args.first().map_or(vec![false, true], |arg| vec![*arg == "told"]);
    let clients = match args.get(1) {
        Some(one) => match CLIENTS.iter().find(|client| *client == one) {
            Some(client) => vec![*client],
            None => return wrong(&format!("no client `{one}`; there are {}", CLIENTS.join(", "))),
        },
        None => CLIENTS.to_vec(),
    };
    let kinds = match args.get(2).map(|name| Kind::by_name(name)) {
        Some(Some(kind)) => vec![kind],
        Some(None) => {
            return wrong(&format!(
                "no kind of that name; there are {}",
                Kind::ALL.map(Kind::name).join(", ")
            ));
        }
        None => set.kinds().to_vec(),
    };
    let only: Option<u32> = args.get(3).and_then(|n| n.parse().ok());
    let mut broken = 0;
    for told in hints {
        for client in &clients {
            let kinds: Vec<Kind> = kinds.iter().copied().filter(|kind| !told || kind.tells()).collect();
            let rows = play::play(client, set, &kinds, told, only);
            if args.len() > 2 {
                show::each(&rows);
            }
            println!("\n{client}, {}\n\n{}", if told { "told" } else { "silent" }, show::set(&rows));
            println!("{}", show::names(&rows));
            broken += rows.iter().filter(|row| row.result.is_err()).count();
        }
    }
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn wrong(what: &str) -> ExitCode {
    eprintln!("{what}");
    ExitCode::from(2)
}

/// A hundred thousand workers for an hour of virtual time.
fn load() -> ExitCode {
    let mut scenario = sets::set_a(Kind::TokenBucket, 7, true);
    (scenario.workers, scenario.run_for, scenario.work) = (100_000, Duration::from_secs(3600), Work::Endless);
    let begun = Instant::now();
    let result = run(&scenario, &mut Gated::new(ScopePolicy::default(), scenario.workers));
    match result {
        Ok(report) => println!("{} requests in {:.1?}", report.sent, begun.elapsed()),
        Err(violation) => eprintln!("{violation}"),
    }
    ExitCode::SUCCESS
}
