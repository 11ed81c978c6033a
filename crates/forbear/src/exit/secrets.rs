//! What an exit's credentials look like in somebody else's text (K1).
//!
//! A proxy may say in an error page or a header what it was told. So whatever came through an exit is searched for that
//! exit's own secrets before it is shown or written; for no others, so it costs the same with one exit as with 100,000.

use std::{borrow::Cow, fmt};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};

use memchr::{memchr, memmem::Finder};

use super::ExitUrl;
use crate::secrets::HIDDEN;

/// The forms that an exit's password takes: as it is, with any of its bytes as escapes, in Base64 alone and behind the
/// user name. `Debug` shows none.
///
/// A password under four bytes is not searched for, since it would be found everywhere; one under eight only where no
/// letter or digit adjoins it. Base64 behind the user name is always searched for.
///
/// ```
/// use forbear::exit::{ExitSecrets, ExitUrl};
/// let exit = ExitUrl::parse("http://me:p@ss%2Fw0rd@proxy.example:8080").unwrap();
/// let secrets = ExitSecrets::of(&exit).unwrap();
/// let page = "p%40ss/w0rd is wrong: Basic bWU6cEBzcy93MHJk";
/// assert_eq!(secrets.hide(page), "*** is wrong: Basic ***");
/// ```
#[derive(Clone)]
pub struct ExitSecrets {
    password: Box<[u8]>,
    /// Base64, without padding: then it is found with padding too.
    encoded: Vec<Box<[u8]>>,
    /// Which bytes a form begins with.
    begins: Box<[bool; 256]>,
    /// Each form that is one text alone. A page that has none of them, and no escape, is passed over quickly.
    finders: Vec<Finder<'static>>,
}

impl ExitSecrets {
    /// The forms for this exit; `None` if it has no credentials. Build it once for each exit and session.
    #[must_use]
    pub fn of(exit: &ExitUrl) -> Option<ExitSecrets> {
        let (user, password) = exit.credentials()?;
        let both = [user, b":", password].concat();
        let mut encoded = Vec::new();
        for (plain, least) in [(&both[..], 1), (password, FREE_FROM)] {
            if !password.is_empty() && plain.len() >= least {
                let forms = [STANDARD_NO_PAD.encode(plain), URL_SAFE_NO_PAD.encode(plain)];
                encoded.extend(forms.map(|form| form.into_bytes().into_boxed_slice()));
            }
        }
        encoded.dedup();
        let password: Box<[u8]> = if password.len() < FOUND_FROM { Box::default() } else { password.into() };
        let mut begins = Box::new([false; 256]);
        for form in encoded.iter().chain([&password]) {
            form.first().into_iter().for_each(|byte| begins[usize::from(*byte)] = true);
        }
        begins[usize::from(b'%')] |= !password.is_empty();
        let texts = encoded.iter().chain([&password]).filter(|text| !text.is_empty());
        let finders = texts.map(|text| Finder::new(text).into_owned()).collect();
        Some(ExitSecrets { password, encoded, begins, finders })
    }

    /// The text with `***` in the place of every secret.
    #[must_use]
    pub fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.hide_bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            // Only whole characters are cut out of a password that is text; from another one a half may be left.
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// The bytes with `***` in the place of every secret.
    #[must_use]
    pub fn hide_bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let escapes = !self.password.is_empty() && memchr(b'%', bytes).is_some();
        if !escapes && self.finders.iter().all(|finder| finder.find(bytes).is_none()) {
            return Cow::Borrowed(bytes);
        }
        let (mut out, mut copied, mut at) = (Vec::new(), 0, 0);
        while at < bytes.len() {
            let found = self.begins[usize::from(bytes[at])].then(|| self.found_at(bytes, at)).flatten();
            let Some(end) = found else {
                at += 1;
                continue;
            };
            out.extend_from_slice(&bytes[copied..at]);
            out.extend_from_slice(HIDDEN.as_bytes());
            (copied, at) = (end, end);
        }
        if copied == 0 {
            return Cow::Borrowed(bytes);
        }
        out.extend_from_slice(&bytes[copied..]);
        Cow::Owned(out)
    }

    /// The end of a secret that begins at `at`.
    fn found_at(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let rest = &bytes[at..];
        if let Some(form) = self.encoded.iter().find(|form| rest.starts_with(form)) {
            return Some(at + form.len());
        }
        if self.password.is_empty() {
            return None;
        }
        let literally = rest.starts_with(&self.password).then_some(self.password.len());
        let end = at + literally.or_else(|| with_escapes(rest, &self.password))?;
        let adjoins = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        let alone = !adjoins(before) && !adjoins(bytes.get(end));
        (alone || self.password.len() >= FREE_FROM).then_some(end)
    }
}

