//! The text form: what it says, and what it says about mistakes.

use std::collections::BTreeSet;

use forbear_zoo::{EXAMPLES, Hint, Spec};

#[test]
fn every_example_is_read_and_written_back() {
    assert_eq!(Spec::all_examples().count(), EXAMPLES.len(), "one of them cannot be read");
    let mut names = BTreeSet::new();
    for (example, spec) in Spec::all_examples() {
        assert!(names.insert(example.name), "{} stands twice", example.name);
        assert_eq!(spec.to_string().parse(), Ok(spec), "{}", example.name);
    }
}

#[test]
fn the_examples_show_every_kind_and_every_hint() {
    let texts: Vec<&str> = EXAMPLES.iter().map(|example| example.text).collect();
    let all = texts.join(" ");
    for kind in [
        "token-bucket:",
        "gcra:",
        "fixed-window:",
        "sliding-log:",
        "sliding-counter:",
        "cost-log:",
        "concurrency:",
        "maintenance:",
        "sentence:",
        "brownout:",
        "flaky:",
        "penalty=",
        "ban=",
        "rejected=",
        "lie=0",
        "lie=3",
        "skew=",
        "scope=endpoint",
        "scope=account",
        "scope=client",
        " + ",
    ] {
        assert!(all.contains(kind), "{kind}");
    }
    for hint in Hint::ALL {
        assert!(all.contains(&format!("hint={}", hint.name())), "{hint:?}");
    }
}

#[test]
fn texts_that_are_one_and_the_same() {
    for (text, canonical) in [
        ("open", "open"),
        ("open:", "open"),
        ("token-bucket:rate=5/s", "token-bucket:rate=5/s,burst=1"),
        (" token-bucket : rate = 5/1s , burst = 2 ", "token-bucket:rate=5/s,burst=2"),
        (
            "token-bucket:step=20m/3,rate=5/s,step=10m/0.5,wave=0.3/10m",
            "token-bucket:rate=5/s,burst=1,wave=0.3/600s,step=600s/0.5,step=1200s/3",
        ),
        ("token-bucket:rate=2/s,penalty=30s/1m", "token-bucket:rate=2/s,burst=1,penalty=30s/60s"),
        ("fixed-window:phase=epoch,limit=100/1m", "fixed-window:limit=100/60s"),
        ("open:hint=ms+concurrency:max=3", "concurrency:max=3,wait=1s,hint=ms"),
        ("sentence:match=/a,match=/b*", "sentence:wait=1d,match=/a,match=/b*"),
        ("maintenance:for=90m", "maintenance:from=0,for=5400s"),
        ("flaky:reset=0.5+open:seed=7", "flaky:reset=0.5,stall=30s,seed=7"),
        ("gcra:rate=1/s,hint=http-date,skew=-60m", "gcra:rate=1/s,burst=1,hint=http-date,skew=-1h"),
        (
            "sliding-log:limit=3/s,scope=client,scope=account",
            "sliding-log:limit=3/1s,scope=account,scope=client",
        ),
    ] {
        let spec: Spec = text.parse().unwrap();
        assert_eq!(spec.to_string(), canonical, "{text}");
    }
}

#[test]
fn a_mistake_is_named() {
    for (text, message) in [
        ("", "unknown kind of limiter ``; there are open, token-bucket"),
        ("leaky", "unknown kind of limiter `leaky`"),
        ("token-bucket", "`token-bucket` needs `rate`"),
        ("token-bucket:rate", "`rate` should be written as key=value"),
        ("token-bucket:rate=fast", "`rate=fast` should be so many per time, such as 5/s or 100/60s"),
        ("token-bucket:rate=5/s,burst=0", "`burst=0` should be a whole number from 1 up"),
        ("token-bucket:rate=5/s,bust=3", "`token-bucket` has no setting `bust`"),
        ("token-bucket:rate=5/s,rate=6/s", "`rate` is given twice"),
        ("fixed-window:limit=5/s,phase=moon", "`phase=moon` should be epoch or first-request"),
        ("fixed-window:limit=5/s,rejected=count", "`rejected` has no effect: only token-bucket"),
        ("fixed-window:limit=5/s,scope=planet", "`scope=planet` should be one of endpoint, path"),
        ("fixed-window:limit=5/s,match=a", "`match=a` should be a path that begins with / or *"),
        ("fixed-window:limit=5/s,ban=3/60s", "`ban=3/60s` should be refusals, within a time, for a time"),
        ("fixed-window:limit=5/s,ban=0/60s/1s", "`ban=0/60s/1s` should be"),
        ("fixed-window:limit=5/s,penalty=0", "`penalty=0` should be a time such as 250ms"),
        ("fixed-window:limit=5/s,lie=2", "`lie` has no effect: no hint is told"),
        ("fixed-window:limit=5/s,hint=ms,lie=-2", "`lie=-2` should be a factor"),
        ("fixed-window:limit=5/s,hint=ms,lie=NaN", "`lie=NaN` should be a factor"),
        ("fixed-window:limit=5/s,hint=loud", "`hint=loud` should be one of seconds"),
        ("fixed-window:limit=5/s,status=200", "`status=200` should be a status from 400 to 599"),
        ("fixed-window:limit=5/s,status=503+open:status=429", "`status` is given twice"),
        ("fixed-window:limit=5/s,skew=yes", "`skew=yes` should be a time such as 1h or -1h"),
        ("concurrency:wait=1s", "`concurrency` needs `max`"),
        ("sentence:wait=1d", "`sentence` needs `match`"),
        ("maintenance:from=1s", "`maintenance` needs `for`"),
        ("flaky:reset=1.5", "`reset=1.5` should be a share between 0 and 1"),
        ("flaky:reset=0.6,stalled=0.6", "should be shares of no more than 1 together"),
        ("flaky:scope=path", "`flaky` has no setting `scope`"),
        ("flaky:reset=0.1 + flaky:reset=0.1", "`flaky` is given twice"),
        ("open:burst=3", "`open` has no setting `burst`"),
    ] {
        let error = text.parse::<Spec>().unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}
