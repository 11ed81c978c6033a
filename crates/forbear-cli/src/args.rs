//! The command line: every flag once, with the words of its help.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use forbear::{
    config::{Flag, Secret, Sources},
    exit::Environment,
};

use crate::exit::Failure;

/// A fleet of HTTP workers that meets a limit once, together, and comes back without a herd.
#[derive(Debug, Parser)]
#[command(name = "forbear", version, arg_required_else_help = true, after_help = TOP_EXAMPLE)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Say more on stderr: -v what happens, -vv why, with backtraces
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Fetch URLs at the pace that their servers allow
    #[command(after_help = FETCH_EXAMPLE)]
    Fetch(FetchArgs),
    /// Gates that processes share: look at them, pause and resume scopes
    #[command(after_help = GATE_EXAMPLE)]
    Gate(GateArgs),
    /// Look at a job, or put items back into it
    #[command(after_help = JOB_EXAMPLE)]
    Job(JobArgs),
    /// What a response says about limits, and what would be done
    #[command(after_help = EXPLAIN_EXAMPLE)]
    Explain(ExplainArgs),
    /// The effective configuration, and where each value comes from
    #[command(after_help = CHECK_EXAMPLE)]
    Check(CheckArgs),
    /// A throttling server and a fetch against it, without a network
    #[command(after_help = DEMO_EXAMPLE)]
    Demo(DemoArgs),
    /// Policies against a described limiter, in virtual time: a table, and pictures
    #[command(after_help = SIM_EXAMPLE)]
    Sim(SimArgs),
}

/// Flags that set a key of the configuration. Values are read by the same parsers as the file's.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SettingsArgs {
    /// Configuration file [default: forbear.toml beside the input, else the user's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Policy: polite, shared-gate, retry-after, jitter-bucket, proxy-queue, exit-state, or a file [default: polite]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) policy: Option<String>,
    /// Where gates live: memory, a file for the processes of this machine, or redis://HOST for a fleet [default: memory]
    #[arg(long, value_name = "GATE", value_parser = secret)]
    pub(crate) gate: Option<Secret>,
    /// Exit: http, https, socks5 or socks5h, like http://user:password@host:8080; may be repeated
    #[arg(long, value_name = "URL", value_parser = secret)]
    pub(crate) proxy: Vec<Secret>,
    /// File of exits, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) proxies: Option<PathBuf>,
    /// Leave HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY aside
    #[arg(long)]
    pub(crate) no_env_proxy: bool,
    /// Requests on the wire at once, over all hosts
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<String>,
    /// Ceiling on the starts of the whole run, like 10/s, or two: '10/s, 1000/h burst 100'
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<String>,
    /// Ceiling on the starts at one host, like api.example.com=5/s; may be repeated
    #[arg(long, value_name = "HOST=RATE")]
    pub(crate) host_rate: Vec<String>,
    /// Ceiling on requests in flight to one host
    #[arg(long, value_name = "N")]
    pub(crate) host_concurrency: Option<String>,
    /// Attempts of an item that may fail, the first one included
    #[arg(long, value_name = "N")]
    pub(crate) max_attempts: Option<String>,
    /// Longest time of one attempt, all of it, like 30s
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Longest time of the whole run, like 2h
    #[arg(long, value_name = "TIME")]
    pub(crate) run_for: Option<String>,
    /// End the run when nothing is due for longer than this, like 15m
    #[arg(long, value_name = "TIME")]
    pub(crate) stall_after: Option<String>,
    /// Where the job lives: a file, or postgres://USER@HOST/DATABASE for several processes that share it
    #[arg(long, value_name = "QUEUE", value_parser = secret)]
    pub(crate) queue: Option<Secret>,
}

