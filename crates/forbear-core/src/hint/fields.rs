//! What the header names mean, for services that nobody described (H2), and the values that only these headers have.
//!
//! Names are read by their words, not from a list: `x-ratelimit-limit-requests`, `anthropic-ratelimit-requests-limit`
//! and `fastly-ratelimit-reset` follow one grammar. [`INSTRUCTIONS`] and [`ROLES`] are that grammar's words; the
//! reference page lists them and a test compares.

use std::time::Duration;

use super::value::{self, Number, Unit};

/// Name endings of an explicit instruction to wait, and what a bare number in them counts. Anything may stand before.
pub const INSTRUCTIONS: &[(&str, Unit)] = &[
    ("retry-after", Unit::Seconds),
    ("retry-after-ms", Unit::Millis),
    ("retry-after-millis", Unit::Millis),
    ("retry-after-milliseconds", Unit::Millis),
    ("retry-after-seconds", Unit::Seconds),
    ("retry-after-secs", Unit::Seconds),
    ("retry-after-sec", Unit::Seconds),
    ("retry-in", Unit::Seconds),
    ("retry-in-ms", Unit::Millis),
    ("retry-in-seconds", Unit::Seconds),
    // Milliseconds despite its name; the AWS SDKs read it so.
    ("x-amz-retry-after", Unit::Millis),
    ("grpc-retry-pushback-ms", Unit::Millis),
];

/// What one header says of a budget.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// How many there are in a window.
    Limit,
    /// How many are left.
    Remaining,
    /// How many are gone.
    Used,
    /// When the counter is refilled.
    Reset,
    /// How long a window is. Never a wait.
    Window,
    /// How many the refused request needed.
    Need,
    /// How many come back in a second. Never a wait by itself.
    Rate,
}

/// The words of a budget's header after `ratelimit` (or `rate-limit`), by role; a name with several takes the first of
/// this table, so that `limit-window` is a window.
pub const ROLES: &[(&str, Role)] = &[
    ("remaining", Role::Remaining),
    ("remain", Role::Remaining),
    ("left", Role::Remaining),
    ("available", Role::Remaining),
    ("reset", Role::Reset),
    ("resets", Role::Reset),
    ("resettime", Role::Reset),
    ("resetat", Role::Reset),
    ("resetafter", Role::Reset),
    ("resetin", Role::Reset),
    ("used", Role::Used),
    ("usage", Role::Used),
    ("window", Role::Window),
    ("period", Role::Window),
    ("interval", Role::Window),
    ("duration", Role::Window),
    ("limit", Role::Limit),
    ("max", Role::Limit),
    ("quota", Role::Limit),
    ("total", Role::Limit),
    ("capacity", Role::Limit),
];

/// Words beside `reset` and the window words that only say how the time is written.
const MODIFIERS: [&str; 13] = [
    "after",
    "in",
    "at",
    "time",
    "date",
    "timestamp",
    "epoch",
    "utc",
    "delta",
    "seconds",
    "secs",
    "sec",
    "s",
];
const MILLIS: [&str; 4] = ["ms", "millis", "milliseconds", "msec"];

/// The name of a budget inside a response: everything of a header's name but its role.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Key<'a> {
    /// What stands before `ratelimit`: `x`, a vendor, nothing.
    pub(crate) prefix: &'a str,
    /// The words between `ratelimit` and the role, and after the role: `requests`, `tokens`, `day`.
    pub(crate) before: &'a str,
    pub(crate) after: &'a str,
}

impl Key<'_> {
    /// `limit-requests` and `requests-limit` are one budget.
    pub(crate) fn same(&self, other: &Key<'_>) -> bool {
        let crossed = self.before == other.after && self.after == other.before;
        self.prefix == other.prefix && (crossed || (self.before == other.before && self.after == other.after))
    }

    pub(crate) fn is_named(&self, dimension: &str) -> bool {
        (self.before == dimension && self.after.is_empty())
            || (self.after == dimension && self.before.is_empty())
    }

    /// The families that the RateLimit drafts speak of, with and without the older `X-`.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.prefix, "" | "x")
    }
}

