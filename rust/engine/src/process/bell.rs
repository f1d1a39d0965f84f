//! How one thread wakes another that polls.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Readable from the first ring until it is silenced.
pub struct Bell(OwnedFd);

static ONE: u64 = 1;

impl Bell {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no preconditions; the descriptor is ours alone.
        unsafe {
            let descriptor = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(OwnedFd::from_raw_fd(descriptor)))
        }
    }

    pub fn ring(&self) {
        // SAFETY: writes eight bytes of a live variable. It cannot fail but by an overflow, and then it is readable.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const ONE).cast(), size_of::<u64>()) };
    }

    pub fn silence(&self) {
        let mut count = 0_u64;
        // SAFETY: reads eight bytes into a live variable; it does not block.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }

    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
