//! The reserves of functions that share places: together they hold a bounded number of processes, and a process that is
//! being started counts as work, so that no more are started at once than there are CPUs.
//!
//! Where there is no room for one more, the function that was not called for the longest time gives one up.
//!
//! Whoever holds the lock of a reserve must not ask here: the locks are taken in the other order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::process::child::WaitingChild;
use crate::reserve::Reserve;
use crate::standby::Load;

/// Processes in standby, of all functions: the runner's `core.standby` has the same.
const MOST: usize = 32;

#[derive(Default)]
pub struct Reserves {
    members: Mutex<Vec<Weak<Reserve>>>,
}

/// Whether a reserve may start a process.
#[derive(Debug, PartialEq)]
pub enum Leave {
    /// It counts as being started.
    Now,
    /// Another one is being started; ask again then.
    At(Instant),
    No,
}

impl Reserves {
    /// One more, until it is dropped.
    pub fn join(&self, reserve: &Arc<Reserve>) {
        let mut members = self.members();
        members.retain(|known| known.strong_count() > 0);
        members.push(Arc::downgrade(reserve));
    }

    /// One of them would start a process, if it lacks one and there is a CPU for it.
    pub fn ask(&self, own: &Reserve, load: Load) -> Leave {
        let now = Instant::now();
        // Most have what they want, and need not look at the others.
        if !own.wants_start(load, now) {
            return Leave::No;
        }
        let members = self.members();
        let others: Vec<_> = living(&members).filter(|other| !std::ptr::eq(&raw const **other, own)).collect();
        let busy: Vec<_> = others.iter().filter_map(|other| other.busy_until(now)).collect();
        let load = Load { running: load.running + busy.len(), ..load };
        if !own.wants_start(load, now) {
            return busy.into_iter().min().map_or(Leave::No, Leave::At);
        }
        let Some(ended) = make_room(own, &others) else {
            own.renounce();
            return Leave::No;
        };
        let leave = if own.begin_start(load, now) { Leave::Now } else { Leave::No };
        // Nobody else waits for their end.
        drop(members);
        drop(ended);
        leave
    }

    /// A call cannot start its process for lack of memory, processes or descriptors: all end. False if there are none.
    pub fn give_way(&self) -> bool {
        let all: Vec<_> = living(&self.members()).collect();
        all.iter().filter(|reserve| reserve.give_way()).count() > 0
    }

    fn members(&self) -> MutexGuard<'_, Vec<Weak<Reserve>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn living(members: &[Weak<Reserve>]) -> impl Iterator<Item = Arc<Reserve>> {
    members.iter().filter_map(Weak::upgrade)
}

/// Who is to be ended for it, if that is enough.
fn make_room(own: &Reserve, others: &[Arc<Reserve>]) -> Option<Vec<WaitingChild>> {
    let (called, own_held, own_more) = own.holdings();
    let of_others: Vec<_> = others.iter().map(|other| other.holdings()).collect();
    if own_held + own_more + of_others.iter().map(|(_, held, more)| held + more).sum::<usize>() < MOST {
        return Some(Vec::new());
    }
    // Where a call was quicker and took the last one, there is room as well.
    longest_idle(&of_others, called).map(|index| others[index].give_up_one().into_iter().collect())
}

/// Of those that hold any, the one that was called first, if that was before `called`.
fn longest_idle(holdings: &[(Instant, usize, usize)], called: Instant) -> Option<usize> {
    let holders = holdings.iter().enumerate().filter(|(_, (before, held, _))| *held > 0 && *before < called);
    holders.min_by_key(|(_, (before, ..))| *before).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_was_not_called_for_the_longest_time_gives_way() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let holdings = [(at(3), 1, 0), (at(1), 0, 1), (at(2), 2, 0), (at(4), 1, 0)];
        assert_eq!(longest_idle(&holdings, at(9)), Some(2), "the second one holds nothing");
        assert_eq!(longest_idle(&holdings, at(2)), None, "nobody was called earlier");
    }
}
