//! All processes that descend from this one: who is known, who is a stray, who must go.
//!
//! Orphans of functions are handed to this process, be it as PID 1 or as their subreaper. Those of a function's group
//! are reaped with it; others are reaped when they have ended.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use libc::pid_t;

use super::descendants::{self, Backoff, Process};
use crate::log::{Level, Line};
use crate::verdict::Exit;

/// A process that lives on for longer after SIGKILL is blocked in the kernel, or belongs to another user.
const GRACE: Duration = Duration::from_secs(5);
/// The same for the group after other processes have used up theirs, and at the end of this program.
const LAST_GRACE: Duration = Duration::from_secs(1);
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Family {
    leaders: Mutex<HashSet<pid_t>>,
    starting: AtomicUsize,
    lingering: Mutex<Vec<Lingering>>,
}

/// A process group and all descendants of its leader. Dropping it kills and reaps them.
pub struct Group {
    family: Arc<Family>,
    function: String,
    leader: pid_t,
    is_over: bool,
}

/// What is left of a group and of its leader's descendants.
struct Remains {
    leader: pid_t,
    exit: Option<Exit>,
    is_reaped: bool,
    /// Descendants of the leader that could not be killed.
    outside: Vec<Process>,
}

/// Processes that could not be killed.
struct Lingering {
    remains: Remains,
    function: String,
    thread: ThreadId,
    since: Instant,
    reported: Instant,
}

