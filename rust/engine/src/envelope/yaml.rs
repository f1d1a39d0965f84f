//! Reading a YAML stream by libyaml's events, for a few fields of each document's top level.
//!
//! Nothing else is built, so that megabytes cost no memory, and what is nested without measure is refused before it
//! costs anything. Knows nothing of what the fields mean. The parser is the same as the runner's (a translation of
//! libyaml), so that both give the same verdict and the same reason.

use std::collections::HashMap;
use std::ffi::CStr;
use std::mem::MaybeUninit;

#[allow(clippy::unsafe_removed_from_name)] // what is unsafe about it is all in `Parser`
use unsafe_libyaml as libyaml;

use super::merge;
use super::value::Value;

const MAX_DEPTH: usize = 1000;
const MAX_VALUE_DEPTH: usize = 16;
/// Merge keys that refer to another place are resolved in documents up to this size: it takes a whole parse.
const MAX_MERGED: usize = 256 * 1024;
const MERGE: &str = "<<";
/// So many bytes of text may aliases inside a value stand for, all together; the others stand for nothing.
pub const MAX_COPIED: usize = 8 * 1024 * 1024;

/// A document that is not empty.
pub enum Document {
    /// The fields that were asked for.
    Mapping(Value),
    Sequence,
    Text,
}

pub const NULL_TAG: &str = "tag:yaml.org,2002:null";

/// One step of the parser, as far as anyone looks at it.
pub enum Event {
    DocumentStart,
    Scalar { text: String, is_plain: bool, tag: Option<String>, anchor: Option<String> },
    Alias(String),
    SequenceStart { anchor: Option<String> },
    MappingStart { anchor: Option<String> },
    CollectionEnd,
    Other,
}

impl Event {
    fn nesting(&self) -> isize {
        match self {
            Event::SequenceStart { .. } | Event::MappingStart { .. } => 1,
            Event::CollectionEnd => -1,
            _ => 0,
        }
    }
}

/// Every document that is not empty. The whole stream is read before anything is returned: a syntax error anywhere is
/// the reason that is returned, on one line.
pub fn read_documents(data: &[u8], names: &[&str], is_cancelled: &dyn Fn() -> bool) -> Result<Vec<Document>, String> {
    let mut reader = EventReader::new(data, is_cancelled);
    let mut documents = Vec::new();
    while let Some(event) = reader.next()? {
        if matches!(event, Event::DocumentStart) {
            documents.extend(read_document(&mut reader, names)?);
        }
    }
    if reader.merges_elsewhere
        && documents.len() == 1
        && data.len() <= MAX_MERGED
        && let Some(fields) = merge::load_merged(data, names)
    {
        return Ok(vec![Document::Mapping(fields)]);
    }
    Ok(documents)
}

fn read_document(reader: &mut EventReader, names: &[&str]) -> Result<Option<Document>, String> {
    let root = reader.expect()?;
    Ok(match root {
        Event::MappingStart { .. } => Some(Document::Mapping(Value::Map(read_fields(reader, names, false)?))),
        Event::SequenceStart { .. } => {
            reader.skip(&root)?;
            Some(Document::Sequence)
        }
        _ => match reader.value(root, 0)? {
            Value::Null => None,
            _ => Some(Document::Text),
        },
    })
}

type Fields = Vec<(String, Value)>;

/// The fields that are asked for, to the end of the mapping.
fn read_fields(reader: &mut EventReader, names: &[&str], is_merged: bool) -> Result<Fields, String> {
    let mut fields = Fields::new();
    let mut merged = Fields::new();
    loop {
        let key = match reader.expect()? {
            Event::CollectionEnd => break,
            key => reader.value(key, 0)?,
        };
        let value = reader.expect()?;
        match &key {
            Value::Text(key) if key == MERGE && !is_merged => {
                if matches!(value, Event::MappingStart { .. }) {
                    for (name, value) in read_fields(reader, names, true)? {
                        // The earlier merge counts.
                        if merged.iter().all(|(known, _)| *known != name) {
                            merged.push((name, value));
                        }
                    }
                } else {
                    reader.merges_elsewhere = true;
                    reader.skip(&value)?;
                }
            }
            Value::Text(key) if names.contains(&key.as_str()) => {
                let value = reader.value(value, 0)?;
                fields.retain(|(known, _)| known != key);
                fields.push((key.clone(), value));
            }
            _ => reader.skip(&value)?,
        }
    }
    merged.append(&mut fields);
    Ok(merged)
}

