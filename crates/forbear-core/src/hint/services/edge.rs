//! What stands before or between: content networks, gateways, proxies and their makers.

use super::words::*;

pub(super) const AKAMAI: Profile = Profile {
    name: "akamai",
    rules: &[
        rule(&[Status(403), HeaderHas("server", "AkamaiGHost")], &[Is(Blocked)]),
        rule(&[Status(403), Text("Access Denied"), Text("Reference #")], &[Is(Blocked)]),
        rule(&[Status(403), Text("Access Denied"), Text("Reference&#32;&#35;")], &[Is(Blocked)]),
        rule(&[Status(403), Text("errors.edgesuite.net")], &[Is(Blocked)]),
    ],
    ..BASE
};

/// Faults of policies come as 429 or, in older proxies, as 500.
pub(super) const APIGEE: Profile = Profile {
    name: "apigee",
    rules: &[
        rule(
            &[Code("fault.detail.errorcode", &["policies.ratelimit.SpikeArrestViolation"])],
            &[Is(RateLimit)],
        ),
        rule(&[Code("fault.detail.errorcode", &["policies.ratelimit.QuotaViolation"])], &[Is(Quota)]),
    ],
    ..BASE
};

pub(super) const BRIGHTDATA: Profile = Profile {
    name: "brightdata",
    hosts: &["brd.superproxy.io", "superproxy.io", "brightdata.com"],
    rules: &[
        rule(&[HeaderHas("x-brd-error-code", "rate_limit")], &[Is(RateLimit)]),
        rule(&[HeaderHas("x-brd-err-code", "rate_limit")], &[Is(RateLimit)]),
    ],
    ..BASE
};

/// 1015 is a zone's rate limit for an address; the other 1xxx pages deny.
pub(super) const CLOUDFLARE: Profile = Profile {
    name: "cloudflare",
    hosts: &["cloudflare.com"],
    rules: &[
        rule(&[Code("error_code", &["1015"])], &[Is(RateLimit), By(Ip)]),
        rule(&[Text("error 1015")], &[Is(RateLimit), By(Ip)]),
        rule(&[Status(429), Text("error 1027")], &[IfLimited(Quota), By(Account)]),
        rule(&[Status(403), Code("error_code", &["1005", "1006", "1007", "1008"])], &[Is(Blocked), By(Ip)]),
        rule(&[Status(403), Code("error_code", &["1009", "1010", "1012", "1020", "1106"])], &[Is(Blocked)]),
        rule(&[Status(403), Text("error 1006")], &[Is(Blocked), By(Ip)]),
        rule(&[Status(403), Text("error 1007")], &[Is(Blocked), By(Ip)]),
        rule(&[Status(403), Text("error 1008")], &[Is(Blocked), By(Ip)]),
        rule(&[Status(403), Text("error 1005")], &[Is(Blocked), By(Ip)]),
        rule(&[Status(403), Text("error 1106")], &[Is(Blocked), By(Ip)]),
        rule(&[Status(403), Text("error 1009")], &[Is(Blocked)]),
        rule(&[Status(403), Text("error 1010")], &[Is(Blocked)]),
        rule(&[Status(403), Text("error 1012")], &[Is(Blocked)]),
        rule(&[Status(403), Text("error 1020")], &[Is(Blocked)]),
        rule(&[Header("ratelimit")], &[By(Account)]),
    ],
    ..BASE
};

/// Also Zyte's Smart Proxy Manager, which kept the header names.
pub(super) const CRAWLERA: Profile = Profile {
    name: "crawlera",
    hosts: &["proxy.crawlera.com", "proxy.zyte.com"],
    fields: &[field("x-crawlera-next-request-in", Hold(Seconds))],
    rules: &[
        rule(&[HeaderIs("x-crawlera-error", "banned")], &[Is(Blocked)]),
        rule(&[HeaderIs("x-crawlera-error", "slavebanned")], &[Is(Blocked)]),
        rule(&[HeaderIs("x-crawlera-error", "serverbusy")], &[Is(Overload)]),
        rule(&[HeaderIs("x-crawlera-error", "noslaves")], &[Is(Overload)]),
        rule(&[HeaderIs("x-crawlera-error", "too_many_conns")], &[Is(Concurrency), By(Account)]),
        rule(&[HeaderIs("x-crawlera-error", "user_session_limit")], &[Is(Concurrency), By(Account)]),
    ],
    ..BASE
};

pub(super) const DATADOME: Profile = Profile {
    name: "datadome",
    rules: &[
        rule(&[Status(403), Text("captcha-delivery.com")], &[Is(Challenge)]),
        rule(&[Status(403), HeaderIs("x-datadome", "protected")], &[Is(Challenge)]),
    ],
    ..BASE
};

pub(super) const FASTLY: Profile =
    Profile { name: "fastly", hosts: &["api.fastly.com"], scope: Some(Account), ..BASE };

pub(super) const IMPERVA: Profile = Profile {
    name: "imperva",
    rules: &[
        rule(&[Status(403), Text("Incapsula incident ID")], &[Is(Blocked)]),
        rule(&[Status(403), Text("_Incapsula_Resource")], &[Is(Challenge)]),
        rule(&[Status(403), HeaderIs("x-cdn", "Imperva")], &[Is(Blocked)]),
        rule(&[Status(403), HeaderIs("x-cdn", "Incapsula")], &[Is(Blocked)]),
    ],
    ..BASE
};

/// The API gateway that many publishers rent.
pub(super) const MASHERY: Profile = Profile {
    name: "mashery",
    rules: &[
        rule(&[HeaderHas("x-mashery-error-code", "OVER_QPS")], &[Is(RateLimit), By(App)]),
        rule(&[HeaderHas("x-mashery-error-code", "OVER_RATE")], &[Is(Quota), By(App)]),
    ],
    ..BASE
};

pub(super) const PERIMETERX: Profile = Profile {
    name: "perimeterx",
    rules: &[
        rule(&[Status(403), Text("px-captcha")], &[Is(Challenge)]),
        rule(&[Status(403), Text("perimeterx")], &[Is(Challenge)]),
    ],
    ..BASE
};

/// A refill rate and a request's price are not waits.
pub(super) const SPRING_GATEWAY: Profile = Profile {
    name: "spring-gateway",
    fields: &[
        field("x-ratelimit-burst-capacity", Part(Limit, "", Seconds)),
        field("x-ratelimit-replenish-rate", Nothing),
        field("x-ratelimit-requested-tokens", Nothing),
    ],
    ..BASE
};

pub(super) const SUCURI: Profile = Profile {
    name: "sucuri",
    rules: &[
        rule(&[Status(403), Header("x-sucuri-block")], &[Is(Blocked)]),
        rule(&[Status(403), Text("Sucuri WebSite Firewall")], &[Is(Blocked)]),
    ],
    ..BASE
};

pub(super) const ZYTE: Profile =
    Profile { name: "zyte", hosts: &["api.zyte.com"], scope: Some(Account), ..BASE };
