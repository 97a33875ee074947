//! What the dedup state has done, and what it takes.

use std::ops::AddAssign;

/// What has happened since the state was new; travels with snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DedupCounters {
    /// Records observed.
    pub records: u64,
    /// Records that were repeats.
    pub repeats: u64,
    /// Records past the window.
    pub past_window: u64,
    /// Ids dropped with their buckets.
    pub evicted_ids: u64,
    /// Filters asked, all records together.
    pub filter_probes: u64,
    /// Segments searched because their filter said maybe.
    pub segment_searches: u64,
    /// Searches that found nothing.
    pub vain_searches: u64,
    /// Ids rewritten by merges.
    pub merged_ids: u64,
}

/// What the state is and takes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DedupStats {
    /// What has happened.
    pub counters: DedupCounters,
    /// Time buckets held.
    pub buckets: u64,
    /// Ids held.
    pub ids: u64,
    /// Of these, ids in heads.
    pub head_ids: u64,
    /// Segments held.
    pub segments: u64,
    /// Merges under way.
    pub merges: u64,
    /// Bytes of RAM.
    pub ram_bytes: u64,
    /// Bytes of disk.
    pub disk_bytes: u64,
    /// Bits of all filters.
    pub filter_bits: u64,
    /// Of these, bits that are set.
    pub filter_bits_set: u64,
}

impl DedupStats {
    /// How full the filters are: about 0.4 is right, more means more vain searches.
    #[must_use]
    pub fn filter_fill(&self) -> f64 {
        ratio(self.filter_bits_set, self.filter_bits)
    }

    /// Filters asked for each record.
    #[must_use]
    pub fn probes_per_record(&self) -> f64 {
        ratio(self.counters.filter_probes, self.counters.records)
    }

    /// The share of filter answers that were a wrong maybe.
    #[must_use]
    pub fn vain_rate(&self) -> f64 {
        ratio(self.counters.vain_searches, self.counters.filter_probes)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people; exact counts stand beside it")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl AddAssign for DedupCounters {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.repeats += other.repeats;
        self.past_window += other.past_window;
        self.evicted_ids += other.evicted_ids;
        self.filter_probes += other.filter_probes;
        self.segment_searches += other.segment_searches;
        self.vain_searches += other.vain_searches;
        self.merged_ids += other.merged_ids;
    }
}

impl AddAssign for DedupStats {
    fn add_assign(&mut self, other: Self) {
        self.counters += other.counters;
        self.buckets += other.buckets;
        self.ids += other.ids;
        self.head_ids += other.head_ids;
        self.segments += other.segments;
        self.merges += other.merges;
        self.ram_bytes += other.ram_bytes;
        self.disk_bytes += other.disk_bytes;
        self.filter_bits += other.filter_bits;
        self.filter_bits_set += other.filter_bits_set;
    }
}