#[derive(Args, Debug)]
pub(crate) struct FetchArgs {
    /// One URL a line, or JSONL; - is stdin. Left out, the job goes on with what it has
    #[arg(value_name = "INPUT")]
    pub(crate) input: Option<PathBuf>,
    /// Where records go, one JSON object an item; - is stdout
    #[arg(short, long, value_name = "OUT", default_value = "-")]
    pub(crate) output: PathBuf,
    /// The job's file, which makes a run resumable [default: beside the output]; its name, where --queue is a database
    #[arg(long, value_name = "JOB")]
    pub(crate) job: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// Where bodies go: inline (in the records), none, or a directory
    #[arg(long, value_name = "inline|DIR|none", default_value = "inline", value_parser = parse_bodies)]
    pub(crate) bodies: Bodies,
    /// Progress on stderr: a live line on a terminal (auto), plain lines, or none
    #[arg(long, value_enum, value_name = "auto|plain|none", hide_possible_values = true, default_value_t = Progress::Auto)]
    pub(crate) progress: Progress,
    /// Print hosts, counts, scopes and the time it would take; send nothing
    #[arg(long)]
    pub(crate) plan: bool,
}

/// Where bodies go.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Bodies {
    Inline,
    Directory(PathBuf),
    None,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Progress {
    /// A live line on a terminal, else plain lines
    Auto,
    /// Plain lines
    Plain,
    /// Nothing but what needs attention
    None,
}

#[derive(Args, Debug)]
pub(crate) struct GateArgs {
    #[command(subcommand)]
    pub(crate) command: GateCommand,
}

