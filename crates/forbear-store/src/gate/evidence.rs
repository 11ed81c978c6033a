//! What is known of whose an origin's limits are (L6), as it is kept with the job: versioned, on the wall clock.

use forbear_core::{
    evidence::{PARTS, Tally},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

use super::{clock::wall_now, record::RecordError};

/// The evidence of one origin, as a job keeps it among its gates, under a name that no scope has.
#[derive(Debug, Deserialize, Serialize)]
pub struct EvidenceRecord {
    version: u32,
    /// Account, endpoint, exit.
    parts: [PartRecord; PARTS],
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct PartRecord {
    #[serde(default)]
    score: f32,
    #[serde(default)]
    narrow: bool,
    #[serde(default)]
    widened: u8,
    #[serde(default)]
    served_elsewhere: u32,
    #[serde(default)]
    refused_here: u32,
    #[serde(default)]
    refused_elsewhere: u32,
    /// Unix time.
    #[serde(default)]
    since_us: u64,
}

impl EvidenceRecord {
    /// The version of the records that this program writes.
    pub const VERSION: u32 = 1;

    /// The key of an origin's record.
    #[must_use]
    pub fn key(origin: &str) -> String {
        format!("{KEY}{origin}")
    }

    /// The origin of a key, if it is one of such a record.
    #[must_use]
    pub fn origin(key: &str) -> Option<&str> {
        key.strip_prefix(KEY)
    }

    /// Encodes what is known at `now` on the process's clock.
    #[must_use]
    pub fn encode(tallies: &[Tally; PARTS], now: Timestamp) -> Vec<u8> {
        let wall = wall_now();
        let parts = tallies.map(|tally| PartRecord {
            score: tally.score,
            narrow: tally.narrow,
            widened: tally.widened,
            served_elsewhere: tally.served_elsewhere,
            refused_here: tally.refused_here,
            refused_elsewhere: tally.refused_elsewhere,
            since_us: wall.minus(now.since(tally.since)).as_micros(),
        });
        serde_json::to_vec(&EvidenceRecord { version: Self::VERSION, parts }).unwrap_or_default()
    }

    /// Decodes it, its moments moved to the clock on which it is `now`; for whoever only looks, that is the wall clock.
    ///
    /// # Errors
    /// Junk, and records of a newer version.
    pub fn decode(bytes: &[u8], now: Timestamp) -> Result<[Tally; PARTS], RecordError> {
        let record: EvidenceRecord = serde_json::from_slice(bytes).map_err(RecordError::Malformed)?;
        if record.version > Self::VERSION {
            return Err(RecordError::Newer(record.version));
        }
        let wall = wall_now();
        Ok(record.parts.map(|part| Tally {
            score: part.score,
            narrow: part.narrow,
            widened: part.widened,
            served_elsewhere: part.served_elsewhere,
            refused_here: part.refused_here,
            refused_elsewhere: part.refused_elsewhere,
            since: now.minus(wall.since(Timestamp::from_micros(part.since_us))),
        }))
    }
}

/// No scope's key begins like this: they begin with a scheme, or with a word and `=`.
const KEY: &str = "evidence for ";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn l6_what_was_found_outlives_the_process() {
        let (then, now) = (Timestamp::from_secs(1_000), Timestamp::from_secs(900_000));
        let found = Tally {
            score: 5.5,
            narrow: true,
            widened: 1,
            served_elsewhere: 14,
            refused_here: 6,
            refused_elsewhere: 1,
            since: then.minus(Duration::from_secs(100)),
        };
        let bytes = EvidenceRecord::encode(&[found, Tally::default(), Tally::default()], then);
        let [back, other, _] = EvidenceRecord::decode(&bytes, now).unwrap();
        assert_eq!(Tally { since: found.since, ..back }, found);
        let ago = now.since(back.since).as_secs_f64();
        assert!((100.0..130.0).contains(&ago), "{ago} s ago");
        assert_eq!(other.score, 0.0);
        assert!(matches!(EvidenceRecord::decode(b"{}", now), Err(RecordError::Malformed(_))));
        let newer = String::from_utf8(bytes).unwrap().replacen("\"version\":1", "\"version\":2", 1);
        assert!(matches!(EvidenceRecord::decode(newer.as_bytes(), now), Err(RecordError::Newer(2))));
        let key = EvidenceRecord::key("http://h:80");
        assert_eq!(EvidenceRecord::origin(&key), Some("http://h:80"));
        assert_eq!(EvidenceRecord::origin("http://h:80 account=k"), None);
    }
}
