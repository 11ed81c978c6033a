//! Offices, customers, accounts and messages.

use super::words::*;

pub(super) const AIRTABLE: Profile =
    Profile { name: "airtable", hosts: &["api.airtable.com"], scope: Some(Account), ..BASE };

/// The reason names the policy: points of an hour, a burst of an endpoint, writes to one issue.
pub(super) const ATLASSIAN: Profile = Profile {
    name: "atlassian",
    hosts: &["atlassian.net", "atlassian.com", "bitbucket.org"],
    rules: &[
        rule(&[HeaderHas("ratelimit-reason", "quota-global")], &[IfLimited(Quota), By(Global)]),
        rule(&[HeaderHas("ratelimit-reason", "quota-tenant")], &[IfLimited(Quota), By(Account)]),
        rule(&[HeaderHas("ratelimit-reason", "quota")], &[IfLimited(Quota), By(Account)]),
        rule(&[HeaderHas("ratelimit-reason", "burst")], &[By(Endpoint)]),
        rule(&[HeaderHas("ratelimit-reason", "per-issue")], &[By(Endpoint)]),
    ],
    ..BASE
};

pub(super) const AUTH0: Profile = Profile {
    name: "auth0",
    hosts: &["auth0.com"],
    scope: Some(Account),
    fields: &[
        field("auth0-client-quota-limit", Budgets("client-quota")),
        field("auth0-organization-quota-limit", Budgets("organization-quota")),
    ],
    dims: &[
        dim("client-quota", Some(App), Some(Quota)),
        dim("organization-quota", Some(Account), Some(Quota)),
    ],
    ..BASE
};

pub(super) const BOX: Profile =
    Profile { name: "box", hosts: &["api.box.com", "upload.box.com"], scope: Some(Account), ..BASE };

/// Refuses with 420.
pub(super) const CLOUDINARY: Profile = Profile {
    name: "cloudinary",
    hosts: &["api.cloudinary.com"],
    scope: Some(Account),
    fields: &[
        field("x-featureratelimit-limit", Part(Limit, "feature", Seconds)),
        field("x-featureratelimit-remaining", Part(Remaining, "feature", Seconds)),
        field("x-featureratelimit-reset", Part(Reset, "feature", Seconds)),
    ],
    rules: &[rule(&[Status(420)], &[Is(RateLimit)])],
    ..BASE
};

/// The plain reset is the second budget's, and tells when the next request is allowed.
pub(super) const CONTENTFUL: Profile = Profile {
    name: "contentful",
    hosts: &["contentful.com"],
    dims: &[
        Dim { name: "second", scope: None, kind: None, window_s: Some(1) },
        Dim { name: "hour", scope: None, kind: None, window_s: Some(3600) },
    ],
    ..BASE
};

pub(super) const DOCUSIGN: Profile = Profile {
    name: "docusign",
    hosts: &["docusign.net", "docusign.com"],
    scope: Some(Account),
    fields: &[
        field("x-burstlimit-limit", Part(Limit, "burst", Seconds)),
        field("x-burstlimit-remaining", Part(Remaining, "burst", Seconds)),
    ],
    rules: &[
        rule(&[Starts("errorCode", "BURST_APIINVOCATION_LIMIT")], &[Is(RateLimit)]),
        rule(&[Starts("errorCode", "HOURLY_APIINVOCATION_LIMIT")], &[Is(RateLimit)]),
    ],
    ..BASE
};

/// Too many writes is contention on one namespace, not volume.
pub(super) const DROPBOX: Profile = Profile {
    name: "dropbox",
    hosts: &["dropboxapi.com"],
    scope: Some(Account),
    rules: &[rule(
        &[Code("error.reason..tag", &["too_many_write_operations"])],
        &[IfLimited(Concurrency), By(Endpoint)],
    )],
    ..BASE
};

pub(super) const FIGMA: Profile =
    Profile { name: "figma", hosts: &["api.figma.com"], scope: Some(Account), ..BASE };

