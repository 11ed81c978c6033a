//! `forbear job`: looking at a job, also while another process runs it, and putting items back into it.

mod export;
mod list;
mod show;

pub(crate) use self::show::{belief_json, due};

use std::{
    borrow::Cow,
    io::{self, Write},
    path::{Path, PathBuf},
};

use forbear::secrets::Redactor;
use forbear_store::queue::{
    InputEnd, JobAddress, QueueAddress, QueueError, Seq,
    inspect::{JobFile, Listed, Retry, Summary, Which, retry, unpark},
};

use crate::{
    args::{JobArgs, JobAt, JobCommand, sources},
    exit::{Exit, Failure, written},
    shell::say,
};

/// Shows, lists, exports, or puts back.
///
/// # Errors
/// A job that is missing, damaged, something else, or in use where it must not be.
pub(crate) async fn run(args: JobArgs) -> Result<Exit, Failure> {
    match args.command {
        JobCommand::Show { at, json } => show::run(&address(&at)?, json),
        JobCommand::List(args) => list::run(&address(&args.at)?, &args),
        JobCommand::Export { at, config } => export::run(&address(&at)?, config.as_deref()),
        JobCommand::Retry { at, unknown, parked } => put_back(&address(&at)?, unknown, parked),
    }
}

/// A file, or the name of a job in a database.
pub(crate) fn address(at: &JobAt) -> Result<JobAddress, Failure> {
    match at.queue.as_ref().map(|queue| queue.expose().parse()) {
        None => Ok(JobAddress::File(at.job.clone())),
        Some(Ok(QueueAddress::Postgres(queue))) => Ok(queue.job(at.job.to_string_lossy())),
        Some(Ok(QueueAddress::File(path))) => Err(Failure::usage(format!(
            "{} is a file, and holds one job: name it without --queue",
            path.display()
        ))),
        Some(Err(never)) => match never {},
    }
}

fn put_back(job: &JobAddress, unknown: bool, parked: bool) -> Result<Exit, Failure> {
    let failed = if unknown { Retry::FailedAndUnknown } else { Retry::Failed };
    let mut ended = retry(job, failed).map_err(|e| failure(job, &e))?;
    let mut text = match (ended, unknown) {
        (1, false) => "1 failed item is pending again".to_owned(),
        (1, true) => "1 failed or unknown item is pending again".to_owned(),
        (n, false) => format!("{n} failed items are pending again"),
        (n, true) => format!("{n} failed or unknown items are pending again"),
    };
    if parked {
        let unparked = unpark(job).map_err(|e| failure(job, &e))?;
        text.push_str(&format!(", and {unparked} parked"));
        ended += unparked;
    }
    text.push('\n');
    let exit = written(io::stdout().write_all(text.as_bytes()))?;
    let file = open(job)?;
    let summary = file.summary().map_err(|e| failure(job, &e))?;
    if ended > 0 {
        say(format_args!("they are fetched by the next run: {}", resume(job, &summary)));
        if !file.exits().map_err(|e| failure(job, &e))?.is_empty() {
            say(WENT_BY_EXITS);
        }
    } else if !unknown && summary.counts.unknown > 0 {
        say(format_args!(
            "{} items have an unknown outcome; --unknown puts them back too",
            summary.counts.unknown
        ));
    }
    Ok(exit)
}

fn open(job: &JobAddress) -> Result<JobFile, Failure> {
    JobFile::open(job).map_err(|e| failure(job, &e))
}

/// What is wrong, where, and what to do about it.
pub(crate) fn failure(job: &JobAddress, error: &QueueError) -> Failure {
    let hint = match job.file() {
        Some(file) => file_hint(file, error),
        None => String::new(),
    };
    if error.is_unreachable() {
        return Failure::of(error, Exit::StoreUnreachable);
    }
    let told = Failure::of(error, Exit::Usage);
    Failure::usage(format!("{told}{hint}"))
}