/// What a header is, by its name alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Class<'a> {
    Other,
    Instruction(Unit),
    /// `grpc-retry-pushback-ms`, which may be negative: an order not to retry.
    Pushback,
    ShouldRetry,
    /// A challenge for people, whatever the status.
    Challenge,
    GrpcStatus,
    ProxyStatus,
    Part {
        key: Key<'a>,
        role: Role,
        unit: Unit,
    },
    /// `RateLimit` itself, or a name with no role: the value holds the whole budget.
    Whole(Key<'a>),
    Policy(Key<'a>),
    /// The limit counts everything of this credential.
    Scope,
}

/// Reads a lower-case header name. This is on the way of every response, so most names leave at the first test.
pub(crate) fn classify(name: &str) -> Class<'_> {
    match word_of(name.as_bytes()) {
        Some(Word::Retry) => return retry_class(name),
        Some(Word::Limit) => {}
        None => {
            return match name {
                "cf-mitigated" | "x-amzn-waf-action" => Class::Challenge,
                "grpc-status" => Class::GrpcStatus,
                "proxy-status" => Class::ProxyStatus,
                _ => Class::Other,
            };
        }
    }
    let Some((prefix, rest)) = split_at_ratelimit(name) else { return Class::Other };
    match rest {
        "" => return Class::Whole(Key { prefix, before: "", after: "" }),
        "policy" => return Class::Policy(Key { prefix, before: "", after: "" }),
        "scope" | "global" => return Class::Scope,
        _ => {}
    }
    let Some((at, role)) = role_in(rest) else {
        return Class::Whole(Key { prefix, before: rest, after: "" });
    };
    let before = rest[..at].trim_end_matches('-');
    let mut after = rest[at..].find('-').map_or("", |dash| &rest[at + dash + 1..]);
    let mut unit = Unit::Seconds;
    if matches!(role, Role::Reset | Role::Window) {
        while let Some(word) = after.split('-').next().filter(|w| MODIFIERS.contains(w) || MILLIS.contains(w))
        {
            if MILLIS.contains(&word) {
                unit = Unit::Millis;
            }
            after = after[word.len()..].trim_start_matches('-');
        }
        if let Some((head, last)) = after.rsplit_once('-')
            && MILLIS.contains(&last)
        {
            (after, unit) = (head, Unit::Millis);
        }
    }
    Class::Part { key: Key { prefix, before, after }, role, unit }
}

enum Word {
    Retry,
    Limit,
}

/// Which of the two words that matter stands in a name; `retry` goes first. Both have a `t`, and few names have many.
fn word_of(name: &[u8]) -> Option<Word> {
    let mut found = None;
    for at in 2..name.len() {
        if name[at] != b't' {
            continue;
        }
        if name[at - 2..].starts_with(b"retry") {
            return Some(Word::Retry);
        }
        if name[..at].ends_with(b"limi") {
            found = Some(Word::Limit);
        }
    }
    found
}

fn retry_class(name: &str) -> Class<'_> {
    if name == "grpc-retry-pushback-ms" {
        return Class::Pushback;
    }
    if name.ends_with("should-retry") {
        return Class::ShouldRetry;
    }
    // The longest ending decides, so `x-amz-retry-after` is not read as the plain one.
    let ends =
        |ending: &str| name.strip_suffix(ending).is_some_and(|head| head.is_empty() || head.ends_with('-'));
    match INSTRUCTIONS.iter().filter(|(ending, _)| ends(ending)).max_by_key(|(ending, _)| ending.len()) {
        Some((_, unit)) => Class::Instruction(*unit),
        None => Class::Other,
    }
}

/// Splits `x-rate-limit-reset` into `x` and `reset`.
fn split_at_ratelimit(name: &str) -> Option<(&str, &str)> {
    for marker in ["ratelimit", "rate-limit"] {
        let Some(at) = name.find(marker) else { continue };
        let (before, after) = (&name[..at], &name[at + marker.len()..]);
        let after = after.strip_prefix('s').unwrap_or(after); // X-Acme-Rate-Limits
        if (before.is_empty() || before.ends_with('-')) && (after.is_empty() || after.starts_with('-')) {
            return Some((before.trim_end_matches('-'), after.trim_start_matches('-')));
        }
    }
    None
}

/// The role that a dashed name plays, and where its word begins.
fn role_in(name: &str) -> Option<(usize, Role)> {
    let mut best: Option<(usize, usize)> = None; // row of the table, place in the name
    let mut at = 0;
    for part in name.split('-') {
        if let Some(row) = ROLES.iter().position(|(word, _)| *word == part)
            && best.is_none_or(|(old, _)| row < old)
        {
            best = Some((row, at));
        }
        at += part.len() + 1;
    }
    best.map(|(row, at)| (at, ROLES[row].1))
}

