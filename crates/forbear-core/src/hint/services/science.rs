//! Science, libraries, maps and public records.

use super::words::*;

pub(super) const ARXIV: Profile = Profile { name: "arxiv", hosts: &["arxiv.org"], scope: Some(Ip), ..BASE };

pub(super) const ENSEMBL: Profile =
    Profile { name: "ensembl", hosts: &["rest.ensembl.org"], scope: Some(Ip), ..BASE };

/// A service that is black is spent; the reason of a rejection names the quota.
pub(super) const EPO_OPS: Profile = Profile {
    name: "epo-ops",
    hosts: &["ops.epo.org"],
    rules: &[
        rule(&[Status(403), HeaderHas("x-rejection-reason", "PerWeek")], &[Is(Quota), By(Account)]),
        rule(&[Status(403), HeaderHas("x-rejection-reason", "Anonymous")], &[Is(RateLimit), By(Ip)]),
        rule(&[Status(403), Header("x-rejection-reason")], &[Is(RateLimit), By(Account)]),
        rule(
            &[Status(403), HeaderHas("x-throttling-control", "=black:0")],
            &[Is(RateLimit), By(Endpoint), Then::Limit(0.0)],
        ),
    ],
    ..BASE
};

/// Asks with a 503 to come at most once a second.
pub(super) const MUSICBRAINZ: Profile = Profile {
    name: "musicbrainz",
    hosts: &["musicbrainz.org"],
    scope: Some(Ip),
    rules: &[rule(&[Status(503), Text("exceeding the allowable rate limit")], &[Is(RateLimit)])],
    ..BASE
};

pub(super) const NCBI: Profile = Profile {
    name: "ncbi",
    hosts: &["eutils.ncbi.nlm.nih.gov"],
    scope: Some(Ip),
    body: &[BodyField { path: "limit", role: Limit, dim: "" }],
    ..BASE
};

pub(super) const NOMINATIM: Profile =
    Profile { name: "nominatim", hosts: &["nominatim.openstreetmap.org"], scope: Some(Ip), ..BASE };

pub(super) const OPENSKY: Profile =
    Profile { name: "opensky", hosts: &["opensky-network.org"], scope: Some(Account), ..BASE };

pub(super) const OVERPASS: Profile = Profile {
    name: "overpass",
    hosts: &["overpass-api.de"],
    scope: Some(Ip),
    rules: &[rule(&[Status(504), Text("probably too busy")], &[Is(Overload), By(Service)])],
    ..BASE
};

pub(super) const PUBCHEM: Profile = Profile {
    name: "pubchem",
    hosts: &["pubchem.ncbi.nlm.nih.gov"],
    scope: Some(Ip),
    rules: &[
        rule(&[HeaderHas("x-throttling-control", "too many requests per")], &[Is(Blocked)]),
        rule(
            &[HeaderHas("x-throttling-control", "Service status: Black")],
            &[IfLimited(Overload), By(Service)],
        ),
        rule(&[Code("Fault.Code", &["PUGREST.ServerBusy"])], &[Is(RateLimit), By(Ip)]),
    ],
    ..BASE
};

pub(super) const SEC_EDGAR: Profile = Profile {
    name: "sec-edgar",
    hosts: &["sec.gov"],
    scope: Some(Ip),
    rules: &[
        rule(&[Text("Request Rate Threshold Exceeded")], &[Is(RateLimit)]),
        rule(&[Status(403), Text("Undeclared Automated Tool")], &[Is(Blocked)]),
    ],
    ..BASE
};

pub(super) const SEMANTICSCHOLAR: Profile =
    Profile { name: "semanticscholar", hosts: &["api.semanticscholar.org"], scope: Some(Ip), ..BASE };

/// Actions are throttled inside a 200; lag of the databases is told likewise, with a `Retry-After`.
pub(super) const WIKIMEDIA: Profile = Profile {
    name: "wikimedia",
    hosts: &["wikipedia.org", "wikimedia.org", "wikidata.org", "mediawiki.org", "wiktionary.org"],
    bodies: true,
    rules: &[
        rule(&[HeaderIs("mediawiki-api-error", "ratelimited")], &[Is(RateLimit), By(Account)]),
        rule(&[HeaderIs("mediawiki-api-error", "actionthrottledtext")], &[Is(RateLimit), By(Account)]),
        rule(&[HeaderIs("mediawiki-api-error", "maxlag")], &[Is(Overload), By(Service)]),
        rule(&[HeaderIs("mediawiki-api-error", "readonly")], &[Is(Overload), By(Service)]),
        rule(&[Code("error.code", &["ratelimited", "actionthrottledtext"])], &[Is(RateLimit), By(Account)]),
        rule(&[Code("errors.code", &["ratelimited"])], &[Is(RateLimit), By(Account)]),
        rule(&[Code("error.code", &["maxlag", "readonly"])], &[Is(Overload), By(Service)]),
        rule(&[Header("x-envoy-ratelimited")], &[By(Ip)]),
    ],
    ..BASE
};