impl Family {
    /// Ask to be handed the orphans, and keep what was inherited from functions.
    pub fn adopt_orphans(&self) -> io::Result<()> {
        // SAFETY: no pointers are involved.
        unsafe {
            if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            // Descriptors that were open when we started are not for functions. Old kernels do not know the call.
            if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
                for descriptor in 3..1024 {
                    libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
        }
        Ok(())
    }

    /// Start a process of this function as the leader of a group.
    pub fn start(self: &Arc<Self>, function: String, spawn: impl FnOnce() -> io::Result<pid_t>) -> io::Result<Group> {
        self.starting.fetch_add(1, Ordering::SeqCst);
        let started = spawn();
        let group = started.map(|leader| {
            self.leaders().insert(leader);
            Group { family: Arc::clone(self), function, leader, is_over: false }
        });
        self.starting.fetch_sub(1, Ordering::SeqCst);
        group
    }

    /// Kill all leaders and their descendants; for the moment before this process ends.
    pub fn kill_all(&self) {
        let leaders: Vec<_> = self.leaders().iter().copied().collect();
        descendants::kill(&leaders, Instant::now() + LAST_GRACE);
        leaders.into_iter().for_each(kill_group);
    }

    /// Whether processes live that this thread could not kill: its place is not free then.
    pub fn has_lingering(&self) -> bool {
        self.lingering().iter().any(|lingering| lingering.thread == thread::current().id())
    }

    /// Wait until no such process lives. `look_after` must be called meanwhile.
    pub fn wait_for_lingering(&self) {
        while self.has_lingering() {
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Reap processes that left their function's group, and report those that cannot be killed. Call it every few seconds.
    pub fn look_after(&self) {
        self.lingering().retain_mut(|lingering| !lingering.is_gone(self));
        self.reap_strays();
    }

    /// Reap ended processes that had left their function's group.
    fn reap_strays(&self) {
        let leaders = self.leaders();
        while let Some(pid) = ended_child() {
            // A process that a thread starts just now is not known yet, and would look like a stray.
            if self.starting.load(Ordering::SeqCst) > 0 || leaders.contains(&pid) || leaders.contains(&group_of(pid)) {
                return;
            }
            // SAFETY: no status is asked for.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
        }
    }

    fn lingering(&self) -> MutexGuard<'_, Vec<Lingering>> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leaders(&self) -> MutexGuard<'_, HashSet<pid_t>> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    pub fn leader(&self) -> pid_t {
        self.leader
    }

    /// SIGKILL to every process of the group, and to a leader that has left it; only while the leader is not reaped.
    pub fn kill(&self) {
        kill_group(self.leader);
    }

    /// Whether the leader has ended; it is not reaped by this.
    pub fn has_ended(&self) -> bool {
        wait_id(libc::P_PID, self.leader.cast_unsigned()).is_some()
    }

    /// The leader has ended: end its group, and say how it ended.
    pub fn end(&mut self) -> Exit {
        self.finish(Vec::new(), Instant::now())
    }

    fn finish(&mut self, outside: Vec<Process>, since: Instant) -> Exit {
        self.is_over = true;
        let mut remains = Remains { leader: self.leader, exit: None, is_reaped: false, outside };
        self.kill();
        let grace = if remains.outside.is_empty() { GRACE } else { LAST_GRACE };
        remains.reap(&self.family, Instant::now() + grace);
        let exit = remains.exit.unwrap_or(Exit::Signal(libc::SIGKILL));
        if !remains.is_gone() {
            let (function, thread) = (std::mem::take(&mut self.function), thread::current().id());
            let lingering = Lingering { remains, function, thread, since, reported: Instant::now() };
            lingering.report();
            self.family.lingering().push(lingering);
        }
        exit
    }
}

impl Drop for Group {
    /// Stop the function, unless `end` was called.
    fn drop(&mut self) {
        if !self.is_over {
            let since = Instant::now();
            let (outside, had_any) = descendants::kill(&[self.leader], since + GRACE);
            self.finish(outside, since);
            if had_any {
                self.family.reap_strays();
            }
        }
    }
}

impl Remains {
    /// Reap the group until that moment: a child that dies hands its own children to us.
    fn reap(&mut self, family: &Family, until: Instant) {
        let mut backoff = Backoff::until(until);
        let mut status = 0;
        let mut waited_for = -self.leader;
        while !self.is_reaped {
            // SAFETY: `status` is valid for writes.
            let pid = unsafe { libc::waitpid(waited_for, &raw mut status, libc::WNOHANG) };
            if pid == self.leader {
                self.exit = Some(if libc::WIFEXITED(status) {
                    Exit::Code(libc::WEXITSTATUS(status))
                } else {
                    Exit::Signal(libc::WTERMSIG(status))
                });
            } else if pid < 0 && self.exit.is_none() && waited_for < 0 {
                // Nobody of the group is left: its leader has joined another one.
                waited_for = self.leader;
            } else if pid < 0 {
                family.leaders().remove(&self.leader);
                self.is_reaped = true;
            } else if pid == 0 && !backoff.pause() {
                return;
            }
        }
    }

    fn is_gone(&self) -> bool {
        self.is_reaped && self.outside.is_empty()
    }
}

impl Lingering {
    /// Whether it is gone now.
    fn is_gone(&mut self, family: &Family) -> bool {
        self.remains.outside.retain(|process| process.is_alive());
        self.remains.reap(family, Instant::now());
        let is_gone = self.remains.is_gone();
        if is_gone || self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            self.report();
        }
        is_gone
    }

    fn report(&self) {
        let line = if self.remains.is_gone() {
            Line::new(Level::Warning, "processes that could not be killed have ended, and their place is free")
        } else {
            let mut pids: Vec<_> = self.remains.outside.iter().map(|process| process.pid.to_string()).collect();
            if !self.remains.is_reaped {
                pids.extend(descendants::in_group(self.remains.leader).iter().map(|process| process.pid.to_string()));
            }
            pids.sort_unstable();
            pids.dedup();
            Line::new(Level::Error, "processes of a function cannot be killed and keep their place")
                .with("pids", pids.join(","))
                .with("why", "they are blocked in the kernel (state D in ps), or belong to another user")
        };
        line.with("function", &self.function)
            .with("leader", self.remains.leader)
            .with("seconds", self.since.elapsed().as_secs())
            .write();
    }
}

fn kill_group(leader: pid_t) {
    // SAFETY: no pointers are involved.
    unsafe {
        libc::kill(-leader, libc::SIGKILL);
        libc::kill(leader, libc::SIGKILL);
    }
}

fn group_of(pid: pid_t) -> pid_t {
    // SAFETY: no pointers are involved.
    unsafe { libc::getpgid(pid) }
}

/// Some child that has ended and is not reaped.
fn ended_child() -> Option<pid_t> {
    wait_id(libc::P_ALL, 0)
}

fn wait_id(which: libc::idtype_t, id: libc::id_t) -> Option<pid_t> {
    // SAFETY: all zeros is a valid value, and `waitid` fills it in.
    unsafe {
        let mut information: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let found = libc::waitid(which, id, &raw mut information, options) == 0 && information.si_pid() != 0;
        found.then(|| information.si_pid())
    }
}
