//! External merge sort of lines by time, for files that do not fit into memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::failure::Failure;

/// A line with what it is sorted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Keyed {
    /// eventTime, ms since the Unix epoch.
    pub(super) time_ms: i64,
    /// Number of the line in the file: equal times keep the file's order.
    pub(super) number: u64,
    /// The line.
    pub(super) text: String,
}

/// Collects lines and hands them back sorted by (time, number).
pub(super) struct Sorter {
    folder: PathBuf,
    memory_bytes_max: usize,
    lines: Vec<Keyed>,
    bytes: usize,
    runs: Vec<File>,
}

impl Sorter {
    /// A sorter that keeps at most about `memory_bytes_max` in memory and the rest in unnamed
    /// files of `folder`, which vanish with it.
    pub(super) fn new(folder: &Path, memory_bytes_max: usize) -> Self {
        let folder = folder.to_owned();
        Self { folder, memory_bytes_max, lines: Vec::new(), bytes: 0, runs: Vec::new() }
    }

    /// Takes a line.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub(super) fn push(&mut self, line: Keyed) -> Result<(), Failure> {
        self.bytes += line.text.len() + size_of::<Keyed>();
        self.lines.push(line);
        if self.bytes > self.memory_bytes_max {
            self.spill()?;
        }
        Ok(())
    }

    fn spill(&mut self) -> Result<(), Failure> {
        self.lines.sort_unstable();
        let file = tempfile::tempfile_in(&self.folder)
            .with_context(|| format!("cannot sort in {}", self.folder.display()))?;
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        for line in self.lines.drain(..) {
            write_line(&mut writer, &line)
                .with_context(|| format!("cannot sort in {}", self.folder.display()))?;
        }
        let mut file = writer.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.rewind()?;
        self.runs.push(file);
        self.bytes = 0;
        Ok(())
    }

    /// The lines in order.
    ///
    /// # Errors
    /// The folder cannot be written to or read from.
    pub(super) fn finish(mut self) -> Result<Sorted, Failure> {
        self.lines.sort_unstable();
        let mut sorted = Sorted { sources: Vec::new(), heads: BinaryHeap::new() };
        sorted.sources.push(Source::Memory(self.lines.into_iter()));
        let runs = self.runs.into_iter().map(|run| Source::File(BufReader::new(run)));
        sorted.sources.extend(runs);
        for index in 0..sorted.sources.len() {
            sorted.refill(index)?;
        }
        Ok(sorted)
    }
}

enum Source {
    Memory(std::vec::IntoIter<Keyed>),
    File(BufReader<File>),
}

/// Sorted lines, merged as they are taken.
pub(super) struct Sorted {
    sources: Vec<Source>,
    heads: BinaryHeap<Reverse<(Keyed, usize)>>,
}

impl Sorted {
    /// The next line.
    ///
    /// # Errors
    /// A sorted run cannot be read back.
    pub(super) fn next(&mut self) -> Result<Option<Keyed>, Failure> {
        let Some(Reverse((line, index))) = self.heads.pop() else { return Ok(None) };
        self.refill(index)?;
        Ok(Some(line))
    }

    fn refill(&mut self, index: usize) -> Result<(), Failure> {
        let line = match self.sources.get_mut(index) {
            Some(Source::Memory(lines)) => lines.next(),
            Some(Source::File(file)) => read_line(file).context("cannot read a sorted run back")?,
            None => None,
        };
        if let Some(line) = line {
            self.heads.push(Reverse((line, index)));
        }
        Ok(())
    }
}

fn write_line(writer: &mut impl Write, line: &Keyed) -> std::io::Result<()> {
    let length = u32::try_from(line.text.len()).map_err(std::io::Error::other)?;
    writer.write_all(&line.time_ms.to_le_bytes())?;
    writer.write_all(&line.number.to_le_bytes())?;
    writer.write_all(&length.to_le_bytes())?;
    writer.write_all(line.text.as_bytes())
}

fn read_line(reader: &mut impl Read) -> std::io::Result<Option<Keyed>> {
    let mut head = [0; 20];
    match reader.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let [time, number, length] = [&head[0..8], &head[8..16], &head[16..20]];
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(word)
    };
    let mut text = vec![0; usize::try_from(word(length)).map_err(std::io::Error::other)?];
    reader.read_exact(&mut text)?;
    Ok(Some(Keyed {
        time_ms: word(time).cast_signed(),
        number: word(number),
        text: String::from_utf8(text).map_err(std::io::Error::other)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_in_order_of_time_however_little_memory_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let lines: Vec<Keyed> = (0..2_000_u64)
            .map(|number| Keyed {
                time_ms: i64::try_from(number * 7_919 % 97).unwrap() - 40,
                number,
                text: "x".repeat(usize::try_from(number % 50).unwrap()),
            })
            .collect();
        let mut want = lines.clone();
        want.sort();
        for memory in [0, 10_000, 1 << 20] {
            let mut sorter = Sorter::new(folder.path(), memory);
            for line in &lines {
                sorter.push(line.clone()).ok().unwrap();
            }
            let mut sorted = sorter.finish().ok().unwrap();
            let mut seen = Vec::new();
            while let Some(line) = sorted.next().ok().unwrap() {
                seen.push(line);
            }
            assert!(seen == want, "memory {memory}");
        }
    }
}
