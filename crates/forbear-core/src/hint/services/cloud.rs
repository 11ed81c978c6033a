//! Clouds and their platforms.

use super::words::*;

pub(super) const ALIYUN: Profile = Profile {
    name: "aliyun",
    hosts: &["aliyuncs.com"],
    scope: Some(Account),
    rules: &[
        rule(&[Starts("Code", "Throttling.Api")], &[Is(RateLimit), By(Endpoint)]),
        rule(&[Starts("Code", "Throttling")], &[Is(RateLimit)]),
        rule(&[Text("<Code>Throttling")], &[Is(RateLimit)]),
        rule(&[Starts("Code", "ServiceUnavailable")], &[Is(Overload), By(Service)]),
    ],
    ..BASE
};

/// The codes that the AWS SDKs hold for throttling. They stand in a header, in JSON or in XML; the first two may wrap
/// them: `namespace#Code`, `Code:http://...`.
pub(super) const AWS: Profile = Profile {
    name: "aws",
    hosts: &[
        "amazonaws.com",
        "api.aws",
        "sellingpartnerapi-na.amazon.com",
        "sellingpartnerapi-eu.amazon.com",
    ],
    fields: &[field("x-amzn-ratelimit-limit", Part(Limit, "rate", Seconds))],
    dims: &[Dim { name: "rate", scope: None, kind: None, window_s: Some(1) }],
    rules: &[
        rule(&[Contains("Reason", "ReservedFunctionConcurrent")], &[IfLimited(Concurrency), By(Endpoint)]),
        rule(
            &[Contains("Reason", "ConcurrentInvocationLimitExceeded")],
            &[IfLimited(Concurrency), By(Account)],
        ),
        rule(&[Contains("*.__type", "ProvisionedThroughputExceeded")], &[Is(RateLimit), By(Endpoint)]),
        rule(
            &[HeaderHas("x-amzn-errortype", "ProvisionedThroughputExceeded")],
            &[Is(RateLimit), By(Endpoint)],
        ),
        rule(&[Contains("*.__type", "TransactionInProgress")], &[Is(Concurrency), By(Endpoint)]),
        rule(&[Text("<Code>PriorRequestNotComplete</Code>")], &[Is(Concurrency), By(Account)]),
        rule(&[Contains("*.__type", "PriorRequestNotComplete")], &[Is(Concurrency), By(Account)]),
        // A usage plan's quota of API Gateway; elsewhere the same code is a rate.
        rule(
            &[Status(429), HeaderHas("x-amzn-errortype", "LimitExceededException")],
            &[Is(Quota), By(Account)],
        ),
        rule(&[Contains("*.__type", "Throttl")], &[Is(RateLimit)]),
        rule(&[Contains("*.__type", "TooManyRequestsException")], &[Is(RateLimit)]),
        rule(&[Contains("*.__type", "RequestLimitExceeded")], &[Is(RateLimit), By(Account)]),
        rule(&[Contains("*.__type", "#LimitExceededException")], &[Is(RateLimit)]),
        rule(&[Code("*.__type", &["LimitExceededException", "SlowDown"])], &[Is(RateLimit)]),
        rule(&[Starts("*.code", "Throttl")], &[Is(RateLimit)]),
        rule(&[HeaderHas("x-amzn-errortype", "Throttl")], &[Is(RateLimit)]),
        rule(&[HeaderHas("x-amzn-errortype", "TooManyRequestsException")], &[Is(RateLimit)]),
        rule(&[HeaderHas("x-amzn-errortype", "RequestLimitExceeded")], &[Is(RateLimit), By(Account)]),
        rule(&[Text("<Code>Throttl")], &[Is(RateLimit)]),
        rule(&[Text("<Code>RequestThrottled")], &[Is(RateLimit)]),
        rule(&[Text("<Code>EC2ThrottledException</Code>")], &[Is(RateLimit)]),
        rule(&[Text("<Code>TooManyRequests")], &[Is(RateLimit)]),
        rule(&[Text("<Code>RequestLimitExceeded</Code>")], &[Is(RateLimit), By(Account)]),
        rule(&[Text("<Code>BandwidthLimitExceeded</Code>")], &[Is(RateLimit)]),
        rule(&[Text("<Code>SlowDown</Code>")], &[Is(RateLimit)]),
        rule(&[Header("x-amzn-ratelimit-limit")], &[By(Account)]),
    ],
    ..BASE
};

