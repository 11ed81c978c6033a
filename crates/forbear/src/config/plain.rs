//! Files and flags of plain keys that are no settings, such as a simulation's: read with the same care as a configuration.

use std::path::Path;

use super::{
    ConfigError,
    error::Place,
    given::Given,
    load::{Build, PROBLEMS_MAX, in_order},
    source::Show,
    suggest,
};

/// A key that sets a part of a `T`, in a file or by a flag.
pub struct PlainKey<T> {
    /// As it is written in a file.
    pub name: &'static str,
    /// What it takes, in a few words.
    pub takes: &'static str,
    /// Sets it. The error says what was wanted.
    pub set: fn(&mut T, Given<'_>) -> Result<(), String>,
}

/// A value from the command line for a [`PlainKey`].
#[derive(Clone, Debug)]
pub struct PlainFlag {
    /// The flag, as it is typed.
    pub flag: &'static str,
    /// The key that it sets.
    pub key: &'static str,
    /// The value, as it was typed.
    pub value: String,
}

/// Sets `target` by the keys of a file, if there is one, and then by flags, which beat it.
///
/// # Errors
/// All that is wrong, each with its place and what the key takes; unknown keys too.
pub fn read_plain<T>(
    target: &mut T,
    keys: &[PlainKey<T>],
    file: Option<&Path>,
    flags: &[PlainFlag],
) -> Result<(), ConfigError> {
    let mut build = Build::default();
    // Nothing in such a file is a secret; one that cannot be read may be another file, so its lines stay hidden (K1).
    let doc = file.and_then(|path| build.read(path));
    let table = doc.as_ref().and_then(|doc| build.parse(doc));
    if let (Some(doc), Some(table)) = (&doc, &table) {
        for (key, value) in in_order(table) {
            let name = key.get_ref().as_ref();
            let Some(known) = keys.iter().find(|k| k.name == name) else {
                let near = suggest::nearest(name, keys.iter().map(|k| k.name));
                let all = || keys.iter().map(|k| k.name).collect::<Vec<_>>().join(", ");
                let help = near.map_or_else(
                    || format!("the keys are {}", all()),
                    |near| format!("did you mean `{near}`?"),
                );
                let shown = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
                let (show, what) = match shown {
                    true => (Show::Marked, format!("unknown key `{name}`")),
                    false => (Show::NoTexts, "unknown key".to_owned()),
                };
                build.problem(doc.place(key.span(), show), what, Some(help));
                continue;
            };
            if let Err(message) = (known.set)(target, Given::File(value.get_ref())) {
                let place = doc.place(value.span(), Show::Marked);
                build.problem(place, format!("{name}: {message}"), Some(format!("it takes {}", known.takes)));
            }
        }
    }
    for flag in flags {
        let Some(known) = keys.iter().find(|k| k.name == flag.key) else { continue };
        if let Err(message) = (known.set)(target, Given::Flag(&flag.value)) {
            build.problem(Place::Flag(flag.flag), message, Some(format!("it takes {}", known.takes)));
        }
    }
    build.problems.truncate(PROBLEMS_MAX);
    if build.problems.is_empty() { Ok(()) } else { Err(ConfigError { problems: build.problems }) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct Toy {
        pages: u32,
        wait: Duration,
    }

    const KEYS: &[PlainKey<Toy>] = &[
        PlainKey {
            name: "pages",
            takes: "a count",
            set: |toy, given| {
                toy.pages = given.tally()?;
                Ok(())
            },
        },
        PlainKey {
            name: "wait",
            takes: "a time",
            set: |toy, given| {
                toy.wait = given.duration()?;
                Ok(())
            },
        },
    ];

    fn read(text: &str, flags: &[PlainFlag]) -> Result<Toy, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("toy.toml");
        std::fs::write(&path, text).unwrap();
        let mut toy = Toy::default();
        read_plain(&mut toy, KEYS, Some(&path), flags).map_err(|e| e.to_string())?;
        Ok(toy)
    }

    #[test]
    fn flags_beat_the_file_and_every_mistake_has_its_line() {
        let flag = |value: &str| PlainFlag { flag: "--pages", key: "pages", value: value.to_owned() };
        let wait = Duration::from_secs(2);
        assert_eq!(read("pages = 5\nwait = \"2s\"", &[]), Ok(Toy { pages: 5, wait }));
        assert_eq!(read("pages = 5\nwait = \"2s\"", &[flag("7")]), Ok(Toy { pages: 7, wait }));
        let wrong = read("pags = 5\nwait = 2\nother = 1", &[flag("x")]).unwrap_err();
        for part in [
            "toy.toml:1:1: unknown key `pags`",
            "did you mean `pages`?",
            "toy.toml:2:8: wait: a time needs a unit",
            "the keys are pages, wait",
            "--pages: expected a whole number",
            "it takes a count",
        ] {
            assert!(wrong.contains(part), "{part}\n{wrong}");
        }
        let none =
            read_plain(&mut Toy::default(), KEYS, Some(Path::new("/nowhere/x.toml")), &[]).unwrap_err();
        assert!(none.to_string().starts_with("/nowhere/x.toml: "), "{none}");
    }

    #[test]
    fn k1_a_line_of_a_file_that_is_no_toml_stays_hidden() {
        let wrong = read("token: s3cret\n", &[]).unwrap_err();
        assert!(!wrong.contains("s3cret"), "{wrong}");
    }
}
