//! The few shapes of data that the envelope check looks at.

use std::collections::HashMap;
use std::fmt::Write;

/// A value of YAML or JSON, as far as anyone asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
    /// A number or a boolean of JSON, as it was written.
    Other(String),
}

impl Value {
    /// The entry of a mapping; of a key that stands twice, the last one.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Map(entries) => entries.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The text, if it is one; else nothing.
    pub fn text(&self) -> &str {
        if let Value::Text(text) = self { text } else { "" }
    }

    /// As JSON in ASCII, for messages.
    pub fn to_json(&self) -> String {
        let mut json = String::new();
        self.write_json(&mut json);
        json
    }

    fn write_json(&self, out: &mut String) {
        match self {
            Value::Null => out.push_str("null"),
            Value::Other(text) => out.push_str(text),
            Value::Text(text) => write_json_text(text, out),
            Value::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    item.write_json(out);
                }
                out.push(']');
            }
            Value::Map(entries) => {
                // Of a key that stands twice the last value counts, in the place of the first.
                let mut last: HashMap<&str, &Value> =
                    entries.iter().map(|(key, value)| (key.as_str(), value)).collect();
                let distinct = entries.iter().filter_map(|(key, _)| Some((key, last.remove(key.as_str())?)));
                out.push('{');
                for (index, (key, value)) in distinct.enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    write_json_text(key, out);
                    out.push_str(": ");
                    value.write_json(out);
                }
                out.push('}');
            }
        }
    }
}

fn write_json_text(text: &str, out: &mut String) {
    out.push('"');
    for unit in text.encode_utf16() {
        match unit {
            0x22 => out.push_str("\\\""),
            0x5c => out.push_str("\\\\"),
            0x0a => out.push_str("\\n"),
            0x0d => out.push_str("\\r"),
            0x09 => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            0x20..=0x7e => out.push(char::from(u8::try_from(unit).unwrap_or(b'?'))),
            _ => {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::Value;

    #[test]
    fn json_is_ascii_and_spaced() {
        let value = Value::Map(vec![
            ("a".into(), Value::List(vec![Value::Null, Value::Text("\"Ä😀\n".into())])),
            ("b".into(), Value::Other("1.5".into())),
        ]);
        assert_eq!(value.to_json(), r#"{"a": [null, "\"\u00c4\ud83d\ude00\n"], "b": 1.5}"#);
    }

    #[test]
    fn the_last_of_two_keys_counts() {
        let value = Value::Map(vec![("a".into(), Value::Null), ("a".into(), Value::Text("x".into()))]);
        assert_eq!(value.get("a").map(Value::text), Some("x"));
        assert_eq!(value.to_json(), r#"{"a": "x"}"#);
    }
}
