//! Finds and kills the descendants of a process by /proc, whatever their process group or session.
//!
//! The tree below a function's leader is complete while the leader lives, since it is a child subreaper. Without a /proc,
//! or with one of another PID namespace, nothing is found.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use libc::pid_t;

/// Between looks at processes that are dying.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// A process, told from a later one with the same pid by its start.
#[derive(Clone, Copy, PartialEq)]
pub struct Process {
    pub pid: pid_t,
    started: u64,
}

struct Status {
    process: Process,
    parent: pid_t,
    group: pid_t,
    is_alive: bool,
}

/// Pauses that double in length, until a deadline.
pub struct Backoff {
    until: Instant,
    pause: Duration,
}

impl Backoff {
    pub fn until(until: Instant) -> Self {
        Self { until, pause: FIRST_PAUSE }
    }

    /// Sleep; false once the deadline has passed.
    pub fn pause(&mut self) -> bool {
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LAST_PAUSE);
        Instant::now() < self.until
    }
}

impl Process {
    pub fn is_alive(self) -> bool {
        status(self.pid).is_some_and(|status| status.is_alive && status.process == self)
    }
}

/// Stop these leaders and their groups, and kill their descendants until none lives or the time is over. The leaders stay,
/// since what they leave behind could not be found. Returns the descendants that live on, and whether there were any.
pub fn kill(leaders: &[pid_t], until: Instant) -> (Vec<Process>, bool) {
    for leader in leaders {
        // SAFETY: no pointers are involved.
        unsafe {
            libc::kill(-leader, libc::SIGSTOP);
            libc::kill(*leader, libc::SIGSTOP);
        }
    }
    let mut backoff = Backoff::until(until);
    let mut seen = HashSet::new();
    loop {
        let seen_before = seen.len();
        let mut living = Vec::new();
        for Status { process, is_alive, .. } in below(leaders) {
            seen.insert(process.pid);
            if is_alive {
                // SAFETY: no pointers are involved.
                unsafe { libc::kill(process.pid, libc::SIGKILL) };
                living.push(process);
            }
        }
        // A process that forks and exits between two looks is never seen alive, but stays as a zombie of the stopped leader.
        if (living.is_empty() && seen.len() == seen_before) || !backoff.pause() {
            return (living, !seen.is_empty());
        }
    }
}

/// Return the living processes of a group.
pub fn in_group(group: pid_t) -> Vec<Process> {
    all().filter(|status| status.group == group && status.is_alive).map(|status| status.process).collect()
}

/// Return the descendants of these processes, zombies included.
fn below(ancestors: &[pid_t]) -> Vec<Status> {
    let mut children = HashMap::<pid_t, Vec<Status>>::new();
    for status in all() {
        children.entry(status.parent).or_default().push(status);
    }
    let mut found = Vec::new();
    let mut next = ancestors.to_vec();
    while let Some(pid) = next.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        next.extend(below.iter().map(|status| status.process.pid));
        found.extend(below);
    }
    found
}

fn all() -> impl Iterator<Item = Status> {
    let is_own =
        fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str());
    let entries = is_own.then(|| fs::read_dir("/proc").ok()).flatten();
    entries.into_iter().flatten().filter_map(|entry| status(entry.ok()?.file_name().to_str()?.parse().ok()?))
}

/// Read a process's status, if it exists.
fn status(pid: pid_t) -> Option<Status> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold any bytes.
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<_> = std::str::from_utf8(&text[name_end + 1..]).ok()?.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    // A process whose first thread has ended is shown as a zombie while its other threads run.
    let is_alive = !matches!(*fields.first()?, "Z" | "X") || field(20)? > 1;
    let process = Process { pid, started: field(22)? };
    let [parent, group] = [4, 5].map(|number| pid_t::try_from(field(number)?).ok());
    Some(Status { process, parent: parent?, group: group?, is_alive })
}
