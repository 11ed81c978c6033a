//! A value as it was given, in a file or by a flag, read as what its key wants.

use std::{
    convert::Infallible,
    num::{NonZeroU32, ParseFloatError},
    time::Duration,
};

use forbear_core::{
    pace::{Rate, RateError, RateList, RateListError},
    scope::{Combination, CombinationError, MAX_COMBINATIONS},
};
use forbear_store::{gate::GateAddress, queue::QueueAddress};
use toml::de::DeValue;

use super::{SettingsError, parse_duration, parse_size};

/// A value before anything is known about it.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a> {
    /// The text of a flag's value.
    Flag(&'a str),
    /// A value of a file.
    File(&'a DeValue<'a>),
}

impl<'a> Given<'a> {
    /// The text, if it is one; the error says what was wanted instead of what was found.
    fn text(self, wanted: &str) -> Result<&'a str, String> {
        match self {
            Given::Flag(text) => Ok(text),
            Given::File(value) => {
                value.as_str().ok_or_else(|| format!("expected {wanted}, found {}", named(value)))
            }
        }
    }

    /// A number, in a flag's text too.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn number(self, wanted: &str) -> Result<u64, String> {
        let read = match self {
            Given::Flag(text) => text.trim().parse().ok(),
            Given::File(DeValue::Integer(n)) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
            Given::File(value) => return Err(format!("expected {wanted}, found {}", named(value))),
        };
        read.ok_or_else(|| format!("expected {wanted}, from 0 to {}", u64::MAX))
    }

    /// A count that may not be zero, `least` being what zero would mean.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn count(self, zero: &str) -> Result<NonZeroU32, String> {
        let n = self.number("a whole number")?;
        let n = u32::try_from(n).ok().filter(|n| *n <= COUNT_MAX).ok_or(format!("at most {COUNT_MAX}"))?;
        NonZeroU32::new(n).ok_or_else(|| format!("must be at least 1: {zero}"))
    }

    /// A count that may be as large as a budget of tokens.
    pub(super) fn large_count(self, zero: &str) -> Result<NonZeroU32, String> {
        let n = self.number("a whole number")?;
        let n = u32::try_from(n).map_err(|_| format!("at most {}", u32::MAX))?;
        NonZeroU32::new(n).ok_or_else(|| format!("must be at least 1: {zero}"))
    }

    /// A count that may be zero.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn tally(self) -> Result<u32, String> {
        let n = self.number("a whole number")?;
        u32::try_from(n).ok().filter(|n| *n <= COUNT_MAX).ok_or(format!("at most {COUNT_MAX}"))
    }

    /// A time in words. In a file a bare 0 is understood, any other bare number is not.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn duration(self) -> Result<Duration, String> {
        let text = match self {
            Given::File(DeValue::Integer(n)) => n.as_str(),
            Given::File(DeValue::Float(n)) => n.as_str(),
            other => other.text("a time in words, like \"30s\"")?,
        };
        parse_duration(text).map_err(|e| e.to_string())
    }

    /// A time that may not be nothing.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn some_duration(self, zero: &str) -> Result<Duration, String> {
        let found = self.duration()?;
        if found.is_zero() { Err(format!("must be longer than nothing: {zero}")) } else { Ok(found) }
    }

    /// A size in words.
    pub(super) fn size(self) -> Result<u64, String> {
        let text = match self {
            Given::File(DeValue::Integer(n)) => n.as_str(),
            Given::File(DeValue::Float(n)) => n.as_str(),
            other => other.text("a size in words, like \"64MiB\"")?,
        };
        parse_size(text).map_err(|e| e.to_string())
    }

    /// Rates in words: one, several with commas between, or a list with one in each text.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn rates(self) -> Result<RateList, String> {
        let list = match self {
            Given::File(DeValue::Array(_)) => {
                let rates = self.texts()?.into_iter().map(str::parse).collect::<Result<Vec<Rate>, _>>();
                rates.map_err(|e: RateError| e.into()).and_then(|rates| RateList::new(&rates))
            }
            one => one.text("a rate in words, like \"10/s\"")?.parse(),
        };
        list.map_err(|e: RateListError| e.to_string())
    }

    /// The address of a gate store. What was given is not repeated: it may have a password in it (K1).
    pub(super) fn gate(self) -> Result<GateAddress, String> {
        let text = match self {
            Given::File(value) if value.as_str().is_none() => return Err("expected a text".to_owned()),
            one => one.text("an address")?,
        };
        let address: GateAddress = text.parse().unwrap_or_else(|never: Infallible| match never {});
        if !address.is_of_a_store() {
            return Err("no gate store has such an address".to_owned());
        }
        Ok(address)
    }

    /// The address of a queue. What was given is not repeated: it may have a password in it (K1).
    pub(super) fn queue(self) -> Result<QueueAddress, String> {
        let text = match self {
            Given::File(value) if value.as_str().is_none() => return Err("expected a text".to_owned()),
            one => one.text("an address")?,
        };
        let address: QueueAddress = text.parse().unwrap_or_else(|never: Infallible| match never {});
        if text.is_empty() || !address.is_of_a_queue() {
            return Err("no queue has such an address".to_owned());
        }
        Ok(address)
    }

    /// A plain number within these bounds; `beyond` says what it is about.
    pub(super) fn float_within(self, least: f64, most: f64, beyond: SettingsError) -> Result<f64, String> {
        let read = self.float()?;
        if (least..=most).contains(&read) { Ok(read) } else { Err(beyond.to_string()) }
    }

    /// A plain number.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn float(self) -> Result<f64, String> {
        let read: Result<f64, ParseFloatError> = match self {
            Given::Flag(text) => text.trim().parse(),
            Given::File(DeValue::Float(n)) => n.as_str().replace('_', "").parse(),
            Given::File(DeValue::Integer(n)) if n.radix() == 10 => n.as_str().replace('_', "").parse(),
            Given::File(value) => return Err(format!("expected a number, found {}", named(value))),
        };
        read.map_err(|_| "expected a number".to_owned())
    }

    /// Yes or no.
    pub(super) fn yes(self) -> Result<bool, String> {
        match self {
            Given::Flag("true") => Ok(true),
            Given::Flag("false") => Ok(false),
            Given::Flag(_) => Err("expected `true` or `false`".to_owned()),
            Given::File(value) => {
                value.as_bool().ok_or_else(|| format!("expected `true` or `false`, found {}", named(value)))
            }
        }
    }

    /// A text of one's own choosing.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn free_text(self) -> Result<String, String> {
        self.text("a text in quotes").map(str::to_owned)
    }

    /// Several texts.
    ///
    /// # Errors
    /// What was wanted, in words.
    pub fn texts(self) -> Result<Vec<&'a str>, String> {
        let wanted = "a list of texts, like [\"a\", \"b\"]";
        match self {
            Given::Flag(text) => Ok(text.split(',').map(str::trim).collect()),
            Given::File(DeValue::Array(items)) => items
                .iter()
                .map(|item| item.get_ref().as_str().ok_or_else(|| format!("expected {wanted}")))
                .collect(),
            Given::File(value) => Err(format!("expected {wanted}, found {}", named(value))),
        }
    }

    /// The combinations that limits count.
    pub(super) fn scopes(self) -> Result<Vec<Combination>, String> {
        let mut found = Vec::new();
        for text in self.texts()? {
            let scope: Combination = text.parse().map_err(|e: CombinationError| e.to_string())?;
            if found.contains(&scope) {
                return Err(format!("`{scope}` stands twice; once is enough"));
            }
            found.push(scope);
        }
        if found.is_empty() {
            return Err("must name at least one combination, such as \"origin\"".to_owned());
        }
        if found.len() > MAX_COMBINATIONS {
            Err(format!("at most {MAX_COMBINATIONS} combinations"))
        } else {
            Ok(found)
        }
    }

    /// Header names, lower-case.
    pub(super) fn header_names(self) -> Result<Vec<http::HeaderName>, String> {
        self.texts()?
            .into_iter()
            .map(|t| {
                http::HeaderName::from_bytes(t.as_bytes()).map_err(|_| format!("`{t}` is no header name"))
            })
            .collect()
    }

    /// One of a few words.
    pub(super) fn one_of<T: Copy>(self, words: &[(&str, T)]) -> Result<T, String> {
        let all = || words.iter().map(|(w, _)| format!("\"{w}\"")).collect::<Vec<_>>().join(", ");
        let text = self.text("one of a few words")?;
        words
            .iter()
            .find(|(w, _)| *w == text)
            .map(|(_, t)| *t)
            .ok_or_else(|| format!("expected one of {}", all()))
    }

    /// `None` for the word that switches the key off, which is not the same as leaving the key out.
    pub(super) fn unless(self, word: &str) -> Option<Given<'a>> {
        let is_word = match self {
            Given::Flag(text) => text == word,
            Given::File(value) => value.as_str() == Some(word),
        };
        (!is_word).then_some(self)
    }
}

/// What a value is, for people.
fn named(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a bare number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// No count is larger: so many workers, attempts or slots are a typing error.
const COUNT_MAX: u32 = 65_535;
