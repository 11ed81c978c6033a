//! Every rule of the contract that is built has a test named after it (`p3_...`, or `..._p3_...`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What is built. A rule joins with the code that keeps it.
const RULES: &str = "s1 s2 s3 s4 s5 h1 h2 h3 h4 h5 p1 p2 p3 p4 p5 p6 p7 p8 b1 b2 b3 b4 c1 c2 c3 c4 l1 l6 v1 v2 v3 v4 \
                     x1 x2 e1 e2 e3 e4 e5 e6 j1 j2 j3 j4 j5 j6 k1 k2 k4 t1 t2";

/// The parts, between underscores, of the names of all functions that follow a `#[test]` in `dir`.
fn tested(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tested(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            // A test's attribute, then perhaps more attributes, then its name. proptest's and tokio's count as well.
            for test in text.split("test]").skip(1).chain(text.split("test(").skip(1)) {
                let name = test
                    .split("fn ")
                    .nth(1)
                    .and_then(|rest| rest.split(['(', '<']).next())
                    .unwrap_or_default();
                found.extend(name.split('_').map(str::to_owned));
            }
        }
    }
}

#[test]
fn every_rule_has_a_test_named_after_it() {
    let mut found = BTreeSet::new();
    tested(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
    let missing: Vec<&str> = RULES.split_whitespace().filter(|rule| !found.contains(*rule)).collect();
    assert!(missing.is_empty(), "no test is named after {}", missing.join(", "));
}
