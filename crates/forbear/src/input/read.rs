//! Lines out of bytes: bounded, counted to the byte.

use std::io::{self, BufRead, BufReader, Read};

use forbear_store::queue::InputPosition;

/// The longest line that is a URL.
pub const URL_LINE_BYTES_MAX: usize = 1 << 20;
/// The longest line of JSON: a body may be in it.
pub const JSON_LINE_BYTES_MAX: usize = 32 << 20;

/// One read of a disk or a pipe.
const BUFFER_BYTES: usize = 256 << 10;
/// A line's memory is given back above this.
const KEEP_BYTES: usize = 1 << 20;

/// Reads lines, and knows where it is.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    position: InputPosition,
}

/// What was read.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Next<'a> {
    /// A line without its end.
    Line(&'a [u8]),
    /// A line that is too long, and whether it begins as JSON. It was skipped.
    TooLong {
        /// It begins with `{`.
        json: bool,
    },
    /// There is no more.
    End,
}

impl<R: Read> Lines<R> {
    /// Reads from `reader`, which stands at `position`.
    pub(super) fn new(reader: R, position: InputPosition) -> Lines<R> {
        Lines { reader: BufReader::with_capacity(BUFFER_BYTES, reader), line: Vec::new(), position }
    }

    /// Behind the last line that was read.
    pub(super) fn position(&self) -> InputPosition {
        self.position
    }

    /// Whether the next line is in memory, so that nobody need be waited for.
    pub(super) fn at_hand(&self) -> bool {
        self.reader.buffer().contains(&b'\n')
    }

    /// The first bytes, not taken yet: what one read gives.
    pub(super) fn peek(&mut self) -> io::Result<&[u8]> {
        retry(|| self.reader.fill_buf().map(|_| ()))?;
        Ok(self.reader.buffer())
    }

    /// Leaves out `n` bytes, which belong to no new line.
    pub(super) fn skip(&mut self, n: usize) {
        self.reader.consume(n);
        self.position.offset += n as u64;
    }

    /// The next line, its end (`\n` or `\r\n`) cut off.
    pub(super) fn next(&mut self) -> io::Result<Next<'_>> {
        if self.line.capacity() > KEEP_BYTES {
            self.line = Vec::new();
        }
        self.line.clear();
        let limit = (JSON_LINE_BYTES_MAX + 2) as u64;
        // It takes care of interruptions itself.
        let mut read = (&mut self.reader).take(limit).read_until(b'\n', &mut self.line)? as u64;
        if read == 0 {
            return Ok(Next::End);
        }
        let whole = self.line.last() == Some(&b'\n');
        if !whole && read == limit {
            read += self.skip_line()?;
        }
        self.position.offset += read;
        self.position.line += 1;
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let json = line.trim_ascii_start().first() == Some(&b'{');
        let max = if json { JSON_LINE_BYTES_MAX } else { URL_LINE_BYTES_MAX };
        Ok(if line.len() > max { Next::TooLong { json } } else { Next::Line(line) })
    }

    /// The rest of a line, its end included.
    fn skip_line(&mut self) -> io::Result<u64> {
        let mut skipped = 0;
        loop {
            let buffer = self.peek()?;
            let (n, done) = match buffer.iter().position(|b| *b == b'\n') {
                Some(at) => (at + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            };
            self.reader.consume(n);
            skipped += n as u64;
            if done {
                return Ok(skipped);
            }
        }
    }
}

/// Again after a signal.
fn retry<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte at a time, as the worst of pipes.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(out.len()).min(1);
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn read_all<R: Read>(reader: R) -> Vec<(Option<Vec<u8>>, u64)> {
        let mut lines = Lines::new(reader, InputPosition::default());
        let mut all = Vec::new();
        loop {
            let line = match lines.next().expect("read") {
                Next::Line(line) => Some(line.to_vec()),
                Next::TooLong { .. } => None,
                Next::End => return all,
            };
            all.push((line, lines.position().offset));
            assert_eq!(lines.position().line, all.len() as u64);
        }
    }

    #[test]
    fn j3_lines_are_counted_to_the_byte() {
        let lines = |list: &[(&str, u64)]| -> Vec<_> {
            list.iter().map(|(line, end)| (Some(line.as_bytes().to_vec()), *end)).collect()
        };
        for (text, expected) in [
            ("", lines(&[])),
            ("a", lines(&[("a", 1)])),
            ("a\nb\n", lines(&[("a", 2), ("b", 4)])),
            ("a\r\nb", lines(&[("a", 3), ("b", 4)])),
            ("\n\r\n\r", lines(&[("", 1), ("", 3), ("", 4)])),
            ("a\rb\n", lines(&[("a\rb", 4)])),
        ] {
            assert_eq!(read_all(text.as_bytes()), expected, "{text:?}");
            assert_eq!(read_all(Slow(text.as_bytes())), expected, "{text:?}, slowly");
        }
    }

    #[test]
    fn c4_a_line_without_end_takes_no_more_than_its_bound() {
        let max = URL_LINE_BYTES_MAX;
        let long = [vec![b'h'; max + 1], b"\nshort\n{".to_vec(), vec![b' '; max + 1], b"}".to_vec()].concat();
        let sizes: Vec<_> = read_all(&long[..]).into_iter().map(|(line, _)| line.map(|l| l.len())).collect();
        assert_eq!(sizes, [None, Some(5), Some(max + 3)], "a URL has the lower bound");
        let huge =
            [b"{".to_vec(), vec![b'x'; JSON_LINE_BYTES_MAX + BUFFER_BYTES * 2], b"\nnext".to_vec()].concat();
        let all = read_all(&huge[..]);
        assert_eq!(all.last(), Some(&(Some(b"next".to_vec()), huge.len() as u64)));
        assert_eq!((all.len(), &all[0].0), (2, &None));
    }
}
