//! The profiles, one table a service. Facts are from the services' public documentation; where it names a scope, so
//! does the table, and where it does not the scope stays open (S3).

mod ai;
mod cloud;
mod code;
mod edge;
mod science;
mod social;
mod trade;
mod work;

/// What every table needs.
mod words {
    pub(super) use super::super::ScopeHint::{Account, App, Endpoint, Global, Ip, Service};
    pub(super) use super::super::fields::Role::{Limit, Need, Rate, Remaining, Reset, Used, Window};
    pub(super) use super::super::profile::{
        BASE, BodyField, Dim,
        Means::{Budgets, Each, Hold, JsonHold, Named, Nothing, Part, UsedOfLimit, Windows},
        Profile,
        Then::{By, HoldIn, IfLimited, Is, NoBudget, Spent, WaitAfter, WaitIn},
        When::{Code, Contains, Header, HeaderAtLeast, HeaderHas, HeaderIs, NoHeader, Starts, Status, Text},
        field, rule,
    };
    pub(super) use super::super::value::Unit::{Millis, Minutes, Seconds};
    pub(super) use super::super::{
        Kind::{Auth, Blocked, Challenge, Concurrency, Overload, Quota, RateLimit},
        profile::Then,
    };

    /// A budget of which only the scope and the kind are known.
    pub(super) const fn dim(
        name: &'static str,
        scope: Option<super::super::ScopeHint>,
        kind: Option<super::super::Kind>,
    ) -> Dim {
        Dim { name, scope, kind, window_s: None }
    }
}

use super::profile::Profile;

/// In the order of their names; a test says so.
pub(crate) const ALL: &[Profile] = &[
    work::AIRTABLE,
    edge::AKAMAI,
    cloud::ALIYUN,
    trade::ALPHAVANTAGE,
    ai::ANTHROPIC,
    edge::APIGEE,
    science::ARXIV,
    work::ATLASSIAN,
    work::AUTH0,
    cloud::AWS,
    cloud::AZURE_ARM,
    ai::AZURE_OPENAI,
    trade::BIGCOMMERCE,
    trade::BINANCE,
    work::BOX,
    edge::BRIGHTDATA,
    social::BUNGIE,
    trade::BYBIT,
    edge::CLOUDFLARE,
    work::CLOUDINARY,
    trade::COINBASE,
    work::CONTENTFUL,
    cloud::COSMOS,
    code::CRATES_IO,
    edge::CRAWLERA,
    code::DATADOG,
    edge::DATADOME,
    cloud::DATAVERSE,
    code::DIGITALOCEAN,
    social::DISCORD,
    code::DOCKERHUB,
    work::DOCUSIGN,
    work::DROPBOX,
    trade::EBAY,
    science::ENSEMBL,
    science::EPO_OPS,
    trade::ETSY,
    edge::FASTLY,
    work::FIGMA,
    social::FITBIT,
    code::GITHUB,
    code::GITLAB,
    cloud::GOOGLE,
    cloud::GOOGLE_MAPS,
    ai::GROQ,
    work::HUBSPOT,
    edge::IMPERVA,
    trade::KRAKEN,
    trade::KUCOIN,
    work::LARK,
    social::LASTFM,
    code::LAUNCHDARKLY,
    code::LETSENCRYPT,
    work::LINEAR,
    social::LINKEDIN,
    work::MARKETO,
    edge::MASHERY,
    social::MASTODON,
    social::META,
    ai::MISTRAL,
    work::MONDAY,
    cloud::MSGRAPH,
    science::MUSICBRAINZ,
    science::NCBI,
    social::NEXUSMODS,
    science::NOMINATIM,
    work::NOTION,
    code::NPM,
    work::OKTA,
    trade::OKX,
    ai::OPENAI,
    ai::OPENROUTER,
    science::OPENSKY,
    science::OVERPASS,
    edge::PERIMETERX,
    science::PUBCHEM,
    code::PYPI,
    work::RESEND,
    social::RIOT,
    work::SALESFORCE,
    science::SEC_EDGAR,
    science::SEMANTICSCHOLAR,
    code::SENTRY,
    cloud::SHAREPOINT,
    trade::SHOPIFY,
    work::SLACK,
    social::SPOTIFY,
    edge::SPRING_GATEWAY,
    social::STACKEXCHANGE,
    social::STEAM,
    social::STRAVA,
    trade::STRIPE,
    edge::SUCURI,
    cloud::TENCENT,
    ai::TOGETHER,
    social::TRAKT,
    work::TRELLO,
    work::TWILIO,
    social::TWITCH,
    social::TWITTER,
    social::VK,
    social::WHATSAPP,
    science::WIKIMEDIA,
    work::XERO,
    social::YELP,
    work::ZENDESK,
    work::ZOOM,
    edge::ZYTE,
];
