//! Everything that a response says about limits, gathered before anything is decided.

use std::{borrow::Cow, cell::OnceCell, time::Duration};

use http::{HeaderMap, header};

use super::body::{self, Found};
use super::evidence::Evidence;
use super::fields::{self, Class, Key, Role, Told};
use super::profile::{BodyField, Dim, Field, Means, Profile, Verdict};
use super::value::{self, Clock, Number, Unit, Wait};
use super::{Budget, Kind, Response, ScopeHint, WaitSource, date};
use crate::time::Timestamp;

/// Budgets, instructions and policies that are kept of one response. Known services send up to eight.
const KEPT_MAX: usize = 32;
/// Two waits closer than this are one instruction, written twice.
const SAME_WITHIN: Duration = Duration::from_secs(1);

/// One budget of the response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Family<'a> {
    pub(crate) key: Key<'a>,
    /// The name that a structured value gives it.
    pub(crate) name: Option<&'a [u8]>,
    pub(crate) limit: Option<f64>,
    pub(crate) remaining: Option<f64>,
    used: Option<f64>,
    need: Option<f64>,
    rate: Option<f64>,
    pub(crate) window: Option<Duration>,
    pub(crate) reset: Option<Wait>,
    pub(crate) concurrent: bool,
    /// The field that tells most of it, for the evidence.
    shown: Option<(&'a str, &'a [u8])>,
}

impl Family<'_> {
    pub(crate) fn is_exhausted(&self) -> bool {
        self.remaining == Some(0.0)
    }

    /// Share of the budget that is left.
    fn left(&self) -> Option<f64> {
        Some(self.remaining? / self.limit.filter(|l| *l > 0.0)?)
    }

    pub(crate) fn budget(&self, dimension: Option<&Dim>) -> Budget {
        Budget {
            limit: self.limit,
            remaining: self.remaining,
            window: self.window.or(dimension.and_then(|d| d.window_s).map(Duration::from_secs)),
            reset_after: self.reset.map(|r| r.time),
        }
    }
}

/// An explicit instruction to wait.
#[derive(Clone, Debug)]
pub(crate) struct Order<'a> {
    pub(crate) wait: Wait,
    /// It counts on a served response too.
    pub(crate) hold: bool,
    field: Cow<'a, str>,
    raw: &'a [u8],
}

/// Everything that was found, before precedence.
#[derive(Debug)]
pub(crate) struct Gathered<'a> {
    headers: &'a HeaderMap,
    now: Timestamp,
    served: OnceCell<Option<Timestamp>>,
    families: Vec<Family<'a>>,
    policies: Vec<Told<'a>>,
    orders: Vec<Order<'a>>,
    /// An instruction that could not be read, for the evidence.
    unreadable: Option<(&'a str, &'a [u8])>,
    pub(crate) should_retry: Option<bool>,
    pub(crate) challenged: bool,
    pub(crate) grpc: Option<&'a [u8]>,
    /// A proxy's own cap on connections was reached (RFC 9209).
    pub(crate) connections_full: bool,
    pub(crate) scope: Option<ScopeHint>,
}

