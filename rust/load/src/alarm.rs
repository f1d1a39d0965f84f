//! A clock that rings on time, for calls at a rate.
//!
//! The runtime's own timers ring at whole milliseconds. Calls would start in bursts, and wait for each other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Instant;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers are involved.
        let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: an OwnedFd is the same descriptor, and open, for as long as it lives.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?;
        Ok(Self(descriptor))
    }

    /// Whoever is late does not wait, but lets the others do their work.
    pub async fn wait_until(&self, due: Instant) -> io::Result<()> {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tokio::task::yield_now().await;
            return Ok(());
        }
        let once = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: libc::time_t::try_from(left.as_secs()).map_err(io::Error::other)?,
                tv_nsec: left.subsec_nanos().into(),
            },
        };
        // SAFETY: the timer is ours, and the kernel reads the one structure and writes none.
        if unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const once, ptr::null_mut()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // It is not read: to be set anew silences it as well.
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
