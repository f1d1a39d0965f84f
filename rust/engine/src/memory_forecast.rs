//! How much memory a call will take, by what calls took so far.
//!
//! The rule is that of the runner's `core.memory_forecast`, for one function: what is known is kept by the size of the
//! input, in classes of which each is twice the one before, and grows in proportion within one; the highest counts at
//! once, a lower one slowly. A class of which nothing is known has a cautious guess, bounded by what is known of smaller and
//! larger inputs. Pure: it reads nothing.

use std::collections::BTreeMap;

/// An interpreter with its libraries.
const GUESS_WITHOUT_INPUT: u64 = 30_000_000;
const GUESS_PER_BYTE: u64 = 100;
/// A lower value counts by a fifth.
const PARTS: u64 = 5;

#[derive(Default)]
pub struct MemoryForecast {
    /// By class: the size of an input, and what it takes.
    seen: BTreeMap<u32, Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    size: u64,
    peak: u64,
}

impl MemoryForecast {
    /// Bytes that a call with an input of this size will take.
    pub fn expected(&self, size: usize) -> u64 {
        let size = size as u64;
        if let Some(seen) = self.seen.get(&class(size)) {
            return seen.in_proportion(size);
        }
        let smaller = self.seen.values().filter(|seen| seen.size < size).map(|seen| seen.peak).max();
        let larger = self.seen.values().filter(|seen| seen.size > size).map(|seen| seen.peak).min();
        let guess = GUESS_WITHOUT_INPUT.saturating_add(size.saturating_mul(GUESS_PER_BYTE));
        guess.min(larger.unwrap_or(u64::MAX)).max(smaller.unwrap_or(0))
    }

    /// A call with an input of this size took so much at its height.
    pub fn learn(&mut self, size: usize, peak: u64) {
        let size = size as u64;
        let seen = self.seen.entry(class(size)).or_insert(Seen { size, peak });
        let before = seen.in_proportion(size);
        *seen = if peak >= before {
            Seen { size, peak }
        } else {
            // Of the larger one: a smaller input says little of what that takes.
            Seen { size: size.max(seen.size), peak: before - (before - peak) / PARTS }
        };
    }

    /// A call with an input of this size was killed, most likely because there was no such memory; more than `most` is
    /// not to be had.
    pub fn was_killed(&mut self, size: usize, most: u64) {
        let expected = self.expected(size);
        self.learn(size, expected.saturating_mul(2).min(most.max(expected)));
    }
}

impl Seen {
    /// What a larger input of the same class takes; a smaller one may take as much.
    fn in_proportion(self, size: u64) -> u64 {
        let scaled = u128::from(self.peak) * u128::from(size.max(self.size)) / u128::from(self.size.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX).max(self.peak)
    }
}

fn class(size: u64) -> u32 {
    u64::BITS - size.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    #[test]
    fn of_a_stranger_there_is_a_cautious_guess() {
        let forecast = MemoryForecast::default();
        assert!((10 * MB..50 * MB).contains(&forecast.expected(2000)), "several fit into a small pod");
        assert!(forecast.expected(5_000_000) > 300 * MB, "few do with so much input");
        assert_eq!(forecast.expected(usize::MAX), u64::MAX);
    }

    #[test]
    fn what_was_seen_counts_for_inputs_of_that_size() {
        let mut forecast = MemoryForecast::default();
        forecast.learn(4_500_000, 680 * MB);
        assert_eq!(forecast.expected(4_400_000), 680 * MB);
        assert_eq!(forecast.expected(8_000_000), 680 * MB * 80 / 45);
    }

    #[test]
    fn a_guess_lies_between_what_was_seen_of_smaller_and_larger_inputs() {
        let mut forecast = MemoryForecast::default();
        forecast.learn(5_000_000, 4 * MB);
        assert_eq!(forecast.expected(100_000), 4 * MB);
        let mut forecast = MemoryForecast::default();
        forecast.learn(20_000_000, 4 * MB);
        forecast.learn(1000, 900 * MB);
        assert_eq!(forecast.expected(5_000_000), 900 * MB);
    }

    #[test]
    fn more_counts_at_once_and_less_slowly() {
        let mut forecast = MemoryForecast::default();
        forecast.learn(1000, 10 * MB);
        forecast.learn(1000, 60 * MB);
        assert_eq!(forecast.expected(1000), 60 * MB);
        forecast.learn(1000, 10 * MB);
        assert_eq!(forecast.expected(1000), 50 * MB);
        forecast.learn(0, 0);
        assert_eq!(forecast.expected(0), 0);
    }

    #[test]
    fn inputs_of_different_sizes_in_one_class_do_not_add_up() {
        let mut forecast = MemoryForecast::default();
        for _ in 0..1000 {
            forecast.learn(4_300_000, 550 * MB);
            forecast.learn(8_000_000, 1040 * MB);
        }
        assert!((1040 * MB..1100 * MB).contains(&forecast.expected(8_000_000)));
        assert!((550 * MB..=1040 * MB).contains(&forecast.expected(4_300_000)));
    }

    #[test]
    fn who_was_killed_is_expected_to_take_twice_as_much_up_to_all() {
        let mut forecast = MemoryForecast::default();
        let guess = forecast.expected(1000);
        forecast.was_killed(1000, 100 * MB);
        assert_eq!(forecast.expected(1000), 2 * guess);
        forecast.was_killed(1000, 100 * MB);
        assert_eq!(forecast.expected(1000), 100 * MB);
        forecast.learn(5_000_000, 500 * MB);
        forecast.was_killed(5_000_000, 100 * MB);
        assert_eq!(forecast.expected(5_000_000), 500 * MB);
    }
}
