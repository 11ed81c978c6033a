//! Brotli ([RFC 7932](https://www.rfc-editor.org/rfc/rfc7932)), without the large windows that the format does not have.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};

use super::{Broken, Step};

pub(super) struct Brotli {
    state: BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    complete: bool,
}

impl Brotli {
    pub(super) fn new() -> Brotli {
        let alloc = StandardAlloc::default;
        Brotli { state: BrotliState::new_strict(alloc(), alloc(), alloc()), complete: false }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Broken> {
        if self.complete {
            return Ok(Step { consumed: input.len(), produced: 0 }); // what follows the end is not data
        }
        let (mut left, mut consumed) = (input.len(), 0);
        let (mut room, mut produced) = (output.len(), 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut consumed,
            input,
            &mut room,
            &mut produced,
            output,
            &mut 0,
            &mut self.state,
        );
        match result {
            BrotliResult::ResultFailure => return Err(Broken::Brotli),
            BrotliResult::ResultSuccess => self.complete = true,
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
        }
        Ok(Step { consumed, produced })
    }
}
