//! Which processes are kept in standby: started before their input arrives, so that a call need not wait for it.
//!
//! The rules:
//! - one is started only after an answer has left (or at the beginning), when no call waits for a place and fewer
//!   processes work than there are CPUs, and one at a time;
//! - a call gets the oldest one that was started from the very file that is the function's executable now;
//! - a function that ended or wrote before its input came is marked: none is started again from that file;
//! - each is retired at a maximum age, and another takes its place; all go when the function was not called for a while;
//! - a start that failed is tried again after the next call, and all give way to a call that lacks what they hold.
//!
//! A pure state machine, for one function: `now` is an argument, a process is whatever the caller has for it, and it is
//! the caller that starts and ends whom it is told to.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What is another when an executable is: device, inode, size, times of change.
pub type Identity = [i64; 7];

/// So long a new process counts as being started: it loads its code, and needs a CPU for that.
const SETTLING: Duration = Duration::from_millis(50);
/// A start that takes longer waits for something else than a CPU.
const LONGEST_WORK: Duration = Duration::from_secs(1);

/// How many, and for how long.
pub struct Terms {
    pub wanted: usize,
    pub cpus: usize,
    pub max_age: Duration,
    /// A function that was not called for so long has none.
    pub idle: Duration,
}

/// What is under way: processes with calls, and calls that wait for one.
#[derive(Clone, Copy, Default)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
}

pub struct Standby<P> {
    terms: Terms,
    /// Oldest first.
    waiting: VecDeque<Waiting<P>>,
    start: Start,
    start_began: Instant,
    /// An answer has left, and no call has come since.
    is_due: bool,
    called: Instant,
    marked: Option<Identity>,
    is_over: bool,
}

struct Waiting<P> {
    process: P,
    identity: Identity,
    since: Instant,
}

#[derive(PartialEq)]
enum Start {
    None,
    UnderWay,
    /// A call waits for it.
    Awaited,
}

/// What a call gets; the others were started from another file, and are to be ended.
#[derive(Debug, PartialEq)]
pub struct Taken<P> {
    pub what: Take<P>,
    pub ended: Vec<P>,
}

#[derive(Debug, PartialEq)]
pub enum Take<P> {
    Process(P),
    /// One is just being started, for this call if it likes.
    Soon,
    Nothing,
}

impl<P> Standby<P> {
    /// The beginning counts as a call.
    pub fn new(terms: Terms, now: Instant) -> Self {
        Self {
            terms,
            waiting: VecDeque::new(),
            start: Start::None,
            start_began: now,
            is_due: false,
            called: now,
            marked: None,
            is_over: false,
        }
    }

    pub fn waiting(&self) -> impl Iterator<Item = (&P, &Identity)> {
        self.waiting.iter().map(|waiting| (&waiting.process, &waiting.identity))
    }

    pub fn is_starting(&self) -> bool {
        self.start != Start::None
    }

