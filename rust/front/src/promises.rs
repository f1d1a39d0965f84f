//! Pods that the runner has promised to calls of an image: those go there at once, and need not wait until the runner has
//! time for them.
//!
//! Which pods, how many calls, and for how long that holds is the runner's to say. Here each call gets the one of them with
//! the fewest calls under way, as the runner would have it; when that has as many as it may have, the runner is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::messages::{Forward, Promise};
use crate::pods::{Connection, Engaged};

/// Callers may write one image in many ways.
const MOST_IMAGES: usize = 4096;

#[derive(Default)]
pub struct Promises {
    /// By image as callers write it; those that were used longest ago first.
    made: Mutex<HashMap<String, Vec<Promised>>>,
}

struct Promised {
    promise: Arc<Promise>,
    by: Arc<Connection>,
    until: Instant,
}

/// A pod for one call.
pub struct Place {
    promise: Arc<Promise>,
    by: Engaged,
}

impl Promises {
    /// From now on; it takes the place of an earlier one for the same image and connection.
    pub fn make(&self, promise: Promise, by: Arc<Connection>) {
        let valid = Duration::try_from_secs_f64(promise.valid_seconds).unwrap_or(Duration::ZERO);
        let Some(until) = Instant::now().checked_add(valid) else { return };
        let mut made = self.made();
        if made.len() >= MOST_IMAGES && !made.contains_key(&promise.image) {
            let now = Instant::now();
            made.retain(|_, pods| pods.iter().any(|promised| now < promised.until));
            if made.len() >= MOST_IMAGES {
                // Its calls are asked about.
                return;
            }
        }
        let pods = made.entry(promise.image.clone()).or_default();
        let known = pods.iter().position(|known| known.promise.connection == promise.connection);
        let promised = Promised { promise: Arc::new(promise), by, until };
        match known {
            Some(known) => pods[known] = promised,
            None => pods.push(promised),
        }
    }

    /// Where a call of the image may go; nothing if the runner is to say so.
    pub fn take(&self, image: &str) -> Option<Place> {
        let mut made = self.made();
        let pods = made.get_mut(image)?;
        let now = Instant::now();
        if pods.iter().any(|promised| promised.until <= now) {
            // Those that are left would have all the calls: who asks is told all of them again.
            made.remove(image);
            return None;
        }
        let calls: u64 = pods.iter().map(|promised| promised.by.calls()).sum();
        let best = (0..pods.len()).min_by_key(|&number| pods[number].by.calls())?;
        let promise = &pods[best].promise;
        if pods[best].by.calls() >= promise.calls || calls >= promise.calls_in_all {
            return None;
        }
        // Equals take turns.
        let promised = pods.remove(best);
        let place = Place { promise: Arc::clone(&promised.promise), by: Connection::engage(&promised.by) };
        pods.push(promised);
        Some(place)
    }

    /// Whether anything is promised to the image, so that nobody waits for what a call leaves.
    pub fn are_made_to(&self, image: &str) -> bool {
        self.made().contains_key(image)
    }

    /// Nobody goes there unasked any more, or uses that connection again.
    pub fn withdraw(&self, connection: u64) {
        self.made().retain(|_, pods| {
            pods.retain(|promised| promised.promise.connection != connection);
            !pods.is_empty()
        });
    }