/// Which store.
#[derive(Args, Debug)]
pub(crate) struct GateAt {
    /// The store: a file, redis://HOST, or the job of a run with its gates in memory [default: `gate` of the configuration]
    #[arg(long, value_name = "GATE", value_parser = secret)]
    pub(crate) gate: Option<Secret>,
    /// Configuration file [default: forbear.toml here, else the user's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// Every scope: its state, why, until when, pace and incidents
    List {
        #[command(flatten)]
        at: GateAt,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Everything that is known of one scope
    Show {
        /// Its name, or a beginning that no other has
        scope: String,
        #[command(flatten)]
        at: GateAt,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Start nothing of a scope for a time; a longer pause stays as it is
    Pause {
        /// Its name, or a beginning that no other has; an origin need not be in use yet
        scope: String,
        /// For how long, like 10m
        time: String,
        #[command(flatten)]
        at: GateAt,
    },
    /// End a scope's pause: one request tests, and the others follow if it passes
    Resume {
        /// Its name, or a beginning that no other has
        scope: String,
        #[command(flatten)]
        at: GateAt,
    },
    /// Open a scope at once, without a test
    Clear {
        /// Its name, or a beginning that no other has
        scope: String,
        #[command(flatten)]
        at: GateAt,
    },
}

#[derive(Args, Debug)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    pub(crate) command: JobCommand,
}

/// Which job.
#[derive(Args, Debug)]
pub(crate) struct JobAt {
    /// The job's file, or its name with --queue
    pub(crate) job: PathBuf,
    /// The database it is in: postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "QUEUE", value_parser = secret)]
    pub(crate) queue: Option<Secret>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Counts by state, pauses, what is due when, and what is believed of limits
    Show {
        #[command(flatten)]
        at: JobAt,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// The items, one a line
    List(JobListArgs),
    /// Put failed items back, to be fetched by the next run
    Retry {
        #[command(flatten)]
        at: JobAt,
        /// Those of unknown outcome too: what they asked for may then be done twice
        #[arg(long)]
        unknown: bool,
        /// Parked ones too, though their time has not come; a paused scope stays paused
        #[arg(long)]
        parked: bool,
    },
    /// One record an item as JSONL, in the order of the input, parked ones included
    Export {
        #[command(flatten)]
        at: JobAt,
        /// Configuration file, for its table of secrets [default: forbear.toml beside the input, else the user's]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct JobListArgs {
    #[command(flatten)]
    pub(crate) at: JobAt,
    /// Only pending, parked, leased, done or failed ones (unknown outcomes among the failed)
    #[arg(long, value_enum, value_name = "STATE", hide_possible_values = true)]
    pub(crate) state: Option<ItemState>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// As JSONL, one object an item
    #[arg(long)]
    pub(crate) json: bool,
    /// Configuration file, for its table of secrets [default: forbear.toml beside the input, else the user's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// A state by which items are listed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ItemState {
    Pending,
    Parked,
    Leased,
    Done,
    Failed,
}

#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// A header of the response, like 'Retry-After: 120'; may be repeated. Without any, a head is read from stdin
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// The response's status [default: 429]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(100..=999))]
    pub(crate) status: Option<u16>,
    /// Whose headers they are, where that changes their meaning
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// The URL that was asked for; its host finds the service and the settings that hold for it
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Read one response a line from stdin as JSON, and answer each with a line
    #[arg(long, conflicts_with_all = ["headers", "status", "service", "url"])]
    pub(crate) jsonl: bool,
    /// Instead of a response: what is believed of the limits of this origin (or one scope of it), and why
    #[arg(long, value_name = "ORIGIN", conflicts_with_all = ["headers", "status", "service", "url", "jsonl", "policy"])]
    pub(crate) scope: Option<String>,
    /// The job that has learned it: its file, or its name with --queue
    #[arg(long, value_name = "JOB", requires = "scope", conflicts_with = "gate")]
    pub(crate) job: Option<PathBuf>,
    /// The database that the job is in: postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "QUEUE", requires = "job", value_parser = secret)]
    pub(crate) queue: Option<Secret>,
    /// The store that processes share, and that has learned it: a file, or redis://HOST [default: `gate` of the configuration]
    #[arg(long, value_name = "GATE", requires = "scope", value_parser = secret)]
    pub(crate) gate: Option<Secret>,
    /// With --scope, as one JSON object
    #[arg(long, requires = "scope")]
    pub(crate) json: bool,
    /// Configuration file [default: forbear.toml here, else the user's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Policy: polite, shared-gate, retry-after, jitter-bucket, proxy-queue, exit-state, or a file [default: polite]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) policy: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// As JSON: a list of objects with key, value, origin
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// The server's limit, which the client is not told: a name or a description; list shows them
    #[arg(long, value_name = "SPEC", default_value = crate::demo::LIMITER)]
    pub(crate) limiter: String,
    /// Pages to fetch
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) pages: u32,
}

#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// What to simulate, as TOML; flags beat it
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenario: Option<PathBuf>,
    /// Policy: a shipped name or a file; may be repeated, for several side by side [default: polite]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) policy: Vec<String>,
    /// What others do, to compare with: every-2s, jitter, aimd, cubic, oracle; may be repeated, or a list with commas
    #[arg(long, value_name = "HABIT")]
    pub(crate) against: Vec<String>,
    /// The server's limit: a name or a description, as `forbear demo --limiter list` shows them [default: token-bucket:rate=10/s,burst=10,hint=seconds]
    #[arg(long, value_name = "SPEC")]
    pub(crate) limiter: Option<String>,
    /// Ways out, each with an address of its own: a limit with scope=client counts each of them apart [default: none]
    #[arg(long, value_name = "N")]
    pub(crate) exits: Option<String>,
    /// The records of a real run: its pages and times, and the limit that it met, where none is said
    #[arg(long, value_name = "LOG")]
    pub(crate) replay: Option<PathBuf>,
    /// Workers, each with at most one request on the wire [default: 64]
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<String>,
    /// Mean time from a start to its answer, like 50ms [default: 100ms]
    #[arg(long, value_name = "TIME")]
    pub(crate) latency: Option<String>,
    /// Pages to get [default: 1000, or as many as go within --run-for]
    #[arg(long, value_name = "N")]
    pub(crate) pages: Option<String>,
    /// End of the run in virtual time, like 1h [default: four times the best time, 10m at least]
    #[arg(long, value_name = "TIME")]
    pub(crate) run_for: Option<String>,
    /// Seed of all chance: the same seed is the same run [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<String>,
    /// Host whose settings a policy or configuration may have [default: api.example.com]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Configuration file that holds on top of each policy [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Directory for pictures as SVG: one of each run, and one of all side by side
    #[arg(long, value_name = "DIR")]
    pub(crate) pictures: Option<PathBuf>,
    /// As one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl SettingsArgs {
    /// Where the settings come from, for an input that stands in `beside`.
    ///
    /// # Errors
    /// A `--host-rate` without its `=`. The text is not repeated, for it may hold anything.
    pub(crate) fn sources(&self, beside: &Path) -> Result<Sources, Failure> {
        let top = [
            ("--workers", "workers", &self.workers),
            ("--rate", "rate", &self.rate),
            ("--host-concurrency", "host_concurrency", &self.host_concurrency),
            ("--max-attempts", "max_attempts", &self.max_attempts),
            ("--timeout", "timeout", &self.timeout),
            ("--run-for", "run_for", &self.run_for),
            ("--stall-after", "stall_after", &self.stall_after),
        ];
        let given = |(flag, key, value): (_, _, &Option<String>)| {
            Some(Flag { flag, host: None, key, value: value.clone()? })
        };
        let mut flags: Vec<Flag> = top.into_iter().filter_map(given).collect();
        let gate = self.gate.as_ref().map(|gate| gate.expose().to_owned());
        flags.extend(gate.map(|value| Flag { flag: "--gate", host: None, key: "gate", value }));
        let queue = self.queue.as_ref().map(|queue| queue.expose().to_owned());
        flags.extend(queue.map(|value| Flag { flag: "--queue", host: None, key: "queue", value }));
        for text in &self.host_rate {
            let (host, rate) = text
                .rsplit_once('=')
                .ok_or_else(|| Failure::usage("--host-rate: expected HOST=RATE, like api.example.com=5/s"))?;
            let host = Some(host.to_owned());
            flags.push(Flag { flag: "--host-rate", host, key: "rate", value: rate.to_owned() });
        }
        let environment = if self.no_env_proxy { Environment::default() } else { Environment::of_process() };
        Ok(Sources {
            flags,
            proxies: self.proxy.clone(),
            proxies_file: self.proxies.clone(),
            environment,
            ..sources(self.config.as_deref(), self.policy.as_deref(), beside)
        })
    }
}

