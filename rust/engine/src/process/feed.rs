//! The input on its way into a process: written while there is room, closed at its end or when nobody reads.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::pipes::{self, LARGE_SIZE};

pub struct Feed<'a> {
    stdin: Option<File>,
    /// The process's own end, when we hold it as well: a pipe without our end can still be asked what is in it.
    reader: Option<OwnedFd>,
    remaining: &'a [u8],
    written: usize,
    /// What was true when the pipe was let go of.
    was_untouched: bool,
}

impl<'a> Feed<'a> {
    /// As much as fits goes in at once.
    pub fn begin(stdin: File, reader: Option<OwnedFd>, input: &'a [u8]) -> Self {
        let mut feed = Self { stdin: Some(stdin), reader, remaining: input, written: 0, was_untouched: false };
        feed.push(input.len());
        if feed.stdin.is_some() {
            // Only with no other reader left one learns that the process closed its end.
            feed.reader = None;
        }
        feed
    }

    /// The pipe has room, or lost its reader.
    pub fn go_on(&mut self) {
        self.push(LARGE_SIZE);
    }

    /// What to watch; nothing when all is written.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.stdin.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Whether there was something to read, and the process has not read one byte of it. Only of a process whose end of
    /// the pipe is known, or that has not been sent everything.
    pub fn is_untouched(&self) -> bool {
        let end = self.reader.as_ref().map(AsRawFd::as_raw_fd).or(self.descriptor());
        end.map_or(self.was_untouched, |end| self.written > 0 && pipes::unread(end) == self.written)
    }

    fn push(&mut self, size: usize) {
        let Some(stdin) = &self.stdin else { return };
        let size = self.remaining.len().min(size);
        if let Some(count) = pipes::write(stdin, &self.remaining[..size]) {
            self.written += count;
            self.remaining = &self.remaining[count..];
            if self.remaining.is_empty() {
                self.stdin = None;
            }
        } else {
            // The function does not want the rest.
            self.was_untouched = self.is_untouched();
            self.stdin = None;
        }
    }
}
