//! Structured lines on stderr, key=value or JSON, as the runner writes them.
//!
//! Levels follow `--verbosity`: 0 errors, 1 warnings too, 2 one line per call, 3 and more what happens inside. A reader
//! of stderr that is gone, or that does not read, must never stop a call: lines that cannot be written are lost.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

static VERBOSITY: AtomicU8 = AtomicU8::new(2);
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
static WAS_CUT: AtomicBool = AtomicBool::new(false);
static IS_JSON: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub enum Level {
    Error = 0,
    Warning = 1,
    Info = 2,
    Debug = 3,
}

pub fn set_verbosity(verbosity: u8) {
    VERBOSITY.store(verbosity, Ordering::Relaxed);
}

pub fn is_enabled(level: Level) -> bool {
    level as u8 <= VERBOSITY.load(Ordering::Relaxed)
}

/// Each line is an object from now on.
pub fn set_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

/// A line that is being put together; nothing when its level is not wanted.
pub struct Line(Option<Text>);

struct Text {
    text: String,
    is_json: bool,
}

impl Line {
    pub fn new(level: Level, event: &str) -> Self {
        if !is_enabled(level) {
            return Self(None);
        }
        let name = match level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
        };
        let text = Text { text: String::new(), is_json: IS_JSON.load(Ordering::Relaxed) };
        Self(Some(text)).with("timestamp", timestamp(SystemTime::now())).with("level", name).with("event", event)
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: impl Display) -> Self {
        if let Some(line) = &mut self.0 {
            line.add(key, &value.to_string());
        }
        self
    }

    pub fn write(self) {
        self.write_within(Duration::ZERO);
    }

    /// Write a line that may be much longer than a pipe holds, for debugging: wait for the reader, but not long.
    pub fn write_with_timeout(self) {
        self.write_within(WRITE_TIMEOUT);
    }

    fn write_within(self, time: Duration) {
        let Some(line) = self.0 else { return };
        let end = Instant::now() + time;
        let mut stderr = std::io::stderr().lock();
        // A line that was cut off must not swallow the next one.
        let line =
            if WAS_CUT.swap(false, Ordering::Relaxed) { format!("\n{}", line.finished()) } else { line.finished() };
        for (number, part) in line.as_bytes().chunks(libc::PIPE_BUF).enumerate() {
            let left = end.saturating_duration_since(Instant::now());
            if !takes_bytes(stderr.as_raw_fd(), left) || stderr.write_all(part).is_err() {
                WAS_CUT.store(number > 0, Ordering::Relaxed);
                return;
            }
        }
    }
}

impl Text {
    fn add(&mut self, key: &str, value: &str) {
        let before = match (self.is_json, self.text.is_empty()) {
            (true, true) => "{",
            (true, false) => ", ",
            (false, true) => "",
            (false, false) => " ",
        };
        let is_plain = !value.is_empty()
            && value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'=' && byte != b'\\');
        let text = &mut self.text;
        let _ = if self.is_json {
            write!(text, "{before}\"{key}\": {}", quoted(value, |text, code| write!(text, "\\u{code:04x}")))
        } else if is_plain {
            write!(text, "{before}{key}={value}")
        } else {
            write!(text, "{before}{key}={}", quoted(value, |text, code| write!(text, "\\x{code:02x}")))
        };
    }

    fn finished(self) -> String {
        self.text + if self.is_json { "}\n" } else { "\n" }
    }
}

/// Whether a write of at most `PIPE_BUF` bytes returns at once: one that waits would stop every call, and health too.
/// (The descriptor is shared with whoever started us, so it must not be made non-blocking.)
fn takes_bytes(descriptor: RawFd, within: Duration) -> bool {
    let milliseconds = libc::c_int::try_from(within.as_millis()).unwrap_or(libc::c_int::MAX);
    let mut watched = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, as is said.
    unsafe { libc::poll(&raw mut watched, 1, milliseconds) == 1 }
}

/// On one line, and without anything that a terminal would obey.
fn quoted(value: &str, control: impl Fn(&mut String, u32) -> std::fmt::Result) -> String {
    let mut text = String::from("\"");
    for character in value.chars() {
        match character {
            '\\' | '"' => text.extend(['\\', character]),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            character if character.is_control() => {
                let _ = control(&mut text, u32::from(character));
            }
            character => text.push(character),
        }
    }
    text + "\""
}

fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86400, since.as_secs() % 86400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_micros()
    )
}

/// The date so many days after 1970-01-01, by the rules of the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    let mut left = days;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_right_around_leap_days() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn a_full_pipe_takes_nothing() {
        let (_reader, mut writer) = std::io::pipe().unwrap();
        assert!(takes_bytes(writer.as_raw_fd(), Duration::ZERO));
        while takes_bytes(writer.as_raw_fd(), Duration::ZERO) {
            writer.write_all(&[0; libc::PIPE_BUF]).unwrap();
        }
    }

    #[test]
    fn values_that_need_it_are_quoted() {
        assert_eq!(rendered(false), "a=plain b=\"two words\\n\\\"x\\\"\" c=\"\" d=\"\\x1b[31m\"\n");
    }

    #[test]
    fn a_line_may_be_an_object() {
        let expected = r#"{"a": "plain", "b": "two words\n\"x\"", "c": "", "d": "\u001b[31m"}"#;
        assert_eq!(rendered(true).trim_end(), expected);
    }

    fn rendered(is_json: bool) -> String {
        let line = Line(Some(Text { text: String::new(), is_json }))
            .with("a", "plain")
            .with("b", "two words\n\"x\"")
            .with("c", "")
            .with("d", "\x1b[31m");
        line.0.unwrap().finished()
    }
}