/// The day of the account ends at midnight in its own zone, which the response does not say.
pub(super) const HUBSPOT: Profile = Profile {
    name: "hubspot",
    hosts: &["api.hubapi.com", "api.hubspot.com"],
    scope: Some(Account),
    fields: &[
        field("x-hubspot-ratelimit-daily", Part(Limit, "daily", Seconds)),
        field("x-hubspot-ratelimit-daily-remaining", Part(Remaining, "daily", Seconds)),
        field("x-hubspot-ratelimit-secondly", Part(Limit, "secondly", Seconds)),
        field("x-hubspot-ratelimit-secondly-remaining", Part(Remaining, "secondly", Seconds)),
    ],
    dims: &[dim("daily", None, Some(Quota))],
    rules: &[rule(&[Code("policyName", &["DAILY"])], &[Is(Quota)])],
    ..BASE
};

/// The code may come with a 400.
pub(super) const LARK: Profile = Profile {
    name: "lark",
    hosts: &["open.feishu.cn", "open.larksuite.com"],
    scope: Some(App),
    rules: &[rule(&[Code("code", &["99991400"])], &[Is(RateLimit)])],
    ..BASE
};

pub(super) const LINEAR: Profile = Profile {
    name: "linear",
    hosts: &["api.linear.app"],
    bodies: true,
    scope: Some(Account),
    rules: &[rule(&[Code("errors.extensions.code", &["RATELIMITED"])], &[Is(RateLimit)])],
    ..BASE
};

/// Every answer is a 200.
pub(super) const MARKETO: Profile = Profile {
    name: "marketo",
    hosts: &["mktorest.com"],
    bodies: true,
    scope: Some(Account),
    rules: &[
        rule(&[Code("errors.code", &["606"])], &[Is(RateLimit)]),
        rule(&[Code("errors.code", &["607"])], &[Is(Quota)]),
        rule(&[Code("errors.code", &["615"])], &[Is(Concurrency)]),
        rule(&[Code("errors.code", &["601", "602"])], &[Is(Auth)]),
    ],
    ..BASE
};

pub(super) const MONDAY: Profile = Profile {
    name: "monday",
    hosts: &["api.monday.com"],
    bodies: true,
    scope: Some(Account),
    rules: &[
        rule(
            &[Code("*.code", &["ComplexityException", "COMPLEXITY_BUDGET_EXHAUSTED", "RateLimitExceeded"])],
            &[Is(RateLimit), WaitIn("*.retry_in_seconds", Seconds)],
        ),
        rule(
            &[Code("error_code", &["ComplexityException", "RateLimitExceeded"])],
            &[Is(RateLimit), WaitIn("*.retry_in_seconds", Seconds)],
        ),
        rule(&[Code("*.code", &["DAILY_LIMIT_EXCEEDED"])], &[Is(Quota)]),
        rule(&[Code("*.code", &["maxConcurrencyExceeded"])], &[Is(Concurrency)]),
        rule(&[Code("*.code", &["IP_RATE_LIMIT_EXCEEDED"])], &[Is(RateLimit), By(Ip)]),
    ],
    ..BASE
};

pub(super) const NOTION: Profile =
    Profile { name: "notion", hosts: &["api.notion.com"], scope: Some(App), ..BASE };

/// A limit of zero marks the limit of concurrency.
pub(super) const OKTA: Profile = Profile {
    name: "okta",
    hosts: &["okta.com", "oktapreview.com", "okta-emea.com"],
    scope: Some(Account),
    rules: &[rule(
        &[HeaderIs("x-rate-limit-limit", "0"), HeaderIs("x-rate-limit-remaining", "0")],
        &[IfLimited(Concurrency)],
    )],
    ..BASE
};

pub(super) const RESEND: Profile = Profile {
    name: "resend",
    hosts: &["api.resend.com"],
    scope: Some(Account),
    rules: &[rule(
        &[Status(429), Code("name", &["daily_quota_exceeded", "monthly_quota_exceeded"])],
        &[Is(Quota)],
    )],
    ..BASE
};