/// Where a job's file may be instead.
fn file_hint(job: &Path, error: &QueueError) -> String {
    let mut by_default = job.as_os_str().to_owned();
    by_default.push(".job");
    let by_default = PathBuf::from(by_default);
    match error {
        QueueError::NoSuchJob { .. } | QueueError::NotAJob { .. } if by_default.is_file() => {
            format!("; its job is {}", by_default.display())
        }
        QueueError::NoSuchJob { .. } if job.exists() => "; the file is empty".to_owned(),
        QueueError::NoSuchJob { .. } => {
            "; without --job, the job of `forbear fetch -o OUT` is OUT.job".to_owned()
        }
        _ => String::new(),
    }
}

/// Said with the command that goes on: a job knows its exits by their names alone, so they are no part of that.
const WENT_BY_EXITS: &str =
    "its runs went out by exits: give them again, by --proxies or the configuration, or it goes on directly";

/// The command that goes on with a job, to be pasted into a shell.
fn resume(job: &JobAddress, summary: &Summary) -> String {
    let mut words = vec!["forbear".to_owned(), "fetch".to_owned()];
    let rest = summary.counts.input == InputEnd::More;
    if let Some(input) = summary.input.as_ref().filter(|_| rest) {
        words.push(quoted(&input.path));
    }
    let job = match job {
        JobAddress::File(job) => job,
        // Each process has an output of its own: whoever goes on names one.
        JobAddress::Postgres { queue, name } => {
            words.extend(["--queue".to_owned(), quoted(&queue.to_string())]);
            words.extend(["--job".to_owned(), quoted(name), "-o".to_owned(), "OUT".to_owned()]);
            return words.join(" ");
        }
    };
    let out = output(&JobAddress::from(job), summary);
    let mut by_default = out.as_os_str().to_owned();
    by_default.push(".job");
    if summary.output == "-" || Path::new(&by_default) != job {
        words.extend(["--job".to_owned(), quoted(&job.to_string_lossy())]);
    }
    words.extend(["-o".to_owned(), quoted(&out.to_string_lossy())]);
    words.join(" ")
}

/// Where a job's output lies: it is kept relative to the job where it can be.
fn output(job: &JobAddress, summary: &Summary) -> PathBuf {
    match (summary.output.as_str(), job.file().and_then(Path::parent)) {
        ("-", _) | (_, None) => PathBuf::from(&summary.output),
        (out, Some(dir)) => dir.join(out),
    }
}

/// As one word of a POSIX shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// What hides the secrets of items that have no record yet: by the names that always count, and those that the
/// configuration adds. One that cannot be read is an error, for it may name some.
fn redactor(job: &JobAddress, config: Option<&Path>, summary: &Summary) -> Result<Redactor, Failure> {
    let input = summary.input.as_ref().map(|input| Path::new(&input.path)).filter(|path| path.is_file());
    let beside = input.or(job.file()).and_then(Path::parent).filter(|dir| !dir.as_os_str().is_empty());
    let settings = sources(config, None, beside.unwrap_or(Path::new("."))).load()?.settings;
    Ok(Redactor::new(&settings.secrets))
}

/// Text from outside, without what a terminal would obey.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        Cow::Owned(text.replace(char::is_control, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Walks a job's items by line, a page at a time, so that memory does not grow with the job.
struct Pages<'a> {
    file: &'a JobFile,
    which: Which,
    after: Seq,
}

impl<'a> Pages<'a> {
    fn new(file: &'a JobFile, which: Which) -> Pages<'a> {
        Pages { file, which, after: Seq(0) }
    }

    /// The next items; none after the last.
    fn next(&mut self) -> Result<Vec<Listed>, QueueError> {
        let page = self.file.list(self.which, self.after, PAGE)?;
        if let Some(last) = page.last() {
            self.after = last.seq;
        }
        Ok(page)
    }
}

const PAGE: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_not_take_them_as_they_are() {
        for (text, expected) in [
            ("out.jsonl", "out.jsonl"),
            ("/tmp/a-b_c/1.job", "/tmp/a-b_c/1.job"),
            ("my urls.txt", "'my urls.txt'"),
            ("it's", r"'it'\''s'"),
            ("$(rm)", "'$(rm)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn nothing_from_outside_moves_the_cursor() {
        for (text, expected) in [("plain ü", "plain ü"), ("a\u{1b}[2Jb\n", "a\u{fffd}[2Jb\u{fffd}"), ("", "")]
        {
            assert_eq!(plain(text), expected);
        }
    }
}