    /// Whether it matters to a call which file is executed.
    pub fn knows_a_file(&self) -> bool {
        self.is_starting() || self.marked.is_some() || !self.waiting.is_empty()
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// A call has its place, and wants a process; `identity` is that of the executable, if there is one.
    pub fn take(&mut self, identity: Option<Identity>, now: Instant) -> Taken<P> {
        self.called = now;
        self.is_due = false;
        if self.marked.is_some() && self.marked != identity {
            self.marked = None;
        }
        let ended = self.remove(|waiting| Some(waiting.identity) != identity);
        let what = match self.waiting.pop_front() {
            Some(oldest) => Take::Process(oldest.process),
            None if self.start == Start::UnderWay => {
                self.start = Start::Awaited;
                Take::Soon
            }
            None => Take::Nothing,
        };
        Taken { what, ended }
    }

    /// An execution that a process in standby may serve has ended.
    pub fn served(&mut self, now: Instant) {
        self.called = now;
    }

    /// An answer has left.
    pub fn answered(&mut self) {
        self.is_due = true;
    }

    /// Whether one would be started now.
    pub fn wants_start(&self, load: Load, now: Instant) -> bool {
        let has_cpu = load.waiting == 0 && load.running < self.terms.cpus;
        has_cpu && !self.is_starting() && self.settled_at(now).is_none() && self.lacks(now)
    }

    /// Whether one is to be started now.
    pub fn next_start(&mut self, load: Load, now: Instant) -> bool {
        let starts = self.wants_start(load, now);
        if starts {
            self.start = Start::UnderWay;
            self.start_began = now;
        }
        starts
    }

    /// It runs; given back when it is not wanted any more, and is to be ended.
    pub fn started(&mut self, process: P, identity: Identity, now: Instant) -> Result<(), P> {
        self.start = Start::None;
        if self.is_over || self.marked == Some(identity) || !self.has_room(now) {
            return Err(process);
        }
        self.waiting.push_back(Waiting { process, identity, since: now });
        Ok(())
    }

    /// There is no such process.
    pub fn start_failed(&mut self) {
        self.start = Start::None;
        self.renounce();
    }

    /// None is started before the next call.
    pub fn renounce(&mut self) {
        self.is_due = false;
    }

    /// When the function was called last, how many processes it holds, and how many more it will in a moment.
    pub fn holdings(&self) -> (Instant, usize, usize) {
        (self.called, self.waiting.len(), usize::from(self.is_starting()))
    }

    /// The oldest one is to be ended, and none is started before the next call.
    pub fn give_up_one(&mut self) -> Option<P> {
        self.renounce();
        Some(self.waiting.pop_front()?.process)
    }

    /// For how long a CPU has a process to start, if it has one.
    pub fn busy_until(&self, now: Instant) -> Option<Instant> {
        if self.is_starting() {
            return Some(now + SETTLING).filter(|_| now < self.start_began + LONGEST_WORK);
        }
        self.settled_at(now)
    }

    /// Whether one is to be started as soon as that may be.
    pub fn is_wanting(&self, now: Instant) -> bool {
        !self.is_starting() && self.lacks(now)
    }

    /// A process of this file ended or wrote before its input came. Whether that is news, and who is to be ended.
    pub fn mark(&mut self, identity: Identity) -> (bool, Vec<P>) {
        let is_news = self.marked != Some(identity);
        self.marked = Some(identity);
        (is_news, self.remove(|waiting| waiting.identity == identity))
    }

    /// Those that are too old, or whose function is idle, are to be ended.
    pub fn expire(&mut self, now: Instant) -> Vec<P> {
        if self.is_idle(now) {
            return self.remove(|_| true);
        }
        let max_age = self.terms.max_age;
        let ended = self.remove(|waiting| waiting.since + max_age <= now);
        self.is_due |= !ended.is_empty();
        ended
    }

    /// A call lacks what they hold: all are to be ended, and the next one is started after the next answer.
    pub fn give_way(&mut self) -> Vec<P> {
        self.renounce();
        self.remove(|_| true)
    }

    /// When to look again, though nothing happens until then.
    pub fn next_event(&self, now: Instant) -> Option<Instant> {
        let oldest = self.waiting.front()?;
        let retired = (oldest.since + self.terms.max_age).min(self.called + self.terms.idle);
        let settled = self.settled_at(now).filter(|_| self.lacks(now) && !self.is_starting());
        Some(settled.map_or(retired, |settled| settled.min(retired)))
    }

    /// None is started any more.
    pub fn shut(&mut self) {
        self.is_over = true;
    }

    /// All are to be ended.
    pub fn end(&mut self) -> Vec<P> {
        self.is_over = true;
        self.remove(|_| true)
    }

    /// All are to be ended, and a start that was begun has failed.
    pub fn abandon(&mut self) -> Vec<P> {
        self.start_failed();
        self.end()
    }

    fn lacks(&self, now: Instant) -> bool {
        self.is_due && !self.is_over && self.marked.is_none() && self.has_room(now)
    }

    fn has_room(&self, now: Instant) -> bool {
        self.waiting.len() < self.terms.wanted && !self.is_idle(now)
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.called + self.terms.idle <= now
    }

    /// When the newest one has settled, if it has not yet.
    fn settled_at(&self, now: Instant) -> Option<Instant> {
        self.waiting.back().map(|newest| newest.since + SETTLING).filter(|settled| now < *settled)
    }

    fn remove(&mut self, is_meant: impl Fn(&Waiting<P>) -> bool) -> Vec<P> {
        if !self.waiting.iter().any(&is_meant) {
            return Vec::new();
        }
        let (removed, kept): (VecDeque<_>, VecDeque<_>) = self.waiting.drain(..).partition(is_meant);
        self.waiting = kept;
        removed.into_iter().map(|waiting| waiting.process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: Identity = [1; 7];
    const OTHER_FILE: Identity = [2; 7];
    const QUIET: Load = Load { running: 0, waiting: 0 };
    const MAX_AGE: Duration = Duration::from_secs(300);
    const IDLE: Duration = Duration::from_secs(600);

    fn standby(wanted: usize, now: Instant) -> Standby<u32> {
        Standby::new(Terms { wanted, cpus: 2, max_age: MAX_AGE, idle: IDLE }, now)
    }

    /// With these processes in it, a second after one another.
    fn with(wanted: usize, processes: &[u32], begin: Instant) -> (Standby<u32>, Instant) {
        let mut standby = standby(wanted, begin);
        let mut now = begin;
        for process in processes {
            standby.answered();
            assert!(standby.next_start(QUIET, now));
            standby.started(*process, FILE, now).unwrap();
            now += Duration::from_secs(1);
        }
        (standby, now)
    }

    fn taken(what: Take<u32>) -> Taken<u32> {
        Taken { what, ended: Vec::new() }
    }

    #[test]
    fn a_start_is_work_for_others_unless_it_hangs() {
        let now = Instant::now();
        let mut standby = standby(2, now);
        assert_eq!(standby.busy_until(now), None);
        standby.answered();
        assert!(standby.next_start(QUIET, now));
        assert_eq!(standby.busy_until(now), Some(now + SETTLING));
        assert_eq!((standby.busy_until(now + LONGEST_WORK), standby.is_starting()), (None, true));
        standby.started(1, FILE, now).unwrap();
        assert_eq!(standby.busy_until(now), Some(now + SETTLING));
        assert_eq!(standby.busy_until(now + SETTLING), None);
    }

    #[test]
    fn what_is_wanted_while_the_newest_one_settles_is_wanted_still() {
        let begin = Instant::now();
        let (mut standby, _) = with(2, &[1, 2], begin);
        // Each was started a second after the other.
        let newest = begin + Duration::from_secs(1);
        let taken = newest + Duration::from_millis(1);
        assert!(matches!(standby.take(Some(FILE), taken).what, Take::Process(1)));
        assert!(!standby.is_wanting(taken), "its answer has not left");
        standby.answered();
        assert!(standby.is_wanting(taken) && !standby.wants_start(QUIET, taken));
        assert_eq!(standby.next_event(taken), Some(newest + SETTLING));
    }

    #[test]
    fn one_is_started_after_an_answer_when_a_cpu_is_free_and_nobody_waits() {
        let now = Instant::now();
        let mut standby = standby(1, now);
        assert!(!standby.next_start(QUIET, now), "no answer has left");
        standby.answered();
        assert!(!standby.next_start(Load { running: 2, waiting: 0 }, now), "no CPU is free");
        assert!(!standby.next_start(Load { running: 0, waiting: 1 }, now), "a call waits");
        assert!(standby.next_start(Load { running: 1, waiting: 0 }, now));
        assert!(!standby.next_start(QUIET, now), "one at a time");
        assert_eq!(standby.started(1, FILE, now), Ok(()));
        assert!(!standby.next_start(QUIET, now + SETTLING), "there are as many as are wanted");
    }

    #[test]
    fn a_call_gets_the_oldest_and_the_next_one_waits_for_the_answer() {
        let (mut standby, now) = with(2, &[1, 2], Instant::now());
        assert_eq!(standby.take(Some(FILE), now), taken(Take::Process(1)));
        assert!(!standby.next_start(Load { running: 1, waiting: 0 }, now));
        standby.answered();
        assert!(standby.next_start(QUIET, now));
    }

    #[test]
    fn the_next_one_of_several_is_started_when_the_last_has_settled() {
        let (mut standby, now) = with(3, &[1], Instant::now());
        assert!(standby.next_start(QUIET, now));
        standby.started(2, FILE, now).unwrap();
        assert!(!standby.next_start(QUIET, now + SETTLING / 2));
        assert_eq!(standby.next_event(now), Some(now + SETTLING));
        assert!(standby.next_start(QUIET, now + SETTLING));
    }

    #[test]
    fn one_call_may_wait_for_the_one_that_is_being_started() {
        let now = Instant::now();
        let mut standby = standby(1, now);
        standby.answered();
        assert!(standby.next_start(QUIET, now));
        assert_eq!(standby.take(Some(FILE), now), taken(Take::Soon));
        assert_eq!(standby.take(Some(FILE), now), taken(Take::Nothing), "another has been promised it");
        assert_eq!(standby.started(1, FILE, now), Ok(()));
        assert_eq!(standby.take(Some(FILE), now), taken(Take::Process(1)));
    }

    #[test]
    fn a_process_of_another_file_is_ended_and_not_used() {
        let (mut standby, now) = with(2, &[1, 2], Instant::now());
        assert_eq!(standby.take(Some(OTHER_FILE), now), Taken { what: Take::Nothing, ended: vec![1, 2] });
        let (mut standby, now) = with(1, &[1], Instant::now());
        assert_eq!(standby.take(None, now), Taken { what: Take::Nothing, ended: vec![1] }, "the file is gone");
    }

    #[test]
    fn a_marked_function_is_not_started_again_until_its_file_is_another() {
        let (mut standby, now) = with(2, &[1, 2], Instant::now());
        assert_eq!(standby.mark(FILE), (true, vec![1, 2]));
        assert_eq!(standby.mark(FILE), (false, vec![]));
        standby.take(Some(FILE), now);
        standby.answered();
        assert!(!standby.next_start(QUIET, now));
        standby.take(Some(OTHER_FILE), now);
        standby.answered();
        assert!(standby.next_start(QUIET, now));
        assert_eq!(standby.started(3, OTHER_FILE, now), Ok(()));
    }

    #[test]
    fn what_was_marked_while_it_was_started_is_ended() {
        let now = Instant::now();
        let mut standby = standby(2, now);
        standby.answered();
        assert!(standby.next_start(QUIET, now));
        standby.mark(FILE);
        assert_eq!(standby.started(1, FILE, now), Err(1));
    }

    #[test]
    fn an_old_one_is_replaced_while_calls_come_and_all_go_when_none_does() {
        let begin = Instant::now();
        let (mut standby, _) = with(1, &[1], begin);
        let old = begin + MAX_AGE;
        assert_eq!(standby.next_event(begin + SETTLING), Some(old));
        assert_eq!(standby.expire(old.checked_sub(Duration::from_nanos(1)).unwrap()), []);
        assert_eq!(standby.expire(old), [1]);
        assert!(standby.next_start(QUIET, old));
        standby.started(2, FILE, old).unwrap();
        let idle = begin + IDLE;
        assert_eq!(standby.next_event(old + SETTLING), Some(idle));
        assert_eq!(standby.expire(idle), [2]);
        assert_eq!(standby.next_event(idle), None);
        standby.answered();
        assert!(!standby.next_start(QUIET, idle), "an answer to a call that could not use it");
        standby.take(Some(FILE), idle);
        standby.answered();
        assert!(standby.next_start(QUIET, idle));
    }

    #[test]
    fn a_call_that_took_long_counts_from_its_end() {
        let begin = Instant::now();
        let mut standby = standby(1, begin);
        standby.take(Some(FILE), begin);
        standby.served(begin + IDLE * 2);
        standby.answered();
        assert!(standby.next_start(QUIET, begin + IDLE * 2));
    }

    #[test]
    fn a_start_that_failed_is_tried_again_after_the_next_call() {
        let now = Instant::now();
        let mut standby = standby(1, now);
        standby.answered();
        assert!(standby.next_start(QUIET, now));
        standby.start_failed();
        assert!(!standby.next_start(QUIET, now + MAX_AGE / 2));
        standby.answered();
        assert!(standby.next_start(QUIET, now));
    }

    #[test]
    fn all_give_way_to_a_call_that_lacks_what_they_hold() {
        let (mut standby, now) = with(3, &[1, 2], Instant::now());
        assert_eq!(standby.give_way(), [1, 2]);
        assert!(!standby.next_start(QUIET, now));
        standby.answered();
        assert!(standby.next_start(QUIET, now));
    }

    #[test]
    fn nothing_is_started_or_kept_after_the_end() {
        let (mut standby, now) = with(2, &[1], Instant::now());
        assert!(standby.next_start(QUIET, now));
        standby.shut();
        assert_eq!(standby.started(2, FILE, now), Err(2));
        assert_eq!(standby.end(), [1]);
        standby.answered();
        assert!(!standby.next_start(QUIET, now));
        assert_eq!(standby.take(Some(FILE), now), taken(Take::Nothing));
    }

    #[derive(Clone, Debug)]
    enum Event {
        Take(bool),
        Answer,
        Start { running: usize, waiting: usize },
        Started,
        Failed,
        Mark,
        GiveWay,
        Pass(u64),
        End,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => any::<bool>().prop_map(Event::Take),
            6 => Just(Event::Answer),
            6 => (0..4_usize, 0..2_usize).prop_map(|(running, waiting)| Event::Start { running, waiting }),
            6 => Just(Event::Started),
            1 => Just(Event::Failed),
            1 => Just(Event::Mark),
            1 => Just(Event::GiveWay),
            4 => (0..400_000_u64).prop_map(Event::Pass),
            1 => Just(Event::End),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: every process is taken or ended exactly once, no more wait than are
        /// wanted, none longer than its age, and none is started without a free CPU or from a marked file.
        #[test]
        fn nobody_is_lost_and_nobody_is_used_twice(wanted in 1..4_usize, events in prop::collection::vec(event(), 0..80)) {
            let mut now = Instant::now();
            let mut standby = standby(wanted, now);
            let (mut born, mut gone) = (0_u32, Vec::new());
            let mut is_marked = false;
            for event in events {
                match event {
                    Event::Take(is_same) => {
                        let taken = standby.take(Some(if is_same { FILE } else { OTHER_FILE }), now);
                        is_marked &= is_same;
                        gone.extend(taken.ended);
                        if let Take::Process(process) = taken.what {
                            gone.push(process);
                            prop_assert!(is_same);
                        }
                    }
                    Event::Answer => standby.answered(),
                    Event::Start { running, waiting } => {
                        let starts = standby.next_start(Load { running, waiting }, now);
                        prop_assert!(!starts || (running < 2 && waiting == 0 && !is_marked));
                    }
                    Event::Started if standby.is_starting() => {
                        born += 1;
                        gone.extend(standby.started(born, FILE, now).err());
                    }
                    Event::Failed if standby.is_starting() => standby.start_failed(),
                    Event::Started | Event::Failed => {}
                    Event::Mark => {
                        gone.extend(standby.mark(FILE).1);
                        is_marked = true;
                    }
                    Event::GiveWay => gone.extend(standby.give_way()),
                    Event::Pass(milliseconds) => {
                        // As the thread does: it wakes at each event on the way.
                        let end = now + Duration::from_millis(milliseconds);
                        while let Some(event) = standby.next_event(now).filter(|event| *event <= end) {
                            prop_assert!(event > now, "the thread would never sleep");
                            now = event;
                            gone.extend(standby.expire(now));
                        }
                        now = end;
                        prop_assert_eq!(standby.expire(now), Vec::<u32>::new(), "the thread would sleep too long");
                    }
                    Event::End => gone.extend(standby.end()),
                }
                prop_assert!(standby.waiting().count() <= wanted);
                prop_assert!(!(is_marked || standby.is_over()) || standby.waiting().count() == 0);
            }
            gone.extend(standby.end());
            gone.sort_unstable();
            prop_assert_eq!(gone, (1..=born).collect::<Vec<_>>());
        }
    }
}