    /// What an image stands for may be another.
    pub fn forget(&self) {
        self.made().clear();
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, Vec<Promised>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub fn connection(&self) -> u64 {
        self.promise.connection
    }

    /// What the runner would have said of this call.
    pub fn order(self, id: u64, time: Duration) -> (Forward, Engaged) {
        let Promise { connection, address, authority, headers, .. } = self.promise.as_ref();
        let order = Forward {
            id,
            connection: *connection,
            address: address.clone(),
            authority: authority.clone(),
            timeout_seconds: time.as_secs_f64(),
            headers: headers.clone(),
        };
        (order, self.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::Pods;

    fn promise(image: &str, connection: u64, valid_seconds: f64) -> Promise {
        Promise {
            image: image.into(),
            connection,
            address: "pod:9446".into(),
            valid_seconds,
            calls: 2,
            calls_in_all: 3,
            ..Promise::default()
        }
    }

    fn made(all: &[Promise]) -> Promises {
        let (promises, pods) = (Promises::default(), Pods::default());
        for promise in all {
            promises.make(promise.clone(), pods.connection(promise.connection, &promise.address));
        }
        promises
    }

    fn connections(promises: &Promises, images: &[&str]) -> Vec<Option<u64>> {
        images.iter().map(|image| promises.take(image).map(|place| place.connection())).collect()
    }

    #[test]
    fn a_promise_is_for_calls_of_its_image() {
        let promises = made(&[promise("a", 1, 60.0), promise("b", 2, 60.0)]);
        let (order, _) = promises.take("a").unwrap().order(7, Duration::from_secs(5));
        assert_eq!((order.id, order.connection, order.address.as_str()), (7, 1, "pod:9446"));
        assert_eq!(order.timeout_seconds.to_bits(), 5.0_f64.to_bits());
        assert_eq!(connections(&promises, &["a", "b", "c", "a"]), [Some(1), Some(2), None, Some(1)]);
        assert_eq!([promises.are_made_to("a"), promises.are_made_to("c")], [true, false]);
    }

    #[test]
    fn the_least_loaded_pod_gets_the_call_and_equals_take_turns() {
        let promises = made(&[promise("a", 1, 60.0), promise("a", 2, 60.0), promise("a", 3, 60.0)]);
        assert_eq!(connections(&promises, &["a"; 4]), [Some(1), Some(2), Some(3), Some(1)]);
        let places = [promises.take("a").unwrap(), promises.take("a").unwrap()];
        assert_eq!(places.each_ref().map(Place::connection), [2, 3]);
        assert_eq!(connections(&promises, &["a"; 2]), [Some(1), Some(1)]);
        drop(places);
        assert_eq!(connections(&promises, &["a"; 3]), [Some(2), Some(3), Some(1)]);
    }

    #[test]
    fn no_more_calls_go_there_than_were_promised() {
        let promises = made(&[promise("a", 1, 60.0)]);
        let mut places: Vec<_> = (0..2).map(|_| promises.take("a").unwrap()).collect();
        assert!(promises.take("a").is_none(), "of this pod");
        let second = Promise { calls: 9, ..promise("a", 2, 60.0) };
        promises.make(second.clone(), Pods::default().connection(2, "pod:9446"));
        places.push(promises.take("a").unwrap());
        assert!(promises.take("a").is_none(), "of all together");
        places.pop();
        assert_eq!(connections(&promises, &["a"]), [Some(2)]);
    }

    #[test]
    fn calls_that_the_runner_has_sent_there_count_as_well() {
        let pods = Pods::default();
        let (promises, connection) = (Promises::default(), pods.connection(1, "pod:9446"));
        promises.make(promise("a", 1, 60.0), Arc::clone(&connection));
        let _engaged = [Connection::engage(&connection), Connection::engage(&connection)];
        assert!(promises.take("a").is_none());
        // It is told again with other terms.
        promises.make(Promise { calls: 3, ..promise("a", 1, 60.0) }, connection);
        assert_eq!(connections(&promises, &["a"]), [Some(1)]);
    }

    #[test]
    fn no_more_images_are_known_than_there_may_be() {
        let all: Vec<_> = (0..MOST_IMAGES).map(|number| promise(&number.to_string(), 1, 60.0)).collect();
        let promises = made(&all);
        let pods = Pods::default();
        promises.make(promise("a", 1, 60.0), pods.connection(1, "pod:9446"));
        assert_eq!(connections(&promises, &["a", "7"]), [None, Some(1)]);
        promises.make(promise("7", 1, 0.0), pods.connection(1, "pod:9446"));
        promises.make(promise("a", 1, 60.0), pods.connection(1, "pod:9446"));
        assert_eq!(connections(&promises, &["a", "7"]), [Some(1), None], "one is over");
    }

    #[test]
    fn it_does_not_outlive_its_time_its_connection_or_what_was_known() {
        assert_eq!(connections(&made(&[promise("a", 1, 0.0), promise("b", 1, -1.0)]), &["a", "b"]), [None, None]);
        // A time without end is one that no clock has: then it is asked again.
        assert_eq!(connections(&made(&[promise("a", 1, f64::MAX)]), &["a"]), [None]);
        let promises = made(&[promise("a", 1, 60.0), promise("a", 2, 60.0), promise("b", 1, 60.0)]);
        promises.withdraw(1);
        assert_eq!(connections(&promises, &["a", "b"]), [Some(2), None]);
        // Not only those that are left.
        promises.make(promise("a", 3, 0.0), Pods::default().connection(3, "pod:9446"));
        assert_eq!(connections(&promises, &["a", "a"]), [None, None]);
        promises.make(promise("a", 2, 60.0), Pods::default().connection(2, "pod:9446"));
        promises.forget();
        assert_eq!(connections(&promises, &["a"]), [None]);
    }
}
