//! How a call that is over tells the thread that runs its function.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bell::Bell;

/// Set once, from any thread; a thread that polls sees it at once.
pub struct Stop {
    bell: Bell,
    is_set: AtomicBool,
}

impl Stop {
    pub fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new()?, is_set: AtomicBool::new(false) })
    }

    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.bell.ring();
    }

    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Readable once it is set.
    pub fn descriptor(&self) -> RawFd {
        self.bell.descriptor()
    }
}
