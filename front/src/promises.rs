//! Pods that the runner has promised to the next call of an image: that one goes there at once, and need not wait until the
//! runner has time for it.
//!
//! Which pod, and for how long that holds, is the runner's to say; here a promise is kept, used once, or forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::messages::{Forward, Promise};
use crate::pods::Connection;

#[derive(Default)]
pub struct Promises {
    /// By image: the runner has no more of them than functions with pods.
    made: Mutex<HashMap<String, Promised>>,
}

/// One of them.
pub struct Promised {
    promise: Promise,
    by: Arc<Connection>,
    until: Instant,
}

impl Promises {
    /// From now on; it takes the place of an earlier one for the same image.
    pub fn make(&self, promise: Promise, by: Arc<Connection>) {
        let valid = Duration::try_from_secs_f64(promise.valid_seconds).unwrap_or(Duration::ZERO);
        let Some(until) = Instant::now().checked_add(valid) else { return };
        self.made().insert(promise.image.clone(), Promised { promise, by, until });
    }

    /// The one for the image, if it still holds; nobody else gets it.
    pub fn take(&self, image: &str) -> Option<Promised> {
        self.made().remove(image).filter(|promised| Instant::now() < promised.until)
    }

    /// That one, and not one that took its place.
    pub fn withdraw(&self, number: u64, image: &str) {
        let mut made = self.made();
        if made.get(image).is_some_and(|promised| promised.promise.number == number) {
            made.remove(image);
        }
    }

    /// Nobody will use that connection again.
    pub fn disconnected(&self, connection: u64) {
        self.made().retain(|_, promised| promised.promise.connection != connection);
    }

    /// What an image stands for may be another.
    pub fn forget(&self) {
        self.made().clear();
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, Promised>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Promised {
    pub fn number(&self) -> u64 {
        self.promise.number
    }

    pub fn connection(&self) -> u64 {
        self.promise.connection
    }

    /// What the runner would have said of this call.
    pub fn order(self, id: u64, time: Duration) -> (Forward, Arc<Connection>) {
        let Promise { connection, address, authority, headers, .. } = self.promise;
        (Forward { id, connection, address, authority, timeout_seconds: time.as_secs_f64(), headers }, self.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::Pods;

    fn promise(number: u64, image: &str, connection: u64, valid_seconds: f64) -> Promise {
        Promise {
            number,
            image: image.into(),
            connection,
            address: "pod:9446".into(),
            valid_seconds,
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

    fn numbers(promises: &Promises, images: &[&str]) -> Vec<Option<u64>> {
        images.iter().map(|image| promises.take(image).map(|promised| promised.number())).collect()
    }

    #[test]
    fn a_promise_is_for_one_call_of_its_image() {
        let promises = made(&[promise(1, "a", 1, 60.0), promise(2, "b", 2, 60.0)]);
        let (order, _) = promises.take("a").unwrap().order(7, Duration::from_secs(5));
        assert_eq!((order.id, order.connection, order.address.as_str()), (7, 1, "pod:9446"));
        assert_eq!(order.timeout_seconds.to_bits(), 5.0_f64.to_bits());
        assert_eq!(numbers(&promises, &["a", "b", "c"]), [None, Some(2), None]);
    }

    #[test]
    fn a_later_one_takes_the_place_of_an_earlier_one_and_is_not_withdrawn_with_it() {
        let promises = made(&[promise(1, "a", 1, 60.0), promise(2, "a", 2, 60.0)]);
        promises.withdraw(1, "a");
        assert_eq!(numbers(&promises, &["a"]), [Some(2)]);
        let promises = made(&[promise(3, "a", 1, 60.0)]);
        promises.withdraw(3, "a");
        assert_eq!(numbers(&promises, &["a"]), [None]);
    }

    #[test]
    fn it_does_not_outlive_its_time_its_connection_or_what_was_known() {
        assert_eq!(numbers(&made(&[promise(1, "a", 1, 0.0), promise(2, "b", 1, -1.0)]), &["a", "b"]), [None, None]);
        // A time without end is one that no clock has: then it is asked again.
        assert_eq!(numbers(&made(&[promise(1, "a", 1, f64::MAX)]), &["a"]), [None]);
        let promises = made(&[promise(1, "a", 1, 60.0), promise(2, "b", 2, 60.0)]);
        promises.disconnected(1);
        assert_eq!(numbers(&promises, &["a"]), [None]);
        promises.forget();
        assert_eq!(numbers(&promises, &["b"]), [None]);
    }
}
