//! Merge keys that refer to another place of the document: the whole of it is composed, and its top level flattened.
//!
//! Only for small documents that are known to be well-formed and not nested too deep.

use std::collections::HashMap;
use std::rc::Rc;

use super::value::Value;
use super::yaml::{Event, EventReader, MAX_COPIED, NULL_TAG, scalar};

/// The fields called `names` of the first mapping of the stream, merge keys resolved; nothing if that cannot be done.
pub fn load_merged(data: &[u8], names: &[&str]) -> Option<Value> {
    let mut reader = EventReader::new(data, &|| false);
    // Before all that refers to them, so that they are dropped after it.
    let mut anchored = Anchored(Vec::new());
    let root = loop {
        while !matches!(reader.next().ok()??, Event::DocumentStart) {}
        let root = reader.expect().ok()?;
        let root = Composer { reader: &mut reader, anchors: HashMap::new(), anchored: &mut anchored }.compose(root)?;
        if matches!(&*root, Node::Mapping(_)) {
            break root;
        }
    };
    let Node::Mapping(entries) = &*root else { return None };
    let mut budget = Budget { steps: MAX_STEPS, copied: MAX_COPIED };
    let mut fields: Vec<(String, Value)> = Vec::new();
    // From the end: of a key that stands twice, the last one counts.
    for (key, value) in flatten(entries, 0, &mut budget)?.iter().rev() {
        let Some(key) = key.text().filter(|key| names.contains(key)) else { continue };
        if fields.iter().all(|(known, _)| known != key) {
            fields.push((key.to_owned(), value.value(0, &mut budget)?));
        }
    }
    Some(Value::Map(fields))
}

/// Shared, since an alias may stand for much.
enum Node {
    Scalar { value: Value, is_plain: bool },
    Sequence(Vec<Rc<Node>>),
    Mapping(Vec<(Rc<Node>, Rc<Node>)>),
}

const MAX_VALUE_DEPTH: usize = 16;
const MAX_STEPS: usize = 100_000;
/// A mapping that merges one that merges one: each level costs stack.
const MAX_MERGE_DEPTH: usize = 100;

/// Aliases of aliases of aliases stand for more than any memory holds: nobody follows them to the end.
struct Budget {
    steps: usize,
    copied: usize,
}

impl Budget {
    fn spend(&mut self) -> Option<()> {
        self.steps = self.steps.checked_sub(1)?;
        Some(())
    }
}

/// The nodes that aliases stand for, inner ones first. A chain of them may be longer than the stack is deep, so they
/// are dropped from the outside in, each while this still holds those that it refers to.
struct Anchored(Vec<Rc<Node>>);

impl Drop for Anchored {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl Node {
    fn text(&self) -> Option<&str> {
        match self {
            Node::Scalar { value: Value::Text(text), .. } => Some(text),
            _ => None,
        }
    }

    fn is_merge_key(&self) -> bool {
        matches!(self, Node::Scalar { value: Value::Text(text), is_plain: true } if text == "<<")
    }

    fn value(&self, depth: usize, budget: &mut Budget) -> Option<Value> {
        budget.spend()?;
        Some(match self {
            Node::Scalar { value, .. } if depth == 0 => value.clone(),
            Node::Scalar { value, .. } => match budget.copied.checked_sub(value.text().len()) {
                Some(left) => {
                    budget.copied = left;
                    value.clone()
                }
                None => Value::Null,
            },
            _ if depth >= MAX_VALUE_DEPTH => Value::Null,
            Node::Sequence(items) => {
                let items = items.iter().map(|item| item.value(depth + 1, budget));
                Value::List(items.collect::<Option<_>>()?)
            }
            Node::Mapping(entries) => {
                let mut fields = Vec::new();
                for (key, value) in entries {
                    if let Some(key) = key.text() {
                        fields.push((key.to_owned(), value.value(depth + 1, budget)?));
                    }
                }
                Value::Map(fields)
            }
        })
    }
}

struct Composer<'a, 'b> {
    reader: &'a mut EventReader<'b>,
    anchors: HashMap<String, Rc<Node>>,
    anchored: &'a mut Anchored,
}

impl Composer<'_, '_> {
    fn compose(&mut self, event: Event) -> Option<Rc<Node>> {
        let (node, anchor) = match event {
            Event::Alias(anchor) => return self.anchors.get(&anchor).cloned(),
            Event::Scalar { text, is_plain, tag, anchor } => {
                let tag = tag.as_deref().filter(|tag| *tag == NULL_TAG);
                (Node::Scalar { value: scalar(text, is_plain, tag), is_plain }, anchor)
            }
            Event::SequenceStart { anchor } => {
                let mut items = Vec::new();
                while let Some(event) = self.next_in_collection()? {
                    items.push(self.compose(event)?);
                }
                (Node::Sequence(items), anchor)
            }
            Event::MappingStart { anchor } => {
                let mut entries = Vec::new();
                while let Some(event) = self.next_in_collection()? {
                    let key = self.compose(event)?;
                    let value = self.reader.expect().ok()?;
                    entries.push((key, self.compose(value)?));
                }
                (Node::Mapping(entries), anchor)
            }
            _ => return None,
        };
        let node = Rc::new(node);
        if let Some(anchor) = anchor {
            self.anchored.0.push(Rc::clone(&node));
            if self.anchors.insert(anchor, Rc::clone(&node)).is_some() {
                return None;
            }
        }
        Some(node)
    }

    #[allow(clippy::option_option)] // the end of the collection, and the end of all hope
    fn next_in_collection(&mut self) -> Option<Option<Event>> {
        match self.reader.expect().ok()? {
            Event::CollectionEnd => Some(None),
            event => Some(Some(event)),
        }
    }
}

type Entries = Vec<(Rc<Node>, Rc<Node>)>;

/// The entries with those that are merged in before them, so that the last of a key counts.
fn flatten(entries: &Entries, depth: usize, budget: &mut Budget) -> Option<Entries> {
    if depth > MAX_MERGE_DEPTH {
        return None;
    }
    let mut merged = Vec::new();
    let mut own = Vec::new();
    for (key, value) in entries {
        budget.spend()?;
        if !key.is_merge_key() {
            own.push((Rc::clone(key), Rc::clone(value)));
            continue;
        }
        match &**value {
            Node::Mapping(entries) => merged.extend(flatten(entries, depth + 1, budget)?),
            Node::Sequence(items) => {
                for item in items.iter().rev() {
                    let Node::Mapping(entries) = &**item else { return None };
                    merged.extend(flatten(entries, depth + 1, budget)?);
                }
            }
            Node::Scalar { .. } => return None,
        }
    }
    merged.append(&mut own);
    Some(merged)
}
