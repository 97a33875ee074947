//! `tally dedup`: NDJSON in, the first copy of each event out, in flat memory.
//!
//! The same dedup state as the pipeline's, without a pipeline: lines are taken in batches, each
//! batch is decided shard by shard and written in the order of the input. What is decided depends
//! on the lines and their order alone, so an interrupted run over a file, cut back to its last
//! checkpoint, writes what an uninterrupted one would have written.

mod args;
mod checkpoint;
mod fields;
mod input;
mod outputs;
mod report;
mod start;
mod table;
#[cfg(test)]
mod tests;
mod watermark;

use tally_model::clock::Clock;
use tally_model::ids::EventId;
use tally_operators::dedup::Verdict;

use self::args::Rules;
use self::checkpoint::{Anchor, Run, StateFolder};
use self::fields::{Fields, Refusal};
use self::input::Input;
use self::outputs::{Outputs, is_closed_pipe};
use self::report::Report;
use self::table::Table;
use crate::clock::SystemClock;
use crate::failure::{Exit, Failure};

pub(crate) use self::args::{DedupArgs, HELP};

/// Lines that are decided together. Batches of a file are cut by its content alone.
const BATCH_LINES: usize = 16_384;
/// A batch takes no further line once it has so many bytes.
const BATCH_BYTES: usize = 4 << 20;

/// `tally dedup`.
pub(crate) fn dedup(args: &DedupArgs) -> Result<(), Failure> {
    let clock = SystemClock::new();
    let mut session = start::session(args, &clock)?;
    let bar = start::bar(args, &session.input);
    let outcome = session.run(&clock, &bar);
    bar.finish_and_clear();
    match outcome {
        Err(failure) if is_closed_pipe(&failure) => return Ok(()),
        other => other?,
    }
    let totals = &session.run.totals;
    Report {
        totals,
        stats: session.table.stats(),
        watermark_ms: session.run.watermark.at_ms(),
        lines_here: totals.lines - session.lines_before,
        elapsed_ms: clock.monotonic_ms(),
    }
    .print(args.output)?;
    let lost = [
        (args.late.is_none(), totals.late, "came past the window", "--late"),
        (args.rejects.is_none(), totals.rejected(), "could not be read", "--rejects"),
    ];
    let lost: Vec<String> = lost
        .into_iter()
        .filter(|(is_left_out, lines, ..)| *is_left_out && *lines > 0)
        .map(|(_, lines, what, flag)| format!("{lines} lines {what} ({flag} FILE keeps them)"))
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    Err(Failure::message(Exit::Failed, format!("not written: {}", lost.join(", "))))
}

/// One run over one input.
struct Session {
    rules: Rules,
    fields: Fields,
    input: Input,
    table: Table,
    outputs: Outputs,
    run: Run,
    /// Lines that the run had taken before this process.
    lines_before: u64,
    folder: Option<StateFolder>,
    checkpoint_every_ms: i64,
    batch: Batch,
}

/// Lines at hand.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// End of each line in `bytes`, and what it is.
    lines: Vec<(usize, Line)>,
    records: Vec<(EventId, i64)>,
    verdicts: Vec<Verdict>,
    /// Where the last line begins in `bytes`, and how many bytes of the input it took.
    last: Option<(usize, u64)>,
}

#[derive(Clone, Copy)]
enum Line {
    Blank,
    Refused(Refusal),
    /// The next of the records.
    Record,
}

impl Session {
    fn run(&mut self, clock: &dyn Clock, bar: &indicatif::ProgressBar) -> Result<(), Failure> {
        let mut safe_ms = clock.monotonic_ms();
        loop {
            let is_end = !self.fill(clock)?;
            self.decide()?;
            bar.set_position(if self.input.size.is_some() {
                self.input.position
            } else {
                self.run.totals.lines
            });
            if is_end {
                break;
            }
            let now_ms = clock.monotonic_ms();
            if self.folder.is_some() && now_ms - safe_ms >= self.checkpoint_every_ms {
                self.checkpoint()?;
                safe_ms = clock.monotonic_ms();
            } else if self.input.may_wait() {
                self.outputs.flush()?;
            }
        }
        self.run.is_finished = true;
        if self.folder.is_some() { self.checkpoint() } else { self.outputs.flush() }
    }