/// Walks the events of libyaml; remembers anchored scalars, since a kind may be an alias.
pub struct EventReader<'a> {
    parser: Parser<'a>,
    is_cancelled: &'a dyn Fn() -> bool,
    anchored: HashMap<String, Value>,
    to_copy: usize,
    depth: isize,
    /// Whether the top level takes fields from a mapping that stands at another place.
    merges_elsewhere: bool,
}

impl<'a> EventReader<'a> {
    pub fn new(data: &'a [u8], is_cancelled: &'a dyn Fn() -> bool) -> Self {
        Self {
            parser: Parser::new(data),
            is_cancelled,
            anchored: HashMap::new(),
            to_copy: MAX_COPIED,
            depth: 0,
            merges_elsewhere: false,
        }
    }

    /// The next event; nothing at the end of the stream.
    pub fn next(&mut self) -> Result<Option<Event>, String> {
        let Some(event) = self.parser.next()? else { return Ok(None) };
        if let Event::Scalar { text, is_plain, tag, anchor } = &event {
            if let Some(anchor) = anchor {
                self.anchored.insert(anchor.clone(), scalar(text.clone(), *is_plain, tag.as_deref()));
            }
            return Ok(Some(event));
        }
        self.depth += event.nesting();
        if self.depth > MAX_DEPTH.cast_signed() {
            // The parser's time grows with the square of the depth, and nobody reads such a document.
            return Err(format!("it is nested deeper than {MAX_DEPTH} levels"));
        }
        if (self.is_cancelled)() {
            return Err("nobody waits for it any more".into());
        }
        Ok(Some(event))
    }

    pub fn expect(&mut self) -> Result<Event, String> {
        self.next()?.ok_or_else(|| "it ends in the middle of a document".into())
    }

    /// Read to the end of the node that starts with `event`.
    fn skip(&mut self, event: &Event) -> Result<(), String> {
        let mut depth = event.nesting();
        while depth > 0 {
            depth += self.expect()?.nesting();
        }
        Ok(())
    }

    /// What an alias stands for, as far as it is a scalar, and they do not stand for more than any memory holds.
    fn copy_of(&mut self, anchor: &str, depth: usize) -> Value {
        let Some(value) = self.anchored.get(anchor) else { return Value::Null };
        if depth > 0 {
            let Some(left) = self.to_copy.checked_sub(value.text().len()) else { return Value::Null };
            self.to_copy = left;
        }
        value.clone()
    }

    /// The node that starts with `event`; what is nested too deep is left out.
    fn value(&mut self, event: Event, depth: usize) -> Result<Value, String> {
        match event {
            Event::Scalar { text, is_plain, tag, .. } => Ok(scalar(text, is_plain, tag.as_deref())),
            Event::Alias(anchor) => Ok(self.copy_of(&anchor, depth)),
            event if depth >= MAX_VALUE_DEPTH => {
                self.skip(&event)?;
                Ok(Value::Null)
            }
            Event::SequenceStart { .. } => {
                let mut items = Vec::new();
                loop {
                    match self.expect()? {
                        Event::CollectionEnd => return Ok(Value::List(items)),
                        item => items.push(self.value(item, depth + 1)?),
                    }
                }
            }
            _ => {
                let mut entries = Vec::new();
                loop {
                    let key = match self.expect()? {
                        Event::CollectionEnd => return Ok(Value::Map(entries)),
                        key => self.value(key, depth + 1)?,
                    };
                    let value = self.expect()?;
                    let value = self.value(value, depth + 1)?;
                    if let Value::Text(key) = key {
                        entries.push((key, value));
                    }
                }
            }
        }
    }
}

/// Its text; nothing for the ways to write null.
pub fn scalar(text: String, is_plain: bool, tag: Option<&str>) -> Value {
    let is_null = match tag {
        Some(tag) => tag == NULL_TAG,
        None => is_plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"),
    };
    if is_null { Value::Null } else { Value::Text(text) }
}

/// libyaml's parser, which is C in Rust's clothes: everything unsafe about it is here.
struct Parser<'a> {
    // In a box: the parser holds a pointer to itself.
    raw: Box<MaybeUninit<libyaml::yaml_parser_t>>,
    _input: std::marker::PhantomData<&'a [u8]>,
    is_over: bool,
}

