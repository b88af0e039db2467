//! The kernel's data on a process.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Unit of times in /proc; the same on every machine that runs Linux today.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time used by a process.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // utime and stime. Source: proc_pid_stat(5), whose fields 1 and 2 are cut off here.
    let ticks = fields[11..13].iter().map(|f| f.parse::<u64>().unwrap()).sum::<u64>();
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// Memory of a process in bytes: `VmRSS` is resident memory, `VmHWM` its maximum so far, `RssAnon` excludes pages
/// of files.
pub fn memory(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Makes the kernel count the run time of BPF programs until this is dropped.
pub struct Counting(String);

impl Counting {
    const PATH: &str = "/proc/sys/kernel/bpf_stats_enabled";

    pub fn begin() -> Counting {
        let before = fs::read_to_string(Counting::PATH).unwrap();
        fs::write(Counting::PATH, "1").unwrap();
        Counting(before)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = fs::write(Counting::PATH, self.0.trim());
    }
}

/// How often the BPF programs of a process have run; the kernel counts only while this is enabled.
pub fn bpf_runs(pid: u32) -> u64 {
    numbers(pid, "prog_id:", "run_cnt:").into_values().sum()
}

/// How long the BPF programs of a process have run.
pub fn bpf_time(pid: u32) -> Duration {
    Duration::from_nanos(numbers(pid, "prog_id:", "run_time_ns:").into_values().sum())
}

/// Bytes that the kernel has allocated for a process's BPF maps.
pub fn bpf_maps(pid: u32) -> u64 {
    numbers(pid, "map_id:", "memlock:").into_values().sum()
}

/// A given number for each BPF object of a process, by the object's id.
fn numbers(pid: u32, id: &str, what: &str) -> BTreeMap<u64, u64> {
    let dir = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let texts = dir.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
    let number = |text: &str, name| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    texts.filter_map(|text| Some((number(&text, id)?, number(&text, what)?))).collect()
}
