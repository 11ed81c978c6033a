//! People, games, music and sport.

use super::words::*;

pub(super) const BUNGIE: Profile = Profile {
    name: "bungie",
    hosts: &["bungie.net"],
    bodies: true,
    rules: &[
        rule(&[Contains("ErrorStatus", "PerEndpoint")], &[By(Endpoint)]),
        rule(&[Contains("ErrorStatus", "PerApplication")], &[By(App)]),
        rule(&[Code("ErrorCode", &["51"])], &[By(Endpoint)]),
        rule(&[Code("ErrorCode", &["54"])], &[By(App)]),
        rule(
            &[Contains("ErrorStatus", "Throttle")],
            &[By(Account), Is(RateLimit), WaitIn("ThrottleSeconds", Seconds)],
        ),
        rule(
            &[Code("ErrorCode", &["35", "36", "37", "51", "54", "55"])],
            &[By(Account), Is(RateLimit), WaitIn("ThrottleSeconds", Seconds)],
        ),
    ],
    ..BASE
};

/// The scope `user` is one bucket of a route; without any bucket it is the edge that refuses the address.
pub(super) const DISCORD: Profile = Profile {
    name: "discord",
    hosts: &["discord.com", "discordapp.com"],
    rules: &[
        rule(&[HeaderIs("x-ratelimit-global", "true")], &[By(Global)]),
        rule(&[HeaderIs("x-ratelimit-scope", "global")], &[By(Global)]),
        rule(&[Code("global", &["true"])], &[By(Global)]),
        rule(&[Header("x-ratelimit-bucket")], &[By(Endpoint)]),
        rule(&[Header("x-ratelimit-scope")], &[By(Endpoint)]),
        rule(&[NoHeader("x-ratelimit-scope"), HeaderIs("server", "cloudflare")], &[By(Ip)]),
    ],
    ..BASE
};

pub(super) const FITBIT: Profile =
    Profile { name: "fitbit", hosts: &["api.fitbit.com"], scope: Some(Account), ..BASE };

pub(super) const LASTFM: Profile = Profile {
    name: "lastfm",
    hosts: &["ws.audioscrobbler.com"],
    bodies: true,
    scope: Some(Ip),
    rules: &[
        rule(&[Code("error", &["29"])], &[Is(RateLimit)]),
        rule(&[Code("error", &["11", "16"])], &[Is(Overload), By(Service)]),
    ],
    ..BASE
};

/// The day limits of an application or a member end at midnight UTC, which the response does not say.
pub(super) const LINKEDIN: Profile = Profile {
    name: "linkedin",
    hosts: &["api.linkedin.com"],
    scope: Some(Endpoint),
    rules: &[
        rule(&[Status(999)], &[Is(Blocked)]),
        rule(&[Status(429), Contains("message", "APPLICATION DAY")], &[Is(Quota), By(App)]),
        rule(&[Status(429), Contains("message", "MEMBER DAY")], &[Is(Quota), By(Account)]),
        rule(&[Status(429), Contains("message", "DAY limit")], &[Is(Quota)]),
    ],
    ..BASE
};

/// Media uploads have a limit of their own, told by the same headers.
pub(super) const MASTODON: Profile = Profile {
    name: "mastodon",
    hosts: &["mastodon.social", "mastodon.online"],
    scope: Some(Account),
    ..BASE
};

