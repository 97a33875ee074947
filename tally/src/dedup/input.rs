//! The lines of the input, byte for byte, with their place.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::failure::{Exit, Failure};

const BUFFER_BYTES: usize = 1 << 20;
/// Longest line: what one line may take of the memory.
pub(super) const LINE_BYTES_MAX: u64 = 16 << 20;

/// Where lines come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A file that can be read again.
    File(PathBuf),
    /// Standard input, or a named pipe: what was read is gone.
    Stream(Option<PathBuf>),
}

impl Source {
    /// # Errors
    /// Exit 3 if the file is not there.
    pub(super) fn of(file: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = file.filter(|path| *path != Path::new("-")) else {
            return Ok(Self::Stream(None));
        };
        let metadata = path.metadata().map_err(|error| cannot_open(path, error))?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("{} is a folder", path.display())));
        }
        if !metadata.is_file() {
            return Ok(Self::Stream(Some(path.to_owned())));
        }
        Ok(Self::File(path.canonicalize()?))
    }

    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Stream(_) => None,
        }
    }
}

fn cannot_open(path: &Path, error: std::io::Error) -> Failure {
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    let exit = if missing { Exit::NotFound } else { Exit::Failed };
    Failure {
        exit,
        error: anyhow::Error::new(error).context(format!("cannot open {}", path.display())),
    }
}

/// The input, read up to some place.
pub(super) struct Input {
    reader: BufReader<Box<dyn Read>>,
    is_stream: bool,
    /// Bytes of the plain text before the next line.
    pub(super) position: u64,
    /// Bytes of a plain file; `None` where the end is not known.
    pub(super) size: Option<u64>,
}

impl Input {
    /// Opens the source and goes to `position`: in a compressed file by reading up to it.
    ///
    /// # Errors
    /// Exit 5 if the file ends before.
    pub(super) fn open(source: &Source, position: u64) -> Result<Self, Failure> {
        let path = match source {
            Source::Stream(None) => return Ok(Self::stream(Box::new(std::io::stdin()))),
            Source::Stream(Some(path)) => {
                let file = File::open(path).map_err(|error| cannot_open(path, error))?;
                return Ok(Self::stream(Box::new(file)));
            }
            Source::File(path) => path,
        };
        let mut file = File::open(path).map_err(|error| cannot_open(path, error))?;
        let shorter = || {
            Failure::refused(format!(
                "{} ends before byte {position}, up to which it was read: it is not the file of \
                 the earlier run",
                path.display()
            ))
        };
        let mut magic = Vec::new();
        (&mut file).take(4).read_to_end(&mut magic)?;
        file.rewind()?;
        let mut size = None;
        let mut reader: Box<dyn Read> = match magic.as_slice() {
            [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(
                BufReader::with_capacity(BUFFER_BYTES, file),
            )),
            [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::new(file)?),
            _ => {
                let bytes = file.metadata()?.len();
                if bytes < position {
                    return Err(shorter());
                }
                file.seek(SeekFrom::Start(position))?;
                size = Some(bytes);
                Box::new(file)
            }
        };
        if size.is_none() {
            let skipped = std::io::copy(&mut (&mut reader).take(position), &mut std::io::sink())
                .with_context(|| format!("cannot read {}", path.display()))?;
            if skipped < position {
                return Err(shorter());
            }
        }
        let reader = BufReader::with_capacity(BUFFER_BYTES, reader);
        Ok(Self { reader, is_stream: false, position, size })
    }

    fn stream(reader: Box<dyn Read>) -> Self {
        let reader = BufReader::with_capacity(BUFFER_BYTES, reader);
        Self { reader, is_stream: true, position: 0, size: None }
    }

    /// Appends the next line to `bytes`, with its end; a last line without one is given one.
    /// Returns whether there was a line.
    ///
    /// # Errors
    /// The input cannot be read on, is damaged, or has a line beyond [`LINE_BYTES_MAX`].
    pub(super) fn read_line(&mut self, bytes: &mut Vec<u8>) -> Result<bool, Failure> {
        let mut limited = (&mut self.reader).take(LINE_BYTES_MAX);
        let read = limited
            .read_until(b'\n', bytes)
            .with_context(|| format!("the input broke off after byte {}", self.position))?;
        if read == 0 {
            return Ok(false);
        }
        let is_cut = limited.limit() == 0;
        if bytes.last() != Some(&b'\n') {
            if is_cut {
                return Err(Failure::message(
                    Exit::Failed,
                    format!(
                        "the line at byte {} has more than {LINE_BYTES_MAX} bytes",
                        self.position
                    ),
                ));
            }
            bytes.push(b'\n');
        }
        self.position += u64::try_from(read)?;
        Ok(true)
    }

    /// Whether the next line may have to be waited for, so that what was read should go out first.
    pub(super) fn may_wait(&self) -> bool {
        self.is_stream && !self.reader.buffer().contains(&b'\n')
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(input: &mut Input) -> Vec<String> {
        let mut lines = Vec::new();
        let mut bytes = Vec::new();
        while input.read_line(&mut bytes).ok().unwrap() {
            lines.push(String::from_utf8(std::mem::take(&mut bytes)).unwrap());
        }
        lines
    }

    #[test]
    fn lines_come_unchanged_from_any_place_of_a_plain_or_compressed_file() {
        let text = b" one\r\n\ntwo \nthree";
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        for bytes in [text.to_vec(), gzip.finish().unwrap(), zstd] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes).unwrap();
            let source = Source::of(Some(file.path())).ok().unwrap();
            let mut input = Input::open(&source, 0).ok().unwrap();
            assert_eq!(lines(&mut input), [" one\r\n", "\n", "two \n", "three\n"]);
            assert_eq!(input.position, 17);
            let mut input = Input::open(&source, 7).ok().unwrap();
            assert_eq!(lines(&mut input), ["two \n", "three\n"]);
            assert_eq!(Input::open(&source, 18).err().unwrap().exit, Exit::Refused);
        }
    }

    #[test]
    fn a_line_beyond_the_limit_stops_the_run_instead_of_the_memory() {
        let mut input = Input::stream(Box::new(std::io::repeat(b'x').take(LINE_BYTES_MAX + 1)));
        let failure = input.read_line(&mut Vec::new()).unwrap_err();
        assert!(failure.error.to_string().contains("16777216"), "{:#}", failure.error);
    }
}
