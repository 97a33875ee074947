//! What the operating system says about this process.

/// A reading of this process's resources.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// User and system time so far, in seconds; 0 where the system does not tell.
    pub(crate) cpu_seconds: f64,
    /// Resident memory now, in bytes.
    pub(crate) rss_bytes: u64,
    /// Highest resident memory since the start or the last [`reset_peak`], in bytes.
    pub(crate) peak_rss_bytes: u64,
    /// Open file descriptors.
    pub(crate) open_files: u64,
}

/// Clock ticks a second in /proc; 100 on every Linux architecture in use.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads /proc; zeros where there is none.
pub(crate) fn usage() -> Usage {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command name, in parentheses, may hold blanks: count fields after it.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    let ticks = |index: usize| fields.get(index).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    let open_files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    Usage {
        cpu_seconds: (ticks(11) + ticks(12)) / TICKS_PER_SECOND,
        rss_bytes: kib("VmRSS:") * 1024,
        peak_rss_bytes: kib("VmHWM:") * 1024,
        open_files: u64::try_from(open_files).unwrap_or(0),
    }
}

/// RAM of the machine or, if that is less, what the control group of this process may take, in
/// bytes; `None` where the system does not tell.
pub(crate) fn machine_ram_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = read("/proc/meminfo");
    let line = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let limit = read("/sys/fs/cgroup/memory.max").trim().parse().ok();
    let total = total.map(|kib| kib.saturating_mul(1024));
    total.into_iter().chain(limit).min()
}

/// Raises the number of files that this process may have open to what it is allowed to ask for.
/// Returns the number.
pub(crate) fn raise_open_files() -> u64 {
    // Where the system does not let us, the limit stays as it is.
    rlimit::increase_nofile_limit(u64::MAX).unwrap_or(256)
}

/// Lets the peak of resident memory start anew, where the system allows it.
pub(crate) fn reset_peak() {
    // Without /proc the peak stays that of the whole run, which is only too high.
    drop(std::fs::write("/proc/self/clear_refs", "5"));
}
