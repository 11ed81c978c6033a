//! The binary, run with a clean environment.

use std::{
    io::Write,
    process::{Command, Stdio},
};

/// What came of a run.
pub(crate) struct Output {
    /// The exit status; -1 if a signal ended it.
    pub(crate) status: i32,
    /// What was written to stdout.
    pub(crate) stdout: String,
    /// What was written to stderr.
    pub(crate) stderr: String,
}

/// The command, with nothing of the tester's own configuration.
pub(crate) fn forbear(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forbear"));
    command.args(args).env_clear();
    command
}

/// Runs it with `input` on stdin.
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // It may end without reading everything; that is its right.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Output {
        status: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8(out.stderr).unwrap(),
    }
}
