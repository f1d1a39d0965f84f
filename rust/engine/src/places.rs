//! Places to run in, shared by functions: how many there are, who holds them, and who is ahead of one more call.
//!
//! The wrapper server has one function with all places to itself; the runner's front has many that share them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::forecast::{Ahead, Forecast};
use crate::load::Counts;
use crate::reserves::Reserves;
use crate::standby::Load;
use crate::workers::{LineNumber, Workers};

pub struct Places {
    pub workers: Workers,
    pub reserves: Reserves,
    limit: usize,
    /// Of all functions.
    counts: Arc<Counts>,
    members: Mutex<Vec<Weak<Member>>>,
    last_line: AtomicUsize,
    /// A call has left, and none waits.
    pub quiet: Notify,
}

/// What is known of one function's calls.
pub struct Member {
    pub line: LineNumber,
    pub counts: Counts,
    forecast: Mutex<Forecast>,
}

impl Places {
    /// So many, and what those that hold one may take together.
    pub fn new(limit: usize, memory_limit: u64) -> Arc<Self> {
        Arc::new(Self {
            workers: Workers::new(limit, memory_limit),
            reserves: Reserves::default(),
            limit,
            counts: Arc::default(),
            members: Mutex::default(),
            last_line: AtomicUsize::new(0),
            quiet: Notify::new(),
        })
    }

    /// One more function, until what is returned is dropped.
    pub fn join(&self) -> Arc<Member> {
        let member = Arc::new(Member {
            line: self.last_line.fetch_add(1, Ordering::Relaxed),
            counts: Counts::within(&self.counts),
            forecast: Mutex::new(Forecast::new(self.limit)),
        });
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|known| known.strong_count() > 0);
        members.push(Arc::downgrade(&member));
        member
    }

    /// Whether there is, or was, more than one function.
    pub fn is_shared(&self) -> bool {
        self.last_line.load(Ordering::Relaxed) > 1
    }

    /// Of all functions.
    pub fn load(&self) -> Load {
        self.counts.load()
    }

    /// A call of a function comes; who is ahead of it, if it must wait.
    pub fn enter(&self, member: &Member) -> Option<Ahead> {
        let of_all = self.counts.calls();
        let own = member.counts.enter();
        // Of its own so many fit into the memory; what others take of it is not known here.
        let places = member.forecast().places();
        if own < places && of_all < self.limit {
            return None;
        }
        let in_line = own.saturating_sub(places).max(of_all.saturating_sub(self.limit));
        let waiting = own.saturating_sub(member.counts.load().running).min(in_line);
        Some(Ahead { waiting, work_of_others: self.work_of_others(member, waiting) })
    }

    /// Taking turns: as many of each other function as there are of its own, and one more.
    fn work_of_others(&self, member: &Member, waiting: usize) -> Duration {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let others = members.iter().filter_map(Weak::upgrade).filter(|other| other.line != member.line);
        others.map(|other| other.forecast().work(other.counts.load().waiting.min(waiting + 1))).sum()
    }
}

impl Member {
    pub fn forecast(&self) -> MutexGuard<'_, Forecast> {
        self.forecast.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_function_alone_waits_for_its_own_calls() {
        let places = Places::new(2, u64::MAX);
        let member = places.join();
        assert!(places.enter(&member).is_none());
        assert!(places.enter(&member).is_none());
        let _running = [member.counts.run(), member.counts.run()];
        for waiting in 0..3 {
            let ahead = places.enter(&member).unwrap();
            assert_eq!((ahead.waiting, ahead.work_of_others), (waiting, Duration::ZERO));
        }
    }

    #[test]
    fn a_flood_of_another_function_counts_for_as_many_as_one_has_oneself() {
        let places = Places::new(1, u64::MAX);
        let (flood, own) = (places.join(), places.join());
        flood.forecast().learn(3 * SECOND);
        places.enter(&flood);
        let _running = flood.counts.run();
        for _ in 0..10 {
            places.enter(&flood);
        }
        for waiting in 0..3 {
            let ahead = places.enter(&own).unwrap();
            assert_eq!(ahead.waiting, waiting);
            assert_eq!(ahead.work_of_others, (3 * SECOND).saturating_mul(u32::try_from(waiting).unwrap() + 1));
        }
    }

    #[test]
    fn a_function_of_which_few_fit_does_not_wait_for_others_while_places_are_free() {
        let places = Places::new(4, u64::MAX);
        let (light, heavy) = (places.join(), places.join());
        heavy.forecast().that_fit(1);
        places.enter(&light);
        assert!(places.enter(&heavy).is_none());
        assert_eq!(places.enter(&heavy).unwrap().waiting, 0);
    }

    #[test]
    fn a_function_that_is_gone_does_not_count() {
        let places = Places::new(1, u64::MAX);
        let gone = places.join();
        gone.forecast().learn(SECOND);
        drop(gone);
        let member = places.join();
        places.enter(&member);
        assert_eq!(places.enter(&member).unwrap().work_of_others, Duration::ZERO);
        assert_eq!(places.members.lock().unwrap().len(), 1);
    }
}