/// One budget as a value tells it: a member of `RateLimit` or `RateLimit-Policy` in any draft's form, Zendesk's
/// `total=10; remaining=0; resets=37`, Auth0's `b=per_hour;q=10;r=0;t=774`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told<'a> {
    pub(crate) name: Option<&'a [u8]>,
    pub(crate) limit: Option<f64>,
    pub(crate) remaining: Option<f64>,
    pub(crate) reset: Option<&'a [u8]>,
    pub(crate) window: Option<Duration>,
    /// Its unit is `concurrent-requests`.
    pub(crate) concurrent: bool,
}

/// Budgets in one header value that are kept.
const TOLD_MAX: usize = 16;

/// Reads a list of budgets. Unknown keys are comments; a quoted separator separates nothing.
pub(crate) fn budgets(raw: &[u8]) -> impl Iterator<Item = Told<'_>> {
    let mut pieces = Pieces { rest: raw, first: true }.peekable();
    std::iter::from_fn(move || {
        pieces.peek()?;
        let mut told = Told::default();
        let mut begun = false;
        while let Some(piece) = pieces.peek() {
            let pair =
                piece.text.iter().position(|b| *b == b'=').filter(|at| *at > 0 && piece.text[0] != b'"');
            let Some(at) = pair else {
                // A bare item begins a budget; behind a semicolon it is a flag.
                if piece.new_member {
                    if begun {
                        break;
                    }
                    match Number::read(piece.text) {
                        Some(number) => told.limit = Some(number.as_f64()),
                        None => told.name = Some(unquoted(piece.text)),
                    }
                }
                begun = true;
                pieces.next();
                continue;
            };
            let (key, text) = (value::trim(&piece.text[..at]), unquoted(value::trim(&piece.text[at + 1..])));
            // A dictionary's members describe one budget, so it ends where a key comes again.
            if piece.new_member && told.has(key) {
                break;
            }
            told.set(key, text);
            begun = true;
            pieces.next();
        }
        Some(told)
    })
    .take(TOLD_MAX)
}

impl<'a> Told<'a> {
    fn has(&self, key: &[u8]) -> bool {
        match part_of(key) {
            Some(Part::Name) => self.name.is_some(),
            Some(Part::Limit) => self.limit.is_some(),
            Some(Part::Remaining) => self.remaining.is_some(),
            Some(Part::Reset) => self.reset.is_some(),
            Some(Part::Window) => self.window.is_some(),
            Some(Part::Unit) | None => false,
        }
    }

    pub(crate) fn set(&mut self, key: &[u8], text: &'a [u8]) {
        let count = || Number::read(text).map(Number::as_f64);
        match part_of(key) {
            Some(Part::Name) => self.name = Some(text),
            Some(Part::Limit) => self.limit = count(),
            Some(Part::Remaining) => self.remaining = count(),
            Some(Part::Reset) => self.reset = Some(text),
            Some(Part::Window) => self.window = window(text, Unit::Seconds),
            Some(Part::Unit) => self.concurrent = text == b"concurrent-requests",
            None => {}
        }
    }
}

#[derive(Clone, Copy)]
enum Part {
    Name,
    Limit,
    Remaining,
    Reset,
    Window,
    Unit,
}

fn part_of(key: &[u8]) -> Option<Part> {
    Some(match key {
        b"b" | b"name" => Part::Name,
        b"q" | b"limit" | b"quota" | b"total" | b"max" => Part::Limit,
        b"r" | b"remaining" | b"left" => Part::Remaining,
        b"t" | b"reset" | b"resets" | b"until" => Part::Reset,
        b"w" | b"window" | b"period" => Part::Window,
        b"qu" => Part::Unit,
        _ => return None,
    })
}

/// The members of a list and their parameters, split at commas and semicolons outside quotes.
struct Pieces<'a> {
    rest: &'a [u8],
    first: bool,
}

