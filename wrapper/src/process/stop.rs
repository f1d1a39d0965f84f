//! How a call that is over tells the thread that runs its function.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once, from any thread; a thread that polls sees it at once.
pub struct Stop {
    event: OwnedFd,
    is_set: AtomicBool,
}

impl Stop {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no preconditions; the descriptor is ours alone.
        let event = unsafe {
            let descriptor = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(descriptor)
        };
        Ok(Self { event, is_set: AtomicBool::new(false) })
    }

    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        // SAFETY: writes eight bytes of a live variable. It cannot fail but by an overflow, and then it is readable.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const ONE).cast(), size_of::<u64>()) };
    }

    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Readable once it is set.
    pub fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

static ONE: u64 = 1;
