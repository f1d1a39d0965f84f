//! A JSON document, read once: the whole of it is checked, and a few fields of its top level are kept.
//!
//! As lenient as readers of JSON in use: `NaN` and `Infinity` are numbers, and half of a surrogate pair is a character
//! (it is replaced). What is nested too deep is left to the reader of YAML, which refuses it.

use super::value::Value;

const MAX_DEPTH: usize = 1000;
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// The fields called `names`, if the text is one JSON object and nothing else.
pub fn read_object(text: &str, names: &[&str]) -> Option<Value> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mut reader = Reader { bytes: text.as_bytes(), position: 0 };
    reader.skip_space();
    let object = reader.object(names)?;
    reader.skip_space();
    (reader.position == reader.bytes.len()).then_some(object)
}

struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Reader<'_> {
    fn object(&mut self, names: &[&str]) -> Option<Value> {
        let mut entries = Vec::new();
        self.members(|reader, key| {
            if names.contains(&key.as_str()) {
                let value = reader.value(1, true)?;
                entries.retain(|(name, _)| *name != key);
                entries.push((key, value));
            } else {
                reader.value(1, false)?;
            }
            Some(())
        })?;
        Some(Value::Map(entries))
    }

    /// A value; built when it is kept, else only checked.
    fn value(&mut self, depth: usize, keep: bool) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'{' => {
                let mut entries = Vec::new();
                self.members(|reader, key| {
                    let value = reader.value(depth + 1, keep)?;
                    if keep {
                        entries.push((key, value));
                    }
                    Some(())
                })?;
                Some(Value::Map(entries))
            }
            b'[' => self.list(depth, keep),
            b'"' => self.string(keep).map(Value::Text),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null").map(|_| Value::Null),
            b'N' => self.word("NaN"),
            b'I' => self.word("Infinity"),
            _ => self.number(keep),
        }
    }

    fn members(&mut self, mut member: impl FnMut(&mut Self, String) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        self.skip_space();
        if self.accept(b'}') {
            return Some(());
        }
        loop {
            self.skip_space();
            let key = self.string(true)?;
            self.skip_space();
            self.expect(b':')?;
            self.skip_space();
            member(self, key)?;
            self.skip_space();
            if self.accept(b'}') {
                return Some(());
            }
            self.expect(b',')?;
        }
    }

    fn list(&mut self, depth: usize, keep: bool) -> Option<Value> {
        self.expect(b'[')?;
        let mut items = Vec::new();
        self.skip_space();
        if self.accept(b']') {
            return Some(Value::List(items));
        }
        loop {
            self.skip_space();
            let item = self.value(depth + 1, keep)?;
            if keep {
                items.push(item);
            }
            self.skip_space();
            if self.accept(b']') {
                return Some(Value::List(items));
            }
            self.expect(b',')?;
        }
    }

    fn string(&mut self, keep: bool) -> Option<String> {
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            let rest = &self.bytes[self.position..];
            let plain = rest.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20)?;
            if keep {
                text.extend_from_slice(&rest[..plain]);
            }
            self.position += plain;
            match self.next()? {
                b'"' => return String::from_utf8(text).ok(),
                b'\\' => {
                    let character = self.escape()?;
                    if keep {
                        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                }
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        Some(match self.next()? {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.unicode_escape()?,
            _ => return None,
        })
    }

    fn unicode_escape(&mut self) -> Option<char> {
        let first = self.four_digits()?;
        if (0xd800..0xdc00).contains(&first) && self.bytes[self.position..].starts_with(b"\\u") {
            let before = self.position;
            self.position += 2;
            let second = self.four_digits()?;
            if (0xdc00..0xe000).contains(&second) {
                return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
            }
            self.position = before;
        }
        Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.position..self.position + 4)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        self.position += 4;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    fn number(&mut self, keep: bool) -> Option<Value> {
        let start = self.position;
        self.accept(b'-');
        if self.peek() == Some(b'I') {
            self.word("Infinity")?;
        } else {
            if !self.accept(b'0') {
                self.digits()?;
            }
            if self.accept(b'.') {
                self.digits()?;
            }
            if self.accept(b'e') || self.accept(b'E') {
                let _ = self.accept(b'+') || self.accept(b'-');
                self.digits()?;
            }
        }
        let text = &self.bytes[start..self.position];
        Some(Value::Other(if keep { String::from_utf8_lossy(text).into_owned() } else { String::new() }))
    }

    fn digits(&mut self) -> Option<()> {
        let count = self.bytes[self.position..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.position += count;
        (count > 0).then_some(())
    }

    fn word(&mut self, word: &str) -> Option<Value> {
        self.bytes[self.position..].starts_with(word.as_bytes()).then(|| {
            self.position += word.len();
            Value::Other(word.to_owned())
        })
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.position += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.position += 1;
        Some(byte)
    }

    fn accept(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.accept(byte).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Value> {
        read_object(text, &["kind", "results"])
    }

    #[test]
    fn keeps_what_it_is_asked_for() {
        let found = read(" {\"a\": [1, {\"kind\": 2}], \"kind\": \"x\\u0041\\n\", \"results\": [true, null, -1.5e3]} ");
        assert_eq!(found.unwrap().to_json(), r#"{"kind": "xA\n", "results": [true, null, -1.5e3]}"#);
    }

    #[test]
    fn the_last_of_two_keys_counts() {
        assert_eq!(read(r#"{"kind": 1, "kind": "b"}"#).unwrap().to_json(), r#"{"kind": "b"}"#);
    }

    #[test]
    fn surrogates_pair_or_are_replaced() {
        let found = read(r#"{"kind": "\ud83d\ude00 \ud83d \ude00 \ud83dA"}"#).unwrap();
        assert_eq!(found.get("kind").unwrap().text(), "\u{1f600} \u{fffd} \u{fffd} \u{fffd}A");
    }

    #[test]
    fn refuses_what_is_no_json() {
        for text in [
            "",
            "[]",
            "{",
            "{}{}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":1.}",
            "{\"a\":+1}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12g4\"}",
            "{\"a\":\"\\u+123\"}",
            "{\"a\":[1,]}",
            "{\"a\":tru}",
            "{\"a\":\"",
            "{\"a\":\"\\",
            "{\"a\":\"\\u12",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn deep_nesting_is_left_to_others() {
        let deep = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&deep(900)).is_some());
        assert!(read(&deep(2000)).is_none());
    }
}