struct Piece<'a> {
    text: &'a [u8],
    /// It follows a comma (or is the first), so it is a member and not a parameter.
    new_member: bool,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        while !self.rest.is_empty() {
            let new_member = self.first || self.rest[0] == b',';
            let text = if self.first { self.rest } else { &self.rest[1..] };
            self.first = false;
            let mut quoted = false;
            let mut at = 0;
            while at < text.len() && (quoted || !matches!(text[at], b',' | b';')) {
                match text[at] {
                    b'"' => quoted = !quoted,
                    b'\\' if quoted => at += 1,
                    _ => {}
                }
                at += 1;
            }
            let (piece, rest) = text.split_at(at.min(text.len()));
            self.rest = rest;
            let piece = value::trim(piece);
            if !piece.is_empty() {
                return Some(Piece { text: piece, new_member });
            }
        }
        None
    }
}

fn unquoted(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\"").and_then(|t| t.strip_suffix(b"\"")).unwrap_or(text)
}

/// The number that a `limit` or `remaining` header begins with, and its window: `10, 10;w=1, 50;w=60`,
/// `100;w=21600`, `0.0`.
pub(crate) fn count(raw: &[u8]) -> Option<(f64, Option<Duration>)> {
    let mut told = budgets(raw);
    let first = told.next()?;
    let number = first.limit?;
    let window = first.window.or_else(|| told.find(|t| t.limit == Some(number)).and_then(|t| t.window));
    Some((number, window))
}

/// What a `remaining` header shows: of a list the least.
pub(crate) fn least(raw: &[u8]) -> Option<(f64, Option<Duration>)> {
    let (first, window) = count(raw)?;
    Some((budgets(raw).filter_map(|t| t.limit).fold(first, f64::min), window))
}