/// The allowance of 24 hours is told as `api-usage=18/5000`; its end is a 403 with a code.
pub(super) const SALESFORCE: Profile = Profile {
    name: "salesforce",
    hosts: &["salesforce.com", "force.com"],
    scope: Some(Account),
    fields: &[field("sforce-limit-info", UsedOfLimit("api"))],
    dims: &[dim("api", None, Some(Quota))],
    rules: &[
        rule(
            &[Code("errorCode", &["REQUEST_LIMIT_EXCEEDED"]), Contains("message", "Concurrent")],
            &[Is(Concurrency)],
        ),
        rule(&[Code("errorCode", &["REQUEST_LIMIT_EXCEEDED"])], &[Is(Quota)]),
    ],
    ..BASE
};

/// A refusal may come as a 200 with an error.
pub(super) const SLACK: Profile = Profile {
    name: "slack",
    hosts: &["slack.com"],
    bodies: true,
    scope: Some(Endpoint),
    rules: &[
        rule(&[Code("error", &["ratelimited", "rate_limited"])], &[Is(RateLimit)]),
        rule(
            &[Code(
                "error",
                &["invalid_auth", "not_authed", "token_expired", "token_revoked", "account_inactive"],
            )],
            &[Is(Auth)],
        ),
    ],
    ..BASE
};

pub(super) const TRELLO: Profile = Profile {
    name: "trello",
    hosts: &["api.trello.com"],
    dims: &[
        dim("api-token", Some(Account), None),
        dim("api-key", Some(App), None),
        dim("db-query-time", Some(Account), None),
    ],
    rules: &[
        rule(
            &[Status(429), Code("error", &["API_TOKEN_LIMIT_EXCEEDED", "API_TOKEN_DB_LIMIT_EXCEEDED"])],
            &[By(Account)],
        ),
        rule(
            &[Status(429), Code("error", &["API_KEY_LIMIT_EXCEEDED", "API_KEY_DB_LIMIT_EXCEEDED"])],
            &[By(App)],
        ),
    ],
    ..BASE
};

pub(super) const TWILIO: Profile = Profile {
    name: "twilio",
    hosts: &["twilio.com"],
    scope: Some(Account),
    rules: &[rule(&[Status(429), Code("code", &["20429"])], &[IfLimited(Concurrency)])],
    ..BASE
};

pub(super) const XERO: Profile = Profile {
    name: "xero",
    hosts: &["api.xero.com"],
    scope: Some(Account),
    fields: &[
        field("x-daylimit-remaining", Part(Remaining, "day", Seconds)),
        field("x-minlimit-remaining", Part(Remaining, "minute", Seconds)),
        field("x-appminlimit-remaining", Part(Remaining, "app-minute", Seconds)),
    ],
    dims: &[dim("day", Some(Account), Some(Quota)), dim("app-minute", Some(App), None)],
    rules: &[
        rule(&[HeaderIs("x-rate-limit-problem", "day")], &[IfLimited(Quota), Then::Window(86_400)]),
        rule(&[HeaderIs("x-rate-limit-problem", "minute")], &[Then::Window(60)]),
        rule(&[HeaderIs("x-rate-limit-problem", "appminute")], &[By(App), Then::Window(60)]),
        rule(&[HeaderIs("x-rate-limit-problem", "concurrent")], &[IfLimited(Concurrency), NoBudget]),
    ],
    ..BASE
};

/// Endpoints have budgets of their own: `zendesk-ratelimit-tickets-index`.
pub(super) const ZENDESK: Profile = Profile {
    name: "zendesk",
    hosts: &["zendesk.com"],
    scope: Some(Account),
    dims: &[dim("zendesk", Some(Endpoint), None)],
    ..BASE
};

pub(super) const ZOOM: Profile = Profile {
    name: "zoom",
    hosts: &["api.zoom.us"],
    scope: Some(Account),
    rules: &[rule(&[HeaderHas("x-ratelimit-type", "daily")], &[IfLimited(Quota)])],
    ..BASE
};
