//! One execution, on a thread of its own: bytes in, bytes out, within limits.
//!
//! The order of things: open the pipes and fill them; start the process; move bytes until the leader of its group ends;
//! kill the rest of the group, read what is still in the pipes, and answer. However it ends (exit, limit, stop), when
//! this returns the group is dead and reaped, and every descriptor is closed.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{POLLIN, POLLOUT, pollfd};

use super::family::{Family, Group};
use super::pipes::{self, DEFAULT_SIZE, Found, LARGE_SIZE, Pipes};
use super::spawn::spawn;
use super::stop::Stop;
use crate::entrypoint::Entrypoint;
use crate::log_excerpt::LogExcerpt;
use crate::verdict::Exit;

/// How a process ended by itself, and what it wrote.
pub struct Ended {
    pub exit: Exit,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Why there is no such ending.
pub enum Failure {
    /// It could not be started.
    Start(io::Error),
    /// It wrote more to stdout than it may: at least so many bytes.
    OutputLimit(usize),
    /// Nobody waits for it any more.
    Stopped,
}

/// On kernels without `pidfd_open` an ended leader is looked for so often.
const LOOK_INTERVAL_MILLISECONDS: i32 = 5;

/// Execute the function once.
pub fn execute(
    family: &Family,
    entrypoint: &Entrypoint,
    environment: Option<&[CString]>,
    input: &[u8],
    max_output: usize,
    stop: &Stop,
) -> Result<Ended, Failure> {
    let is_large = input.len() > DEFAULT_SIZE;
    let opened = Pipes::open(is_large).map_err(Failure::Start)?;
    let mut remaining = input;
    if !remaining.is_empty() {
        remaining = &remaining[pipes::write(&opened.stdin, remaining)..];
    }
    let group = family.start(|| spawn(entrypoint, environment, &opened.childs_ends)).map_err(Failure::Start)?;
    drop(opened.childs_ends);
    let mut execution = Execution {
        exit_watch: open_pidfd(&group),
        group,
        stdin: (!remaining.is_empty()).then_some(opened.stdin),
        remaining,
        stdout: opened.stdout,
        stderr: opened.stderr,
        stdout_is_open: true,
        stderr_is_open: true,
        read_size: if is_large { LARGE_SIZE } else { DEFAULT_SIZE },
        max_output,
        output: Vec::with_capacity(if is_large { input.len() + DEFAULT_SIZE } else { 0 }),
        log: LogExcerpt::default(),
        log_chunk: Vec::new(),
    };
    execution.pump(stop)?;
    Ok(execution.finish())
}

struct Execution<'a> {
    group: Group<'a>,
    exit_watch: Option<OwnedFd>,
    stdin: Option<File>,
    remaining: &'a [u8],
    stdout: File,
    stderr: File,
    stdout_is_open: bool,
    stderr_is_open: bool,
    read_size: usize,
    max_output: usize,
    output: Vec<u8>,
    log: LogExcerpt,
    log_chunk: Vec<u8>,
}

impl Execution<'_> {
    /// Move bytes until the leader has ended and the pipes are read.
    fn pump(&mut self, stop: &Stop) -> Result<(), Failure> {
        loop {
            let mut watched = [
                watch(stop.descriptor(), POLLIN),
                watch(if self.stdout_is_open { self.stdout.as_raw_fd() } else { -1 }, POLLIN),
                watch(if self.stderr_is_open { self.stderr.as_raw_fd() } else { -1 }, POLLIN),
                watch(self.stdin.as_ref().map_or(-1, AsRawFd::as_raw_fd), POLLOUT),
                watch(self.exit_watch.as_ref().map_or(-1, AsRawFd::as_raw_fd), POLLIN),
            ];
            let timeout = if self.exit_watch.is_some() { -1 } else { LOOK_INTERVAL_MILLISECONDS };
            // SAFETY: an array of as many entries as is said.
            unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, timeout) };
            let [stopped, stdout, stderr, stdin, exit] = watched.map(|entry| entry.revents != 0);
            if stopped || stop.is_set() {
                return Err(Failure::Stopped);
            }
            if stdin {
                self.feed();
            }
            if stdout {
                self.stdout_is_open = !matches!(self.read_stdout()?, Found::End);
            }
            if stderr {
                self.stderr_is_open = !matches!(self.read_stderr(), Found::End);
            }
            if exit || (self.exit_watch.is_none() && self.group.has_ended()) {
                return self.drain();
            }
        }
    }

    /// The leader has ended: what it wrote is in the pipes, and whoever else holds them has no say any more.
    fn drain(&mut self) -> Result<(), Failure> {
        self.group.kill();
        // At most what a pipe holds: a process outside the group may go on writing for ever.
        let mut remaining = if self.stdout_is_open { pipes::capacity(&self.stdout) } else { 0 };
        while remaining > 0
            && let Found::Bytes(count) = self.read_stdout()?
        {
            remaining = remaining.saturating_sub(count);
        }
        let mut remaining = if self.stderr_is_open { pipes::capacity(&self.stderr) } else { 0 };
        while remaining > 0
            && let Found::Bytes(count) = self.read_stderr()
        {
            remaining = remaining.saturating_sub(count);
        }
        Ok(())
    }

    fn finish(self) -> Ended {
        let exit = self.group.end();
        Ended { exit, stdout: self.output, stderr: self.log.into_bytes() }
    }

    fn feed(&mut self) {
        if let Some(stdin) = &self.stdin {
            let size = self.remaining.len().min(LARGE_SIZE);
            let written = pipes::write(stdin, &self.remaining[..size]);
            self.remaining = &self.remaining[written..];
            if self.remaining.is_empty() {
                self.stdin = None;
            }
        }
    }

    fn read_stdout(&mut self) -> Result<Found, Failure> {
        let found = pipes::read(&self.stdout, &mut self.output, self.read_size);
        if self.output.len() > self.max_output {
            return Err(Failure::OutputLimit(self.output.len()));
        }
        Ok(found)
    }

    fn read_stderr(&mut self) -> Found {
        self.log_chunk.clear();
        let found = pipes::read(&self.stderr, &mut self.log_chunk, DEFAULT_SIZE);
        self.log.add(&self.log_chunk);
        found
    }
}

fn watch(fd: i32, events: i16) -> pollfd {
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
