//! The command line in Go's style: `--flag=value`, `--flag value`, one dash or two; durations as `1h30m`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

/// What one program is told by its flags; of a flag that stands twice, the last one counts.
pub struct Flags<'a> {
    known: &'a [Flag],
    values: Vec<(&'static str, String)>,
    /// What comes after the flags, or after `--`.
    pub rest: Vec<OsString>,
}

pub struct Flag {
    pub name: &'static str,
    pub default: &'static str,
    pub meaning: &'static str,
}

/// Why a command line is not taken.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    /// It asks for help, and for nothing else.
    Help,
    Wrong(String),
}

impl<'a> Flags<'a> {
    pub fn parse(known: &'a [Flag], arguments: &[OsString]) -> Result<Self, Refusal> {
        let mut flags = Self { known, values: Vec::new(), rest: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let text = argument.to_str().unwrap_or("");
            if text == "--" {
                flags.rest.extend(arguments.cloned());
                break;
            }
            let Some(flag) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).filter(|flag| !flag.is_empty())
            else {
                flags.rest.push(argument.clone());
                flags.rest.extend(arguments.cloned());
                break;
            };
            let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            if matches!(name, "h" | "help") {
                return Err(Refusal::Help);
            }
            let Some(found) = known.iter().find(|flag| flag.name == name) else {
                return Err(Refusal::Wrong(format!("unknown flag --{name}; --help lists the flags")));
            };
            let value = match value {
                Some(value) => value.to_owned(),
                None => match arguments.next() {
                    Some(value) => value.to_string_lossy().into_owned(),
                    None => return Err(Refusal::Wrong(format!("flag --{name} needs a value"))),
                },
            };
            flags.values.push((found.name, value));
        }
        Ok(flags)
    }

    pub fn text(&self, name: &str) -> &str {
        let given = self.values.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.as_str());
        given.unwrap_or_else(|| self.known.iter().find(|flag| flag.name == name).map_or("", |flag| flag.default))
    }

    pub fn number(&self, name: &str, least: usize, most: usize) -> Result<usize, Refusal> {
        let text = self.text(name);
        text.parse()
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| Refusal::Wrong(format!("--{name}={text}: a number from {least} to {most} is needed")))
    }

    /// An IP address; None where the flag is empty.
    pub fn address(&self, name: &str) -> Result<Option<IpAddr>, Refusal> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |_| Refusal::Wrong(format!("--{name}={text}: an IP address such as 127.0.0.1 or ::1 is needed"));
        text.parse().map(Some).map_err(wrong)
    }

    pub fn duration(&self, name: &str) -> Result<Duration, Refusal> {
        let text = self.text(name);
        parse_duration(text)
            .ok_or_else(|| Refusal::Wrong(format!("--{name}={text}: a duration such as 30s, 1m30s or 500ms is needed")))
    }

    pub fn duration_of_at_least(&self, name: &str, least: Duration) -> Result<Duration, Refusal> {
        let duration = self.duration(name)?;
        if duration < least {
            let text = self.text(name);
            return Err(Refusal::Wrong(format!("--{name}={text}: a duration of at least {least:?} is needed")));
        }
        Ok(duration)
    }
}

/// One line for each flag.
pub fn help(flags: &[Flag]) -> String {
    let lines = flags.iter().map(|flag| {
        let default = if flag.default.is_empty() { String::new() } else { format!(" (default {})", flag.default) };
        format!("  --{:<23} {}{default}\n", flag.name, flag.meaning)
    });
    lines.collect()
}

/// As Go writes it: numbers with units, one after the other.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let (unit, seconds) =
            [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)]
                .into_iter()
                .find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        total += number * seconds;
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(total).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Flag] =
        &[Flag { name: "port", default: "9446", meaning: "" }, Flag { name: "wait", default: "10s", meaning: "" }];

    fn parse<'a>(arguments: &[&str]) -> Result<Flags<'a>, Refusal> {
        Flags::parse(KNOWN, &arguments.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn all_spellings_and_the_last_one_counts() {
        for arguments in [["--port", "1"], ["-port", "1"], ["--port=2", "--port=1"], ["-port=1", "--wait=1s"]] {
            assert_eq!(parse(&arguments).unwrap().number("port", 0, 65535), Ok(1));
        }
        assert_eq!(parse(&[]).unwrap().text("port"), "9446");
    }

    #[test]
    fn what_follows_belongs_to_the_function() {
        assert_eq!(parse(&["--port=1", "--", "fn", "--port", "--"]).unwrap().rest, ["fn", "--port", "--"]);
        assert_eq!(parse(&["--port=1", "fn", "--help"]).unwrap().rest, ["fn", "--help"]);
    }

    #[test]
    fn refusals_name_the_flag() {
        let wrong = |arguments: &[&str]| match parse(arguments).and_then(|flags| flags.number("port", 0, 9)) {
            Err(Refusal::Wrong(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(wrong(&["--nonsense"]).contains("unknown flag --nonsense"));
        assert!(wrong(&["--port"]).contains("--port needs a value"));
        assert!(wrong(&["--port=x"]).contains("--port=x: a number from 0 to 9"));
        assert!(wrong(&["--port=10"]).contains("--port=10"));
        assert!(matches!(parse(&["--help"]), Err(Refusal::Help)));
    }

    #[test]
    fn an_address_is_none_or_an_ip_address() {
        let known = &[Flag { name: "address", default: "", meaning: "" }];
        let address = |text: &str| Flags::parse(known, &[OsString::from(text)]).unwrap().address("address");
        assert_eq!(address("--address="), Ok(None));
        assert_eq!(address("--address=::1"), Ok(Some("::1".parse().unwrap())));
        assert!(matches!(address("--address=localhost"), Err(Refusal::Wrong(why)) if why.contains("localhost")));
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, milliseconds) in [("90s", 90_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("250ms", 250), ("0", 0)] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1d", "1s2", "9999999999999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