pub(super) const AZURE_ARM: Profile = Profile {
    name: "azure-arm",
    hosts: &["management.azure.com"],
    scope: Some(Account),
    // The compute provider's: `Microsoft.Compute/HighCostGet3Min;107,Microsoft.Compute/HighCostGet30Min;0`
    fields: &[field("x-ms-ratelimit-remaining-resource", Named(Remaining, "resource"))],
    rules: &[rule(
        &[
            Status(429),
            Code("error.code", &["RetryableErrorDueToAnotherOperation", "AnotherOperationInProgress"]),
        ],
        &[IfLimited(Concurrency), By(Endpoint)],
    )],
    ..BASE
};

pub(super) const COSMOS: Profile =
    Profile { name: "cosmos", hosts: &["documents.azure.com"], scope: Some(Account), ..BASE };

/// The service protection limits of Microsoft Dataverse.
pub(super) const DATAVERSE: Profile = Profile {
    name: "dataverse",
    hosts: &["dynamics.com"],
    scope: Some(Account),
    rules: &[
        rule(&[Code("error.code", &["0x80072326", "-2147015898"])], &[IfLimited(Concurrency)]),
        rule(
            &[Code("error.code", &["0x80072322", "-2147015902", "0x80072321", "-2147015903"])],
            &[Is(RateLimit)],
        ),
    ],
    ..BASE
};

const GOOGLE_RULES: &[super::super::profile::Rule] = &[
    rule(&[Contains("*.quotaId", "PerDay")], &[IfLimited(Quota)]),
    rule(&[Contains("*.quota_limit", "PerDay")], &[IfLimited(Quota)]),
    rule(
        &[Code("error.errors.domain", &["youtube.quota"]), Code("error.errors.reason", &["quotaExceeded"])],
        &[Is(Quota), By(App)],
    ),
    rule(
        &[Code(
            "error.errors.reason",
            &["quotaExceeded", "dailyLimitExceeded", "dailyLimitExceededUnreg", "userRateLimitExceededUnreg"],
        )],
        &[Is(Quota)],
    ),
    rule(
        &[Code(
            "error.errors.reason",
            &[
                "rateLimitExceeded",
                "userRateLimitExceeded",
                "sharingRateLimitExceeded",
                "servingLimitExceeded",
            ],
        )],
        &[Is(RateLimit)],
    ),
    rule(&[Code("error.details.reason", &["RATE_LIMIT_EXCEEDED"])], &[Is(RateLimit)]),
];

pub(super) const GOOGLE: Profile = Profile {
    name: "google",
    hosts: &["googleapis.com", "www.googleapis.com"],
    scope: Some(Account),
    rules: GOOGLE_RULES,
    ..BASE
};

/// Google Maps answers 200 to everything.
pub(super) const GOOGLE_MAPS: Profile = Profile {
    name: "google-maps",
    hosts: &["maps.googleapis.com"],
    bodies: true,
    scope: Some(Account),
    rules: &[
        rule(&[Code("status", &["OVER_DAILY_LIMIT"])], &[Is(Quota)]),
        rule(&[Code("status", &["OVER_QUERY_LIMIT"])], &[Is(RateLimit)]),
    ],
    ..BASE
};

pub(super) const MSGRAPH: Profile =
    Profile { name: "msgraph", hosts: &["graph.microsoft.com"], scope: Some(App), ..BASE };

pub(super) const SHAREPOINT: Profile =
    Profile { name: "sharepoint", hosts: &["sharepoint.com"], scope: Some(App), ..BASE };

pub(super) const TENCENT: Profile = Profile {
    name: "tencent",
    hosts: &["tencentcloudapi.com"],
    bodies: true,
    scope: Some(Account),
    rules: &[
        rule(&[Starts("Response.Error.Code", "AuthFailure")], &[Is(Auth)]),
        rule(&[Starts("Response.Error.Code", "RequestLimitExceeded.IPLimit")], &[Is(RateLimit), By(Ip)]),
        rule(&[Starts("Response.Error.Code", "RequestLimitExceeded")], &[Is(RateLimit)]),
    ],
    ..BASE
};