impl<'a> Gathered<'a> {
    /// One pass over the headers.
    pub(crate) fn from_headers(
        headers: &'a HeaderMap,
        profile: Option<&Profile>,
        now: Timestamp,
    ) -> Gathered<'a> {
        let mut seen = Gathered {
            headers,
            now,
            served: OnceCell::new(),
            families: Vec::new(),
            policies: Vec::new(),
            orders: Vec::new(),
            unreadable: None,
            should_retry: None,
            challenged: false,
            grpc: None,
            connections_full: false,
            scope: None,
        };
        for (name, value) in headers {
            let (name, raw) = (name.as_str(), value.as_bytes());
            match profile.and_then(|p| p.field(name)) {
                Some(field) => seen.known(field, name, raw),
                None => seen.general(name, raw),
            }
        }
        seen
    }

    /// Nothing was found that could matter.
    pub(crate) fn is_silent(&self) -> bool {
        self.families.is_empty()
            && self.policies.is_empty()
            && self.orders.is_empty()
            && self.unreadable.is_none()
            && self.should_retry.is_none()
            && self.grpc.is_none()
    }

    /// The clocks of this response (H3): `Date` and `Age` where readable.
    pub(crate) fn clock(&self) -> Clock {
        let served = self.served.get_or_init(|| {
            let raw = value::trim(self.headers.get(header::DATE)?.as_bytes());
            let date = date::http(raw, self.now).or_else(|| date::iso(raw))?.at;
            let age = self.headers.get(header::AGE).and_then(|v| Number::read(value::trim(v.as_bytes())));
            Some(date.plus(age.map_or(Duration::ZERO, |a| a.of(Unit::Seconds))))
        });
        Clock { now: self.now, served: *served }
    }

    fn general(&mut self, name: &'a str, raw: &'a [u8]) {
        match fields::classify(name) {
            Class::Other => {}
            Class::Instruction(unit) => self.instruct(name, raw, unit, false),
            Class::Pushback => {
                // gRPC: a negative or unreadable pushback is an order not to retry.
                if value::trim(raw).starts_with(b"-") {
                    self.should_retry = Some(false);
                }
                self.instruct(name, raw, Unit::Millis, false);
            }
            Class::ShouldRetry => match value::trim(raw) {
                v if v.eq_ignore_ascii_case(b"true") => self.should_retry = Some(true),
                v if v.eq_ignore_ascii_case(b"false") => self.should_retry = Some(false),
                _ => {}
            },
            Class::Challenge => self.challenged |= is_challenge(raw),
            Class::GrpcStatus => self.grpc = Some(value::trim(raw)),
            Class::ProxyStatus => {
                self.connections_full |= body::after(raw, "error=connection_limit_reached").is_some();
            }
            Class::Scope => self.scope = self.scope.or_else(|| scope_word(value::trim(raw))),
            Class::Part { key, role, unit } => self.part(key, role, unit, name, raw),
            Class::Policy(_) => {
                let room = KEPT_MAX - self.policies.len();
                self.policies.extend(fields::budgets(raw).take(room));
            }
            Class::Whole(key) => self.whole(key, name, raw),
        }
    }

    /// A header that the profile explains.
    fn known(&mut self, field: &'static Field, name: &'a str, raw: &'a [u8]) {
        match &field.means {
            Means::Nothing => {}
            Means::Part(role, dim, unit) => self.part(dim_key(dim), *role, *unit, name, raw),
            Means::UsedOfLimit(dim) => {
                let first = raw.split(|b| *b == b',').next().unwrap_or(raw);
                let first = first.rsplit(|b| *b == b'=').next().unwrap_or(first);
                let mut parts = first.split(|b| *b == b'/').map(|n| Number::read(value::trim(n)));
                if let (Some(Some(used)), Some(Some(limit)), None) =
                    (parts.next(), parts.next(), parts.next())
                    && let Some(family) = self.family(dim_key(dim), None)
                {
                    (family.used, family.limit) = (Some(used.as_f64()), Some(limit.as_f64()));
                    family.shown = Some((name, raw));
                }
            }
            Means::Each(role, dims) => {
                for (dim, member) in dims.iter().zip(raw.split(|b| *b == b',')) {
                    self.part(dim_key(dim), *role, Unit::Seconds, name, member);
                }
            }
            Means::Windows(role, group) => {
                for member in raw.split(|b| *b == b',').take(KEPT_MAX) {
                    let mut parts = member.split(|b| *b == b':').map(value::trim);
                    let (Some(count), Some(window)) = (parts.next(), parts.next()) else { continue };
                    let Some(family) = self.family(dim_key(group), Some(window)) else { continue };
                    family.window = fields::window(window, Unit::Seconds);
                    family.set_count(*role, count, name, raw);
                }
            }
            Means::Budgets(dim) => {
                for told in fields::budgets(raw) {
                    self.told(dim_key(dim), &told, name, raw);
                }
            }
            Means::Hold(unit) => {
                for member in raw.split(|b| *b == b',').take(KEPT_MAX) {
                    let time = member.split(|b| *b == b':').next().unwrap_or(member);
                    self.instruct(name, time, *unit, true);
                }
            }
            Means::JsonHold(key, unit) => {
                for found in body::find(raw, |k| k == key.as_bytes()) {
                    self.instruct(name, found.text, *unit, true);
                }
            }
        }
    }

    fn instruct(&mut self, name: &'a str, raw: &'a [u8], unit: Unit, hold: bool) {
        match value::wait(raw, unit, &self.clock()) {
            Some(wait) => self.push_order(Order { wait, hold, field: Cow::Borrowed(name), raw }),
            None => self.unreadable = self.unreadable.or(Some((name, raw))),
        }
    }

    fn push_order(&mut self, order: Order<'a>) {
        // Repeated lines are one instruction: the longest counts.
        if let Some(same) = self.orders.iter_mut().find(|o| o.field == order.field && o.hold == order.hold) {
            if same.wait.time < order.wait.time {
                *same = order;
            }
            return;
        }
        if self.orders.len() < KEPT_MAX {
            self.orders.push(order);
        }
    }

    pub(crate) fn instruct_from_body(&mut self, found: &Found<'a>, wait: Wait, hold: bool) {
        let field = Cow::Owned(format!("body:{}", found.path));
        self.push_order(Order { wait, hold, field, raw: found.text });
    }

    pub(crate) fn instruct_from_text(&mut self, words: &'static str, (wait, raw): (Wait, &'a [u8])) {
        self.push_order(Order {
            wait,
            hold: false,
            field: Cow::Owned(format!("body: {}", words.trim())),
            raw,
        });
    }

    /// The family with this key, made if there is room.
    fn family(&mut self, key: Key<'a>, name: Option<&'a [u8]>) -> Option<&mut Family<'a>> {
        let at = self.families.iter().position(|f| f.key.same(&key) && f.name == name);
        let at = match at {
            Some(at) => at,
            None if self.families.len() < KEPT_MAX => {
                self.families.push(Family { key, name, ..Family::default() });
                self.families.len() - 1
            }
            None => return None,
        };
        self.families.get_mut(at)
    }

    fn part(&mut self, key: Key<'a>, role: Role, unit: Unit, name: &'a str, raw: &'a [u8]) {
        match role {
            Role::Reset => {
                // Parameters may ride on a number: `30;w=60`.
                let plain = raw.split(|b| *b == b';').next().unwrap_or(raw);
                let Some(wait) = value::wait(plain, unit, &self.clock()) else { return };
                if let Some(family) = self.family(key, None) {
                    family.set_reset(wait);
                    family.shown = Some((name, raw));
                }
            }
            Role::Window => {
                if let Some(window) = fields::window(raw, unit)
                    && let Some(family) = self.family(key, None)
                {
                    family.window = family.window.or(Some(window));
                }
            }
            _ => {
                if fields::count(raw).is_some()
                    && let Some(family) = self.family(key, None)
                {
                    family.set_count(role, raw, name, raw);
                }
            }
        }
    }

    /// A header whose value is a budget by itself.
    fn whole(&mut self, key: Key<'a>, name: &'a str, raw: &'a [u8]) {
        let bare = key.before.is_empty();
        if raw.starts_with(b"{") {
            if let Some(told) = told_in_json(raw) {
                self.told(key, &told, name, raw);
            }
        } else if raw.contains(&b'=') {
            // Of a name that nobody knows only a value with parts of a budget is believed.
            for told in fields::budgets(raw) {
                if bare || told.remaining.is_some() {
                    self.told(key, &told, name, raw);
                }
            }
        } else if bare
            && key.is_plain()
            && let Some((limit, window)) = fields::count(raw)
            && let Some(family) = self.family(key, None)
        {
            // `X-Rate-Limit: 700`
            family.limit = family.limit.or(Some(limit));
            family.window = family.window.or(window);
        }
    }

    fn told(&mut self, key: Key<'a>, told: &Told<'a>, name: &'a str, raw: &'a [u8]) {
        let reset = told.reset.and_then(|r| value::wait(r, Unit::Seconds, &self.clock()));
        if told.limit.is_none() && told.remaining.is_none() && reset.is_none() {
            return;
        }
        let Some(family) = self.family(key, told.name) else { return };
        family.limit = family.limit.or(told.limit);
        family.window = family.window.or(told.window);
        family.concurrent |= told.concurrent;
        if let Some(remaining) = told.remaining {
            family.remaining = Some(family.remaining.map_or(remaining, |r| r.min(remaining)));
        }
        if let Some(wait) = reset {
            family.set_reset(wait);
        }
        family.shown = Some((name, raw));
    }

    pub(crate) fn body_part(&mut self, field: &'static BodyField, raw: &'a [u8]) {
        self.part(dim_key(field.dim), field.role, Unit::Seconds, field.path, raw);
    }

    /// gRPC carries its own status on a 200; this is the HTTP status that says the same.
    pub(crate) fn status_of_grpc(&mut self, status: u16) -> Option<u16> {
        let code = self.grpc?;
        let is_grpc = self
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|v| v.as_bytes().to_ascii_lowercase().starts_with(b"application/grpc"));
        if status != 200 || !is_grpc {
            self.grpc = None;
            return None;
        }
        Some(match code {
            b"8" => 429,                        // RESOURCE_EXHAUSTED
            b"14" => 503,                       // UNAVAILABLE
            b"16" => 401,                       // UNAUTHENTICATED
            b"7" => 403,                        // PERMISSION_DENIED
            b"2" | b"4" | b"13" | b"15" => 500, // UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, DATA_LOSS
            _ => return None,
        })
    }

    /// Looks into the body where it may matter: on a refusal, on a spent budget, and where the profile asks for it.
    pub(crate) fn read_body(
        &mut self,
        response: &Response<'a>,
        status: u16,
        profile: Option<&Profile>,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let refuses = matches!(status, 400 | 403 | 418 | 420 | 429 | 500..=599);
        let spent = self.families.iter().any(Family::is_exhausted);
        let general = refuses || spent;
        // A success holds the caller's own data, unless the service is known to refuse with it.
        let looks = general || status >= 400 || profile.is_some_and(|p| p.bodies);
        let response = Response { body: response.body.filter(|_| looks), ..*response };
        let wanted = |key: &[u8]| {
            profile.is_some_and(|p| p.wants(key))
                || (general && (is_code_key(key) || wait_unit(key).is_some()))
        };
        let found = response.body.map_or_else(Vec::new, |text| body::find(text, wanted));
        if let Some(profile) = profile {
            profile.apply(&response, &found, self, &mut verdict);
        }
        if general {
            let envelope = || found.iter().filter(|f| is_envelope(&f.path));
            if verdict.marked.is_none() {
                envelope().for_each(|f| general_code(f, status, &mut verdict));
            }
            if refuses || verdict.marked.is_some() {
                for f in envelope() {
                    if let Some(unit) = wait_unit(f.key)
                        && let Some(wait) = value::wait(f.text, unit, &self.clock())
                    {
                        self.instruct_from_body(f, wait, false);
                    }
                }
            }
        }
        verdict
    }

    /// Brings together what several headers say of one budget.
    pub(crate) fn settle(&mut self) {
        if self.families.is_empty()
            && let Some(policy) = self.policies.first()
        {
            let (limit, window) = (policy.limit, policy.window);
            self.families.push(Family { limit, window, concurrent: policy.concurrent, ..Family::default() });
        }
        let only = <&[Told<'a>; 1]>::try_from(self.policies.as_slice()).ok().map(|p| p[0]);
        let mut orders = Vec::new();
        for family in &mut self.families {
            if family.key.is_plain() && family.key.before.is_empty() && family.key.after.is_empty() {
                let policy = match family.name {
                    Some(name) => self.policies.iter().find(|p| p.name == Some(name)).copied(),
                    None => self
                        .policies
                        .iter()
                        .find(|p| p.limit.is_some() && p.limit == family.limit)
                        .copied()
                        .or(only.filter(|_| family.limit.is_none())),
                };
                if let Some(policy) = policy {
                    family.limit = family.limit.or(policy.limit);
                    family.window = family.window.or(policy.window);
                    family.concurrent |= policy.concurrent;
                }
            }
            if family.remaining.is_none()
                && let (Some(limit), Some(used)) = (family.limit, family.used)
            {
                family.remaining = Some((limit - used).max(0.0));
            }
            // A bucket told in full says when there is enough for this request.
            if let (Some(need), Some(stock), Some(rate)) = (family.need, family.remaining, family.rate)
                && need > stock
                && rate > 0.0
            {
                let time = Duration::try_from_secs_f64((need - stock) / rate).unwrap_or(value::TOO_LONG);
                let time = time.min(value::TOO_LONG);
                let wait = Wait { time, step: Duration::from_millis(1), delta: true };
                let (field, raw) = family.shown.unwrap_or_default();
                orders.push(Order { wait, hold: false, field: Cow::Borrowed(field), raw });
            }
        }
        orders.into_iter().for_each(|order| self.push_order(order));
    }

    /// The budget that binds: the exhausted one with the longest reset, else the one nearest to its end. Where any
    /// budget will do, one with something left binds before an exhausted one.
    pub(crate) fn binding(&self, any_left: bool) -> Option<&Family<'a>> {
        let exhausted = || self.families.iter().filter(|f| f.is_exhausted());
        if !any_left || self.all_exhausted() {
            // The first of equals.
            let longest = exhausted().rev_max_by(|f| f.reset.map(|r| r.time));
            if longest.is_some() {
                return longest;
            }
        }
        let nearer = |a: &&Family<'a>, b: &&Family<'a>| match (a.left(), b.left()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => a.remaining.unwrap_or(f64::MAX).total_cmp(&b.remaining.unwrap_or(f64::MAX)),
        };
        self.families
            .iter()
            .filter(|f| f.remaining.is_some() && !f.is_exhausted())
            .min_by(nearer)
            .or_else(|| self.families.iter().find(|f| f.limit.is_some()))
            .or_else(|| self.families.first())
    }

    fn all_exhausted(&self) -> bool {
        let mut told = self.families.iter().filter(|f| f.remaining.is_some()).peekable();
        told.peek().is_some() && told.all(Family::is_exhausted)
    }

    /// Resets that no counter goes with; they hold for every budget of the response that has none of its own.
    fn loose_reset(&self) -> Option<Duration> {
        self.families.iter().filter(|f| f.remaining.is_none()).filter_map(|f| Some(f.reset?.time)).max()
    }

    fn reset_of(&self, family: &Family<'a>) -> Option<Duration> {
        family.reset.map(|r| r.time).or_else(|| self.loose_reset())
    }

    /// When the exhausted budgets are refilled.
    pub(crate) fn reset(&self, refuses: bool, any_left: bool) -> Option<Duration> {
        let mut exhausted = self.families.iter().filter(|f| f.is_exhausted()).peekable();
        if exhausted.peek().is_some() {
            let resets = exhausted.filter_map(|f| self.reset_of(f));
            return match any_left {
                true if self.all_exhausted() => resets.min(),
                true => None,
                false => resets.max(),
            };
        }
        // Refused while every budget shows some left: another limit fired.
        let counted = self.families.iter().any(|f| f.remaining.is_some());
        if refuses && !counted { self.loose_reset() } else { None }
    }

    /// A budget has nothing left, and its reset is still to come (or not told).
    pub(crate) fn is_spent(&self, any_left: bool) -> bool {
        if any_left && !self.all_exhausted() {
            return false;
        }
        let open = |f: &Family<'a>| self.reset_of(f).is_none_or(|r| !r.is_zero());
        let mut exhausted = self.families.iter().filter(|f| f.is_exhausted()).peekable();
        exhausted.peek().is_some() && if any_left { exhausted.all(open) } else { exhausted.any(open) }
    }

    /// The instruction that counts: of different ones the longest, of one at two precisions the finer. On a served
    /// response only those that hold there too.
    pub(crate) fn order(&self, refuses: bool) -> Option<&Order<'a>> {
        let valid = || self.orders.iter().filter(|o| refuses || o.hold);
        let longest = valid().rev_max_by(|o| o.wait.time)?;
        valid()
            .filter(|o| longest.wait.time - o.wait.time < SAME_WITHIN)
            .min_by_key(|o| (o.wait.step, std::cmp::Reverse(o.wait.time)))
    }

    /// What decided, for records and people.
    pub(crate) fn evidence(
        &self,
        status: u16,
        from: Option<WaitSource>,
        order: Option<&Order<'a>>,
        binding: Option<&Family<'a>>,
        verdict: &Verdict,
        limited: bool,
    ) -> Evidence {
        let family = |reason| {
            let (field, raw) = binding.and_then(|f| f.shown).unwrap_or_default();
            Evidence::new(field, raw, reason)
        };
        match (from, order) {
            (Some(WaitSource::Instruction), Some(order)) => {
                return Evidence::new(&order.field, order.raw, "the server says when to come back");
            }
            (Some(WaitSource::Reset), _) => return family("nothing is left until the reset"),
            _ => {}
        }
        if let Some((field, raw)) = &verdict.mark {
            let reason =
                if limited { "the service's own word for a limit" } else { "refused, but not by a limit" };
            return Evidence::new(field, raw, reason);
        }
        if let Some((field, raw)) = self.unreadable {
            return Evidence::new(field, raw, "not readable, so no hint");
        }
        if limited {
            return match binding.filter(|f| f.is_exhausted()) {
                Some(_) => family("nothing is left, and no time is told"),
                None if matches!(status, 503 | 529) => {
                    Evidence::of_reason("the service cannot keep up; no time is told")
                }
                None => Evidence::of_reason("refused; no time is told"),
            };
        }
        if let Some(order) = self.orders.first() {
            let reason = "on this status it is about one request, no hold for the scope";
            return Evidence::new(&order.field, order.raw, reason);
        }
        match binding {
            Some(f) if f.is_exhausted() => family("nothing is left, but its reset is over"),
            Some(_) => family("something is left"),
            None => Evidence::default(),
        }
    }

    /// A time at the start of a sentence's rest: `20ms.`, `5 seconds`, `2026-11-29 14:00:00 UTC: see docs`.
    pub(crate) fn in_sentence(&self, text: &'a [u8], unit: Unit) -> Option<(Wait, &'a [u8])> {
        let skip = text.iter().take_while(|b| matches!(b, b' ' | b':' | b'"' | b'\'')).count();
        let text = &text[skip..];
        let clock = self.clock();
        if let Some((moment, rest)) = date::iso_prefix(text) {
            let value = value::Value { when: value::When::At(moment.at), step: moment.step };
            let wait = Wait { time: value.wait(&clock), step: value.step, delta: false };
            return Some((wait, &text[..text.len() - rest.len()]));
        }
        let len = text.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'.').count();
        let raw = text[..len].strip_suffix(b".").unwrap_or(&text[..len]);
        let next = text[len..].strip_prefix(b" ").unwrap_or_default();
        let next = &next[..next.iter().take_while(|b| b.is_ascii_alphabetic()).count()];
        let unit = match next {
            b"ms" | b"milliseconds" | b"millisecond" => Unit::Millis,
            b"s" | b"sec" | b"secs" | b"second" | b"seconds" => Unit::Seconds,
            b"min" | b"mins" | b"minute" | b"minutes" => Unit::Minutes,
            _ => unit,
        };
        Some((value::wait(raw, unit, &clock)?, raw))
    }
}

