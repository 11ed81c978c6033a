//! "Did you mean": for a word that is not known, the one that was probably meant.

use super::{
    cost::COST,
    keys::{ENDPOINT, HOST, TOP},
};

/// The help for an unknown key `word` in `table` (empty for the top level).
pub(super) fn key(table: &str, word: &str) -> Option<String> {
    let here = in_table(table);
    if let Some(near) = nearest(word, here.iter().copied()) {
        return Some(format!("did you mean `{near}`?"));
    }
    // The usual slip in TOML: a key of the top level below a table's heading belongs to that table.
    if !table.is_empty() && in_table("").contains(&word) {
        return Some(format!("`{word}` belongs to the top level: move it above the first [table]"));
    }
    let owner = TABLES.iter().find(|t| **t != table && in_table(t).contains(&word));
    if let Some(owner) = owner.filter(|o| !o.is_empty()) {
        return Some(format!("`{word}` belongs to {}", heading(owner)));
    }
    Some(format!("the keys here are {}", here.join(", ")))
}

/// The candidate that differs least, if it differs little enough to be a slip.
pub(super) fn nearest<'a>(word: &str, among: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |w: &str| w.to_lowercase().replace('-', "_");
    let word = plain(word);
    let (distance, found) = among.into_iter().map(|w| (distance(&word, &plain(w)), w)).min()?;
    let allowed = match word.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    };
    (distance <= allowed).then_some(found)
}

fn in_table(table: &str) -> Vec<&'static str> {
    match table {
        "hosts.NAME" => HOST.iter().map(|k| k.name).chain(["headers", "endpoints", "cost"]).collect(),
        "hosts.NAME.endpoints" => ENDPOINT.iter().map(|k| k.name).collect(),
        "cost" | "hosts.NAME.cost" => COST.iter().map(|k| k.name).collect(),
        "" => ["policy", "hosts", "groups", "pad", "secrets", "circuit", "exits", "cost"]
            .into_iter()
            .chain(TOP.iter().map(|k| k.name).filter(|n| !n.contains('.')))
            .collect(),
        _ => {
            let lists: &[&str] = if table == "exits" { &["list", "file"] } else { &[] };
            let keys = TOP.iter().filter_map(|k| k.name.strip_prefix(table)?.strip_prefix('.'));
            lists.iter().copied().chain(keys).collect()
        }
    }
}

fn heading(table: &str) -> String {
    match table {
        "hosts.NAME" => "[hosts.\"NAME\"]".to_owned(),
        "hosts.NAME.cost" => "[hosts.\"NAME\".cost]".to_owned(),
        "hosts.NAME.endpoints" => "[[hosts.\"NAME\".endpoints]]".to_owned(),
        _ => format!("[{table}]"),
    }
}

/// Changes, insertions, omissions and swaps of neighbours that lead from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

const TABLES: &[&str] =
    &["", "hosts.NAME", "hosts.NAME.endpoints", "pad", "secrets", "circuit", "exits", "cost"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_nonsense_is_not() {
        for (table, word, help) in [
            ("", "wrokers", "did you mean `workers`?"),
            ("", "max-attempts", "did you mean `max_attempts`?"),
            ("", "Timeout", "did you mean `timeout`?"),
            ("", "query", "`query` belongs to [secrets]"),
            ("", "match", "`match` belongs to [[hosts.\"NAME\".endpoints]]"),
            ("secrets", "workers", "`workers` belongs to the top level: move it above the first [table]"),
            ("hosts.NAME", "concurency", "did you mean `concurrency`?"),
            ("circuit", "xyzzy", "the keys here are refusals, incidents, pause"),
        ] {
            assert_eq!(key(table, word).as_deref(), Some(help), "{table} {word}");
        }
        assert_eq!(nearest("xx", ["rate"]), None);
        assert_eq!(nearest("politte", ["polite", "retry-after"]), Some("polite"));
    }
}
