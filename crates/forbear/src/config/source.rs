//! A configuration file's text, and how a line of it is shown without its secrets (K1).

use std::ops::Range;

/// A place in a file, ready to be shown: the line, without any text that may be a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Excerpt {
    /// From 1.
    pub(super) line: usize,
    /// From 1, in characters.
    pub(super) column: usize,
    pub(super) text: String,
    /// Which characters of `text` are meant.
    pub(super) mark: Range<usize>,
}

/// How much of a line may be shown. Comments never are.
#[derive(Clone, Copy)]
pub(super) enum Show {
    /// Of quoted texts those under the mark: they are keys, or belong to a key whose values are no secrets.
    Marked,
    /// No quoted text at all.
    NoTexts,
    /// The file could not be read, so nobody knows what a line holds: only lines that set one of these keys.
    Keys(fn(&str) -> bool),
}

impl Excerpt {
    /// Cuts out the line in which `span` begins.
    pub(super) fn new(source: &str, span: Range<usize>, show: Show) -> Excerpt {
        let start = source.floor_char_boundary(span.start);
        let from = source[..start].rfind('\n').map_or(0, |i| i + 1);
        let line = source[from..].lines().next().unwrap_or("");
        let classes = classes(source, from, line.chars().count());
        let hidden = |at: usize, class: Class| match show {
            Show::Marked => class == Class::Text && !span.contains(&at),
            Show::NoTexts => class == Class::Text,
            Show::Keys(known) => hides(line, known),
        };
        let (mut text, mut length, mut mark, mut hiding) = (String::new(), 0, None, false);
        for ((offset, c), class) in line.char_indices().zip(classes) {
            let at = from + offset;
            if class == Class::Comment || length > WIDTH {
                break;
            }
            let hide = hidden(at, class);
            let before = length;
            if !hide {
                text.push(if c.is_control() { ' ' } else { c });
                length += 1;
            } else if !hiding {
                text.push_str("***");
                length += 3;
            }
            hiding = hide;
            if span.contains(&at) || at == start {
                let begin = mark.as_ref().map_or(before, |m: &Range<usize>| m.start);
                mark = Some(begin..length.max(begin + 1));
            }
        }
        let text = text.trim_end().to_owned();
        Excerpt {
            line: line_of(source, start),
            column: source[from..start].chars().count() + 1,
            mark: mark.unwrap_or(text.chars().count()..text.chars().count() + 1),
            text,
        }
    }
}

/// The number of the line that holds byte `at`, from 1.
pub(super) fn line_of(source: &str, at: usize) -> usize {
    source.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

/// Whether a line of a file that could not be read is hidden as a whole.
fn hides(line: &str, known: fn(&str) -> bool) -> bool {
    let line = line.trim();
    if line.starts_with('[') {
        return line.contains(['"', '\'', ' ', '=', ',']); // more than a table's plain name
    }
    let key = line.split('=').next().unwrap_or("").split_whitespace().next().unwrap_or("");
    !known(key) || line.contains('{')
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Class {
    Plain,
    /// Between quotes.
    Text,
    Comment,
}

/// What each of `count` characters from byte `from` on is; a text may have begun many lines before.
fn classes(source: &str, from: usize, count: usize) -> Vec<Class> {
    let mut found = Vec::with_capacity(count);
    // The quote that ends the text we are in, and whether we are in a comment.
    let (mut quote, mut comment, mut at) = (None::<&str>, false, 0);
    while at < source.len() && found.len() < count {
        let rest = &source[at..];
        let c = rest.chars().next().unwrap_or(' ');
        let mut step = c.len_utf8();
        let class = match quote {
            _ if c == '\n' => {
                comment = false;
                quote = quote.filter(|q| q.len() == 3); // a short text ends with its line, closed or not
                Class::Plain
            }
            _ if comment => Class::Comment,
            Some(q) if rest.starts_with(q) => {
                step = q.len();
                quote = None;
                Class::Plain
            }
            Some(q) => {
                if q.starts_with('"') && c == '\\' {
                    step += rest[1..].chars().next().filter(|c| *c != '\n').map_or(0, char::len_utf8);
                }
                Class::Text
            }
            None => {
                quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|q| rest.starts_with(q));
                step = quote.map_or(step, str::len);
                comment = c == '#';
                if comment { Class::Comment } else { Class::Plain }
            }
        };
        for (offset, _) in rest[..step].char_indices() {
            if at + offset >= from {
                found.push(class);
            }
        }
        at += step;
    }
    found
}

/// Longer lines are cut: nobody reads them, and a terminal folds them into noise.
const WIDTH: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str, word: &str, show: Show) -> (String, String) {
        let start = source.find(word).unwrap();
        let e = Excerpt::new(source, start..start + word.len(), show);
        let marked = e.text.chars().skip(e.mark.start).take(e.mark.len()).collect();
        (e.text, marked)
    }

    #[test]
    fn k1_a_shown_line_hides_every_text_but_the_one_that_is_meant() {
        let source =
            "timeout = \"5 parsecs\" # hush\nx = { rate = \"oops\", headers = { A = \"s3cret\" } }\n";
        for (word, show, text, marked) in [
            ("\"5 parsecs\"", Show::Marked, "timeout = \"5 parsecs\"", "\"5 parsecs\""),
            ("\"5 parsecs\"", Show::NoTexts, "timeout = \"***\"", "\"***\""),
            ("timeout", Show::Marked, "timeout = \"***\"", "timeout"),
            ("\"oops\"", Show::Marked, "x = { rate = \"oops\", headers = { A = \"***\" } }", "\"oops\""),
            ("headers", Show::Marked, "x = { rate = \"***\", headers = { A = \"***\" } }", "headers"),
        ] {
            assert_eq!(shown(source, word, show), (text.to_owned(), marked.to_owned()));
        }
    }

    #[test]
    fn k1_texts_over_many_lines_and_escapes_are_texts() {
        let source = "a = \"\"\"\ns3cret \\\"\"\" still\n\"\"\"\nb = 'c:\\'\nd = \"x\\\"s3cret\" \"\"\n";
        for (word, text) in [("s3cret \\", "***"), ("b =", "b = '***'"), ("d =", "d = \"***\" \"\"")] {
            assert_eq!(shown(source, word, Show::NoTexts).0, text, "{word}");
        }
    }

    #[test]
    fn k1_a_file_that_cannot_be_read_shows_only_what_is_known_to_be_harmless() {
        fn known(key: &str) -> bool {
            key == "timeout"
        }
        for (line, text) in [
            ("timeout = \"5s", "timeout = \"5s"),
            ("timeout = { A = s3cret", "***"),
            ("Authorization = Bearer s3cret", "***"),
            ("Bearer s3cret", "***"),
            ("[hosts.api", "[hosts.api"),
            ("[\"A\", \"s3cret\"", "***"),
            ("[A, s3cret", "***"),
        ] {
            assert_eq!(Excerpt::new(line, 0..1, Show::Keys(known)).text, text);
        }
    }

    #[test]
    fn a_place_is_counted_from_one() {
        let e = Excerpt::new("a = 1\nbé = ß!\n", 12..15, Show::NoTexts);
        assert_eq!((e.line, e.column, e.text.as_str(), e.mark), (2, 6, "bé = ß!", 5..7));
        let end = Excerpt::new("a = 1\n", 6..6, Show::NoTexts);
        assert_eq!((end.line, end.column, end.mark), (2, 1, 0..1));
    }
}
