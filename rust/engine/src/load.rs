//! How much is under way, counted where it happens and read by whoever decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::standby::Load;

#[derive(Default)]
pub struct Counts {
    /// From their arrival to their answer.
    calls: AtomicUsize,
    /// Processes with calls, until the last of their group is reaped.
    running: AtomicUsize,
    /// Of all functions, when these are those of one among others.
    all: Option<Arc<Counts>>,
}

/// A process is under way for as long as this lives.
pub struct Running<'a>(&'a Counts);

impl Counts {
    /// Of one function; what is counted here is counted there, too.
    pub fn within(all: &Arc<Counts>) -> Self {
        Self { all: Some(Arc::clone(all)), ..Self::default() }
    }

    /// A call comes; how many there were before.
    pub fn enter(&self) -> usize {
        if let Some(all) = &self.all {
            all.enter();
        }
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    pub fn leave(&self) {
        if let Some(all) = &self.all {
            all.leave();
        }
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn run(&self) -> Running<'_> {
        if let Some(all) = &self.all {
            all.running.fetch_add(1, Ordering::Relaxed);
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }

    /// How many calls there are.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub fn load(&self) -> Load {
        let running = self.running.load(Ordering::Relaxed);
        Load { running, waiting: self.calls.load(Ordering::Relaxed).saturating_sub(running) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(all) = &self.0.all {
            all.running.fetch_sub(1, Ordering::Relaxed);
        }
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}