/// Usage is told in percent, the time to regain access in minutes. WhatsApp and Instagram answer at the same host.
pub(super) const META: Profile = Profile {
    name: "meta",
    hosts: &["graph.facebook.com", "graph.instagram.com", "graph.threads.net"],
    fields: &[
        field("x-business-use-case-usage", JsonHold("estimated_time_to_regain_access", Minutes)),
        field("x-ad-account-usage", JsonHold("estimated_time_to_regain_access", Minutes)),
    ],
    rules: &[
        rule(&[Code("error.code", &["190", "102", "463", "467"])], &[Is(Auth)]),
        rule(&[Code("error.code", &["4", "341"])], &[Is(RateLimit), By(App)]),
        rule(
            &[Code("error.code", &["17", "32", "613", "80007", "130429", "131048"])],
            &[Is(RateLimit), By(Account)],
        ),
        rule(&[Code("error.code", &["131056"])], &[Is(RateLimit), By(Endpoint)]),
        rule(&[Starts("error.code", "8000")], &[Is(RateLimit), By(Account)]),
        rule(&[Starts("error.code", "8001")], &[Is(RateLimit), By(Account)]),
        rule(&[Code("error.code", &["368"])], &[Is(Blocked), By(Account)]),
        rule(&[HeaderAtLeast("x-app-usage", "call_count", 100.0)], &[Spent, By(App)]),
        rule(&[HeaderAtLeast("x-app-usage", "total_time", 100.0)], &[Spent, By(App)]),
        rule(&[HeaderAtLeast("x-app-usage", "total_cputime", 100.0)], &[Spent, By(App)]),
        rule(&[Header("x-business-use-case-usage")], &[By(Account)]),
    ],
    ..BASE
};

/// The hourly allowance counts only once the daily one is gone, so a request passes while either has something left.
pub(super) const NEXUSMODS: Profile = Profile {
    name: "nexusmods",
    hosts: &["api.nexusmods.com"],
    scope: Some(Account),
    any_left: true,
    fields: &[
        field("x-rl-hourly-limit", Part(Limit, "hourly", Seconds)),
        field("x-rl-hourly-remaining", Part(Remaining, "hourly", Seconds)),
        field("x-rl-hourly-reset", Part(Reset, "hourly", Seconds)),
        field("x-rl-daily-limit", Part(Limit, "daily", Seconds)),
        field("x-rl-daily-remaining", Part(Remaining, "daily", Seconds)),
        field("x-rl-daily-reset", Part(Reset, "daily", Seconds)),
    ],
    ..BASE
};

/// Counts stand as `count:seconds` beside limits as `limit:seconds`.
pub(super) const RIOT: Profile = Profile {
    name: "riot",
    hosts: &["api.riotgames.com"],
    fields: &[
        field("x-app-rate-limit", Windows(Limit, "app")),
        field("x-app-rate-limit-count", Windows(Used, "app")),
        field("x-method-rate-limit", Windows(Limit, "method")),
        field("x-method-rate-limit-count", Windows(Used, "method")),
    ],
    dims: &[dim("app", Some(App), None), dim("method", Some(Endpoint), None)],
    rules: &[
        rule(&[HeaderIs("x-rate-limit-type", "application")], &[By(App)]),
        rule(&[HeaderIs("x-rate-limit-type", "method")], &[By(Endpoint)]),
        rule(&[HeaderIs("x-rate-limit-type", "service")], &[Is(Overload), By(Service)]),
    ],
    ..BASE
};

pub(super) const SPOTIFY: Profile = Profile {
    name: "spotify",
    hosts: &["api.spotify.com"],
    scope: Some(App),
    rules: &[rule(&[Code("error.reason", &["QUOTA_EXCEEDED"])], &[Is(Quota)])],
    ..BASE
};

/// `backoff` in a success asks for time before the next call of the same method.
pub(super) const STACKEXCHANGE: Profile = Profile {
    name: "stackexchange",
    hosts: &["api.stackexchange.com"],
    bodies: true,
    scope: Some(Ip),
    body: &[
        BodyField { path: "quota_max", role: Limit, dim: "quota" },
        BodyField { path: "quota_remaining", role: Remaining, dim: "quota" },
    ],
    dims: &[dim("quota", None, Some(Quota))],
    rules: &[
        rule(
            &[Code("error_name", &["throttle_violation"])],
            &[Is(RateLimit), By(Ip), WaitAfter("more requests available in ", Seconds)],
        ),
        rule(&[Starts("backoff", "")], &[HoldIn("backoff", Seconds), By(Endpoint)]),
    ],
    ..BASE
};