impl<'a> Parser<'a> {
    fn new(data: &'a [u8]) -> Self {
        let mut raw = Box::new(MaybeUninit::uninit());
        // SAFETY: `raw` is valid for writes and stays where it is; `data` outlives the parser by its lifetime.
        unsafe {
            let parser = raw.as_mut_ptr();
            assert!(libyaml::yaml_parser_initialize(parser).ok, "out of memory");
            libyaml::yaml_parser_set_input_string(parser, data.as_ptr(), data.len() as u64);
        }
        Self { raw, _input: std::marker::PhantomData, is_over: false }
    }

    fn next(&mut self) -> Result<Option<Event>, String> {
        if self.is_over {
            return Ok(None);
        }
        let mut event = MaybeUninit::<libyaml::yaml_event_t>::uninit();
        // SAFETY: the parser is initialized; the event is initialized by a successful parse, read by the type that it
        // says it has, and deleted once.
        unsafe {
            if libyaml::yaml_parser_parse(self.raw.as_mut_ptr(), event.as_mut_ptr()).fail {
                self.is_over = true;
                return Err(reason(&*self.raw.as_ptr()));
            }
            let found = convert(&*event.as_ptr());
            self.is_over = (*event.as_ptr()).type_ == libyaml::YAML_STREAM_END_EVENT;
            libyaml::yaml_event_delete(event.as_mut_ptr());
            Ok(if self.is_over { None } else { Some(found) })
        }
    }
}

impl Drop for Parser<'_> {
    fn drop(&mut self) {
        // SAFETY: it was initialized, and is deleted once.
        unsafe { libyaml::yaml_parser_delete(self.raw.as_mut_ptr()) };
    }
}

/// SAFETY: the event is one that the parser produced and that is not deleted yet.
unsafe fn convert(event: &libyaml::yaml_event_t) -> Event {
    // SAFETY: each arm reads the member of the union that belongs to the event's type; texts end with a NUL.
    unsafe {
        match event.type_ {
            libyaml::YAML_DOCUMENT_START_EVENT => Event::DocumentStart,
            libyaml::YAML_ALIAS_EVENT => Event::Alias(text(event.data.alias.anchor).unwrap_or_default()),
            libyaml::YAML_SCALAR_EVENT => {
                let scalar = &event.data.scalar;
                let length = usize::try_from(scalar.length).unwrap_or(0);
                let value = std::slice::from_raw_parts(scalar.value, length);
                Event::Scalar {
                    text: String::from_utf8_lossy(value).into_owned(),
                    is_plain: scalar.style == libyaml::YAML_PLAIN_SCALAR_STYLE,
                    tag: text(scalar.tag),
                    anchor: text(scalar.anchor),
                }
            }
            libyaml::YAML_SEQUENCE_START_EVENT => {
                Event::SequenceStart { anchor: text(event.data.sequence_start.anchor) }
            }
            libyaml::YAML_MAPPING_START_EVENT => Event::MappingStart { anchor: text(event.data.mapping_start.anchor) },
            libyaml::YAML_SEQUENCE_END_EVENT | libyaml::YAML_MAPPING_END_EVENT => Event::CollectionEnd,
            _ => Event::Other,
        }
    }
}

/// SAFETY: null, or a text that ends with a NUL.
unsafe fn text(pointer: *const u8) -> Option<String> {
    // SAFETY: by the contract of this function.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer.cast()) }.to_string_lossy().into_owned())
}

/// Why the parser gave up, on one line.
fn reason(parser: &libyaml::yaml_parser_t) -> String {
    // SAFETY: libyaml's messages are static texts.
    let (problem, context) = unsafe { (text(parser.problem.cast()), text(parser.context.cast())) };
    let problem = problem.unwrap_or_else(|| "it cannot be read".into());
    if parser.error == libyaml::YAML_READER_ERROR {
        // It is -1 where there is no character to speak of.
        let character = u32::try_from(parser.problem_value).map_or(String::new(), |value| format!(" #x{value:04x}"));
        return format!("yaml: byte {}: {problem}{character}", parser.problem_offset + 1);
    }
    let mark = &parser.problem_mark;
    let context = context.map_or(String::new(), |context| format!("{context}: "));
    format!("yaml: line {}, column {}: {context}{problem}", mark.line + 1, mark.column + 1)
}
