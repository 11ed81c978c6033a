//! How a refusal, and a budget, is told: headers from numbers.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use crate::answer::ceil_secs;
use crate::limiter::Budget;

/// The forms in which servers tell a wait or a budget.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hint {
    /// `Retry-After: 30` (RFC 9110 section 10.2.3).
    Seconds,
    /// `Retry-After: Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 section 10.2.3), on the server's own clock.
    HttpDate,
    /// `Retry-After-Ms: 1500`, as Azure and OpenAI send it.
    Millis,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` as Unix time, as GitHub sends them; on served requests too.
    ResetEpoch,
    /// The same three with the seconds until the reset, as Discourse and many gateways send them.
    ResetDelta,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` (draft-ietf-httpapi-ratelimit-headers-03 to -06).
    Draft3,
    /// `RateLimit: limit=10, remaining=1, reset=5` and `RateLimit-Policy: 10;w=60` (draft -07).
    Draft7,
    /// `RateLimit: "default";r=1;t=5` and `RateLimit-Policy: "default";q=10;w=60` (draft -08 and later).
    Structured,
}

impl Hint {
    /// Every form.
    pub const ALL: [Hint; 8] = [
        Hint::Seconds,
        Hint::HttpDate,
        Hint::Millis,
        Hint::ResetEpoch,
        Hint::ResetDelta,
        Hint::Draft3,
        Hint::Draft7,
        Hint::Structured,
    ];

    /// The name in the text form of a [`Spec`](crate::Spec).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Hint::Seconds => "seconds",
            Hint::HttpDate => "http-date",
            Hint::Millis => "ms",
            Hint::ResetEpoch => "reset-epoch",
            Hint::ResetDelta => "reset-delta",
            Hint::Draft3 => "draft-3",
            Hint::Draft7 => "draft-7",
            Hint::Structured => "structured",
        }
    }

    /// Whether it names a wait itself, and not the reset of a budget.
    fn is_instruction(self) -> bool {
        matches!(self, Hint::Seconds | Hint::HttpDate | Hint::Millis)
    }
}

/// What is to be told.
pub(crate) struct Telling<'a> {
    /// The wait, on a refusal that tells one; already lied about.
    pub(crate) wait: Option<Duration>,
    /// The budgets of the request's rules, tightest first.
    pub(crate) budgets: &'a [Budget],
    /// The server's wall clock.
    pub(crate) wall: Duration,
}

/// Headers, as name and value.
pub(crate) type Headers = Vec<(Cow<'static, str>, String)>;

impl Telling<'_> {
    /// Writes `hints` to `headers`. Returns the shortest wait that an honest reader takes from them: the longest of the
    /// instructions, else the reset of an exhausted budget.
    pub(crate) fn write(&self, hints: &[Hint], headers: &mut Headers) -> Option<Duration> {
        let mut instruction = None;
        let mut reset = None;
        for hint in hints {
            let told = self.write_one(*hint, headers);
            match hint.is_instruction() {
                true => instruction = instruction.max(told),
                false => reset = reset.max(told),
            }
        }
        instruction.or(reset)
    }

    fn write_one(&self, hint: Hint, headers: &mut Headers) -> Option<Duration> {
        let mut put = |name: &'static str, value: String| headers.push((Cow::Borrowed(name), value));
        match hint {
            Hint::Seconds => {
                let seconds = ceil_secs(self.wait?);
                put("retry-after", seconds.to_string());
                Some(Duration::from_secs(seconds))
            }
            Hint::HttpDate => {
                let at = Duration::from_secs(ceil_secs(self.wall + self.wait?));
                put("retry-after", http_date(at));
                Some(at - self.wall)
            }
            Hint::Millis => {
                let millis = self.wait?.as_nanos().div_ceil(1_000_000) as u64;
                put("retry-after-ms", millis.to_string());
                Some(Duration::from_millis(millis))
            }
            Hint::ResetEpoch | Hint::ResetDelta => {
                let budget = self.budgets.first()?;
                let at = ceil_secs(self.wall + budget.reset);
                let delta = ceil_secs(budget.reset);
                let epoch = hint == Hint::ResetEpoch;
                put("x-ratelimit-limit", budget.limit.to_string());
                put("x-ratelimit-remaining", budget.remaining.to_string());
                put("x-ratelimit-reset", if epoch { at } else { delta }.to_string());
                let told =
                    if epoch { Duration::from_secs(at) - self.wall } else { Duration::from_secs(delta) };
                (budget.remaining == 0).then_some(told)
            }
            Hint::Draft3 => {
                let budget = self.budgets.first()?;
                let policy: String =
                    self.budgets.iter().map(|each| format!(", {}", plain_policy(each))).collect();
                put("ratelimit-limit", format!("{}{policy}", budget.limit));
                put("ratelimit-remaining", budget.remaining.to_string());
                put("ratelimit-reset", ceil_secs(budget.reset).to_string());
                exhausted(budget)
            }
            Hint::Draft7 => {
                let budget = self.budgets.first()?;
                let Budget { limit, remaining, .. } = *budget;
                let reset = ceil_secs(budget.reset);
                put("ratelimit", format!("limit={limit}, remaining={remaining}, reset={reset}"));
                put("ratelimit-policy", self.list(|_, each| plain_policy(each)));
                exhausted(budget)
            }
            Hint::Structured => {
                self.budgets.first()?;
                put(
                    "ratelimit",
                    self.list(|name, each| {
                        format!("\"{name}\";r={};t={}", each.remaining, ceil_secs(each.reset))
                    }),
                );
                put(
                    "ratelimit-policy",
                    self.list(|name, each| format!("\"{name}\";q={};w={}", each.limit, window_secs(each))),
                );
                self.budgets.iter().filter_map(exhausted).max()
            }
        }
    }

    fn list(&self, show: impl Fn(&str, &Budget) -> String) -> String {
        let many = self.budgets.len() > 1;
        let items = self.budgets.iter().enumerate().map(|(index, each)| match many {
            true => show(&format!("limit-{}", index + 1), each),
            false => show("default", each),
        });
        items.collect::<Vec<_>>().join(", ")
    }
}

/// `Date` and `Retry-After` in the preferred form, from Unix time.
pub(crate) fn http_date(unix: Duration) -> String {
    // Beyond the year 9999 the format has no room; no server says such a thing on purpose.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + unix.min(LAST))
}

fn exhausted(budget: &Budget) -> Option<Duration> {
    (budget.remaining == 0).then(|| Duration::from_secs(ceil_secs(budget.reset)))
}

fn plain_policy(budget: &Budget) -> String {
    format!("{};w={}", budget.limit, window_secs(budget))
}

/// The drafts know whole seconds only, and none of them zero.
fn window_secs(budget: &Budget) -> u64 {
    ceil_secs(budget.window).max(1)
}
