//! Zstandard ([RFC 8878](https://www.rfc-editor.org/rfc/rfc8878)), with the window of 8 MiB that
//! [RFC 9659](https://www.rfc-editor.org/rfc/rfc9659) sets for HTTP.

use zstd::stream::raw::{DParameter, Decoder, Operation as _};

use super::{Broken, Step};

const WINDOW_LOG_MAX: u32 = 23;

pub(super) struct Zstandard {
    decoder: Decoder<'static>,
    between_frames: bool,
    frames: usize,
    rest: bool,
}

impl Zstandard {
    pub(super) fn new() -> Result<Zstandard, Broken> {
        let mut decoder = Decoder::new().map_err(|_| Broken::Zstandard)?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(|_| Broken::Zstandard)?;
        Ok(Zstandard { decoder, between_frames: true, frames: 0, rest: false })
    }

    pub(super) fn is_complete(&self) -> bool {
        self.between_frames && self.frames > 0
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Broken> {
        if self.between_frames && self.frames > 0 {
            // Another frame starts with 0x28, a skippable one with 0x50 to 0x5f; anything else is not data any more.
            self.rest |= input.first().is_some_and(|first| !matches!(first, 0x28 | 0x50..=0x5f));
            if self.rest || input.is_empty() {
                return Ok(Step { consumed: input.len(), produced: 0 });
            }
        }
        let status = self.decoder.run_on_buffers(input, output).map_err(|_| Broken::Zstandard)?;
        let step = Step { consumed: status.bytes_read, produced: status.bytes_written };
        if step.consumed + step.produced > 0 {
            self.between_frames = status.remaining == 0;
            self.frames += usize::from(self.between_frames);
        }
        Ok(step)
    }
}
