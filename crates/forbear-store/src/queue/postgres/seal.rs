//! Requests as the database holds them: sealed, for they may carry credentials (K1).
//!
//! ChaCha20-Poly1305 with a key of the job's own, derived from `FORBEAR_KEY` and the job's salt. A nonce of 96 random bits
//! is new for each item: with a hundred million of them the chance that two are the same is under one in ten thousand
//! billion. The item's number is part of what is authenticated, so that no row can be put in another's place.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};

use crate::queue::{
    error::QueueError,
    item::{Extras, Request},
};

/// The name of the variable that holds the key.
pub(crate) const VARIABLE: &str = "FORBEAR_KEY";
/// Bytes of a job's salt.
pub(crate) const SALT_LEN: usize = 16;
/// Sealed with the key, and opened before anything else: another key is noticed at once.
const CHECK: &[u8] = b"forbear";
/// Numbers of what is sealed and is no item.
const CHECK_AT: i64 = -1;
const ACCOUNT_KEY_AT: i64 = -2;

/// What seals and opens for one job.
pub(crate) struct Seal {
    key: LessSafeKey,
    random: SystemRandom,
}

/// What a new job keeps of its key.
pub(crate) struct NewKey {
    pub(crate) salt: Vec<u8>,
    pub(crate) check: Vec<u8>,
    pub(crate) account_key: Vec<u8>,
}

impl Seal {
    /// The key of the environment, for a job with this salt.
    pub(crate) fn new(key: &[u8; 32], salt: &[u8]) -> Result<Seal, QueueError> {
        let mut material = Vec::with_capacity(key.len() + salt.len());
        material.extend_from_slice(key);
        material.extend_from_slice(salt);
        let derived = blake3::derive_key("forbear 2026 requests in a queue", &material);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &derived).map_err(|_| QueueError::Key)?;
        Ok(Seal { key: LessSafeKey::new(key), random: SystemRandom::new() })
    }

    /// For a job that is made now, which names accounts by the `given` key, or else by one of its own.
    pub(crate) fn for_new_job(key: &[u8; 32], given: Option<[u8; 32]>) -> Result<NewKey, QueueError> {
        let random = SystemRandom::new();
        let (mut salt, mut by_chance) = (vec![0; SALT_LEN], [0; 32]);
        random.fill(&mut salt).map_err(|_| QueueError::Key)?;
        random.fill(&mut by_chance).map_err(|_| QueueError::Key)?;
        let account_key = given.unwrap_or(by_chance);
        let seal = Seal::new(key, &salt)?;
        let check = seal.close(CHECK_AT, CHECK.to_vec())?;
        let account_key = seal.close(ACCOUNT_KEY_AT, account_key.to_vec())?;
        Ok(NewKey { salt, check, account_key })
    }

    /// Whether it is the key with which the job was made.
    pub(crate) fn opens(&self, check: &[u8]) -> bool {
        self.open(CHECK_AT, check.to_vec()).is_some_and(|text| text == CHECK)
    }

    pub(crate) fn account_key(&self, sealed: &[u8]) -> Option<[u8; 32]> {
        self.open(ACCOUNT_KEY_AT, sealed.to_vec())?.try_into().ok()
    }

    /// A request, as it is stored for item `seq`.
    pub(crate) fn request(&self, seq: i64, request: &Request) -> Result<Vec<u8>, QueueError> {
        self.close(seq, pack(request))
    }

    /// The request again; none if it was not sealed so.
    pub(crate) fn opened(&self, seq: i64, sealed: &[u8]) -> Option<Request> {
        unpack(&self.open(seq, sealed.to_vec())?)
    }

    fn close(&self, seq: i64, text: Vec<u8>) -> Result<Vec<u8>, QueueError> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| QueueError::Key)?;
        let mut sealed = Vec::with_capacity(NONCE_LEN + text.len() + CHACHA20_POLY1305.tag_len());
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&text);
        let tag = self
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(seq.to_be_bytes()),
                &mut sealed[NONCE_LEN..],
            )
            .map_err(|_| QueueError::Key)?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    fn open(&self, seq: i64, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let (nonce, text) = sealed.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = self.key.open_in_place(nonce, Aad::from(seq.to_be_bytes()), text).ok()?;
        Some(text.to_vec())
    }
}

