//! How a run begins: anew, or where an earlier one was interrupted.

use std::path::Path;
use std::sync::Arc;

use tally_model::clock::Clock;
use tally_operators::dedup::{MemoryStore, SegmentStore};

use super::args::{DedupArgs, Rules, check_files};
use super::checkpoint::{Anchor, Earlier, Run, StateFolder};
use super::fields::Fields;
use super::input::{Input, Source};
use super::outputs::{Marks, Outputs, check_plain};
use super::report::Totals;
use super::table::Table;
use super::watermark::Watermark;
use super::{Batch, Session};
use crate::deployment::random;
use crate::failure::Failure;
use crate::output;

/// Everything that a run needs, checked; nothing has been written yet but the state folder.
pub(super) fn session(args: &DedupArgs, clock: &dyn Clock) -> Result<Session, Failure> {
    let rules = Rules::check(args)?;
    let fields = Fields::new(&rules.keys, rules.time.as_deref())?;
    let source = Source::of(args.file.as_deref())?;
    check_files(args, source.file())?;
    let mut run = Run {
        source: source.file().map(Path::to_owned),
        is_finished: false,
        now_ms: clock.now_ms(),
        position: 0,
        anchor: Anchor::default(),
        totals: Totals::default(),
        watermark: Watermark::default(),
        marks: Marks::asked(args)?,
    };
    let (folder, table) = match &args.state {
        None => {
            let store: Arc<dyn SegmentStore> = Arc::new(MemoryStore);
            (None, Table::new(&rules, random()?, &store, &[])?)
        }
        Some(path) => {
            check_resumable(args, &source)?;
            let (folder, earlier) = StateFolder::open(path)?;
            if let Some(earlier) = earlier {
                run = go_on(run, &rules, earlier, path)?;
            }
            let table = Table::new(&rules, folder.key(), &folder.store(), folder.snapshots())?;
            (Some(folder), table)
        }
    };
    let input = open(&source, &run)?;
    Ok(Session {
        outputs: Outputs::open(&run.marks)?,
        batch: Batch::default(),
        lines_before: run.totals.lines,
        checkpoint_every_ms: args.checkpoint_every,
        rules,
        fields,
        input,
        table,
        run,
        folder,
    })
}

/// What a resumed run could not do again alike.
fn check_resumable(args: &DedupArgs, source: &Source) -> Result<(), Failure> {
    if args.time_now && source.file().is_some() {
        return Err(Failure::usage(
            "a file's lines have no time of arrival that a second reading could find again: \
             --state with --time-now takes standard input only",
        ));
    }
    [&args.out, &args.late, &args.rejects]
        .into_iter()
        .flatten()
        .try_for_each(|path| check_plain(path))
}

/// The run that follows on what the folder knows: the same one if its input is the same file.
fn go_on(new: Run, rules: &Rules, earlier: Earlier, folder: &Path) -> Result<Run, Failure> {
    if earlier.rules != *rules {
        return Err(Failure::refused(format!(
            "{} was made with other rules: {}; it is used with these here or not at all",
            folder.display(),
            serde_json::to_string(&earlier.rules)?
        )));
    }
    let before = earlier.run;
    let marks = new.marks.clone().continuing(&before.marks);
    if new.source.is_some() && new.source == before.source {
        if !new.marks.same_files(&before.marks) {
            return Err(Failure::refused(format!(
                "{} knows this input with other outputs, {}; name the same ones, or use another \
                 state folder",
                folder.display(),
                serde_json::to_string(&before.marks)?
            )));
        }
        let now_ms = if before.is_finished { new.now_ms.max(before.now_ms) } else { before.now_ms };
        return Ok(Run { is_finished: false, now_ms, marks, ..before });
    }
    match &before.source {
        Some(source) if !before.is_finished => Err(Failure::refused(format!(
            "{} holds an unfinished run over {}; finish that one first",
            folder.display(),
            source.display()
        ))),
        None if !before.is_finished => {
            output::note(format!(
                "the run before was interrupted after line {0} of its input: send what follows \
                 line {0}; lines that come twice are recognised",
                before.totals.lines
            ));
            Ok(Run { watermark: before.watermark, marks, ..new })
        }
        Some(_) | None => Ok(Run { watermark: before.watermark, marks, ..new }),
    }
}

/// Opens the input at the run's place, if it is still the one that was read.
fn open(source: &Source, run: &Run) -> Result<Input, Failure> {
    let anchored = run.position.saturating_sub(run.anchor.bytes);
    let mut input = Input::open(source, anchored)?;
    if anchored < run.position {
        let mut line = Vec::new();
        input.read_line(&mut line)?;
        if input.position != run.position || Anchor::of(&line, run.anchor.bytes) != run.anchor {
            return Err(Failure::refused(format!(
                "the line before byte {} is another one than in the earlier run: the input was \
                 changed",
                run.position
            )));
        }
    }
    Ok(input)
}

/// Progress for people: of the file where its size is known. None where lines go to a terminal.
pub(super) fn bar(args: &DedupArgs, input: &Input) -> indicatif::ProgressBar {
    let is_mixed = args.out.is_none() && std::io::IsTerminal::is_terminal(&std::io::stdout());
    if is_mixed || !output::is_watched() {
        return indicatif::ProgressBar::hidden();
    }
    let (bar, template) = match input.size {
        Some(bytes) => (
            indicatif::ProgressBar::new(bytes),
            "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
        ),
        None => (indicatif::ProgressBar::no_length(), "{msg} {human_pos} lines {per_sec}"),
    };
    let bar = bar.with_message("deduplicating");
    match indicatif::ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_template) => bar,
    }
}
