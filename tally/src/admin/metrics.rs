//! What the counting pipeline, the log and the process report on `/metrics`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tally_dataflow::{CountProgress, FRESHNESS_BOUNDS_MS};
use tally_eventlog::EventLog;
use tally_model::reasons::InvalidReason;

use crate::process;

/// Reads everything at the moment of the scrape, so that nothing is counted twice.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    progress: Arc<CountProgress>,
    log: Arc<dyn EventLog>,
}

impl NodeMetrics {
    pub(crate) fn new(progress: Arc<CountProgress>, log: Arc<dyn EventLog>) -> Self {
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
        let help = "Records that retention removed before they were counted";
        counter(encoder, "count_missing_records", help, self.progress.missing_records())?;
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
        let help = "Start of the oldest minute that waits for the store";
        for (name, help, at_ms) in [
            ("store_oldest_waiting_timestamp_seconds", help, progress.oldest_waiting_ms()),
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

    fn checkpoints(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let progress = self.progress.checkpoints();
        counters(
            encoder,
            "checkpoints",
            "Checkpoints, by what became of them",
            "outcome",
            &[("written", progress.written()), ("failed", progress.failed())],
        )?;
        let help = "Checkpoints that failed since the last one that was written";
        gauge(encoder, "checkpoint_failures_in_a_row", help, progress.failed_in_a_row())?;
        counter(encoder, "checkpoint_bytes", "Bytes uploaded", progress.bytes())?;
        let help = "Bytes uploaded for the last checkpoint";
        gauge(encoder, "checkpoint_last_bytes", help, progress.last_bytes())?;
        let help = "How long the upload of the last checkpoint took";
        float_gauge(encoder, "checkpoint_last_seconds", help, seconds(progress.last_took_ms()))?;
        if let Some(at_ms) = progress.last_at_ms() {
            let name = "checkpoint_last_timestamp_seconds";
            float_gauge(encoder, name, "When the last one was written", seconds(at_ms))?;
        }
        Ok(())
    }

    fn dedup(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.progress.dedup();
        let counted = stats.counters;
        for (name, help, value) in [
            ("dedup_ids", "Ids held", stats.ids),
            ("dedup_head_ids", "Of these, ids that are in no segment yet", stats.head_ids),
            ("dedup_buckets", "Time buckets held, of all shards", stats.buckets),
            ("dedup_segments", "Segments held", stats.segments),
            ("dedup_memory_bytes", "Memory that the ids take", stats.ram_bytes),
            ("dedup_disk_bytes", "Disk that the ids take", stats.disk_bytes),
        ] {
            gauge(encoder, name, help, value)?;
        }
        for (name, help, value) in [
            ("dedup_records", "Records looked up", counted.records),
            ("dedup_repeats", "Records that were repeats", counted.repeats),
            ("dedup_evicted_ids", "Ids dropped with their buckets", counted.evicted_ids),
            ("dedup_filter_probes", "Filters asked", counted.filter_probes),
            ("dedup_searches", "Segments searched after a maybe", counted.segment_searches),
            ("dedup_vain_searches", "Searches that found nothing", counted.vain_searches),
            ("dedup_merged_ids", "Ids rewritten by merges", counted.merged_ids),
        ] {
            counter(encoder, name, help, value)?;
        }
        let help = "Share of the filters' bits that are set; about 0.4 is right";
        float_gauge(encoder, "dedup_filter_fill", help, stats.filter_fill())
    }

    /// How long after its beginning a minute was stored for the first time.
    fn freshness(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let freshness = self.progress.freshness();
        let bounds = FRESHNESS_BOUNDS_MS.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        let counts = freshness.counts();
        let sum = freshness.sum_ms().cast_signed();
        let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
        encoder
            .encode_descriptor(
                "freshness_seconds",
                "From the beginning of a minute until its counts were stored for the first time",
                None,
                MetricType::Histogram,
            )?
            .encode_histogram::<NoLabelSet>(seconds(sum), counts.iter().sum(), &buckets, None)
    }

    fn log(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.log.stats();
        let get = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
        counter(encoder, "log_commits", "Commits of the log", get(&stats.commits))?;
        counter(encoder, "log_records", "Records appended", get(&stats.records))?;
        counter(encoder, "log_bytes", "Bytes appended", get(&stats.bytes))?;
        let errors = get(&stats.read_errors);
        counter(encoder, "log_read_errors", "Reads that failed for a while", errors)?;
        let removed = get(&stats.segments_removed);
        counter(encoder, "log_segments_removed", "Segments that retention deleted", removed)?;
        gauge(encoder, "log_queued_bytes", "Bytes that wait", get(&stats.queued_bytes))?;
        let help = "Time until appends were durable";
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
        self.freshness(&mut encoder)?;
        self.checkpoints(&mut encoder)?;
        self.dedup(&mut encoder)?;
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
