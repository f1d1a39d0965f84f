//! How a call that is over tells the thread that runs its function.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::bell::Bell;

/// Set once, from any thread; a thread that polls sees it at once. A call that waits for its turn has none that polls, and
/// needs no descriptor: of those there may be thousands.
#[derive(Default)]
pub struct Stop {
    is_set: AtomicBool,
    bell: Mutex<Option<Bell>>,
}

impl Stop {
    pub fn set(&self) {
        let bell = self.bell();
        self.is_set.store(true, Ordering::Release);
        if let Some(bell) = bell.as_ref() {
            bell.ring();
        }
    }

    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Somebody is going to poll.
    pub fn arm(&self) -> io::Result<()> {
        let mut bell = self.bell();
        if bell.is_none() {
            let new = Bell::new()?;
            if self.is_set() {
                new.ring();
            }
            *bell = Some(new);
        }
        Ok(())
    }

    /// Readable once it is set; none that is, before it is armed.
    pub fn descriptor(&self) -> RawFd {
        self.bell().as_ref().map_or(-1, Bell::descriptor)
    }

    fn bell(&self) -> MutexGuard<'_, Option<Bell>> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(stop: &Stop) -> bool {
        let mut entry = libc::pollfd { fd: stop.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as is said.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    }

    #[test]
    fn it_is_seen_whether_it_was_set_before_or_after_somebody_polls() {
        let (early, late) = (Stop::default(), Stop::default());
        early.set();
        assert!(early.is_set() && !is_readable(&early), "nobody polls, and it has no descriptor");
        early.arm().unwrap();
        late.arm().unwrap();
        assert!(is_readable(&early) && !is_readable(&late) && !late.is_set());
        late.set();
        assert!(is_readable(&late) && late.is_set());
    }
}