impl<'a> Family<'a> {
    fn set_count(&mut self, role: Role, raw: &'a [u8], name: &'a str, shown: &'a [u8]) {
        let read = if role == Role::Remaining { fields::least(raw) } else { fields::count(raw) };
        let Some((count, window)) = read else { return };
        let slot = match role {
            Role::Limit => &mut self.limit,
            Role::Remaining => {
                // Told twice, the smaller is the safer.
                if self.reset.is_none() {
                    self.shown = Some((name, shown));
                }
                self.remaining = Some(self.remaining.map_or(count, |r| r.min(count)));
                &mut self.remaining
            }
            Role::Used => &mut self.used,
            Role::Need => &mut self.need,
            Role::Rate => &mut self.rate,
            Role::Reset | Role::Window => return,
        };
        *slot = slot.or(Some(count));
        self.shown = self.shown.or(Some((name, shown)));
        self.window = self.window.or(window);
    }

    /// A delta is immune to clock skew, so it beats a moment; of two alike the longer counts.
    fn set_reset(&mut self, wait: Wait) {
        self.reset = Some(match self.reset {
            Some(old) if old.delta != wait.delta => {
                if old.delta {
                    old
                } else {
                    wait
                }
            }
            Some(old) if old.time >= wait.time => old,
            _ => wait,
        });
    }
}