/// Where settings come from when only file and policy can be named.
pub(crate) fn sources(config: Option<&Path>, policy: Option<&str>, beside: &Path) -> Sources {
    Sources {
        config: config.map(Path::to_owned),
        beside: Some(beside.to_owned()),
        user: Sources::user_directory(),
        policy: policy.map(str::to_owned),
        ..Sources::default()
    }
}

impl FetchArgs {
    /// The directory in which `forbear.toml` is looked for: the input's, or the current one for stdin and none.
    pub(crate) fn beside(&self) -> &Path {
        let input = self.input.as_deref().filter(|p| *p != Path::new("-"));
        input.and_then(Path::parent).filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

/// A value that neither help nor an error may repeat; it is read where the others are.
#[expect(clippy::unnecessary_wraps, reason = "the form that clap wants")]
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text.to_owned()))
}

fn parse_bodies(text: &str) -> Result<Bodies, String> {
    match text {
        "inline" => Ok(Bodies::Inline),
        "none" => Ok(Bodies::None),
        "" => Err("expected inline, none, or a directory".to_owned()),
        path => Ok(Bodies::Directory(PathBuf::from(path))),
    }
}

const TOP_EXAMPLE: &str =
    "Example:\n  forbear fetch urls.txt -o out.jsonl\n\nThe first thing to try: forbear demo";
const FETCH_EXAMPLE: &str = "\
Examples:
  forbear fetch urls.txt -o out.jsonl
  forbear fetch urls.txt -o out.jsonl --host-rate api.example.com=5/s --run-for 2h
  forbear fetch urls.txt -o out.jsonl --proxies proxies.txt --policy proxy-queue
The same command line resumes what was interrupted.

Exit status: 0 all done, 1 internal, 2 usage or configuration, 3 some failed, 4 work is left,
5 no usable exit, 6 a store cannot be reached, 130 interrupted.";
const GATE_EXAMPLE: &str = "\
Examples:
  forbear gate list --gate redis://gates.internal
  forbear gate pause https://api.example.com 10m --gate redis://gates.internal
  forbear gate show https://api.example.com --gate /var/lib/forbear/gates.db";
const JOB_EXAMPLE: &str = "\
Examples:
  forbear job show out.jsonl.job
  forbear job list out.jsonl.job --state failed --limit 20
  forbear job retry out.jsonl.job
Without --job the job of `forbear fetch -o out.jsonl` is out.jsonl.job.";
const EXPLAIN_EXAMPLE: &str = "\
Examples:
  forbear explain -H 'Retry-After: 120'
  curl -si https://api.example.com/ | forbear explain
  forbear explain --scope https://api.example.com --job out.jsonl.job";
