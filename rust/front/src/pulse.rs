//! Whether the runner is there. Whatever it says is a sign of life, and when it has nothing to say, it says that.
//!
//! A runner whose event loop stands still keeps its end of the link open. Nobody would notice: this process has the port,
//! answers probes, and holds the calls that wait for a decision.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::log::{Level, Line};
use engine::rpc::health::Health;
use engine::rpc::messages::ServingStatus;
use tokio::time::{Instant, sleep};

const LOOK: Duration = Duration::from_millis(250);

pub struct Pulse {
    longest_silence: Duration,
    health: Arc<Health>,
    state: Mutex<State>,
}

struct State {
    heard: Instant,
    /// What health is to answer while the runner is there.
    is_serving: bool,
    is_silent: bool,
}

impl Pulse {
    pub fn new(longest_silence: Duration, health: Arc<Health>) -> Self {
        let state = State { heard: Instant::now(), is_serving: false, is_silent: false };
        Self { longest_silence, health, state: Mutex::new(state) }
    }

    /// The runner says something.
    pub fn beat(&self) {
        let mut state = self.state();
        state.heard = Instant::now();
        if std::mem::replace(&mut state.is_silent, false) {
            Line::new(Level::Warning, "the runner is back").write();
            self.show(&state);
        }
    }

    /// The runner says whether this service serves.
    pub fn set_serving(&self, is_serving: bool) {
        let mut state = self.state();
        state.is_serving = is_serving;
        self.show(&state);
    }

    /// For how long it has said nothing, if that is too long.
    pub fn silence(&self) -> Option<Duration> {
        let state = self.state();
        state.is_silent.then(|| state.heard.elapsed())
    }

    /// Notices when it says nothing any more.
    pub async fn watch(&self) {
        loop {
            sleep(LOOK.min(self.longest_silence)).await;
            let mut state = self.state();
            if !state.is_silent && state.heard.elapsed() >= self.longest_silence {
                state.is_silent = true;
                Line::new(Level::Error, "the runner says nothing any more: calls that it would decide are refused")
                    .with("seconds", self.longest_silence.as_secs())
                    .write();
                self.show(&state);
            }
        }
    }

    fn show(&self, state: &State) {
        let is_serving = state.is_serving && !state.is_silent;
        self.health.set(if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
