//! One of each, for tests that go over the whole zoo.

use super::Spec;

/// A limiter with a name.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// A short name, for a test's message or a command line.
    pub name: &'static str,
    /// Its text form.
    pub text: &'static str,
    /// Where such a one is met.
    pub stands_for: &'static str,
}

/// Every kind and every way of telling at least once. The numbers are small, so that a test of seconds meets the limit.
pub const EXAMPLES: &[Example] = &[
    Example {
        name: "token-bucket",
        text: "token-bucket:rate=20/s,burst=10,hint=seconds",
        stands_for: "Shopify's REST Admin API, Stripe, nginx's limit_req with a burst",
    },
    Example {
        name: "token-bucket-silent",
        text: "token-bucket:rate=20/s,burst=10",
        stands_for: "a bare 429, as many home-made services send it",
    },
    Example {
        name: "token-bucket-debt",
        text: "token-bucket:rate=20/s,burst=10,rejected=count,hint=seconds",
        stands_for: "gateways that count before they judge",
    },
    Example {
        name: "gcra-draft-3",
        text: "gcra:rate=20/s,burst=10,hint=draft-3,hint=seconds",
        stands_for: "redis-cell behind a gateway with the headers of drafts 03 to 06",
    },
    Example {
        name: "gcra-draft-7",
        text: "gcra:rate=20/s,burst=10,hint=draft-7",
        stands_for: "express-rate-limit with its draft-7 headers, on a bucket",
    },
    Example {
        name: "gcra-structured",
        text: "gcra:rate=20/s,burst=10,hint=structured",
        stands_for: "the newest draft of the RateLimit header fields",
    },
    Example {
        name: "fixed-window",
        text: "fixed-window:limit=20/1s,hint=seconds",
        stands_for: "counters keyed by the clock: INCR and EXPIRE in Redis",
    },
    Example {
        name: "fixed-window-first-request",
        text: "fixed-window:limit=20/1s,phase=first-request,hint=reset-epoch",
        stands_for: "GitHub's hourly budget with its X-RateLimit-Reset",
    },
    Example {
        name: "fixed-window-delta",
        text: "fixed-window:limit=20/1s,hint=reset-delta",
        stands_for: "gateways that tell X-RateLimit-Reset in seconds",
    },
    Example {
        name: "sliding-log",
        text: "sliding-log:limit=20/1s,hint=ms",
        stands_for: "a sorted set in Redis; the wait as Azure tells it",
    },
    Example {
        name: "sliding-log-rejected-count",
        text: "sliding-log:limit=20/1s,rejected=count,hint=seconds",
        stands_for: "logs that note every request, so that who keeps knocking stays out",
    },
    Example {
        name: "sliding-counter",
        text: "sliding-counter:limit=20/1s",
        stands_for: "Cloudflare's two weighted counters",
    },
    Example {
        name: "two-windows",
        text: "fixed-window:limit=10/1s,phase=first-request + fixed-window:limit=100/30s,phase=first-request,hint=seconds",
        stands_for: "Riot's 20 in a second and 100 in two minutes",
    },
    Example {
        name: "endpoint",
        text: "fixed-window:limit=5/1s,scope=endpoint,hint=draft-7",
        stands_for: "Discord's and X's limit for each route",
    },
    Example {
        name: "account",
        text: "token-bucket:rate=10/s,burst=5,scope=account,hint=seconds",
        stands_for: "a limit for each API token",
    },
    Example {
        name: "client",
        text: "token-bucket:rate=10/s,burst=5,scope=client,hint=seconds",
        stands_for: "nginx's limit_req by $binary_remote_addr",
    },
    Example {
        name: "cost-log",
        text: "sliding-log:limit=40/2s,hint=seconds + cost-log:limit=60/2s",
        stands_for: "requests and tokens by the minute, as services of language models count",
    },
    Example {
        name: "concurrency",
        text: "concurrency:max=4,hint=seconds",
        stands_for: "Mailchimp's ten connections at once, nginx's limit_conn",
    },
    Example {
        name: "penalty",
        text: "token-bucket:rate=20/s,burst=20,penalty=2s,hint=seconds",
        stands_for: "SEC EDGAR: ten in a second, or out until you have been quiet for ten minutes",
    },
    Example {
        name: "penalty-silent",
        text: "token-bucket:rate=20/s,burst=20,penalty=2s",
        stands_for: "the same without a word on how long",
    },
    Example {
        name: "ban",
        text: "token-bucket:rate=20/s,burst=10,ban=3/10s/5s,hint=seconds",
        stands_for: "Discord's and Binance's bans for those who go on after a 429",
    },
    Example {
        name: "lying-short",
        text: "fixed-window:limit=20/4s,phase=first-request,hint=seconds,lie=0.5",
        stands_for: "a proxy that tells its own wait, not that of the service behind",
    },
    Example {
        name: "lying-long",
        text: "fixed-window:limit=20/1s,phase=first-request,hint=seconds,lie=3",
        stands_for: "a fixed Retry-After that is always too much",
    },
    Example {
        name: "http-date",
        text: "fixed-window:limit=20/1s,hint=http-date,status=503",
        stands_for: "services that tell the moment, not the time until then",
    },
    Example {
        name: "http-date-skewed",
        text: "fixed-window:limit=20/1s,hint=http-date,skew=1h",
        stands_for: "the same with a clock one hour off, in its Date as well",
    },
    Example {
        name: "sentence",
        text: "sentence:match=/shut/*,wait=1d,hint=seconds",
        stands_for: "Retry-After: 86400 on a few URLs of a host that serves all others",
    },
    Example {
        name: "maintenance",
        text: "maintenance:for=1s,from=1s,every=5s,hint=seconds",
        stands_for: "503 with Retry-After during a deployment",
    },
    Example {
        name: "brownout",
        text: "brownout:capacity=50/s,base=20ms,patience=500ms,seed=1",
        stands_for: "a database that is nearly too slow: it queues, then fails",
    },
    Example {
        name: "flaky",
        text: "flaky:reset=0.02,bad-gateway=0.05,truncated=0.02,stalled=0.01,stall=1s,seed=1",
        stands_for: "an old load balancer",
    },
];

impl Spec {
    /// Every example with its description.
    ///
    /// ```
    /// use forbear_zoo::Spec;
    ///
    /// for (example, spec) in Spec::all_examples() {
    ///     println!("{:28} {spec}", example.name);
    /// }
    /// ```
    pub fn all_examples() -> impl Iterator<Item = (&'static Example, Spec)> {
        // A test reads them all, so that none is lost here.
        EXAMPLES.iter().filter_map(|example| Some((example, example.text.parse().ok()?)))
    }

    /// The example of that name.
    #[must_use]
    pub fn example(name: &str) -> Option<Spec> {
        Spec::all_examples().find(|(example, _)| example.name == name).map(|(_, spec)| spec)
    }
}
