//! Undoing `Content-Encoding`, in small steps and bounded memory.
//!
//! A decoder never makes more than [`STEP_BYTES`] at a time, however much a piece of input expands to; what it keeps is
//! its window (32 KiB for deflate, at most 16 MiB for Brotli, 8 MiB for Zstandard) and one step per coding.

mod brotli;
mod gzip;
mod zstandard;

use bytes::{Buf as _, Bytes};
use http::header::{CONTENT_ENCODING, HeaderMap};

/// The most that one step yields.
const STEP_BYTES: usize = 32 * 1024;

/// The most codings on top of each other. Nobody honest uses two.
const CODINGS_MAX: usize = 3;

/// A coding that is undone here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstandard,
}

/// Why a body does not decode.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Broken {
    #[error("not gzip, or a broken gzip stream")]
    Gzip,
    #[error("the gzip checksum or length does not match")]
    GzipChecksum,
    #[error("a broken deflate stream")]
    Deflate,
    #[error("a broken Brotli stream")]
    Brotli,
    #[error("a broken Zstandard stream, or one with a window over 8 MiB")]
    Zstandard,
    #[error("the stream does not go on")]
    Stuck,
    #[error("more than {CODINGS_MAX} content codings")]
    TooMany,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    consumed: usize,
    produced: usize,
}

enum Decoder {
    Gzip(gzip::Gzip),
    Deflate(gzip::Deflate),
    Brotli(Box<brotli::Brotli>),
    Zstandard(zstandard::Zstandard),
}

impl Decoder {
    fn new(coding: Coding) -> Result<Decoder, Broken> {
        Ok(match coding {
            Coding::Gzip => Decoder::Gzip(gzip::Gzip::new()),
            Coding::Deflate => Decoder::Deflate(gzip::Deflate::new()),
            Coding::Brotli => Decoder::Brotli(Box::new(brotli::Brotli::new())),
            Coding::Zstandard => Decoder::Zstandard(zstandard::Zstandard::new()?),
        })
    }

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Broken> {
        match self {
            Decoder::Gzip(decoder) => decoder.step(input, output),
            Decoder::Deflate(decoder) => decoder.step(input, output),
            Decoder::Brotli(decoder) => decoder.step(input, output),
            Decoder::Zstandard(decoder) => decoder.step(input, output),
        }
    }

    /// Whether the stream may end here.
    fn is_complete(&self) -> bool {
        match self {
            Decoder::Gzip(decoder) => decoder.is_complete(),
            Decoder::Deflate(decoder) => decoder.is_complete(),
            Decoder::Brotli(decoder) => decoder.is_complete(),
            Decoder::Zstandard(decoder) => decoder.is_complete(),
        }
    }
}

/// All codings of one body. Feed it what comes, and take out until it has nothing more.
pub(super) struct Decoding {
    stages: Vec<Stage>, // in the order in which they are undone
    scratch: Box<[u8]>,
    fed: bool,
}

struct Stage {
    decoder: Decoder,
    input: Bytes,
}

impl Stage {
    fn run(&mut self, output: &mut [u8]) -> Result<usize, Broken> {
        loop {
            let step = self.decoder.step(&self.input, output)?;
            self.input.advance(step.consumed);
            if step.produced > 0 || self.input.is_empty() {
                return Ok(step.produced);
            }
            if step.consumed == 0 {
                return Err(Broken::Stuck);
            }
        }
    }
}

impl Decoding {
    /// The decoding that a response asks for; `None` where there is none, or one that we do not know: then the body is
    /// kept as it came ([RFC 9110 section 8.4](https://www.rfc-editor.org/rfc/rfc9110#section-8.4)).
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Decoding>, Broken> {
        if !headers.contains_key(CONTENT_ENCODING) {
            return Ok(None);
        }
        let Some(codings) = codings(headers) else { return Ok(None) };
        if codings.len() > CODINGS_MAX {
            return Err(Broken::TooMany);
        }
        let stage = |coding| Ok(Stage { decoder: Decoder::new(coding)?, input: Bytes::new() });
        let stages = codings.into_iter().rev().map(stage).collect::<Result<Vec<_>, _>>()?;
        let scratch = vec![0; STEP_BYTES].into();
        Ok((!stages.is_empty()).then_some(Decoding { stages, scratch, fed: false }))
    }

    /// Takes the next bytes of the wire. Everything of the last ones has been taken out by then.
    pub(super) fn feed(&mut self, input: Bytes) {
        self.fed |= !input.is_empty();
        self.stages[0].input = input;
    }

    /// The next decoded bytes, or `None` until there is more to feed.
    pub(super) fn take(&mut self) -> Result<Option<Bytes>, Broken> {
        let last = self.stages.len() - 1;
        loop {
            let produced = self.stages[last].run(&mut self.scratch)?;
            if produced > 0 {
                return Ok(Some(Bytes::copy_from_slice(&self.scratch[..produced])));
            }
            // The last stage starves: find the nearest one before it that can give something on.
            let mut fed = false;
            for stage in (0..last).rev() {
                let produced = self.stages[stage].run(&mut self.scratch)?;
                if produced > 0 {
                    self.stages[stage + 1].input = Bytes::copy_from_slice(&self.scratch[..produced]);
                    fed = true;
                    break;
                }
            }
            if !fed {
                return Ok(None);
            }
        }
    }

    /// Whether every stream has come to its own end. A body of no bytes at all has nothing to end.
    pub(super) fn is_complete(&self) -> bool {
        !self.fed || self.stages.iter().all(|stage| stage.decoder.is_complete())
    }
}

/// The codings in the order in which they were applied; `None` if one of them is unknown.
fn codings(headers: &HeaderMap) -> Option<Vec<Coding>> {
    let mut codings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        for name in value.to_str().ok()?.split(',') {
            let name = name.trim();
            let known: [(&str, Coding); 5] = [
                ("gzip", Coding::Gzip),
                ("x-gzip", Coding::Gzip),
                ("deflate", Coding::Deflate),
                ("br", Coding::Brotli),
                ("zstd", Coding::Zstandard),
            ];
            if name.is_empty() || name.eq_ignore_ascii_case("identity") {
                continue;
            }
            codings.push(known.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known))?.1);
        }
    }
    Some(codings)
}

#[cfg(test)]
mod tests;
