//! Lines of an NDJSON file: plain, gzip or zstd, told apart by their first bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;

use anyhow::Context;

use crate::failure::{Exit, Failure};

/// Longest line that is taken: a record's limit with room for JSON's escapes.
const LINE_BYTES_MAX: u64 = 8 << 20;

/// A file of lines, with the number of the last one read.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    number: u64,
    buffer: Vec<u8>,
}

/// One line of the file.
pub(super) struct Line<'a> {
    /// From 1, as editors count.
    pub(super) number: u64,
    /// The text without its end; `None` if it is not UTF-8 or too long.
    pub(super) text: Option<&'a str>,
}

impl Lines {
    /// Opens a file.
    ///
    /// # Errors
    /// Exit 3 if it is not there, exit 1 if it cannot be read.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let mut file = File::open(path).map_err(|error| {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let exit = if missing { Exit::NotFound } else { Exit::Failed };
            let error =
                anyhow::Error::new(error).context(format!("cannot open {}", path.display()));
            Failure { exit, error }
        })?;
        let mut magic = Vec::new();
        (&mut file).take(4).read_to_end(&mut magic)?;
        file.rewind().with_context(|| format!("{} is no plain file", path.display()))?;
        let reader: Box<dyn BufRead> = match magic.as_slice() {
            [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(
                1 << 20,
                flate2::read::MultiGzDecoder::new(BufReader::with_capacity(1 << 20, file)),
            )),
            [0x28, 0xb5, 0x2f, 0xfd] => {
                Box::new(BufReader::with_capacity(1 << 20, zstd::Decoder::new(file)?))
            }
            _ => Box::new(BufReader::with_capacity(1 << 20, file)),
        };
        Ok(Self { reader, number: 0, buffer: Vec::new() })
    }

    /// The next line that is not blank.
    ///
    /// # Errors
    /// The file cannot be read on, or is damaged.
    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, Failure> {
        loop {
            self.buffer.clear();
            let mut limited = (&mut self.reader).take(LINE_BYTES_MAX);
            let read = limited
                .read_until(b'\n', &mut self.buffer)
                .with_context(|| format!("the file broke off after line {}", self.number))?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.buffer.last() != Some(&b'\n') && limited.limit() == 0 {
                skip_line(&mut self.reader)?;
                return Ok(Some(Line { number: self.number, text: None }));
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
        }
        let text = std::str::from_utf8(&self.buffer).ok().map(str::trim);
        Ok(Some(Line { number: self.number, text }))
    }
}

fn skip_line(reader: &mut impl BufRead) -> Result<(), Failure> {
    loop {
        let chunk = reader.fill_buf()?;
        match chunk.iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                reader.consume(at + 1);
                return Ok(());
            }
            None if chunk.is_empty() => return Ok(()),
            None => {
                let length = chunk.len();
                reader.consume(length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn numbers_and_texts(bytes: &[u8]) -> Vec<(u64, Option<String>)> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let mut lines = Lines::open(file.path()).ok().unwrap();
        let mut seen = Vec::new();
        while let Some(line) = lines.next().ok().unwrap() {
            seen.push((line.number, line.text.map(str::to_owned)));
        }
        seen
    }

    #[test]
    fn plain_gzip_and_zstd_read_alike() {
        let text = b"one\n\n  two  \r\nthree";
        let want = [(1, "one"), (3, "two"), (4, "three")]
            .map(|(number, text)| (number, Some(text.to_owned())));
        assert_eq!(numbers_and_texts(text), want);

        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        assert_eq!(numbers_and_texts(&gzip.finish().unwrap()), want);
        assert_eq!(numbers_and_texts(&zstd::encode_all(&text[..], 1).unwrap()), want);
    }

    #[test]
    fn a_line_that_is_no_text_or_too_long_does_not_hide_its_neighbours() {
        let mut bytes = b"one\n\xff\xfe\n".to_vec();
        bytes.extend(std::iter::repeat_n(b'x', 9 << 20));
        bytes.extend_from_slice(b"\nfour\n");
        let seen = numbers_and_texts(&bytes);
        let want = [(1, Some("one")), (2, None), (3, None), (4, Some("four"))]
            .map(|(number, text)| (number, text.map(str::to_owned)));
        assert_eq!(seen, want);
    }
}
