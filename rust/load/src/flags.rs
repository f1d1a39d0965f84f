//! The command line, in the notation of Go's flags: `-name=value`, or `-name value`.

use std::time::Duration;

use crate::target::{MAX_OUTSTANDING, MAX_TIMEOUT};

const MAX_SECONDS: f64 = 600.0;

pub const USAGE: &str = "\
Usage of load:
  -addresses string
    \tof the servers, on this machine, with commas between (default \"localhost:9445\")
  -ca string
    \tfile with the CA of the servers, in PEM: calls go by TLS
  -callers int
    \tcalls at a time (default 1)
  -image string
    \timage of the function
  -input string
    \tfile with the resource list
  -pause duration
    \thow long a caller waits between an answer and its next call
  -rate float
    \tcalls a second, started whether or not others are answered; 0: as fast as callers are answered
  -seconds float
    \thow long calls are started (default 1)
  -timeout duration
    \tdeadline of a call (default 2m0s)
  -token string
    \tbearer token of the calls
";

pub struct Flags {
    pub addresses: String,
    pub seconds: f64,
    pub callers: usize,
    pub pause: Duration,
    pub rate: f64,
    pub timeout: Duration,
    pub image: String,
    pub input: String,
    pub ca: String,
    pub token: String,
}

pub enum Parsed {
    Flags(Flags),
    Help,
}

impl Flags {
    /// Load is bounded, in time and in calls under way.
    pub fn check(&self) -> Result<(), String> {
        if !(self.seconds > 0.0 && self.seconds <= MAX_SECONDS && self.callers >= 1) {
            return Err(format!("at least one caller, and at most {MAX_SECONDS} seconds"));
        }
        let has_timeout = !self.timeout.is_zero() && self.timeout <= MAX_TIMEOUT;
        if !(has_timeout && self.rate >= 0.0 && self.rate * self.timeout.as_secs_f64() <= f64::from(MAX_OUTSTANDING)) {
            return Err(format!(
                "a timeout of at most {MAX_TIMEOUT:?}, and with -rate at most {MAX_OUTSTANDING} calls in that time"
            ));
        }
        Ok(())
    }
}

pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Parsed, String> {
    let mut flags = Flags {
        addresses: "localhost:9445".to_owned(),
        seconds: 1.0,
        callers: 1,
        pause: Duration::ZERO,
        rate: 0.0,
        timeout: MAX_TIMEOUT,
        image: String::new(),
        input: String::new(),
        ca: String::new(),
        token: String::new(),
    };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
            return Err(format!("{argument:?} is no flag"));
        };
        if matches!(flag, "h" | "help") {
            return Ok(Parsed::Help);
        }
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (flag, arguments.next().ok_or_else(|| format!("-{flag} needs a value"))?),
        };
        let wrong = || format!("invalid value {value:?} for -{name}");
        match name {
            "addresses" => flags.addresses = value,
            "seconds" => flags.seconds = value.parse().map_err(|_| wrong())?,
            "callers" => flags.callers = value.parse().map_err(|_| wrong())?,
            "pause" => flags.pause = duration(&value).ok_or_else(wrong)?,
            "rate" => flags.rate = value.parse().map_err(|_| wrong())?,
            "timeout" => flags.timeout = duration(&value).ok_or_else(wrong)?,
            "image" => flags.image = value,
            "input" => flags.input = value,
            "ca" => flags.ca = value,
            "token" => flags.token = value,
            _ => return Err(format!("no such flag: -{name}")),
        }
    }
    Ok(Parsed::Flags(flags))
}

/// As Go writes it: `1000ms`, `1.5s`, `2m0s`.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut sum = Duration::ZERO;
    let mut rest = text;
    loop {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len()));
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        if tail.is_empty() {
            return Some(sum);
        }
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(arguments: &[&str]) -> Result<Flags, String> {
        match parse(arguments.iter().map(ToString::to_string))? {
            Parsed::Flags(flags) => Ok(flags),
            Parsed::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn both_notations_of_a_flag() {
        let found = flags(&["-seconds=2.5", "--callers", "8", "-pause=50ms", "-addresses", "a:1,b:2"]).unwrap();
        assert_eq!((found.seconds, found.callers), (2.5, 8));
        assert_eq!((found.pause, found.addresses.as_str()), (Duration::from_millis(50), "a:1,b:2"));
        assert_eq!(found.timeout, MAX_TIMEOUT);
        for wrong in [&["-callers=some"][..], &["-callers"], &["callers=1"], &["-other=1"], &["-h"]] {
            assert!(flags(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn durations_as_go_writes_them() {
        for (text, milliseconds) in [("0", 0), ("0ms", 0), ("1000ms", 1000), ("1.5s", 1500), ("1m0.25s", 60_250)] {
            assert_eq!(duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "1", "s", "1d", "-1s", "1s2", "1..5s"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn load_is_bounded() {
        assert!(flags(&[]).unwrap().check().is_ok());
        assert!(flags(&["-rate=20000", "-timeout=1s"]).unwrap().check().is_ok());
        for wrong in
            ["-seconds=0", "-seconds=601", "-seconds=NaN", "-callers=0", "-timeout=0", "-timeout=3m", "-rate=200"]
        {
            assert!(flags(&[wrong]).unwrap().check().is_err(), "{wrong}");
        }
    }
}
