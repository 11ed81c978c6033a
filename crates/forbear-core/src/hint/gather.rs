//! Everything that a response says about limits, gathered before anything is decided.

use std::{borrow::Cow, cell::OnceCell, time::Duration};

use http::{HeaderMap, header};

use super::body;
use super::fields::{self, Class, Key, Role, Told};
use super::profile::{Dim, Field, Means, Profile};
use super::value::{self, Clock, Number, Unit, Wait};
use super::{Budget, ScopeHint, date};
use crate::time::Timestamp;

/// Budgets, instructions and policies that are kept of one response. Known services send up to eight.
const KEPT_MAX: usize = 32;

/// Words in a budget's name that say that it counts something else than requests. Not `token`: that is who asks.
const COST_WORDS: [&str; 8] =
    ["tokens", "cost", "complexity", "points", "credits", "units", "bytes", "graphql"];

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
    pub(super) shown: Option<(&'a str, &'a [u8])>,
}

impl Family<'_> {
    pub(crate) fn is_exhausted(&self) -> bool {
        self.remaining == Some(0.0)
    }

    /// Whether it counts what requests cost, by its name.
    pub(crate) fn of_cost(&self) -> bool {
        let named = self.name.map(|name| String::from_utf8_lossy(name).to_ascii_lowercase());
        let name = named.as_deref().unwrap_or_default();
        let mut words =
            [self.key.before, self.key.after, name].into_iter().flat_map(|part| part.split(['-', '_']));
        words.any(|word| COST_WORDS.contains(&word))
    }

    /// What is left, where only limit and use are told.
    pub(super) fn count_what_is_left(&mut self) {
        if let (None, Some(limit), Some(used)) = (self.remaining, self.limit, self.used) {
            self.remaining = Some((limit - used).max(0.0));
        }
    }

    /// Share of the budget that is left.
    pub(super) fn left(&self) -> Option<f64> {
        Some(self.remaining? / self.limit.filter(|l| *l > 0.0)?)
    }

    pub(crate) fn budget(&self, dimension: Option<&Dim>, reset_after: Option<Duration>) -> Budget {
        Budget {
            limit: self.limit,
            remaining: self.remaining,
            window: self.window.or(dimension.and_then(|d| d.window_s).map(Duration::from_secs)),
            reset_after,
            of_cost: self.of_cost(),
        }
    }
}

/// An explicit instruction to wait.
#[derive(Clone, Debug)]
pub(crate) struct Order<'a> {
    pub(crate) wait: Wait,
    /// It counts on a served response too.
    pub(crate) hold: bool,
    pub(super) field: Cow<'a, str>,
    pub(super) raw: &'a [u8],
}

/// Everything that was found, before precedence.
#[derive(Debug)]
pub(crate) struct Gathered<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) now: Timestamp,
    pub(super) served: OnceCell<Option<Timestamp>>,
    pub(super) families: Vec<Family<'a>>,
    pub(super) policies: Vec<Told<'a>>,
    pub(super) orders: Vec<Order<'a>>,
    /// An instruction that could not be read, for the evidence.
    pub(super) unreadable: Option<(&'a str, &'a [u8])>,
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
            Means::Named(role, group) => {
                for member in raw.split(|b| *b == b',').take(KEPT_MAX) {
                    let mut parts = member.split(|b| *b == b';').map(value::trim);
                    let (Some(budget), Some(count)) = (parts.next(), parts.next()) else { continue };
                    if let Some(family) = self.family(dim_key(group), Some(budget)) {
                        family.set_count(*role, count, name, raw);
                    }
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

    pub(super) fn push_order(&mut self, order: Order<'a>) {
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

    pub(super) fn part(&mut self, key: Key<'a>, role: Role, unit: Unit, name: &'a str, raw: &'a [u8]) {
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
            family.count_what_is_left();
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

/// Budgets of profiles live beside the general ones: the empty name is the plain `X-RateLimit` budget.
pub(super) fn dim_key(dim: &'static str) -> Key<'static> {
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
