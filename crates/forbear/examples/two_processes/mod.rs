//! What both examples of a shared gate have in common: a server with a limit, and two processes before it.

use std::{
    env,
    error::Error,
    process::{Command, Stdio},
};

use forbear_zoo::{Server, ServerOptions};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// What one process has to do.
pub(crate) struct Part {
    /// The address of the gate.
    pub(crate) gate: String,
    url: String,
    name: String,
}

impl Part {
    /// The part of this process, if it was started for one.
    pub(crate) fn of_this_process() -> Option<Part> {
        let mut args = env::args().skip_while(|arg| arg != "part").skip(1);
        Some(Part { gate: args.next()?, url: args.next()?, name: args.next()? })
    }

    /// Fetches its pages with `get`, four at a time; how many were served.
    pub(crate) async fn by_four(
        &self,
        get: impl AsyncFn(String) -> Result<bool, Failure>,
    ) -> Result<usize, Failure> {
        let quarter = async |first: usize| -> Result<usize, Failure> {
            let mut served = 0;
            for page in (first..PAGES).step_by(4) {
                served += usize::from(get(format!("{}/{}/{page}", self.url, self.name)).await?);
            }
            Ok(served)
        };
        let (a, b, c, d) = tokio::join!(quarter(0), quarter(1), quarter(2), quarter(3));
        Ok(a? + b? + c? + d?)
    }
}

/// Starts the server and two processes, and says what the server saw.
pub(crate) async fn fleet() -> Result<(), Failure> {
    let server =
        Server::start("fixed-window:limit=10/1s,hint=seconds".parse()?, ServerOptions::default()).await?;
    let file = env::temp_dir().join(format!("forbear-example-{}.gate", std::process::id()));
    let gate = env::args().nth(1).unwrap_or_else(|| file.display().to_string());
    let mut parts = Vec::new();
    for name in ["left", "right"] {
        let mut part = Command::new(env::current_exe()?);
        part.args(["part", &gate, &server.url(""), name]).stdout(Stdio::piped());
        parts.push((name, part.spawn()?));
    }
    for (name, part) in parts {
        let ended = tokio::task::spawn_blocking(|| part.wait_with_output()).await??;
        println!("{name}: {} of {PAGES} pages", String::from_utf8_lossy(&ended.stdout).trim());
    }
    let log = server.log();
    println!("the server saw {} requests and refused {}", log.hits().len(), log.refused().count());
    let _ = std::fs::remove_file(file);
    Ok(())
}

const PAGES: usize = 20;