/// The key that the environment gives: 32 bytes as base64, or as 64 hexadecimal digits.
pub(crate) fn key_from_environment() -> Result<[u8; 32], QueueError> {
    match std::env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => parse_key(text.trim()).ok_or(QueueError::KeyForm),
        _ => Err(QueueError::NoKey),
    }
}

pub(crate) fn parse_key(text: &str) -> Option<[u8; 32]> {
    let bytes = if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        (0..64)
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok())
            .collect::<Option<Vec<u8>>>()?
    } else {
        STANDARD.decode(text).ok()?
    };
    bytes.try_into().ok()
}

/// URL, extras and body in one piece, the first two with their lengths before them.
fn pack(request: &Request) -> Vec<u8> {
    let extras = Extras::encode(request).unwrap_or_default();
    let body = request.body.as_deref();
    let mut packed = Vec::with_capacity(9 + request.url.len() + extras.len() + body.map_or(0, <[u8]>::len));
    packed.push(u8::from(body.is_some()));
    for text in [&request.url, &extras] {
        packed.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        packed.extend_from_slice(text.as_bytes());
    }
    packed.extend_from_slice(body.unwrap_or_default());
    packed
}

fn unpack(packed: &[u8]) -> Option<Request> {
    let (has_body, mut rest) = packed.split_first()?;
    let mut text = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (text, after) = after.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        rest = after;
        std::str::from_utf8(text).ok()
    };
    let (url, extras) = (text()?.to_owned(), text()?);
    let extras = (!extras.is_empty()).then_some(extras);
    Extras::decode(url, extras, (*has_body == 1).then(|| rest.to_vec())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_a_sealed_request_shows_nothing_and_opens_only_in_its_place() {
        let key = [7; 32];
        let new = Seal::for_new_job(&key, None).expect("made");
        let seal = Seal::new(&key, &new.salt).expect("made");
        assert!(seal.opens(&new.check) && seal.account_key(&new.account_key).is_some());
        for request in [
            Request::get("http://u:s3cret@h/?token=s3cret"),
            Request { body: Some(Vec::new()), ..Request::get("http://h/s3cret") },
            Request {
                method: Some("POST".into()),
                headers: vec![("Authorization".into(), "s3cret".into())],
                body: Some(b"s3cret".to_vec()),
                ..Request::get("http://h/")
            },
        ] {
            let sealed = seal.request(5, &request).expect("sealed");
            assert!(!sealed.windows(6).any(|w| w == b"s3cret"));
            assert_eq!(seal.opened(5, &sealed).as_ref(), Some(&request));
            assert_eq!(seal.opened(6, &sealed), None, "another item's place");
            let mut torn = sealed.clone();
            torn[20] ^= 1;
            assert_eq!(seal.opened(5, &torn), None);
            assert_ne!(seal.request(5, &request).expect("sealed"), sealed, "a nonce of its own each time");
        }
        let other = Seal::new(&[8; 32], &new.salt).expect("made");
        assert!(!other.opens(&new.check), "another key is noticed");
    }

    #[test]
    fn k1_keys_are_32_bytes_in_base64_or_hex() {
        assert_eq!(parse_key(&"0f".repeat(32)), Some([15; 32]));
        assert_eq!(parse_key(&STANDARD.encode([9; 32])), Some([9; 32]));
        for bad in ["", "hunter2", "0f0f", &STANDARD.encode([9; 31]), &"zz".repeat(32)] {
            assert_eq!(parse_key(bad), None, "{bad:?}");
        }
    }
}
