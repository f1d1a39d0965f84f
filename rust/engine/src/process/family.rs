//! All processes that descend from this one: who is known, who is a stray, who must go.
//!
//! Orphans of functions are handed to this process, be it as PID 1 or as their subreaper. Those of a function's group
//! are reaped with it; others are reaped when they have ended.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::pid_t;

use crate::verdict::Exit;

#[derive(Default)]
pub struct Family {
    leaders: Mutex<HashSet<pid_t>>,
    starting: AtomicUsize,
}

/// A process group; when it is dropped, none of its processes lives, and none is a zombie.
pub struct Group {
    family: Arc<Family>,
    leader: pid_t,
    is_reaped: bool,
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

    /// Start a process that leads a group.
    pub fn start(self: &Arc<Self>, spawn: impl FnOnce() -> io::Result<pid_t>) -> io::Result<Group> {
        self.starting.fetch_add(1, Ordering::SeqCst);
        let started = spawn();
        let group = started.map(|leader| {
            self.leaders().insert(leader);
            Group { family: Arc::clone(self), leader, is_reaped: false }
        });
        self.starting.fetch_sub(1, Ordering::SeqCst);
        group
    }

    /// SIGKILL to every group; for the moment before this process ends.
    pub fn kill_all(&self) {
        for leader in self.leaders().iter() {
            kill_group(*leader);
        }
    }

    /// Reap ended processes that had left their function's group.
    pub fn reap_strays(&self) {
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

    /// End it all, and say how the leader ended.
    pub fn end(&mut self) -> Exit {
        let exit = self.reap();
        self.is_reaped = true;
        exit
    }

    /// Kill whoever lives and wait for all of them: a child that dies hands its own children to us.
    fn reap(&self) -> Exit {
        self.kill();
        let mut exit = None;
        let mut status = 0;
        let mut waited_for = -self.leader;
        loop {
            // SAFETY: `status` is valid for writes.
            let pid = unsafe { libc::waitpid(waited_for, &raw mut status, 0) };
            if pid == self.leader {
                exit = Some(if libc::WIFEXITED(status) {
                    Exit::Code(libc::WEXITSTATUS(status))
                } else {
                    Exit::Signal(libc::WTERMSIG(status))
                });
                self.family.leaders().remove(&pid);
            } else if pid < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                if exit.is_none() && waited_for < 0 {
                    // Nobody of the group is left: its leader has joined another one.
                    waited_for = self.leader;
                    continue;
                }
                self.family.leaders().remove(&self.leader);
                return exit.unwrap_or(Exit::Signal(libc::SIGKILL));
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.reap();
        }
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