/// A window's length: `60`, `60s`, `1m`, `20 seconds`.
pub(crate) fn window(raw: &[u8], unit: Unit) -> Option<Duration> {
    const WORDS: [(&str, u64); 5] =
        [("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400), ("sec", 1)];
    let raw = value::trim(raw);
    let clock = value::Clock::local(crate::time::Timestamp::ZERO);
    let delay = |text: &[u8]| match value::read(text, unit, &clock)?.when {
        value::When::Delay(delay) => Some(delay),
        value::When::At(_) => None,
    };
    // Around the epoch small numbers would be moments, so bare numbers are read without a clock.
    let number = |text: &[u8]| Number::read(text).map(|n| n.of(unit));
    if let Some(length) = number(raw).or_else(|| delay(raw)) {
        return Some(length).filter(|l| !l.is_zero());
    }
    let text = std::str::from_utf8(raw).ok()?.to_ascii_lowercase();
    let (count, word) = text.rsplit_once(' ').unwrap_or(("1", &text));
    let word = word.strip_suffix('s').unwrap_or(word);
    let (_, seconds) = WORDS.iter().find(|(name, _)| *name == word)?;
    let count: u32 = count.parse().ok()?;
    Duration::from_secs(*seconds).checked_mul(count).filter(|l| !l.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part<'a>(prefix: &'a str, before: &'a str, role: Role, after: &'a str, unit: Unit) -> Class<'a> {
        Class::Part { key: Key { prefix, before, after }, role, unit }
    }

    #[test]
    fn h2_header_names_are_read_by_their_words() {
        let s = Unit::Seconds;
        for (name, expected) in [
            ("retry-after", Class::Instruction(s)),
            ("retry-after-ms", Class::Instruction(Unit::Millis)),
            ("x-ms-retry-after-ms", Class::Instruction(Unit::Millis)),
            ("x-amz-retry-after", Class::Instruction(Unit::Millis)),
            ("x-retry-after", Class::Instruction(s)),
            ("x-ratelimit-retry-after", Class::Instruction(s)),
            ("x-rate-limit-retry-after-seconds", Class::Instruction(s)),
            ("x-retry-in", Class::Instruction(s)),
            ("x-retry-count", Class::Other),
            ("x-noretry-after", Class::Other),
            ("x-should-retry", Class::ShouldRetry),
            ("stripe-should-retry", Class::ShouldRetry),
            ("ratelimit", Class::Whole(Key::default())),
            ("ratelimit-policy", Class::Policy(Key::default())),
            ("ratelimit-limit", part("", "", Role::Limit, "", s)),
            ("x-ratelimit-remaining", part("x", "", Role::Remaining, "", s)),
            ("x-rate-limit-reset", part("x", "", Role::Reset, "", s)),
            ("x-ratelimit-reset-after", part("x", "", Role::Reset, "", s)),
            ("x-ratelimit-reset-ms", part("x", "", Role::Reset, "", Unit::Millis)),
            ("ratelimit-resettime", part("", "", Role::Reset, "", s)),
            ("x-ratelimit-limit-requests", part("x", "", Role::Limit, "requests", s)),
            ("x-ratelimit-requests-limit", part("x", "requests", Role::Limit, "", s)),
            ("anthropic-ratelimit-input-tokens-reset", part("anthropic", "input-tokens", Role::Reset, "", s)),
            ("x-rate-limit-api-token-interval-ms", part("x", "api-token", Role::Window, "", Unit::Millis)),
            ("x-ratelimit-limit-window", part("x", "limit", Role::Window, "", s)),
            ("x-ratelimit-resource", Class::Whole(Key { prefix: "x", before: "resource", after: "" })),
            ("x-powered-by", Class::Other),
            ("content-length", Class::Other),
            ("x-pirate-limiter", Class::Other),
            ("age", Class::Other),
        ] {
            assert_eq!(classify(name), expected, "{name}");
        }
        let (a, b) =
            (Key { prefix: "x", before: "a", after: "" }, Key { prefix: "x", before: "", after: "a" });
        assert!(a.same(&b) && a.is_named("a") && b.is_named("a") && !a.same(&Key::default()));
    }

    #[test]
    fn h2_ratelimit_values_of_every_draft() {
        let read = |raw: &str| {
            budgets(raw.as_bytes())
                .map(|t| {
                    let text = |b: Option<&[u8]>| {
                        b.map(|b| String::from_utf8_lossy(b).into_owned()).unwrap_or_default()
                    };
                    let window = t.window.map_or(0, |w| w.as_secs());
                    format!("{}|{:?}|{:?}|{}|{window}", text(t.name), t.limit, t.remaining, text(t.reset))
                })
                .collect::<Vec<_>>()
        };
        for (raw, expected) in [
            ("limit=10, remaining=0, reset=5", vec!["|Some(10.0)|Some(0.0)|5|0"]),
            ("\"default\";r=0;t=30", vec!["default|None|Some(0.0)|30|0"]),
            ("default;r=0;t=30", vec!["default|None|Some(0.0)|30|0"]),
            ("\"a\";r=3;t=5, \"b\";r=0;t=7", vec!["a|None|Some(3.0)|5|0", "b|None|Some(0.0)|7|0"]),
            ("\"a\";acme=7;r=0;t=9;note=\"x, y; z=1\"", vec!["a|None|Some(0.0)|9|0"]),
            ("\"d\";q=100;w=60;pk=:c2Rm==:", vec!["d|Some(100.0)|None||60"]),
            ("10;w=1, 50;w=60", vec!["|Some(10.0)|None||1", "|Some(50.0)|None||60"]),
            ("total=10; remaining=0; resets=37", vec!["|Some(10.0)|Some(0.0)|37|0"]),
            (
                "b=per_hour;q=10;r=0;t=774,b=per_day;q=100;r=55;t=2",
                vec!["per_hour|Some(10.0)|Some(0.0)|774|0", "per_day|Some(100.0)|Some(55.0)|2|0"],
            ),
            ("", vec![]),
            (",;,", vec![]),
        ] {
            assert_eq!(read(raw), expected, "{raw}");
        }
        assert!(budgets(b"\"c\";q=5;qu=\"concurrent-requests\"").next().unwrap().concurrent);
        assert_eq!(budgets(&b"1,".repeat(100)).count(), TOLD_MAX);
    }

    #[test]
    fn h2_counts_and_windows() {
        assert_eq!(count(b"10, 10;w=1, 50;w=60"), Some((10.0, Some(Duration::from_secs(1)))));
        assert_eq!(count(b"100;w=21600"), Some((100.0, Some(Duration::from_secs(21_600)))));
        assert_eq!(count(b"0.0"), Some((0.0, None)));
        assert_eq!(count(b"unlimited"), None);
        assert_eq!(count(b"-1"), None);
        for (raw, seconds) in
            [("60", 60), ("60s", 60), ("1m", 60), ("20 seconds", 20), ("hour", 3600), ("0", 0)]
        {
            let expected = Some(Duration::from_secs(seconds)).filter(|d| !d.is_zero());
            assert_eq!(window(raw.as_bytes(), Unit::Seconds), expected, "{raw}");
        }
        assert_eq!(window(b"10000", Unit::Millis), Some(Duration::from_secs(10)));
    }
}