/// `max_by_key`, but the first of equals.
trait RevMax: Iterator + Sized {
    fn rev_max_by<K: Ord>(self, key: impl Fn(&Self::Item) -> K) -> Option<Self::Item> {
        self.fold(None, |best: Option<Self::Item>, item| match &best {
            Some(b) if key(b) >= key(&item) => best,
            _ => Some(item),
        })
    }
}

impl<I: Iterator> RevMax for I {}

/// Budgets of profiles live beside the general ones: the empty name is the plain `X-RateLimit` budget.
fn dim_key(dim: &'static str) -> Key<'static> {
    Key { prefix: "x", before: "", after: dim }
}

fn is_challenge(raw: &[u8]) -> bool {
    let raw = value::trim(raw);
    [&b"challenge"[..], b"captcha", b"managed_challenge", b"js_challenge"]
        .iter()
        .any(|w| raw.eq_ignore_ascii_case(w))
}

fn scope_word(raw: &[u8]) -> Option<ScopeHint> {
    Some(match raw.to_ascii_lowercase().as_slice() {
        b"global" | b"true" => ScopeHint::Global,
        b"user" | b"account" | b"token" | b"key" | b"tenant" => ScopeHint::Account,
        b"app" | b"application" | b"client" => ScopeHint::App,
        b"shared" | b"endpoint" | b"route" | b"method" | b"resource" => ScopeHint::Endpoint,
        b"ip" => ScopeHint::Ip,
        _ => return None,
    })
}

/// A whole budget as JSON in a header: `{"period":1,"limit":1,"remaining":0,"until":"..."}`.
fn told_in_json(raw: &[u8]) -> Option<Told<'_>> {
    let mut told = Told::default();
    for found in body::find(raw, |_| true) {
        told.set(found.key, found.text);
    }
    told.remaining.is_some().then_some(told)
}

