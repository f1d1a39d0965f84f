//! Whether a call's function was started: the caller of a pod that ends must know whether it may call again elsewhere.

use std::sync::atomic::{AtomicU8, Ordering};

const UNDECIDED: u8 = 0;
const STARTED: u8 = 1;
const NEVER: u8 = 2;

/// Decided once, by whoever comes first: the thread that starts the function, or the end of the call.
#[derive(Default)]
pub struct Start(AtomicU8);

impl Start {
    /// It is the call's turn; false when the call is over, and then nothing may be started.
    pub fn begin(&self) -> bool {
        self.decide(STARTED)
    }

    /// The call is over; whether its function was started before.
    pub fn end(&self) -> bool {
        !self.decide(NEVER) && self.0.load(Ordering::Acquire) == STARTED
    }

    fn decide(&self, state: u8) -> bool {
        self.0.compare_exchange(UNDECIDED, state, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_decides() {
        let started = Start::default();
        assert!(started.begin());
        assert!(started.end());
        assert!(started.end());
        let never = Start::default();
        assert!(!never.end());
        assert!(!never.begin());
        assert!(!never.end());
    }
}
