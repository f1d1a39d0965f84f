//! How much is under way, counted where it happens and read by whoever decides.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::standby::Load;

#[derive(Default)]
pub struct Counts {
    /// From their arrival to their answer.
    calls: AtomicUsize,
    /// Processes with calls, until the last of their group is reaped.
    running: AtomicUsize,
}

/// A process is under way for as long as this lives.
pub struct Running<'a>(&'a Counts);

impl Counts {
    /// A call comes; how many there were before.
    pub fn enter(&self) -> usize {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    pub fn leave(&self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn run(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }

    pub fn load(&self) -> Load {
        let running = self.running.load(Ordering::Relaxed);
        Load { running, waiting: self.calls.load(Ordering::Relaxed).saturating_sub(running) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}
