//! Where code, packages and certificates live, and what watches over them.

use super::words::*;

pub(super) const CRATES_IO: Profile = Profile { name: "crates.io", hosts: &[], scope: Some(Account), ..BASE };

pub(super) const DATADOG: Profile =
    Profile { name: "datadog", hosts: &["datadoghq.com", "datadoghq.eu"], scope: Some(Account), ..BASE };

pub(super) const DIGITALOCEAN: Profile =
    Profile { name: "digitalocean", hosts: &["api.digitalocean.com"], scope: Some(Account), ..BASE };

/// The source of a pull is an address, or a user's id when logged in.
pub(super) const DOCKERHUB: Profile = Profile {
    name: "dockerhub",
    hosts: &["docker.io", "docker.com"],
    rules: &[
        rule(&[HeaderHas("docker-ratelimit-source", ".")], &[By(Ip)]),
        rule(&[HeaderHas("docker-ratelimit-source", ":")], &[By(Ip)]),
        rule(&[Header("docker-ratelimit-source")], &[By(Account)]),
    ],
    ..BASE
};

/// Secondary limits are told by the message alone, and GraphQL refuses with a 200.
pub(super) const GITHUB: Profile = Profile {
    name: "github",
    hosts: &["github.com", "githubusercontent.com"],
    bodies: true,
    scope: Some(Account),
    rules: &[
        rule(&[Status(403), Text("secondary rate limit")], &[Is(RateLimit)]),
        rule(&[Status(403), Text("abuse detection mechanism")], &[Is(RateLimit)]),
        rule(&[Status(403), Text("API rate limit exceeded for user")], &[Is(RateLimit)]),
        rule(&[Status(403), Text("API rate limit exceeded for installation")], &[Is(RateLimit)]),
        rule(&[Status(403), Text("API rate limit exceeded for")], &[Is(RateLimit), By(Ip)]),
        rule(&[Status(403), Text("API rate limit exceeded")], &[Is(RateLimit)]),
        rule(&[Code("errors.type", &["RATE_LIMITED", "RATE_LIMIT"])], &[Is(RateLimit)]),
    ],
    ..BASE
};

pub(super) const GITLAB: Profile = Profile {
    name: "gitlab",
    hosts: &["gitlab.com"],
    rules: &[
        rule(&[HeaderHas("ratelimit-name", "unauthenticated")], &[By(Ip)]),
        rule(&[HeaderHas("ratelimit-name", "authenticated")], &[By(Account)]),
    ],
    ..BASE
};

pub(super) const LAUNCHDARKLY: Profile = Profile {
    name: "launchdarkly",
    hosts: &["app.launchdarkly.com"],
    dims: &[dim("route", Some(Endpoint), None), dim("global", Some(Global), None)],
    ..BASE
};

/// ACME as Let's Encrypt speaks it: the instant may stand in the sentence only.
pub(super) const LETSENCRYPT: Profile = Profile {
    name: "letsencrypt",
    hosts: &["api.letsencrypt.org"],
    scope: Some(Account),
    rules: &[rule(&[Contains("type", ":rateLimited")], &[Is(RateLimit), WaitAfter("retry after ", Seconds)])],
    ..BASE
};

pub(super) const NPM: Profile = Profile { name: "npm", hosts: &[], scope: Some(Ip), ..BASE };

/// XML-RPC refuses inside a 200.
pub(super) const PYPI: Profile = Profile {
    name: "pypi",
    hosts: &[],
    bodies: true,
    scope: Some(Ip),
    rules: &[
        rule(&[Text("Too many new projects created")], &[Is(Quota), By(Account)]),
        rule(&[Text("HTTPTooManyRequests")], &[Is(RateLimit), WaitAfter("reset in ", Seconds)]),
    ],
    ..BASE
};

/// A hold for each category of data, also on accepted envelopes; one gate keeps the longest.
pub(super) const SENTRY: Profile = Profile {
    name: "sentry",
    hosts: &["sentry.io"],
    fields: &[field("x-sentry-rate-limits", Hold(Seconds))],
    rules: &[
        rule(&[HeaderHas("x-sentry-rate-limits", ":suspended")], &[IfLimited(Quota)]),
        rule(&[HeaderHas("x-sentry-rate-limits", "usage_exceeded")], &[IfLimited(Quota)]),
        rule(&[Header("x-sentry-rate-limits")], &[By(Account)]),
    ],
    ..BASE
};
