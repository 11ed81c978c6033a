//! Language models and what serves them.

use super::words::*;

pub(super) const ANTHROPIC: Profile = Profile {
    name: "anthropic",
    hosts: &["anthropic.com", "claude.com"],
    scope: Some(Account),
    rules: &[rule(&[Code("error.type", &["overloaded_error"])], &[Is(Overload), By(Service)])],
    ..BASE
};

pub(super) const AZURE_OPENAI: Profile = Profile {
    name: "azure-openai",
    hosts: &["openai.azure.com"],
    rules: &[rule(
        &[Status(429)],
        &[WaitAfter("retry after ", Seconds), WaitAfter("try again in ", Seconds)],
    )],
    ..BASE
};

pub(super) const GROQ: Profile = Profile {
    name: "groq",
    hosts: &["api.groq.com"],
    scope: Some(Account),
    rules: &[rule(&[Status(429)], &[WaitAfter("try again in ", Seconds)])],
    ..BASE
};

pub(super) const MISTRAL: Profile =
    Profile { name: "mistral", hosts: &["api.mistral.ai"], scope: Some(Account), ..BASE };

pub(super) const OPENAI: Profile = Profile {
    name: "openai",
    hosts: &["api.openai.com"],
    scope: Some(Account),
    rules: &[
        rule(&[Code("error.code", &["insufficient_quota", "billing_hard_limit_reached"])], &[Is(Quota)]),
        rule(&[Code("error.type", &["insufficient_quota"])], &[Is(Quota)]),
        rule(&[Status(429)], &[WaitAfter("try again in ", Seconds)]),
    ],
    ..BASE
};

pub(super) const OPENROUTER: Profile = Profile {
    name: "openrouter",
    hosts: &["openrouter.ai"],
    scope: Some(Account),
    rules: &[rule(&[Status(429), Text("per-day")], &[IfLimited(Quota)])],
    ..BASE
};

pub(super) const TOGETHER: Profile = Profile {
    name: "together",
    hosts: &["api.together.xyz", "api.together.ai"],
    scope: Some(Account),
    ..BASE
};
