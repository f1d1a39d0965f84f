//! A process that was started: its group, our ends of its pipes, and what it does while it waits for its input.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use libc::{POLLIN, pollfd};

use super::family::{Family, Group};
use super::feed::Feed;
use super::pipes::{self, DEFAULT_SIZE, Pipes};
use super::spawn::spawn;
use crate::entrypoint::Entrypoint;
use crate::standby::Identity;

/// Processes of one function: a hostile one may have thousands.
const MOST_LOOKED_AT: usize = 32;

/// What is executed, and whose descendants its processes are.
pub struct Function {
    pub entrypoint: Entrypoint,
    pub family: Arc<Family>,
    /// A file that a configuration names, and that may come and go; else it was there when we started.
    pub is_configured: bool,
}

/// With the input on its way into it.
pub struct Child {
    pub group: Group,
    /// Readable when the leader has ended; there is none on kernels without `pidfd_open`.
    pub exit_watch: Option<OwnedFd>,
    pub stdout: File,
    pub stderr: File,
}

/// Without any input as yet.
pub struct WaitingChild {
    child: Child,
    stdin: File,
    /// The process's own end of its stdin, by which one learns what it has read.
    reader: OwnedFd,
}

impl Function {
    /// Of the file that would be executed now, if there is one.
    pub fn identity(&self) -> Option<Identity> {
        let file = fs::metadata(self.entrypoint.path()).ok()?;
        Some([
            file.dev().cast_signed(),
            file.ino().cast_signed(),
            file.size().cast_signed(),
            file.mtime(),
            file.mtime_nsec(),
            file.ctime(),
            file.ctime_nsec(),
        ])
    }

    /// A process that finds its input when it starts.
    pub fn start<'a>(&self, environment: Option<&[CString]>, input: &'a [u8]) -> io::Result<(Child, Feed<'a>)> {
        let opened = Pipes::open(is_large(input))?;
        let feed = Feed::begin(opened.stdin, None, input);
        let group = self.spawn(environment, &opened.childs_ends)?;
        Ok((Child::new(group, opened.stdout, opened.stderr), feed))
    }

    /// A process whose input comes later.
    pub fn start_waiting(&self) -> io::Result<WaitingChild> {
        let opened = Pipes::open(false)?;
        let group = self.spawn(None, &opened.childs_ends)?;
        let [reader, ..] = opened.childs_ends;
        Ok(WaitingChild { child: Child::new(group, opened.stdout, opened.stderr), stdin: opened.stdin, reader })
    }

    fn spawn(&self, environment: Option<&[CString]>, ends: &[OwnedFd; 3]) -> io::Result<Group> {
        self.family.start(self.entrypoint.name(), || spawn(&self.entrypoint, environment, ends))
    }
}

impl Child {
    fn new(group: Group, stdout: File, stderr: File) -> Self {
        Self { exit_watch: open_pidfd(&group), group, stdout, stderr }
    }

    /// The most that the leader and its descendants held so far, in bytes; nothing when they have ended, or the system
    /// does not say.
    pub fn peak_memory(&self) -> Option<u64> {
        let mut pids = vec![self.group.leader().to_string()];
        let mut total = None;
        let mut looked_at = 0;
        while let Some(pid) = pids.get(looked_at).cloned() {
            total = peak_memory(&pid).map(|own| total.unwrap_or(0) + own).or(total);
            looked_at += 1;
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            let room = MOST_LOOKED_AT.saturating_sub(pids.len());
            pids.extend(children.split_whitespace().take(room).map(str::to_owned));
        }
        total
    }
}

impl WaitingChild {
    /// What it did though it has no input; nothing is what it should do.
    pub fn fault(&self) -> Option<&'static str> {
        let mut watched = self.watched();
        // SAFETY: an array of as many entries as is said; it does not wait.
        unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, 0) };
        let [stdout, stderr, exit] = watched.map(|entry| entry.revents);
        if stdout & POLLIN != 0 {
            Some("wrote to stdout")
        } else if stderr & POLLIN != 0 {
            Some("wrote to stderr")
        } else if stdout | stderr | exit != 0 || (self.child.exit_watch.is_none() && self.child.group.has_ended()) {
            Some("ended, or closed its output")
        } else {
            None
        }
    }

    /// What shows that it does something.
    pub fn watched(&self) -> [pollfd; 3] {
        let exit = self.child.exit_watch.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        [self.child.stdout.as_raw_fd(), self.child.stderr.as_raw_fd(), exit].map(|end| watch(end, POLLIN))
    }

    /// The memory that is its own alone, in bytes; nothing where the system does not say.
    pub fn private_memory(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.child.group.leader())).ok()?;
        let mut pages = text.split(' ').map(|pages| pages.parse::<u64>().ok());
        let (resident, shared) = (pages.nth(1)??, pages.next()??);
        // SAFETY: it has no preconditions.
        let page_size = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        Some(resident.saturating_sub(shared) * page_size)
    }

    /// Its input comes.
    pub fn feed(self, input: &[u8]) -> (Child, Feed<'_>) {
        if is_large(input) {
            pipes::enlarge([self.stdin.as_raw_fd(), self.child.stdout.as_raw_fd()]);
        }
        (self.child, Feed::begin(self.stdin, Some(self.reader), input))
    }
}