    /// Reads a batch. Returns false at the end of the input.
    fn fill(&mut self, clock: &dyn Clock) -> Result<bool, Failure> {
        if self.run.source.is_none() {
            self.run.now_ms = clock.now_ms();
        }
        self.batch.bytes.clear();
        self.batch.lines.clear();
        self.batch.records.clear();
        while self.batch.lines.len() < BATCH_LINES && self.batch.bytes.len() < BATCH_BYTES {
            let start = self.batch.bytes.len();
            let position = self.input.position;
            if !self.input.read_line(&mut self.batch.bytes)? {
                return Ok(false);
            }
            let line = self.judge(start);
            let end = self.batch.bytes.len();
            self.batch.lines.push((end, line));
            self.batch.last = Some((start, self.input.position - position));
            if self.input.may_wait() {
                break;
            }
        }
        Ok(true)
    }

    /// Reads the fields of the line that begins at `start`, and lets its time count.
    fn judge(&mut self, start: usize) -> Line {
        let text = self.batch.bytes[start..].trim_ascii();
        if text.is_empty() {
            return Line::Blank;
        }
        let identity = match self.fields.read(text) {
            Ok(identity) => identity,
            Err(refusal) => return Line::Refused(refusal),
        };
        let Run { now_ms, watermark, totals, .. } = &mut self.run;
        let mut at_ms = identity.at_ms.unwrap_or(*now_ms);
        if at_ms > now_ms.saturating_add(self.rules.max_ahead_ms) {
            totals.ahead += 1;
            // As if it had happened when it came: a bucket of the future would never be dropped.
            at_ms = watermark.at_ms().unwrap_or(*now_ms);
        } else {
            watermark.note(at_ms, self.rules.max_ahead_ms);
        }
        self.batch.records.push((identity.id, at_ms));
        Line::Record
    }

    /// Decides the batch and writes it.
    fn decide(&mut self) -> Result<(), Failure> {
        let batch = &mut self.batch;
        if let Some((start, bytes)) = batch.last.take() {
            self.run.anchor = Anchor::of(&batch.bytes[start..], bytes);
        }
        self.table.observe(&batch.records, &mut batch.verdicts)?;
        let mut verdicts = batch.verdicts.iter();
        let totals = &mut self.run.totals;
        let outputs = &mut self.outputs;
        let mut start = 0;
        for (end, line) in &batch.lines {
            let text = &batch.bytes[start..*end];
            start = *end;
            totals.lines += 1;
            let verdict = match line {
                Line::Blank => {
                    totals.blank += 1;
                    continue;
                }
                Line::Refused(refusal) => {
                    totals.reject(totals.lines, *refusal, outputs.rejects.is_some());
                    if let Some(rejects) = &mut outputs.rejects {
                        rejects.write(text)?;
                    }
                    continue;
                }
                Line::Record => verdicts.next(),
            };
            match verdict.ok_or_else(|| anyhow::anyhow!("a record has no verdict"))? {
                Verdict::First => {
                    totals.written += 1;
                    outputs.out.write(text)?;
                }
                Verdict::Repeat => totals.repeats += 1,
                Verdict::PastWindow => {
                    totals.past_window(totals.lines, outputs.late.is_some());
                    if let Some(late) = &mut outputs.late {
                        late.write(text)?;
                    }
                }
            }
        }
        if let Some(watermark_ms) = self.run.watermark.at_ms() {
            self.table.advance(watermark_ms);
        }
        Ok(())
    }

    /// First the outputs, then the segments, last the file that names both.
    fn checkpoint(&mut self) -> Result<(), Failure> {
        let Some(folder) = &mut self.folder else { return Ok(()) };
        self.run.marks = self.outputs.sync()?;
        self.run.position = self.input.position;
        folder.save(&self.rules, &self.run, self.table.snapshots())
    }
}
