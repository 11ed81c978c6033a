//! The SQLite job passes the suite for all queues.

mod queue_support;

use forbear_core::time::Timestamp;
use forbear_store::queue::{
    inspect::{JobFile, Retry, Running, State, Which, retry, unpark},
    *,
};
use queue_support::{Place, queue_conformance};

queue_conformance!(Place);

#[test]
fn j2_the_suite_asks_for_all_that_a_job_can_do() {
    let suite = include_str!("queue_support/suite.rs");
    let names = |source: &'static str| {
        source.lines().filter_map(|line| {
            let rest = line.trim_start().strip_prefix("pub ")?;
            let rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")?;
            rest.split(['(', '<']).next()
        })
    };
    let job = names(include_str!("../src/queue/job.rs"));
    let all: Vec<&str> = job.chain(names(include_str!("../src/queue/inspect.rs"))).collect();
    assert!(all.contains(&"claim") && all.contains(&"retry") && all.len() > 30, "{all:?}");
    for name in all {
        let called = [".", "::", " ", "("].map(|before| format!("{before}{name}("));
        // Where others can join a job is the one thing in which queues differ.
        let asked = called.iter().any(|call| suite.contains(call)) || name == "is_shared";
        assert!(asked, "no test of the suite calls {name}");
    }
}
