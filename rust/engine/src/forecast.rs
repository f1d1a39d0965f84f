//! When a call would have its turn, by what calls have taken so far; who would come too late hears it at once.
//!
//! The rule is that of the runner's `core.call_queue`: a call waits for one that runs and for all of its function that
//! wait already, each holds a place for as long as calls do on average, and so many places become free in that time. Where
//! functions share places they take turns, and a call waits for as many of each other function as of its own. Too
//! late is a turn after the first half of the time that the call has beside its own run: a forecast is an average, and
//! under a lasting overload the line is always as long as it may be, so that with no margin every other call would run for
//! nothing. The newest call counts most, so that the forecast follows a function whose packages grow. Pure: no clock, no
//! locks.

use std::time::Duration;

/// The newest call is so large a part of the average: a fifth.
const PARTS: u32 = 5;
/// So many times the expected wait must fit.
const MARGIN: u32 = 2;

pub struct Forecast {
    /// At most.
    limit: usize,
    /// As long as calls are like the newest one.
    places: u32,
    /// How long a call holds its place, on average; none while nothing is known.
    average: Option<Duration>,
}

/// Who has his turn before a call.
#[derive(Clone, Copy)]
pub struct Ahead {
    /// Calls of its own function.
    pub waiting: usize,
    /// What the calls of others take, one after the other.
    pub work_of_others: Duration,
}

impl From<usize> for Ahead {
    /// Nobody else's.
    fn from(waiting: usize) -> Self {
        Self { waiting, work_of_others: Duration::ZERO }
    }
}

impl Forecast {
    pub fn new(places: usize) -> Self {
        Self { limit: places, places: number(places), average: None }
    }

    /// How many calls run at once.
    pub fn places(&self) -> usize {
        self.places as usize
    }

    /// So many calls like the newest one fit into the memory.
    pub fn that_fit(&mut self, calls: usize) {
        self.places = number(calls.clamp(1, self.limit));
    }

    /// A call held its place for so long, from its turn to its end.
    pub fn learn(&mut self, held: Duration) {
        let average = self.average.map_or(held, |known| known / PARTS * (PARTS - 1) + held / PARTS);
        self.average = Some(average);
    }

    /// A call was cut off after so long: it would have taken at least that, and what is known may be nearer.
    pub fn learn_at_least(&mut self, held: Duration) {
        if self.average.is_none_or(|known| known < held) {
            self.learn(held);
        }
    }

    /// What so many calls take, one after the other.
    pub fn work(&self, calls: usize) -> Duration {
        self.average.unwrap_or_default().saturating_mul(number(calls))
    }

    /// How long one more call would wait for its turn, behind those; nothing when nothing is known.
    pub fn wait(&self, ahead: impl Into<Ahead>) -> Duration {
        let Ahead { waiting, work_of_others } = ahead.into();
        self.work(waiting.saturating_add(1)).saturating_add(work_of_others) / self.places
    }

    /// Whether a call that has so much time would have its turn too late to be answered.
    pub fn is_late(&self, ahead: impl Into<Ahead>, time: Duration) -> bool {
        let needed = self.wait(ahead).saturating_mul(MARGIN).saturating_add(self.average.unwrap_or_default());
        needed > time
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_forecast_while_nothing_is_known() {
        let forecast = Forecast::new(1);
        assert_eq!(forecast.wait(1000), Duration::ZERO);
        assert!(!forecast.is_late(1000, Duration::ZERO));
    }

    #[test]
    fn places_share_the_work_of_those_that_wait() {
        let mut forecast = Forecast::new(2);
        forecast.learn(4 * SECOND);
        assert_eq!(forecast.wait(0), 2 * SECOND, "one that runs has to end");
        assert_eq!(forecast.wait(1), 4 * SECOND);
        assert_eq!(forecast.wait(5), 12 * SECOND);
    }

    #[test]
    fn calls_of_other_functions_take_their_own_time() {
        let mut forecast = Forecast::new(2);
        forecast.learn(4 * SECOND);
        let ahead = Ahead { waiting: 1, work_of_others: 10 * SECOND };
        assert_eq!(forecast.wait(ahead), 9 * SECOND);
        assert!(forecast.is_late(ahead, 21 * SECOND));
        assert!(!forecast.is_late(ahead, 22 * SECOND));
    }

    #[test]
    fn a_call_has_time_for_twice_the_wait_and_its_own_run_or_is_late() {
        let mut forecast = Forecast::new(2);
        forecast.learn(4 * SECOND);
        assert!(!forecast.is_late(1, 12 * SECOND));
        assert!(forecast.is_late(1, 11 * SECOND));
        assert!(!forecast.is_late(0, 8 * SECOND));
        assert!(forecast.is_late(0, 7 * SECOND));
    }

    #[test]
    fn places_that_do_not_fit_into_the_memory_do_not_count() {
        let mut forecast = Forecast::new(4);
        forecast.learn(4 * SECOND);
        for (fit, places) in [(2, 2), (0, 1), (100, 4)] {
            forecast.that_fit(fit);
            assert_eq!((forecast.places(), forecast.wait(3)), (places, 16 * SECOND / number(places)));
        }
    }

    #[test]
    fn the_newest_count_most() {
        let mut forecast = Forecast::new(1);
        for held in [10 * SECOND, Duration::ZERO, Duration::ZERO, Duration::ZERO] {
            forecast.learn(held);
        }
        let expected = 10.0 * 0.8_f64.powi(3);
        assert!((forecast.wait(0).as_secs_f64() - expected).abs() < 1e-6);
    }

    #[test]
    fn a_call_that_was_cut_off_never_makes_the_others_look_quicker() {
        let mut forecast = Forecast::new(1);
        forecast.learn_at_least(2 * SECOND);
        assert_eq!(forecast.wait(0), 2 * SECOND, "better than nothing");
        forecast.learn_at_least(SECOND);
        assert_eq!(forecast.wait(0), 2 * SECOND);
        forecast.learn_at_least(7 * SECOND);
        assert_eq!(forecast.wait(0), 3 * SECOND);
    }

    #[test]
    fn no_number_is_too_large() {
        let mut forecast = Forecast::new(1);
        forecast.learn(Duration::MAX);
        assert_eq!(forecast.wait(usize::MAX), Duration::MAX);
        assert!(forecast.is_late(usize::MAX, 100 * SECOND));
    }
}