/// What a code of an error envelope means for every service.
fn general_code(found: &Found<'_>, status: u16, verdict: &mut Verdict) {
    if !is_code_key(found.key) {
        return;
    }
    let word = plain_word(found.text);
    if is_limit_word(&word) {
        verdict.mark.get_or_insert_with(|| (format!("body:{}", found.path), found.text.to_vec()));
        verdict.marked = verdict.marked.or(Some(Kind::RateLimit));
    } else if word.contains("concurren") && matches!(status, 429 | 503) {
        verdict.kind = verdict.kind.or(Some(Kind::Concurrency));
    }
}

/// Where an error envelope keeps its fields. Anything else in a body may be the caller's own data.
fn is_envelope(path: &str) -> bool {
    const PARTS: [&str; 17] = [
        "error",
        "errors",
        "detail",
        "details",
        "parameters",
        "extensions",
        "meta",
        "metadata",
        "response",
        "fault",
        "reason",
        "data",
        "body",
        "status",
        "ratelimit",
        "rate_limit",
        "limit",
    ];
    let Some((parents, _)) = path.rsplit_once('.') else { return true };
    parents.split('.').all(|p| PARTS.iter().any(|known| p.eq_ignore_ascii_case(known)))
}

fn is_code_key(key: &[u8]) -> bool {
    matches!(
        plain_word(key).as_str(),
        "code" | "type" | "error" | "errorcode" | "errortype" | "errorname" | "reason" | "status" | "name"
    ) || key == b"__type"
}

