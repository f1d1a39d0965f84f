//! A limit for the time in which a request arrives, for services that are open to everybody.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

struct TimeLimit {
    body: Body,
    time: Duration,
    end: Pin<Box<Sleep>>,
}

/// Wrap the body of a request: it fails with `DEADLINE_EXCEEDED` if it has not ended in time.
pub fn time_limited(request: http::Request<Body>, time: Duration) -> http::Request<Body> {
    request.map(|body| Body::new(TimeLimit { body, time, end: Box::pin(sleep(time)) }))
}

impl http_body::Body for TimeLimit {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_pending() && self.end.as_mut().poll(context).is_ready() {
            let message = format!("the request did not end within {}s", self.time.as_secs());
            return Poll::Ready(Some(Err(Status::deadline_exceeded(message))));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_come_ends_in_time_and_one_that_comes_is_untouched() {
        let limited = |body| time_limited(http::Request::new(body), Duration::from_secs(10)).into_body();
        let content = Body::new(http_body_util::Full::new(Bytes::from_static(b"content")));
        assert_eq!(limited(content).collect().await.unwrap().to_bytes(), "content");
        let silent =
            Body::new(http_body_util::StreamBody::new(tokio_stream::pending::<Result<Frame<Bytes>, Status>>()));
        let error = limited(silent).collect().await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
    }
}
