//! Is it a `ResourceList`? One pass over the bytes, that only ever says yes.
//!
//! Of block YAML it reads the lines that start in the first column, of JSON the whole. What it cannot prove goes to
//! the full parse. The rule between the two: on every well-formed document the same verdict, and never a no to what a
//! full parse accepts. Damage below the top level may pass: whoever uses the list parses it anyway.

use memchr::{memchr, memchr_iter, memmem};

use super::{Envelope, FIELDS, json, refusal, results, yaml};
use crate::envelope::results::FunctionResult;
use crate::envelope::value::Value;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const MAX_TOP_LEVEL_LINES: usize = 64;
const MAX_GLANCED_RESULTS: usize = 64 * 1024;

/// The envelope, if a glance proves that `data` is a `ResourceList`; `None` means: parse it.
///
/// Its results may be left out if none of them is of severity error.
pub fn recognise(data: &[u8]) -> Option<Envelope> {
    let text = std::str::from_utf8(data).ok()?;
    if !has_plain_lines(data) {
        return None;
    }
    let start = skip_leading(data);
    if data[start..].trim_ascii_start().first() == Some(&b'{') {
        return recognise_json(text);
    }
    recognise_block(data, start)
}

fn recognise_json(text: &str) -> Option<Envelope> {
    let fields = json::read_object(text, &FIELDS)?;
    refusal(&fields).is_none().then(|| Envelope { results: results::results_from(fields.get("results")) })
}

/// No line break but LF and CRLF: YAML 1.1 knows others.
fn has_plain_lines(data: &[u8]) -> bool {
    let lone_return = memchr_iter(b'\r', data).any(|position| data.get(position + 1) != Some(&b'\n'));
    let exotic = || {
        [b"\xc2\x85".as_slice(), b"\xe2\x80\xa8", b"\xe2\x80\xa9"].iter().any(|mark| memmem::find(data, mark).is_some())
    };
    !lone_return && (data.is_ascii() || !exotic())
}

/// A byte order mark, empty lines, comments and one `---` may come before the envelope.
fn skip_leading(data: &[u8]) -> usize {
    let start = if data.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let start = skip_blank_lines(data, start);
    if !data[start..].starts_with(b"---") {
        return start;
    }
    match end_of_line(data, start + 3) {
        Some(end) if is_tail(&data[start + 3..end]) => skip_blank_lines(data, end + 1),
        _ => start,
    }
}

/// Past the lines that are empty or hold nothing but a comment.
fn skip_blank_lines(data: &[u8], mut start: usize) -> usize {
    while let Some(end) = end_of_line(data, start) {
        let line = data[start..end].strip_suffix(b"\r").unwrap_or(&data[start..end]);
        let content = line.iter().position(|&byte| byte != b' ').map(|position| line[position]);
        if !matches!(content, None | Some(b'#')) {
            break;
        }
        start = end + 1;
    }
    start
}

fn end_of_line(data: &[u8], start: usize) -> Option<usize> {
    memchr(b'\n', &data[start..]).map(|offset| start + offset)
}

/// What may follow a value on its line: spaces and a comment. A comment needs a space before it.
fn is_tail(rest: &[u8]) -> bool {
    let rest = rest.strip_suffix(b"\r").unwrap_or(rest);
    match rest.iter().position(|byte| !is_space(*byte)) {
        None => true,
        Some(position) => rest[position] == b'#' && position > 0,
    }
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn recognise_block(data: &[u8], start: usize) -> Option<Envelope> {
    let mut kind = None;
    let mut api_version = None;
    let mut section: Option<(usize, usize)> = None;
    let mut results_begin = None;
    for (count, (begin, end)) in FirstColumnLines::new(data, start).enumerate() {
        if count >= MAX_TOP_LEVEL_LINES {
            return None;
        }
        let line = TopLevelKey::read(&data[begin..end])?;
        if line.value != Scalar::None && entry_follows(data, end) {
            return None;
        }
        if let Some(results_begin) = results_begin.take() {
            section = Some((results_begin, begin));
        }
        let slot = match line.key {
            b"kind" => &mut kind,
            b"apiVersion" => &mut api_version,
            b"results" => {
                results_begin = Some(begin);
                continue;
            }
            _ => continue,
        };
        match line.value {
            Scalar::Text(text) if !text.is_empty() && slot.is_none() && scalar_ends(data, end) => *slot = Some(text),
            _ => return None,
        }
    }
    if let Some(results_begin) = results_begin {
        section = Some((results_begin, data.len()));
    }
    let mut fields = Vec::new();
    for (name, value) in [("kind", kind), ("apiVersion", api_version)] {
        if let Some(value) = value {
            fields.push((name.to_owned(), Value::Text(String::from_utf8_lossy(value).into_owned())));
        }
    }
    refusal(&Value::Map(fields)).is_none().then(|| Envelope { results: glance_at_results(data, section) })
}

/// Begin and end of every line that starts in the first column and is neither a comment nor an entry of a sequence;
/// the first one stands at `start`, whatever it is.
struct FirstColumnLines<'a> {
    data: &'a [u8],
    breaks: memchr::Memchr<'a>,
    offset: usize,
    first: Option<usize>,
}