fn peak_memory(pid: &str) -> Option<u64> {
    // The name of a program, which stands there too, need not be text.
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let value = String::from_utf8_lossy(&status)
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())?;
    Some(value * 1024)
}

/// Whether larger pipes are worth their price.
pub fn is_large(input: &[u8]) -> bool {
    input.len() > DEFAULT_SIZE
}

pub fn watch(fd: RawFd, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

fn open_pidfd(group: &Group) -> Option<OwnedFd> {
    // SAFETY: no pointers are involved; the descriptor is ours alone.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_pidfd_open, group.leader(), 0);
        i32::try_from(descriptor)
            .ok()
            .filter(|descriptor| *descriptor >= 0)
            .map(|descriptor| OwnedFd::from_raw_fd(descriptor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Stop;
    use crate::process::execution::{Ended, execute};
    use crate::verdict::Exit;

    fn shell(script: &str) -> Function {
        let command = ["/bin/sh", "-c", script].map(Into::into);
        Function { entrypoint: Entrypoint::find(&command, None).unwrap(), family: Arc::default(), is_configured: false }
    }

    /// Waits until it has done something, for as long as a busy machine may need.
    fn fault_of(script: &str) -> Option<&'static str> {
        let process = shell(script).start_waiting().unwrap();
        let mut watched = process.watched();
        // SAFETY: an array of as many entries as is said.
        unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, 20_000) };
        process.fault()
    }

    fn run(script: &str, input: &[u8]) -> Ended {
        let (child, feed) = shell(script).start_waiting().unwrap().feed(input);
        execute(child, feed, input, 10_000_000, &Stop::default()).ok().expect("it ends by itself")
    }

    #[test]
    fn what_a_process_does_without_input_is_seen() {
        assert_eq!(shell("read line").start_waiting().unwrap().fault(), None);
        assert_eq!(fault_of("echo x; read line"), Some("wrote to stdout"));
        assert_eq!(fault_of("echo x >&2; read line"), Some("wrote to stderr"));
        assert_eq!(fault_of("exit 3"), Some("ended, or closed its output"));
        assert_eq!(fault_of("exec >&-; read line"), Some("ended, or closed its output"));
    }

    #[test]
    fn a_process_that_waited_gets_all_of_its_input_however_large() {
        for size in [1, DEFAULT_SIZE, DEFAULT_SIZE + 1, 5_000_000] {
            let input = vec![b'x'; size];
            let ended = run("exec cat", &input);
            assert_eq!((ended.exit, ended.stdout.len(), ended.ignored_input), (Exit::Code(0), size, false));
        }
        let ended = run("exec cat", b"");
        assert_eq!((ended.exit, ended.stdout.len(), ended.ignored_input), (Exit::Code(0), 0, false), "nothing to read");
    }

    #[test]
    fn the_memory_of_a_process_with_much_input_is_noted() {
        let input = vec![b'x'; 5_000_000];
        let streams = run("exec cat", &input).peak_memory.unwrap();
        let holds = run("list=$(cat); echo \"$list\"", &input).peak_memory.unwrap();
        assert!(streams < 5_000_000, "{streams}");
        assert!(holds > 5_000_000, "{holds}");
        let by_another = run("sh -c 'list=$(cat); echo \"$list\"'; exit 0", &input).peak_memory.unwrap();
        assert!(by_another > 5_000_000, "{by_another}");
    }

    #[test]
    fn whether_a_process_read_anything_is_known_at_its_end() {
        for size in [1, 5_000_000] {
            let input = vec![b'x'; size];
            assert!(run("exit 0", &input).ignored_input);
            assert!(run("exec <&-; sleep 0.05; exit 3", &input).ignored_input);
            assert!(!run("head -c 1 >/dev/null", &input).ignored_input);
        }
    }

    #[test]
    fn the_file_of_a_function_has_an_identity_as_long_as_it_is_there() {
        let function = shell("");
        assert_eq!(function.identity(), function.identity());
        let entrypoint = Entrypoint { executable: c"/nonexistent".to_owned(), argv: Vec::new() };
        assert_eq!(Function { entrypoint, family: Arc::default(), is_configured: false }.identity(), None);
        assert!(function.identity().is_some());
    }
}
