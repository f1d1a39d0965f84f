//! The envelope check: is what a function wrote a `ResourceList`, and which results does it report?
//!
//! A `ResourceList` is one YAML (or JSON) document, a mapping whose `kind` is `ResourceList` and whose `apiVersion`, if
//! it has one, is of the group config.kubernetes.io. Where a key stands twice, the last one counts; merge keys count
//! too. [`recognise`] proves that at a glance where it can, [`parse`] reads every event of the document.

mod json;
mod merge;
mod recognise;
pub mod results;
mod value;
mod yaml;

pub use recognise::recognise;
use results::FunctionResult;
use value::Value;

const KIND: &str = "ResourceList";
const GROUP_PREFIX: &str = "config.kubernetes.io/";
const FIELDS: [&str; 3] = ["kind", "apiVersion", "results"];
const MAX_SHOWN: usize = 200;

/// What the check found out on its way.
#[derive(Debug, Default, PartialEq)]
pub struct Envelope {
    pub results: Vec<FunctionResult>,
}

/// The envelope after a full parse, or the reason why it is none. It ends soon after `is_cancelled` says so.
pub fn parse(data: &[u8], is_cancelled: &dyn Fn() -> bool) -> Result<Envelope, String> {
    // What is JSON is judged as JSON: YAML is stricter there (escapes of surrogate pairs).
    let json = if data.trim_ascii_start().starts_with(b"{") {
        std::str::from_utf8(data).ok().and_then(|text| json::read_object(text, &FIELDS))
    } else {
        None
    };
    let fields = match json {
        Some(fields) => fields,
        None => parse_yaml(data, is_cancelled)?,
    };
    match refusal(&fields) {
        Some(refusal) => Err(refusal),
        None => Ok(Envelope { results: results::results_from(fields.get("results")) }),
    }
}

/// The fields of the one document that matter.
fn parse_yaml(data: &[u8], is_cancelled: &dyn Fn() -> bool) -> Result<Value, String> {
    let mut documents = yaml::read_documents(data, &FIELDS, is_cancelled)?;
    match documents.len() {
        0 => Err("it is empty".into()),
        1 => match documents.remove(0) {
            yaml::Document::Mapping(fields) => Ok(fields),
            yaml::Document::Sequence => Err("it is a list, not a mapping".into()),
            yaml::Document::Text => Err("it is plain text, not a mapping".into()),
        },
        count => Err(format!("it has {count} YAML documents, not one")),
    }
}

fn refusal(fields: &Value) -> Option<String> {
    let shown = |value: &Value| value.to_json().chars().take(MAX_SHOWN).collect::<String>();
    match fields.get("kind") {
        None | Some(Value::Null) => return Some("it has no kind".into()),
        Some(Value::Text(kind)) if kind.is_empty() => return Some("it has no kind".into()),
        Some(Value::Text(kind)) if kind == KIND => {}
        Some(kind) => return Some(format!("its kind is {}, not {KIND}", shown(kind))),
    }
    match fields.get("apiVersion") {
        None | Some(Value::Null) => None,
        Some(Value::Text(version)) if version.starts_with(GROUP_PREFIX) => None,
        Some(version) => Some(format!("its apiVersion is {}, not one of {GROUP_PREFIX}", shown(version))),
    }
}