impl fmt::Debug for ExitSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExitSecrets(***)")
    }
}

/// How much of `text` spells `plain`, some of its bytes as escapes.
fn with_escapes(text: &[u8], plain: &[u8]) -> Option<usize> {
    let mut at = 0;
    for byte in plain {
        let digit = |at: usize| text.get(at).and_then(|&b| char::from(b).to_digit(16));
        let escaped = match (text.get(at)?, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => high * 16 + low == u32::from(*byte),
            _ => false,
        };
        match text[at] == *byte {
            _ if escaped => at += 3,
            true => at += 1,
            false => return None,
        }
    }
    Some(at)
}

/// A shorter password is not searched for.
const FOUND_FROM: usize = 4;
/// From this length on a password is no part of another word by chance.
const FREE_FROM: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secrets(exit: &str) -> ExitSecrets {
        ExitSecrets::of(&ExitUrl::parse(exit).unwrap()).unwrap()
    }

    #[test]
    fn k1_every_form_of_a_password_is_found() {
        let of = secrets("http://us3r:p%40ss%2Fw0rd%FC@h");
        let plain = [&b"p@ss/w0rd"[..], b"\xfc"].concat();
        let base64 = base64::engine::general_purpose::STANDARD;
        for form in [
            plain.clone(),
            b"p%40ss%2Fw0rd%FC".to_vec(),
            b"p%40ss%2fw0rd%fc".to_vec(),
            b"p@ss%2Fw0rd%FC".to_vec(),
            plain.iter().flat_map(|b| format!("%{b:02x}").into_bytes()).collect(),
            base64.encode([&b"us3r:"[..], &plain].concat()).into_bytes(),
            base64.encode(&plain).into_bytes(),
            URL_SAFE_NO_PAD.encode([&b"us3r:"[..], &plain].concat()).into_bytes(),
        ] {
            for (before, after) in [("", ""), ("x", "y"), ("<b>", "</b> p@ss/w0r"), ("p%40", "=")] {
                let text = [before.as_bytes(), &form, after.as_bytes()].concat();
                let found = of.hide_bytes(&text).into_owned();
                let shown = found.escape_ascii().to_string();
                assert!(shown.starts_with(&format!("{before}***")) && shown.ends_with(after), "{shown}");
            }
        }
        assert!(matches!(of.hide("p@ss/w0r p%40ss%2F us3r"), Cow::Borrowed(_)));
        assert_eq!(of.hide("p@ss/w0rd%fcp@ss/w0rd%fc and p@ss/w0rd%FC"), "****** and ***");
        assert_eq!(format!("{of:?}"), "ExitSecrets(***)");
    }

    #[test]
    fn k1_a_short_password_does_not_make_a_text_unreadable() {
        assert_eq!(secrets("http://u:x@h").hide("x: x=1, dTp4"), "x: x=1, ***");
        let four = secrets("http://u:test@h");
        assert_eq!(four.hide("latest test, test1 (te%73t)"), "latest ***, test1 (***)");
        assert_eq!(secrets("http://u:12345678@h").hide("x123456789"), "x***9");
        assert_eq!(secrets("http://u@h").hide("u: dTo= u"), "u: dTo= u", "there is no password");
        assert!(ExitSecrets::of(&ExitUrl::parse("http://h").unwrap()).is_none());
    }

    #[test]
    fn k1_a_password_with_percent_signs_is_found() {
        for password in ["100%25%25", "%41%42%43", "a%zz%%%b"] {
            let url = format!("http://u:{}@h", password.replace('%', "%25"));
            let of = secrets(&url);
            assert_eq!(of.hide(&format!("[{password}]")), "[***]");
            assert_eq!(of.hide(&format!("[{}]", password.replace('%', "%25"))), "[***]");
        }
    }

    proptest! {
        #[test]
        fn k1_nothing_is_left_of_a_password(password in "[a-z@:/%?#é]{8,20}", before in "[ -~é]{0,20}", after in "[ -~é]{0,20}") {
            let escaped: String = password.bytes().map(|b| format!("%{b:02X}")).collect();
            let of = secrets(&format!("http://u:{escaped}@h"));
            for form in [&password, &escaped] {
                let shown = of.hide(&format!("{before}{form}{after}")).into_owned();
                prop_assert!(!shown.contains(form.as_str()), "{}", shown);
            }
        }
    }
}
