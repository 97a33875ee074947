//! Where lines go: the first copies, and beside them what could not be decided or read.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};

use super::args::DedupArgs;
use crate::failure::{Exit, Failure};

const BUFFER_BYTES: usize = 1 << 20;

/// How much of a file belongs to a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Mark {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// The marks of all outputs, by role; standard output and what was not asked for has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Marks {
    pub(super) out: Option<Mark>,
    pub(super) late: Option<Mark>,
    pub(super) rejects: Option<Mark>,
}

impl Marks {
    /// Empty files of these names.
    pub(super) fn asked(args: &DedupArgs) -> Result<Self, Failure> {
        let mark = |path: &Option<PathBuf>| -> io::Result<Option<Mark>> {
            path.as_deref()
                .map(|path| Ok(Mark { path: std::path::absolute(path)?, bytes: 0 }))
                .transpose()
        };
        Ok(Self { out: mark(&args.out)?, late: mark(&args.late)?, rejects: mark(&args.rejects)? })
    }

    /// These files, each with its length in `earlier` if it is there in the same role.
    pub(super) fn continuing(self, earlier: &Self) -> Self {
        let keep = |asked: Option<Mark>, earlier: &Option<Mark>| {
            let same =
                earlier.clone().filter(|mark| Some(&mark.path) == asked.as_ref().map(|a| &a.path));
            same.or(asked)
        };
        Self {
            out: keep(self.out, &earlier.out),
            late: keep(self.late, &earlier.late),
            rejects: keep(self.rejects, &earlier.rejects),
        }
    }

    /// Whether both name the same files.
    pub(super) fn same_files(&self, other: &Self) -> bool {
        let paths = |marks: &Self| {
            [&marks.out, &marks.late, &marks.rejects]
                .map(|mark| mark.as_ref().map(|mark| mark.path.clone()))
        };
        paths(self) == paths(other)
    }
}

/// All outputs of a run.
pub(super) struct Outputs {
    pub(super) out: Output,
    pub(super) late: Option<Output>,
    pub(super) rejects: Option<Output>,
}

impl Outputs {
    /// Opens the files and cuts each to its mark.
    ///
    /// # Errors
    /// Exit 5 if a file is shorter than its mark.
    pub(super) fn open(marks: &Marks) -> Result<Self, Failure> {
        let open = |mark: &Option<Mark>| mark.as_ref().map(Output::open).transpose();
        Ok(Self {
            out: open(&marks.out)?.unwrap_or_else(Output::standard),
            late: open(&marks.late)?,
            rejects: open(&marks.rejects)?,
        })
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Output> {
        [Some(&mut self.out), self.late.as_mut(), self.rejects.as_mut()].into_iter().flatten()
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.all().try_for_each(Output::flush)
    }

    /// Makes everything written safe and says how much it is.
    pub(super) fn sync(&mut self) -> Result<Marks, Failure> {
        self.all().try_for_each(Output::sync)?;
        let mark = |output: &Output| {
            let Target::File { path, .. } = &output.target else { return None };
            Some(Mark { path: path.clone(), bytes: output.bytes })
        };
        Ok(Marks {
            out: mark(&self.out),
            late: self.late.as_ref().and_then(mark),
            rejects: self.rejects.as_ref().and_then(mark),
        })
    }
}

/// One output, buffered.
pub(super) struct Output {
    writer: BufWriter<Box<dyn Write>>,
    target: Target,
    bytes: u64,
}

enum Target {
    Standard,
    File { path: PathBuf, file: File },
}

impl Output {
    fn standard() -> Self {
        let writer =
            BufWriter::with_capacity(BUFFER_BYTES, Box::new(io::stdout()) as Box<dyn Write>);
        Self { writer, target: Target::Standard, bytes: 0 }
    }

    fn open(mark: &Mark) -> Result<Self, Failure> {
        let Mark { path, bytes } = mark;
        let cannot = || format!("cannot write {}", path.display());
        let is_there = path.try_exists().with_context(cannot)?;
        let mut file =
            File::options().create(*bytes == 0).write(true).truncate(false).open(path).map_err(
                |error| {
                    let exit = if is_there || *bytes == 0 { Exit::Failed } else { Exit::Refused };
                    Failure { exit, error: anyhow::Error::new(error).context(cannot()) }
                },
            )?;
        let metadata = file.metadata().with_context(cannot)?;
        if metadata.is_file() {
            if metadata.len() < *bytes {
                return Err(Failure::refused(format!(
                    "{} has {} bytes, and the state stands at byte {bytes} of it: it is not what \
                     the earlier run wrote",
                    path.display(),
                    metadata.len()
                )));
            }
            file.set_len(*bytes).with_context(cannot)?;
            file.seek(SeekFrom::Start(*bytes)).with_context(cannot)?;
        }
        let writer = Box::new(file.try_clone().with_context(cannot)?) as Box<dyn Write>;
        Ok(Self {
            writer: BufWriter::with_capacity(BUFFER_BYTES, writer),
            target: Target::File { path: path.clone(), file },
            bytes: *bytes,
        })
    }

    pub(super) fn write(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.writer.write_all(line).map_err(|error| self.failure(error))?;
        self.bytes += u64::try_from(line.len())?;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.writer.flush().map_err(|error| self.failure(error))
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.flush()?;
        match &self.target {
            Target::Standard => Ok(()),
            Target::File { file, .. } => file.sync_all().map_err(|error| self.failure(error)),
        }
    }

    /// Only a failure of standard output keeps its cause: see [`is_closed_pipe`].
    fn failure(&self, error: io::Error) -> Failure {
        match &self.target {
            Target::Standard => {
                anyhow::Error::new(error).context("cannot write to standard output").into()
            }
            Target::File { path, .. } => anyhow!("cannot write {}: {error}", path.display()).into(),
        }
    }
}

/// Whether the reader of standard output has gone, as `head` does: no failure.
pub(super) fn is_closed_pipe(failure: &Failure) -> bool {
    let cause = failure.error.downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Makes sure that a file can be cut back to a checkpoint.
///
/// # Errors
/// Exit 2 if it is a device or a pipe.
pub(super) fn check_plain(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            Err(Failure::usage(format!("with --state, {} must be a plain file", path.display())))
        }
        _ => Ok(()),
    }
}