const CHECK_EXAMPLE: &str =
    "Example:\n  forbear check --config forbear.toml --policy retry-after --workers 8";
const DEMO_EXAMPLE: &str = "\
Examples:
  forbear demo
  forbear demo --limiter sliding-log
  forbear demo --limiter 'fixed-window:limit=50/2s,hint=http-date' --pages 300";
const SIM_EXAMPLE: &str = "\
Examples:
  forbear sim --limiter 'token-bucket:rate=50/s,burst=10,hint=seconds' --pages 2000
  forbear sim --policy polite --policy ours.toml --against every-2s,jitter --pictures pictures
  forbear sim --limiter fixed-window:limit=60/1m --workers 8 --run-for 1h --json
Nothing is sent, and no clock is waited for.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The table of a command's arguments, as the reference page has it.
    fn table(command: &clap::Command) -> String {
        let mut text = "| argument | meaning |\n| --- | --- |\n".to_owned();
        for arg in
            command.get_arguments().filter(|a| !["help", "version", "verbose"].contains(&a.get_id().as_str()))
        {
            let value =
                arg.get_value_names().map(|v| v[0].to_string()).filter(|_| arg.get_action().takes_values());
            let name = match (arg.get_short(), arg.get_long()) {
                (Some(short), Some(long)) => format!("-{short}, --{long}"),
                (None, Some(long)) => format!("--{long}"),
                _ => String::new(),
            };
            let name = [Some(name).filter(|n| !n.is_empty()), value]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" ");
            let default: Vec<_> = arg.get_default_values().iter().filter_map(|v| v.to_str()).collect();
            let takes_default = arg.get_action().takes_values() && !default.is_empty();
            let default =
                if takes_default { format!(" [default: {}]", default.join(",")) } else { String::new() };
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            text += &format!("| `{}` | {help}{default} |\n", name.replace('|', "\\|"));
        }
        text
    }

    #[test]
    fn the_reference_page_has_every_command_and_flag_and_no_other() {
        let page = include_str!("../../../docs/reference/cli.md");
        let cli = Cli::command();
        let mut expected = Vec::new();
        for command in cli.get_subcommands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let mut section = format!("## forbear {}\n\n{about}.\n", command.get_name());
            for inner in command.get_subcommands() {
                let (name, about) =
                    (inner.get_name(), inner.get_about().map(ToString::to_string).unwrap_or_default());
                section +=
                    &format!("\n### forbear {} {name}\n\n{about}.\n\n{}", command.get_name(), table(inner));
            }
            if command.get_subcommands().next().is_none()
                && command.get_arguments().any(|a| a.get_id() != "help")
            {
                section += &format!("\n{}", table(command));
            }
            expected.push(section);
        }
        let missing: Vec<_> = expected.iter().filter(|section| !page.contains(section.as_str())).collect();
        let missing = missing.into_iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(missing.is_empty(), "docs/reference/cli.md should have:\n\n{missing}");
        let count = |mark: &str, text: &str| text.lines().filter(|l| l.starts_with(mark)).count();
        for mark in ["## forbear ", "### forbear ", "| `"] {
            let wanted: usize = expected.iter().map(|s| count(mark, s)).sum();
            assert_eq!(count(mark, page), wanted, "lines with {mark:?} that no command has");
        }
    }

    #[test]
    fn bodies_are_two_words_or_a_directory() {
        for (text, expected) in [
            ("inline", Some(Bodies::Inline)),
            ("none", Some(Bodies::None)),
            ("out/bodies", Some(Bodies::Directory("out/bodies".into()))),
            ("", None),
        ] {
            assert_eq!(parse_bodies(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn the_configuration_is_looked_for_beside_the_input() {
        for (input, expected) in [
            (vec![], "."),
            (vec!["-"], "."),
            (vec!["urls.txt"], "."),
            (vec!["in/urls.txt"], "in"),
            (vec!["/u.txt"], "/"),
        ] {
            let cli = Cli::parse_from(["forbear", "fetch"].into_iter().chain(input));
            let Command::Fetch(args) = cli.command else { panic!("not a fetch") };
            assert_eq!(args.beside(), Path::new(expected));
        }
    }
}
