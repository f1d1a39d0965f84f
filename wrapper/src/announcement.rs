//! Tells the runner that started this pod that it serves, and by the way where: the address that a datagram comes from.
//!
//! Kubernetes says that as well, up to a second later. What is to be sent, and where to, comes in a variable of the
//! environment, which is taken out again before a function can be started with it. A datagram may be lost, so there are a
//! few of them; nobody answers, and nothing depends on them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;

use crate::log::{Level, Line};

pub const VARIABLE: &str = "KRM_RUNNER_ANNOUNCE";

/// Between one datagram and the next.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

#[derive(Debug, PartialEq)]
pub struct Announcement {
    to: SocketAddr,
    message: String,
}

impl Announcement {
    /// Nothing when the variable is not set.
    pub fn take() -> Result<Option<Self>, String> {
        let Some(value) = std::env::var_os(VARIABLE) else { return Ok(None) };
        // SAFETY: called at the start of main, when there is no other thread.
        unsafe { std::env::remove_var(VARIABLE) };
        let wrong = || format!("the variable {VARIABLE} is set, but not to ADDRESS:PORT MESSAGE");
        value.to_str().and_then(Self::parse).map(Some).ok_or_else(wrong)
    }

    fn parse(text: &str) -> Option<Self> {
        let (to, message) = text.split_once(' ')?;
        let to = to.parse().ok()?;
        if message.is_empty() { None } else { Some(Self { to, message: message.to_owned() }) }
    }

    /// Once now, and a few times more in the next seconds.
    pub async fn send(self) {
        if let Err(error) = self.send_all().await {
            // The pod is found by its status all the same.
            Line::new(Level::Warning, "not announced").with("to", self.to).with("error", error).write();
        }
    }

    async fn send_all(&self) -> std::io::Result<()> {
        let here = if self.to.is_ipv6() {
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
        } else {
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
        };
        let socket = UdpSocket::bind(here).await?;
        // That nobody listened to one is told by the failure of the next, and does not matter.
        let first = socket.send_to(self.message.as_bytes(), self.to).await;
        for pause in PAUSES {
            tokio::time::sleep(pause).await;
            let _ = socket.send_to(self.message.as_bytes(), self.to).await;
        }
        first.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_what_to_say() {
        let parsed = Announcement::parse("10.0.0.7:9448 pod/secret").unwrap();
        assert_eq!((parsed.to, parsed.message.as_str()), ("10.0.0.7:9448".parse().unwrap(), "pod/secret"));
        assert!(Announcement::parse("[fd00::7]:9448 pod/secret").unwrap().to.is_ipv6());
        for wrong in ["", "10.0.0.7:9448", "10.0.0.7:9448 ", "10.0.0.7 pod/secret", "runner:9448 pod/secret"] {
            assert_eq!(Announcement::parse(wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn it_is_said_more_than_once() {
        let runner = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = runner.local_addr().unwrap();
        tokio::spawn(Announcement { to, message: "pod/secret".into() }.send());
        let mut buffer = [0; 64];
        for _ in 0..3 {
            let (size, _) = runner.recv_from(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..size], b"pod/secret");
        }
    }
}