impl<'a> FirstColumnLines<'a> {
    fn new(data: &'a [u8], start: usize) -> Self {
        Self { data, breaks: memchr_iter(b'\n', &data[start..]), offset: start, first: Some(start) }
    }

    fn extent(&self, begin: usize) -> (usize, usize) {
        (begin, end_of_line(self.data, begin).unwrap_or(self.data.len()))
    }
}

impl Iterator for FirstColumnLines<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        if let Some(start) = self.first.take() {
            return Some(self.extent(start));
        }
        for line_break in self.breaks.by_ref() {
            let begin = self.offset + line_break + 1;
            let counts = match self.data.get(begin) {
                None | Some(b' ' | b'\n' | b'\r' | b'#') => false,
                Some(b'-') => !matches!(self.data.get(begin + 1), None | Some(b' ' | b'\n' | b'\r')),
                Some(_) => true,
            };
            if counts {
                return Some(self.extent(begin));
            }
        }
        None
    }
}

#[derive(PartialEq)]
enum Scalar<'a> {
    None,
    Text(&'a [u8]),
    /// An empty collection, or a block scalar that goes on in indented lines.
    Other,
}

/// `key:` with a value that is over at the end of its line, or that goes on in indented lines.
struct TopLevelKey<'a> {
    key: &'a [u8],
    value: Scalar<'a>,
}

impl<'a> TopLevelKey<'a> {
    fn read(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|byte| !(byte.is_ascii_alphanumeric() || b"_.-".contains(byte)))?;
        let key = &line[..colon];
        let starts_well = key.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_');
        if line[colon] != b':' || !starts_well {
            return None;
        }
        let rest = &line[colon + 1..];
        if is_tail(rest) {
            return Some(Self { key, value: Scalar::None });
        }
        let spaces = rest.iter().take_while(|byte| is_space(**byte)).count();
        if spaces == 0 {
            return None;
        }
        Some(Self { key, value: read_scalar(&rest[spaces..])? })
    }
}

fn read_scalar(text: &[u8]) -> Option<Scalar<'_>> {
    let (value, tail) = match text[0] {
        quote @ (b'"' | b'\'') => {
            let end = memchr(quote, &text[1..])? + 1;
            let inner = &text[1..end];
            if quote == b'"' && inner.contains(&b'\\') {
                return None;
            }
            (Scalar::Text(inner), &text[end + 1..])
        }
        b'[' | b'{' => (Scalar::Other, text.strip_prefix(b"[]").or_else(|| text.strip_prefix(b"{}"))?),
        b'|' | b'>' => {
            let indicator = usize::from(matches!(text.get(1), Some(b'+' | b'-')));
            (Scalar::Other, &text[1 + indicator..])
        }
        first if first.is_ascii_alphanumeric() || b"_./".contains(&first) => {
            let end = text.iter().position(|&byte| byte == b':' || byte == b'#').unwrap_or(text.len());
            let length = text[..end].iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1);
            (Scalar::Text(&text[..length]), &text[length..])
        }
        _ => return None,
    };
    is_tail(tail).then_some(value)
}

/// From the end of a line on: the lines that are empty, and then what?
fn after_empty_lines(data: &[u8], mut end: usize) -> usize {
    while data.get(end) == Some(&b'\n') {
        let next = end_of_line(data, end + 1).unwrap_or(data.len());
        let line = &data[end + 1..next];
        if !line.strip_suffix(b"\r").unwrap_or(line).iter().all(|byte| is_space(*byte)) {
            break;
        }
        end = next;
    }
    end
}

/// After a scalar's line: the next line that is not empty starts in the first column, so the scalar is over.
fn scalar_ends(data: &[u8], end: usize) -> bool {
    let end = after_empty_lines(data, end);
    !matches!(data.get(end + 1), Some(b' ' | b'\t' | b'\r' | b'\n' | b'-'))
}

/// The next line that is not empty is an entry of a sequence, which only a key without a value may have.
fn entry_follows(data: &[u8], end: usize) -> bool {
    let end = after_empty_lines(data, end);
    data.get(end + 1) == Some(&b'-') && matches!(data.get(end + 2), Some(b' ' | b'\r' | b'\n'))
}

/// The results of a list that is fine: worth a look while they are small, never worth an error.
///
/// Of a success only results of severity error matter: a section that cannot hold such a result, not even in escapes,
/// is not read.
fn glance_at_results(data: &[u8], section: Option<(usize, usize)>) -> Vec<FunctionResult> {
    let Some((begin, end)) = section else { return Vec::new() };
    let section = &data[begin..end];
    if section.len() > MAX_GLANCED_RESULTS
        || (memmem::find(section, b"error").is_none() && memchr(b'\\', section).is_none())
    {
        return Vec::new();
    }
    match yaml::read_documents(section, &["results"], &|| false) {
        Ok(documents) => match documents.first() {
            Some(yaml::Document::Mapping(fields)) => results::results_from(fields.get("results")),
            _ => Vec::new(),
        },
        Err(_) => Vec::new(),
    }
}