/// The unit of a body field that says how long to wait; `None` for any other field.
fn wait_unit(key: &[u8]) -> Option<Unit> {
    if key.len() > 24 {
        return None;
    }
    Some(match plain_word(key).as_str() {
        "retryafter" | "retryafterseconds" | "retryaftersecs" | "retryaftersec" | "retrydelay"
        | "retryin" | "retryinseconds" => Unit::Seconds,
        "retryafterms" | "retryaftermillis" | "retryaftermilliseconds" | "retryinms" | "retrydelayms" => {
            Unit::Millis
        }
        _ => return None,
    })
}

/// Letters and digits only, in lower case: `rate_limited`, `RateLimited` and `RATE-LIMITED` are one word.
fn plain_word(raw: &[u8]) -> String {
    raw.iter()
        .take(64)
        .filter(|b| b.is_ascii_alphanumeric())
        .map(|b| char::from(b.to_ascii_lowercase()))
        .collect()
}

/// Codes that can mean nothing but a rate limit, whoever sends them.
fn is_limit_word(word: &str) -> bool {
    matches!(
        word,
        "ratelimit"
            | "ratelimited"
            | "ratelimitexceeded"
            | "ratelimitreached"
            | "ratelimiterror"
            | "toomanyrequests"
            | "toomanyrequestsexception"
            | "throttled"
            | "throttling"
            | "throttlingexception"
            | "requestthrottled"
            | "requestlimitexceeded"
            | "userratelimitexceeded"
            | "resourceexhausted"
    )
}
