//! Shops, markets and exchanges.

use super::words::*;

pub(super) const ALPHAVANTAGE: Profile = Profile {
    name: "alphavantage",
    hosts: &["alphavantage.co"],
    bodies: true,
    scope: Some(Account),
    rules: &[
        rule(&[Contains("Information", "requests per day")], &[Is(Quota)]),
        rule(&[Contains("Note", "calls per minute")], &[Is(RateLimit)]),
    ],
    ..BASE
};

/// The budget stands as `requests-left` and `requests-quota`, the time apart from it.
pub(super) const BIGCOMMERCE: Profile = Profile {
    name: "bigcommerce",
    hosts: &["api.bigcommerce.com"],
    scope: Some(Account),
    fields: &[
        field("x-rate-limit-requests-left", Part(Remaining, "", Seconds)),
        field("x-rate-limit-requests-quota", Part(Limit, "", Seconds)),
        field("x-rate-limit-time-window-ms", Part(Window, "", Millis)),
        field("x-rate-limit-time-reset-ms", Part(Reset, "", Millis)),
    ],
    ..BASE
};

/// Orders count by account, everything else by address; 418 is a ban for having gone on.
pub(super) const BINANCE: Profile = Profile {
    name: "binance",
    hosts: &["binance.com", "binance.us"],
    scope: Some(Ip),
    rules: &[
        rule(&[Status(418)], &[Is(Blocked), By(Ip), WaitAfter("banned until ", Millis)]),
        rule(&[Status(403)], &[Is(Blocked), By(Ip)]),
        rule(&[Status(429), Code("code", &["-1015"])], &[By(Account)]),
    ],
    ..BASE
};

/// On 200 with a code; the reset is in milliseconds of the epoch. 403 is the address's own limit.
pub(super) const BYBIT: Profile = Profile {
    name: "bybit",
    hosts: &["api.bybit.com", "bytick.com"],
    bodies: true,
    scope: Some(Endpoint),
    fields: &[
        field("x-bapi-limit", Part(Limit, "", Seconds)),
        field("x-bapi-limit-status", Part(Remaining, "", Seconds)),
        field("x-bapi-limit-reset-timestamp", Part(Reset, "", Millis)),
    ],
    rules: &[
        rule(&[Code("retCode", &["10006"])], &[Is(RateLimit), By(Endpoint)]),
        rule(&[Code("retCode", &["10018"])], &[Is(RateLimit), By(Ip)]),
        rule(&[Status(403), Text("access too frequent")], &[Is(RateLimit), By(Ip)]),
    ],
    ..BASE
};

pub(super) const COINBASE: Profile = Profile {
    name: "coinbase",
    hosts: &["coinbase.com"],
    rules: &[
        rule(&[Status(429), Contains("message", "public rate limit")], &[By(Ip)]),
        rule(&[Status(429), Contains("message", "private rate limit")], &[By(Account)]),
    ],
    ..BASE
};

/// The call limit of an application for a day; when it ends the response does not say.
pub(super) const EBAY: Profile = Profile {
    name: "ebay",
    hosts: &["api.ebay.com"],
    scope: Some(App),
    rules: &[rule(&[Status(429), Code("errors.errorId", &["2001"])], &[Is(Quota)])],
    ..BASE
};

/// One of the names is cut short on the wire.
pub(super) const ETSY: Profile = Profile {
    name: "etsy",
    hosts: &["etsy.com", "etsyapi.com"],
    scope: Some(App),
    fields: &[
        field("x-limit-per-second", Part(Limit, "second", Seconds)),
        field("x-remaining-this-second", Part(Remaining, "second", Seconds)),
        field("x-remaining-this-secon", Part(Remaining, "second", Seconds)),
        field("x-limit-per-day", Part(Limit, "day", Seconds)),
        field("x-remaining-today", Part(Remaining, "day", Seconds)),
    ],
    dims: &[
        Dim { name: "second", scope: None, kind: None, window_s: Some(1) },
        dim("day", None, Some(Quota)),
    ],
    ..BASE
};

