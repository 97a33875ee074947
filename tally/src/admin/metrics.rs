//! What the counting pipeline, the log and the process report on `/metrics`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tally_dataflow::CountProgress;
use tally_eventlog::segment::SegmentLog;
use tally_model::reasons::InvalidReason;

use crate::process;

/// Reads everything at the moment of the scrape, so that nothing is counted twice.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    progress: Arc<CountProgress>,
    log: Arc<SegmentLog>,
}

impl NodeMetrics {
    pub(crate) fn new(progress: Arc<CountProgress>, log: Arc<SegmentLog>) -> Self {
        Self { progress, log }
    }

    fn events(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let totals = self.progress.totals();
        counters(
            encoder,
            "count_records",
            "Records read from the log, by what became of them",
            "outcome",
            &[
                ("counted", totals.counted),
                ("repeat", totals.repeats),
                ("late", totals.late),
                ("straggler", totals.straggler),
                ("past_window", totals.past_window),
                ("control", totals.control),
            ],
        )?;
        let invalid: Vec<_> = InvalidReason::ALL
            .iter()
            .map(|reason| (reason.code(), totals.invalid(*reason)))
            .collect();
        let help = "Records of the log that were skipped";
        counters(encoder, "count_invalid_records", help, "reason", &invalid)?;
        let workers = self.progress.counted_by_worker();
        let names: Vec<String> = (0..workers.len()).map(|worker| worker.to_string()).collect();
        let by_worker: Vec<_> = names.iter().map(String::as_str).zip(workers).collect();
        counters(encoder, "count_worker_events", "Events counted by worker", "worker", &by_worker)
    }

    fn rows(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (progress, rows) = (&self.progress, self.progress.rows());
        counters(
            encoder,
            "store_rows",
            "Minute rows, by what became of them",
            "outcome",
            &[
                ("put", rows.put),
                ("unchanged", rows.unchanged),
                ("withheld", rows.withheld),
                ("refused", rows.refused),
                ("past_retention", rows.past_retention),
                ("misread", progress.misread_rows()),
            ],
        )?;
        counter(encoder, "store_errors", "Store calls that failed", progress.store_errors())?;
        gauge(encoder, "store_waiting_rows", "Rows that wait", progress.waiting_rows())?;
        gauge(encoder, "store_held_rows", "Rows held while catching up", progress.held_rows())?;
        let caught_up = u64::from(progress.caught_up());
        gauge(
            encoder,
            "count_caught_up",
            "Whether the log was read to its start's end",
            caught_up,
        )?;
        for (name, help, at_ms) in [
            ("watermark_timestamp_seconds", "The global watermark", progress.watermark_ms()),
            ("readable_timestamp_seconds", "Readable up to", progress.readable_up_to_ms()),
            ("retired_timestamp_seconds", "Retired up to", progress.retired_up_to_ms()),
        ] {
            if let Some(at_ms) = at_ms {
                float_gauge(encoder, name, help, seconds(at_ms))?;
            }
        }
        Ok(())
    }

    fn log(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.log.stats();
        let get = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
        counter(encoder, "log_commits", "Commits of the log", get(&stats.commits))?;
        counter(encoder, "log_records", "Records appended", get(&stats.records))?;
        counter(encoder, "log_bytes", "Bytes appended", get(&stats.bytes))?;
        let removed = get(&stats.segments_removed);
        counter(encoder, "log_segments_removed", "Segments that retention deleted", removed)?;
        gauge(encoder, "log_queued_bytes", "Bytes that wait", get(&stats.queued_bytes))?;
        let help = "Time spent in fdatasync";
        let sync_seconds = nanoseconds(get(&stats.sync_ns_total));
        let metric = ConstCounter::new(sync_seconds);
        metric.encode(encoder.encode_descriptor(
            "log_sync_seconds",
            help,
            None,
            metric.metric_type(),
        )?)
    }

    fn process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let usage = process::usage();
        float_gauge(encoder, "process_cpu_seconds", "CPU time", usage.cpu_seconds)?;
        gauge(encoder, "process_resident_memory_bytes", "Resident memory", usage.rss_bytes)?;
        gauge(encoder, "process_peak_memory_bytes", "Peak memory", usage.peak_rss_bytes)?;
        gauge(encoder, "process_open_fds", "Open file descriptors", usage.open_files)
    }
}

impl Collector for NodeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.events(&mut encoder)?;
        self.rows(&mut encoder)?;
        self.log(&mut encoder)?;
        Self::process(&mut encoder)
    }
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    values: &[(&str, u64)],
) -> fmt::Result {
    let kind = ConstCounter::new(0_u64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (value, count) in values {
        let labels = [(label, *value)];
        ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = ConstCounter::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = ConstGauge::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn float_gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: f64,
) -> fmt::Result {
    let metric = ConstGauge::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floats; instants fit a double")]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
fn nanoseconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
