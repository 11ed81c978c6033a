//! gzip ([RFC 1952](https://www.rfc-editor.org/rfc/rfc1952)) and deflate with and without its zlib frame
//! ([RFC 1950](https://www.rfc-editor.org/rfc/rfc1950), [RFC 1951](https://www.rfc-editor.org/rfc/rfc1951)).

use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::{Broken, Step};

/// The longest member header: a name, a comment and a full extra field have room, a bomb has not.
const HEADER_BYTES_MAX: usize = 128 * 1024;

const HEADER_CRC: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;

/// A gzip stream of any number of members.
pub(super) struct Gzip {
    inflate: Decompress,
    crc: Crc,
    part: Part,
    held: Vec<u8>, // of a header or a trailer that is not whole yet
    members: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Header,
    Data,
    Trailer,
    /// Something after the last member that is none: padding, or a line feed from a script. The data before it is
    /// whole by its checksum, so the rest is passed over, as `gzip -d` and browsers do.
    Rest,
}

impl Gzip {
    pub(super) fn new() -> Gzip {
        Gzip {
            inflate: Decompress::new(false),
            crc: Crc::new(),
            part: Part::Header,
            held: Vec::new(),
            members: 0,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        match self.part {
            Part::Header => self.members > 0 && self.held.is_empty(),
            Part::Data | Part::Trailer => false,
            Part::Rest => true,
        }
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Broken> {
        match self.part {
            Part::Header => self.header(input),
            Part::Data => self.data(input, output),
            Part::Trailer => self.trailer(input),
            Part::Rest => Ok(Step { consumed: input.len(), produced: 0 }),
        }
    }

    fn header(&mut self, input: &[u8]) -> Result<Step, Broken> {
        let before = self.held.len();
        self.held.extend_from_slice(input);
        let magic = [0x1f, 0x8b];
        let starts_well = self.held.iter().zip(&magic).all(|(held, magic)| held == magic);
        if !starts_well && self.members > 0 {
            self.part = Part::Rest;
            self.held.clear();
            return Ok(Step { consumed: input.len(), produced: 0 });
        }
        if !starts_well || self.held.get(2).is_some_and(|&method| method != 8) {
            return Err(Broken::Gzip);
        }
        match header_len(&self.held) {
            Some(len) => {
                self.held.clear();
                self.part = Part::Data;
                self.inflate.reset(false);
                self.crc.reset();
                Ok(Step { consumed: len - before, produced: 0 })
            }
            None if self.held.len() > HEADER_BYTES_MAX => Err(Broken::Gzip),
            None => Ok(Step { consumed: input.len(), produced: 0 }),
        }
    }

    fn data(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Broken> {
        let (step, ended) = inflate(&mut self.inflate, input, output).map_err(|()| Broken::Gzip)?;
        self.crc.update(&output[..step.produced]);
        if ended {
            self.part = Part::Trailer;
        }
        Ok(step)
    }

    fn trailer(&mut self, input: &[u8]) -> Result<Step, Broken> {
        let consumed = input.len().min(8 - self.held.len());
        self.held.extend_from_slice(&input[..consumed]);
        if let [a, b, c, d, e, f, g, h] = self.held[..] {
            if u32::from_le_bytes([a, b, c, d]) != self.crc.sum()
                || u32::from_le_bytes([e, f, g, h]) != self.crc.amount()
            {
                return Err(Broken::GzipChecksum);
            }
            self.members += 1;
            self.held.clear();
            self.part = Part::Header;
        }
        Ok(Step { consumed, produced: 0 })
    }
}

/// The length of a member's header, once it is all there.
fn header_len(held: &[u8]) -> Option<usize> {
    let flags = *held.get(3)?;
    let mut at = 10;
    if flags & EXTRA != 0 {
        at += 2 + usize::from(u16::from_le_bytes([*held.get(at)?, *held.get(at + 1)?]));
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            at += held.get(at..)?.iter().position(|&byte| byte == 0)? + 1;
        }
    }
    if flags & HEADER_CRC != 0 {
        at += 2;
    }
    (held.len() >= at).then_some(at)
}

/// `Content-Encoding: deflate`: a zlib stream by the letter of RFC 9110 section 8.4.1.2, a bare one by the habit of some
/// servers.
pub(super) struct Deflate {
    inflate: Option<Decompress>,
    first: Option<u8>,
    complete: bool,
}

impl Deflate {
    pub(super) fn new() -> Deflate {
        Deflate { inflate: None, first: None, complete: false }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Broken> {
        if self.complete {
            return Ok(Step { consumed: input.len(), produced: 0 }); // what follows the end is not data
        }
        let Some(inflate) = &mut self.inflate else { return self.start(input, output) };
        let (step, ended) = inflate_step(inflate, input, output)?;
        self.complete = ended;
        Ok(step)
    }

    /// Two bytes tell the forms apart. A zlib header has 8 in its low nibble and is a multiple of 31; a bare stream that
    /// starts with 8 there would be a stored block with its padding bits set, which no encoder writes.
    fn start(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Broken> {
        let (first, second) = match (self.first, input) {
            (None, []) | (Some(_), []) => return Ok(Step::default()),
            (None, [first]) => {
                self.first = Some(*first);
                return Ok(Step { consumed: 1, produced: 0 });
            }
            (None, [first, second, ..]) => (*first, *second),
            (Some(first), [second, ..]) => (first, *second),
        };
        let zlib = first & 0x0f == 8 && first >> 4 <= 7 && u16::from_be_bytes([first, second]) % 31 == 0;
        let mut inflate = Decompress::new(zlib);
        if let Some(held) = self.first.take() {
            inflate_step(&mut inflate, &[held], output)?; // too little to yield anything
        }
        self.inflate = Some(inflate);
        self.step(input, output)
    }
}

fn inflate_step(decoder: &mut Decompress, input: &[u8], output: &mut [u8]) -> Result<(Step, bool), Broken> {
    inflate(decoder, input, output).map_err(|()| Broken::Deflate)
}

fn inflate(decoder: &mut Decompress, input: &[u8], output: &mut [u8]) -> Result<(Step, bool), ()> {
    let (read, written) = (decoder.total_in(), decoder.total_out());
    let status = decoder.decompress(input, output, FlushDecompress::None).map_err(drop)?;
    let step = Step {
        consumed: (decoder.total_in() - read) as usize,
        produced: (decoder.total_out() - written) as usize,
    };
    Ok((step, status == Status::StreamEnd))
}
