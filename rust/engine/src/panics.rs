//! What happens on a panic: it is always logged, and a server that can survive it turns it into an error of one call.

use std::future::{Future, poll_fn};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::thread;

use crate::log::{Level, Line};

/// Log every panic as one line with its message and location, and call `then` in the thread that panicked.
pub fn on_panic(then: impl Fn() + Send + Sync + 'static) {
    panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let message = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        Line::new(Level::Error, "panic: this is a bug in krm-runner, please report it")
            .with("message", message)
            .with("location", location)
            .with("thread", thread::current().name().unwrap_or("unnamed"))
            .with("version", env!("CARGO_PKG_VERSION"))
            .write();
        then();
    }));
}

/// Run a job. Returns whether it ended without a panic.
pub fn survives(job: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(job)).is_ok()
}

/// Wait for a future. Returns nothing if it panicked; it must not be polled again then.
pub async fn caught<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(polled) => polled.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}

/// Panic if the name contains `panic-in-<place>`. Does nothing unless built with the feature `faults`, as tests are.
pub fn inject(place: &str, name: &str) {
    let is_asked = cfg!(feature = "faults") && name.contains(&format!("panic-in-{place}"));
    assert!(!is_asked, "injected by {name}");
}
