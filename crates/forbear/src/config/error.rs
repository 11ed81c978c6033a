//! What is wrong with a configuration, with its place and the remedy.

use std::{fmt, path::PathBuf};

use super::source::Excerpt;

/// Why a configuration cannot be used: everything that was found, not just the first.
///
/// Printed, each problem has its place, the line with the fault underlined, and a remedy. Values that may be secret are
/// masked, also in files that cannot be read (K1).
#[derive(Clone, Debug)]
pub struct ConfigError {
    pub(super) problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    pub(super) place: Place,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

/// Where it stands.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// In a file's text.
    Text(String, Excerpt),
    /// A file as a whole.
    File(PathBuf),
    /// On the command line.
    Flag(&'static str),
    /// In no one place.
    Nowhere,
}

impl ConfigError {
    /// All that was found, in the order of reading; never empty.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl Problem {
    /// What is wrong, without its place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The line, from 1, where it stands in a file.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        match &self.place {
            Place::Text(_, excerpt) => Some(excerpt.line),
            _ => None,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An empty line sets apart what has more lines than one.
        let texts: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        let mut before = None;
        for text in &texts {
            let apart = |before: &String| before.contains('\n') || text.contains('\n');
            f.write_str(before.map_or("", |before| if apart(before) { "\n\n" } else { "\n" }))?;
            f.write_str(text)?;
            before = Some(text);
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Text(file, e) => {
                writeln!(f, "{file}:{}:{}: {}", e.line, e.column, self.message)?;
                let number = e.line.to_string();
                writeln!(f, "{number} | {}", e.text)?;
                let (indent, carets) = (" ".repeat(e.mark.start), "^".repeat(e.mark.len().max(1)));
                write!(f, "{:width$} | {indent}{carets}", "", width = number.len())?;
            }
            Place::File(path) => write!(f, "{}: {}", path.display(), self.message)?,
            Place::Flag(flag) => write!(f, "{flag}: {}", self.message)?,
            Place::Nowhere => f.write_str(&self.message)?,
        }
        self.help.as_ref().map_or(Ok(()), |help| write!(f, "\n  help: {help}"))
    }
}

impl std::error::Error for ConfigError {}
