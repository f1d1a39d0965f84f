//! The pipes of one process: our ends do not block, the child's ends become its 0, 1 and 2.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub const DEFAULT_SIZE: usize = 64 * 1024;
pub const LARGE_SIZE: usize = 1024 * 1024;

pub struct Pipes {
    pub stdin: File,
    pub stdout: File,
    pub stderr: File,
    pub childs_ends: [OwnedFd; 3],
}

impl Pipes {
    /// Fails when there are too many open files.
    pub fn open(is_large: bool) -> io::Result<Self> {
        let (childs_stdin, stdin) = pipe()?;
        let (stdout, childs_stdout) = pipe()?;
        let (stderr, childs_stderr) = pipe()?;
        for ours in [&stdin, &stdout, &stderr] {
            // SAFETY: a live descriptor.
            unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        }
        if is_large {
            enlarge([stdin.as_raw_fd(), stdout.as_raw_fd()]);
        }
        Ok(Self {
            stdin: stdin.into(),
            stdout: stdout.into(),
            stderr: stderr.into(),
            childs_ends: [childs_stdin, childs_stdout, childs_stderr],
        })
    }
}

/// For much data; past the user's quota the kernel refuses, and that is fine.
pub fn enlarge(ends: [RawFd; 2]) {
    for end in ends {
        // SAFETY: a live descriptor.
        unsafe { libc::fcntl(end, libc::F_SETPIPE_SZ, 1024 * 1024) };
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are ours alone when the call succeeds.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// What a pipe holds; the process at its other end may have changed it.
pub fn capacity(pipe: &File) -> usize {
    // SAFETY: a live descriptor.
    let size = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETPIPE_SZ) };
    usize::try_from(size).unwrap_or(0).max(LARGE_SIZE)
}

/// What one read found.
pub enum Found {
    Bytes(usize),
    Nothing,
    End,
}

/// Append at most `size` bytes of what is in the pipe.
pub fn read(pipe: &File, buffer: &mut Vec<u8>, size: usize) -> Found {
    buffer.reserve(size);
    // SAFETY: the spare capacity is valid for writes of `size` bytes; the length grows by what was written.
    let count = unsafe {
        let count = libc::read(pipe.as_raw_fd(), buffer.spare_capacity_mut().as_mut_ptr().cast(), size);
        buffer.set_len(buffer.len() + usize::try_from(count).unwrap_or(0));
        count
    };
    match usize::try_from(count) {
        Ok(0) => Found::End,
        Ok(count) => Found::Bytes(count),
        Err(_) if is_temporary(&io::Error::last_os_error()) => Found::Nothing,
        Err(_) => Found::End,
    }
}

/// How much of `input` went in; nothing when nobody reads any more.
pub fn write(mut pipe: &File, input: &[u8]) -> Option<usize> {
    if input.is_empty() {
        return Some(0);
    }
    match pipe.write(input) {
        Ok(count) => Some(count),
        Err(error) if is_temporary(&error) => Some(0),
        Err(_) => None,
    }
}

/// How many bytes are in the pipe, whichever of its ends is asked.
pub fn unread(end: RawFd) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: a live descriptor, and a variable for the answer.
    unsafe { libc::ioctl(end, libc::FIONREAD, &raw mut count) };
    usize::try_from(count).unwrap_or(0)
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
