//! The `results` of a `ResourceList`: what a function reports, and how a person reads it.
//!
//! Written by functions of any quality, so every field may be missing or of the wrong type: what cannot be read is
//! left out.

use std::fmt;

use super::value::Value;

const MAX_RESULTS: usize = 1000;

/// One result.
#[derive(Debug, PartialEq)]
pub struct FunctionResult {
    severity: String,
    resource: String,
    field: String,
    file: String,
    message: String,
}

impl FunctionResult {
    /// Whether the function calls it an error.
    pub fn is_error(&self) -> bool {
        self.severity == "error"
    }
}

/// `[severity] apiVersion/kind/namespace/name field in file: message`, as kpt's users know it.
impl fmt::Display for FunctionResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = if self.file.is_empty() { String::new() } else { format!("in {}", self.file) };
        let place = join([&self.resource, &self.field, &file], " ");
        let colon = if place.is_empty() { "" } else { ": " };
        write!(f, "[{}] {place}{colon}{}", self.severity, self.message)
    }
}

/// The results in the value of the list's `results` field.
pub fn results_from(results: Option<&Value>) -> Vec<FunctionResult> {
    let entries = match results {
        // Functions of v1alpha1 report {name, items}.
        Some(results @ Value::Map(_)) => results.get("items"),
        other => other,
    };
    let Some(Value::List(entries)) = entries else { return Vec::new() };
    entries.iter().take(MAX_RESULTS).filter(|entry| matches!(entry, Value::Map(_))).map(result_from).collect()
}

fn result_from(entry: &Value) -> FunctionResult {
    let reference = entry.get("resourceRef").unwrap_or(&Value::Null);
    let metadata = reference.get("metadata").unwrap_or(&Value::Null);
    let text = |value: &Value, key: &str| value.get(key).map_or("", Value::text).to_owned();
    let either = |key: &str| [text(reference, key), text(metadata, key)].into_iter().find(|found| !found.is_empty());
    let path = |key: &str| entry.get(key).map_or(String::new(), |value| text(value, "path"));
    let severity = text(entry, "severity");
    FunctionResult {
        severity: if severity.is_empty() { "info".into() } else { severity },
        resource: join(
            [
                &text(reference, "apiVersion"),
                &text(reference, "kind"),
                &either("namespace").unwrap_or_default(),
                &either("name").unwrap_or_default(),
            ],
            "/",
        ),
        field: path("field"),
        file: path("file"),
        message: text(entry, "message"),
    }
}

fn join<const N: usize>(parts: [&String; N], separator: &str) -> String {
    let present: Vec<&str> = parts.iter().map(|part| part.as_str()).filter(|part| !part.is_empty()).collect();
    present.join(separator)
}