/// Errors are an array of strings in a 200; a throttle names the second until which it holds.
pub(super) const KRAKEN: Profile = Profile {
    name: "kraken",
    hosts: &["api.kraken.com"],
    bodies: true,
    scope: Some(Account),
    rules: &[
        rule(&[Contains("error", "Rate limit exceeded")], &[Is(RateLimit)]),
        rule(&[Contains("error", "Too many requests")], &[Is(RateLimit), By(Ip)]),
        rule(&[Contains("error", "Temporary lockout")], &[Is(RateLimit)]),
        rule(&[Contains("error", "Throttled")], &[Is(Concurrency), WaitAfter("Throttled:", Seconds)]),
        rule(&[Starts("error", "EService:Busy")], &[Is(Overload), By(Service)]),
        rule(&[Starts("error", "EService:Unavailable")], &[Is(Overload), By(Service)]),
    ],
    ..BASE
};

/// The reset is a delay in milliseconds.
pub(super) const KUCOIN: Profile = Profile {
    name: "kucoin",
    hosts: &["api.kucoin.com", "api-futures.kucoin.com"],
    fields: &[
        field("gw-ratelimit-limit", Part(Limit, "", Seconds)),
        field("gw-ratelimit-remaining", Part(Remaining, "", Seconds)),
        field("gw-ratelimit-reset", Part(Reset, "", Millis)),
    ],
    rules: &[rule(&[Code("code", &["429000"])], &[Is(RateLimit)])],
    ..BASE
};

pub(super) const OKX: Profile = Profile {
    name: "okx",
    hosts: &["okx.com"],
    bodies: true,
    rules: &[
        rule(&[Code("code", &["50011", "50061"])], &[Is(RateLimit), By(Account)]),
        rule(&[Code("code", &["50013", "50026"])], &[Is(Overload), By(Service)]),
    ],
    ..BASE
};

/// A leaky bucket: `used/size` in a header for REST, need and stock and rate in the body for GraphQL.
pub(super) const SHOPIFY: Profile = Profile {
    name: "shopify",
    hosts: &["myshopify.com"],
    bodies: true,
    scope: Some(Account),
    fields: &[
        field("x-shopify-shop-api-call-limit", UsedOfLimit("rest")),
        field("http_x_shopify_shop_api_call_limit", UsedOfLimit("rest")),
    ],
    body: &[
        BodyField { path: "extensions.cost.requestedQueryCost", role: Need, dim: "graphql" },
        BodyField { path: "extensions.cost.throttleStatus.maximumAvailable", role: Limit, dim: "graphql" },
        BodyField {
            path: "extensions.cost.throttleStatus.currentlyAvailable",
            role: Remaining,
            dim: "graphql",
        },
        BodyField { path: "extensions.cost.throttleStatus.restoreRate", role: Rate, dim: "graphql" },
    ],
    rules: &[rule(&[Code("errors.extensions.code", &["THROTTLED"])], &[Is(RateLimit)])],
    ..BASE
};

/// The reason tells a rate from concurrency, and a route from the account.
pub(super) const STRIPE: Profile = Profile {
    name: "stripe",
    hosts: &["api.stripe.com", "files.stripe.com"],
    scope: Some(Account),
    rules: &[
        rule(&[HeaderIs("stripe-rate-limited-reason", "global-concurrency")], &[IfLimited(Concurrency)]),
        rule(
            &[HeaderIs("stripe-rate-limited-reason", "endpoint-concurrency")],
            &[IfLimited(Concurrency), By(Endpoint)],
        ),
        rule(&[HeaderHas("stripe-rate-limited-reason", "endpoint")], &[By(Endpoint)]),
        rule(&[HeaderHas("stripe-rate-limited-reason", "resource")], &[By(Endpoint)]),
        rule(&[Status(429), Code("error.code", &["lock_timeout"])], &[IfLimited(Concurrency), By(Endpoint)]),
    ],
    ..BASE
};