pub(super) const STEAM: Profile =
    Profile { name: "steam", hosts: &["steampowered.com", "steamcommunity.com"], scope: Some(Ip), ..BASE };

/// Two limits in each header: a quarter of an hour, and a day that ends at midnight UTC.
pub(super) const STRAVA: Profile = Profile {
    name: "strava",
    hosts: &["strava.com"],
    scope: Some(App),
    fields: &[
        field("x-ratelimit-limit", Each(Limit, &["quarter", "day"])),
        field("x-ratelimit-usage", Each(Used, &["quarter", "day"])),
        field("x-readratelimit-limit", Each(Limit, &["read-quarter", "read-day"])),
        field("x-readratelimit-usage", Each(Used, &["read-quarter", "read-day"])),
    ],
    dims: &[dim("day", None, Some(Quota)), dim("read-day", None, Some(Quota))],
    ..BASE
};

pub(super) const TRAKT: Profile =
    Profile { name: "trakt", hosts: &["api.trakt.tv"], scope: Some(Account), ..BASE };

pub(super) const TWITCH: Profile =
    Profile { name: "twitch", hosts: &["api.twitch.tv"], scope: Some(App), ..BASE };

/// Caps of 24 hours beside the short window; a monthly cap of posts is told in the body.
pub(super) const TWITTER: Profile = Profile {
    name: "twitter",
    hosts: &["api.twitter.com", "api.x.com"],
    fields: &[
        field("x-app-limit-24hour-limit", Part(Limit, "app-24hour", Seconds)),
        field("x-app-limit-24hour-remaining", Part(Remaining, "app-24hour", Seconds)),
        field("x-app-limit-24hour-reset", Part(Reset, "app-24hour", Seconds)),
        field("x-user-limit-24hour-limit", Part(Limit, "user-24hour", Seconds)),
        field("x-user-limit-24hour-remaining", Part(Remaining, "user-24hour", Seconds)),
        field("x-user-limit-24hour-reset", Part(Reset, "user-24hour", Seconds)),
    ],
    dims: &[dim("app-24hour", Some(App), None), dim("user-24hour", Some(Account), None)],
    rules: &[
        rule(&[Status(429), Contains("title", "UsageCapExceeded")], &[Is(Quota), By(App)]),
        rule(&[Status(429), Contains("type", "usage-capped")], &[Is(Quota), By(App)]),
        rule(&[Status(420)], &[Is(RateLimit)]),
        rule(&[Code("errors.code", &["88"])], &[Is(RateLimit)]),
    ],
    ..BASE
};

/// Errors come with a 200.
pub(super) const VK: Profile = Profile {
    name: "vk",
    hosts: &["api.vk.com", "api.vk.ru"],
    bodies: true,
    scope: Some(Account),
    rules: &[
        rule(&[Code("error.error_code", &["6", "9"])], &[Is(RateLimit)]),
        rule(&[Code("error.error_code", &["29"])], &[Is(Quota)]),
        rule(&[Code("error.error_code", &["5"])], &[Is(Auth)]),
    ],
    ..BASE
};

pub(super) const WHATSAPP: Profile = Profile { name: "whatsapp", hosts: &[], scope: Some(Account), ..META };

pub(super) const YELP: Profile = Profile {
    name: "yelp",
    hosts: &["api.yelp.com"],
    scope: Some(Account),
    fields: &[
        field("ratelimit-dailylimit", Part(Limit, "daily", Seconds)),
        field("ratelimit-remaining", Part(Remaining, "daily", Seconds)),
        field("ratelimit-resettime", Part(Reset, "daily", Seconds)),
    ],
    dims: &[dim("daily", None, Some(Quota))],
    rules: &[
        rule(&[Code("error.code", &["ACCESS_LIMIT_REACHED"])], &[Is(Quota)]),
        rule(&[Code("error.code", &["TOO_MANY_REQUESTS_PER_SECOND"])], &[Is(RateLimit)]),
    ],
    ..BASE
};
