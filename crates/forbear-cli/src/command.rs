//! The command line as it may be shown: an exit among its words without its credentials (K1).

use std::borrow::Cow;

use forbear::exit::ExitUrl;
use forbear_store::gate::GateAddress;

/// The words of this process, the program's own name as `forbear`.
pub(crate) fn line() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = std::iter::once("forbear".to_owned()).chain(words.skip(1)).collect();
    shown(&words).iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// An error's text about the words of this process, without what they would show.
pub(crate) fn without_secrets(text: &str) -> String {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    hide(text, &words)
}

fn hide(text: &str, words: &[String]) -> String {
    let shown = shown(words);
    let mut secret: Vec<(&str, &str)> = Vec::new();
    for (word, shown) in words.iter().zip(&shown).filter(|(word, shown)| **word != **shown) {
        secret.push((word, shown));
        // An error may be about the value alone.
        if let (true, Some((_, word)), Some((_, shown))) =
            (word.starts_with('-'), word.split_once('='), shown.split_once('='))
        {
            secret.push((word, shown));
        }
    }
    // The longest first, so that no word is cut where it holds another.
    secret.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
    secret.into_iter().fold(text.to_owned(), |text, (word, shown)| text.replace(word, shown))
}

/// Every word as it may be shown.
fn shown(words: &[String]) -> Vec<Cow<'_, str>> {
    let mut before: Option<&Flag> = None;
    words
        .iter()
        .map(|word| {
            if let Some((_, show)) =
                std::mem::replace(&mut before, FLAGS.iter().find(|(flag, _)| word == flag))
            {
                return show(word);
            }
            let given = FLAGS.iter().find_map(|(flag, show)| {
                let value = word.strip_prefix(flag)?.strip_prefix('=')?;
                Some(format!("{flag}={}", show(value)))
            });
            given.map_or_else(|| other(word), Cow::Owned)
        })
        .collect()
}

/// A word that is the address of a gate store.
fn gate(word: &str) -> Cow<'_, str> {
    word.parse::<GateAddress>().map_or(Cow::Borrowed("***"), |address| Cow::Owned(address.to_string()))
}

/// A word that is an exit, or was to be one.
fn exit(word: &str) -> Cow<'_, str> {
    match ExitUrl::parse(word) {
        Ok(url) if url.credentials().is_none() => Cow::Borrowed(word),
        Ok(url) => Cow::Owned(url.to_string().replacen("://", "://***@", 1)),
        Err(_) => Cow::Borrowed("***"),
    }
}

/// Any other word: an exit in a wrong place, or a mistyped flag's value.
fn other(word: &str) -> Cow<'_, str> {
    let (flag, value) = match word.split_once('=') {
        Some((flag, value)) if flag.starts_with('-') => (Some(flag), value),
        _ => (None, word),
    };
    let userinfo = value.rsplit_once('@').is_some_and(|(before, _)| before.contains(':'));
    if !userinfo && value.matches(':').count() < 3 {
        return Cow::Borrowed(word);
    }
    let shown = match ExitUrl::parse(value) {
        Ok(url) if url.credentials().is_some() => exit(value),
        _ if userinfo => Cow::Borrowed("***"),
        _ => return Cow::Borrowed(word),
    };
    match flag {
        Some(flag) => Cow::Owned(format!("{flag}={shown}")),
        None => shown,
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A flag whose value may hold a secret, and how that is shown.
type Flag = (&'static str, fn(&str) -> Cow<'_, str>);
const FLAGS: &[Flag] = &[("--proxy", exit), ("--gate", gate)];

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        shown(&words).join(" ")
    }

    #[test]
    fn k1_a_command_is_shown_without_the_credentials_of_its_exits() {
        for (line, expected) in [
            ("fetch urls.txt -o out@1.jsonl", "fetch urls.txt -o out@1.jsonl"),
            ("--proxy http://h:1 x", "--proxy http://h:1 x"),
            ("--proxy http://u:S3cr3t@h:1 x", "--proxy http://***@h:1 x"),
            ("--proxy=u:S3/cr@3t@h x", "--proxy=http://***@h:80 x"),
            ("--proxy h:80:u:S3cr3t x", "--proxy http://***@h:80 x"),
            ("--proxy socks4://u:S3cr3t@h x", "--proxy *** x"),
            ("--proxies proxies.txt", "--proxies proxies.txt"),
            ("--gate redis://u:S3cr3t@h:1/2 x", "--gate redis://***@h:1/2 x"),
            ("--gate=redis://:S3@cr3t@h", "--gate=redis://***@h"),
            ("--gate gates.db x", "--gate gates.db x"),
            ("--gate redis://h?password=S3cr3t", "--gate redis://h"),
            ("--gat redis://:S3cr3t@h", "--gat ***"),
            ("--proxi=http://u:S3cr3t@h", "--proxi=http://***@h:80"),
            ("--proxies http://u:S3cr3t@h", "--proxies http://***@h:80"),
            ("fetch h:80:u:S3cr3t", "fetch http://***@h:80"),
            ("fetch ftp://u:S3cr3t@h/x", "fetch ***"),
            ("--host-rate [::1]:80=5/s", "--host-rate [::1]:80=5/s"),
            ("-H Retry-After:Sun,_06_Nov_1994_08:49:37", "-H Retry-After:Sun,_06_Nov_1994_08:49:37"),
        ] {
            assert_eq!(said(line), expected);
        }
        let words = ["x".to_owned(), "http://u:S3cr3t@h".to_owned()];
        assert_eq!(hide("no 'http://u:S3cr3t@h' here", &words), "no 'http://***@h:80' here");
        let words = ["--no-env-proxy=u:S3=cr3t@h".to_owned(), "--proxy=h:1:u:S3cr3t".to_owned()];
        let said = hide("no 'u:S3=cr3t@h' in --no-env-proxy=u:S3=cr3t@h, h:1:u:S3cr3t", &words);
        assert!(!said.contains("cr3t"), "{said}");
    }

    #[test]
    fn j2_the_words_can_be_given_to_a_shell() {
        for (word, expected) in
            [("a-b_c./=:,+@%", "a-b_c./=:,+@%"), ("", "''"), ("a b", "'a b'"), ("a'b", r"'a'\''b'")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
