//! Plays the fleet of a seed, and prints every request: `cargo run -p forbear-sim --example fleet -- 17`.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::process::ExitCode;

use forbear_sim::fleet::{self, Fleet};

fn main() -> ExitCode {
    let Some(seed) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        eprintln!("usage: fleet SEED");
        return ExitCode::from(2);
    };
    let fleet = Fleet::draw(seed);
    println!("{fleet:#?}");
    let ran = fleet::run_seen(&fleet, &mut |seen| {
        let exit = seen.exit.map_or_else(|| "direct".to_owned(), |exit| format!("exit {exit}"));
        println!(
            "{:>12.3} {:>12.3}  site {} item {:>4} {exit:<8} {} {:?} -> {:?}, shut until {:?}",
            seen.sent.as_secs_f64(),
            seen.back.as_secs_f64(),
            seen.site,
            seen.item,
            if seen.probe { "probe" } else { "     " },
            seen.outcome,
            seen.verdict,
            seen.shut_until,
        );
    });
    match ran {
        Ok(summary) => {
            println!("{summary:#?}");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}
