//! Whether a call's function was started: the caller of a pod that ends must know whether it may call again elsewhere.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::watch;

const UNDECIDED: u8 = 0;
const STARTED: u8 = 1;
const NEVER: u8 = 2;

/// Decided once, by whoever comes first: the thread that starts the function, or the end of the call.
pub struct Start {
    state: AtomicU8,
    stopping: watch::Receiver<bool>,
}

impl Start {
    /// Nothing is started once `stopping` is true.
    pub fn new(stopping: watch::Receiver<bool>) -> Self {
        Self { state: AtomicU8::new(UNDECIDED), stopping }
    }

    /// It is the call's turn; false when the call is over, and then nothing may be started.
    pub fn begin(&self) -> bool {
        // A thread whose call is ended would else take the next one in line, whose end comes a moment later.
        !*self.stopping.borrow() && self.decide(STARTED)
    }

    /// The call is over; whether its function was started before.
    pub fn end(&self) -> bool {
        !self.decide(NEVER) && self.state.load(Ordering::Acquire) == STARTED
    }

    fn decide(&self, state: u8) -> bool {
        self.state.compare_exchange(UNDECIDED, state, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_decides() {
        let (stop, stopping) = watch::channel(false);
        let started = Start::new(stopping.clone());
        assert!(started.begin());
        assert!(started.end());
        assert!(started.end());
        let never = Start::new(stopping.clone());
        assert!(!never.end());
        assert!(!never.begin());
        assert!(!never.end());
        stop.send_replace(true);
        let late = Start::new(stopping);
        assert!(!late.begin());
        assert!(!late.end());
    }
}
