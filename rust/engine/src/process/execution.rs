//! One execution, on a thread of its own: bytes in, bytes out, within limits.
//!
//! The process is there, be it that it has just been started or that it waited for its input. The order of things: move
//! bytes until the leader of its group ends; kill the rest of the group, read what is still in the pipes, and answer.
//! However it ends (exit, limit, stop), when this returns the group is dead and reaped, and every descriptor is closed.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use libc::{POLLIN, POLLOUT};

use super::Stop;
use super::child::{Child, is_large, watch};
use super::feed::Feed;
use super::pipes::{self, DEFAULT_SIZE, Found, LARGE_SIZE};
use crate::log_excerpt::LogExcerpt;
use crate::verdict::Exit;

/// How a process ended by itself, and what it wrote.
pub struct Ended {
    pub exit: Exit,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// It had waited for its input, and ended without having read one byte of it.
    pub ignored_input: bool,
    /// In bytes; nothing when it was not looked at, because the call was too small or the process gone too soon.
    pub peak_memory: Option<u64>,
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
/// A call that is shorter, and has little input, takes little memory.
const A_WHILE: Duration = Duration::from_millis(50);

/// Let a process that gets this input run to its end.
pub fn execute(child: Child, feed: Feed, input: &[u8], max_output: usize, stop: &Stop) -> Result<Ended, Failure> {
    let is_large = is_large(input);
    let mut execution = Execution {
        child,
        feed,
        stdout_is_open: true,
        stderr_is_open: true,
        read_size: if is_large { LARGE_SIZE } else { DEFAULT_SIZE },
        max_output,
        began: Instant::now(),
        is_large,
        pieces: 0,
        peak_memory: None,
        output: Vec::with_capacity(if is_large { input.len() + DEFAULT_SIZE } else { 0 }),
        log: LogExcerpt::default(),
        log_chunk: Vec::new(),
    };
    execution.pump(stop)?;
    Ok(execution.finish())
}

struct Execution<'a> {
    child: Child,
    feed: Feed<'a>,
    stdout_is_open: bool,
    stderr_is_open: bool,
    read_size: usize,
    max_output: usize,
    began: Instant,
    is_large: bool,
    /// In which its output came so far.
    pieces: u32,
    peak_memory: Option<u64>,
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
                watch(if self.stdout_is_open { self.child.stdout.as_raw_fd() } else { -1 }, POLLIN),
                watch(if self.stderr_is_open { self.child.stderr.as_raw_fd() } else { -1 }, POLLIN),
                watch(self.feed.descriptor().unwrap_or(-1), POLLOUT),
                watch(self.child.exit_watch.as_ref().map_or(-1, AsRawFd::as_raw_fd), POLLIN),
            ];
            let timeout = if self.child.exit_watch.is_some() { -1 } else { LOOK_INTERVAL_MILLISECONDS };
            // SAFETY: an array of as many entries as is said.
            unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, timeout) };
            let [stopped, stdout, stderr, stdin, exit] = watched.map(|entry| entry.revents != 0);
            if stopped || stop.is_set() {
                return Err(Failure::Stopped);
            }
            if stdin {
                self.feed.go_on();
            }
            if stdout {
                self.look_at_memory();
                self.stdout_is_open = !matches!(self.read_stdout()?, Found::End);
            }
            if stderr {
                self.stderr_is_open = !matches!(self.read_stderr(), Found::End);
            }
            if exit || (self.child.exit_watch.is_none() && self.child.group.has_ended()) {
                return self.drain();
            }
        }
    }

    /// A function that writes has read everything, and holds it; what does not fit into the pipe keeps it here. A look now
    /// and then is enough: after 0, 1, 2, 4, 8 ... pieces.
    fn look_at_memory(&mut self) {
        if self.pieces.count_ones() <= 1 && (self.is_large || self.began.elapsed() >= A_WHILE) {
            self.peak_memory = self.peak_memory.max(self.child.peak_memory());
        }
        self.pieces += 1;
    }

    /// The leader has ended: what it wrote is in the pipes, and whoever else holds them has no say any more.
    fn drain(&mut self) -> Result<(), Failure> {
        self.child.group.kill();
        // At most what a pipe holds: a process outside the group may go on writing for ever.
        let mut remaining = if self.stdout_is_open { pipes::capacity(&self.child.stdout) } else { 0 };
        while remaining > 0
            && let Found::Bytes(count) = self.read_stdout()?
        {
            remaining = remaining.saturating_sub(count);
        }
        let mut remaining = if self.stderr_is_open { pipes::capacity(&self.child.stderr) } else { 0 };
        while remaining > 0
            && let Found::Bytes(count) = self.read_stderr()
        {
            remaining = remaining.saturating_sub(count);
        }
        Ok(())
    }

    fn finish(mut self) -> Ended {
        let exit = self.child.group.end();
        let ignored_input = self.feed.is_untouched();
        Ended { exit, stdout: self.output, stderr: self.log.into_bytes(), ignored_input, peak_memory: self.peak_memory }
    }

    fn read_stdout(&mut self) -> Result<Found, Failure> {
        let found = pipes::read(&self.child.stdout, &mut self.output, self.read_size);
        if self.output.len() > self.max_output {
            return Err(Failure::OutputLimit(self.output.len()));
        }
        Ok(found)
    }

    fn read_stderr(&mut self) -> Found {
        self.log_chunk.clear();
        let found = pipes::read(&self.child.stderr, &mut self.log_chunk, DEFAULT_SIZE);
        self.log.add(&self.log_chunk);
        found
    }
}
