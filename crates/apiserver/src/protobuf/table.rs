//! The messages of the built-in kinds: which field number is which field of the JSON form, and what it holds.
//!
//! `messages.json` holds facts of the API's published `.proto` files (names and numbers of fields) and of the
//! JSON form of its types (names, pointers, what is left out when empty), one line per message that the served
//! kinds can contain: `number name type`. The types are those of `shapes.json`, and:
//! `i` an `int32`, `D` a double, `U…` a union that is written as whichever member it has;
//! the name `.` marks a message whose fields stand among those of its parent.

use std::collections::BTreeMap;
use std::sync::OnceLock;

#[derive(Debug)]
pub(super) struct Message {
    /// As Go calls it: `Pod`.
    pub(super) name: String,
    /// Sorted by number.
    fields: Vec<Field>,
}

#[derive(Debug)]
pub(super) struct Field {
    number: i32,
    /// Its JSON name; empty for an inlined message.
    pub(super) name: String,
    pub(super) empty: Empty,
    pub(super) holds: Holds,
}

/// What becomes of an empty value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Empty {
    Kept,
    /// Scalars are left out, messages are not.
    Omitted,
    ZeroOmitted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holds {
    Text,
    Int32,
    Int64,
    Double,
    Bool,
    Bytes,
    Quantity,
    Time,
    MicroTime,
    IntOrText,
    /// JSON as it is.
    Raw,
    Pointer(Box<Holds>),
    List(Box<Holds>),
    Map(Box<Holds>),
    Message(usize),
    Union(usize),
}

#[derive(Debug)]
pub(super) struct Table {
    by_name: BTreeMap<String, usize>,
    all: Vec<Message>,
}

static TABLE: OnceLock<Table> = OnceLock::new();

pub(super) fn table() -> &'static Table {
    TABLE.get_or_init(|| Table::parse(include_str!("messages.json")))
}

impl Table {
    fn parse(text: &str) -> Self {
        let raw: BTreeMap<String, String> =
            serde_json::from_str(text).expect("messages.json is generated and well formed");
        let by_name: BTreeMap<String, usize> = raw.keys().cloned().zip(0..).collect();
        let all = raw.iter().map(|(name, fields)| Message::parse(name, fields, &by_name)).collect();
        Self { by_name, all }
    }

    /// The message of this name, like `core.Pod`.
    pub(super) fn find(&self, name: &str) -> Option<&Message> {
        self.get(*self.by_name.get(name)?)
    }

    pub(super) fn get(&self, index: usize) -> Option<&Message> {
        self.all.get(index)
    }
}

impl Message {
    fn parse(name: &str, fields: &str, names: &BTreeMap<String, usize>) -> Self {
        let name = name.rsplit('.').next().unwrap_or_default().to_owned();
        let fields = fields.split(", ").filter(|field| !field.is_empty());
        Self { name, fields: fields.map(|field| Field::parse(field, names)).collect() }
    }

    pub(super) fn field(&self, number: i32) -> Option<&Field> {
        let place = self.fields.binary_search_by_key(&number, |field| field.number).ok()?;
        self.fields.get(place)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }
}

impl Field {
    fn parse(text: &str, names: &BTreeMap<String, usize>) -> Self {
        let mut words = text.split(' ');
        let mut word = || words.next().expect("every field is a number, a name and a type");
        let number = word().parse().expect("fields are numbered");
        let name = match word() {
            "." => String::new(),
            name => name.to_owned(),
        };
        let kind = word();
        let (empty, holds) = match kind.as_bytes().first() {
            Some(b'!') => (Empty::Kept, &kind[1..]),
            Some(b'0') => (Empty::ZeroOmitted, &kind[1..]),
            _ => (Empty::Omitted, kind),
        };
        Self { number, name, empty, holds: Holds::parse(holds, names) }
    }

    /// What Go calls the field, as far as its JSON name tells.
    pub(super) fn go_name(&self) -> String {
        match self.name.as_str() {
            "metadata" => "ObjectMeta".to_owned(),
            "uid" => "UID".to_owned(),
            name => {
                let mut letters = name.chars();
                letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
            }
        }
    }
}

impl Holds {
    fn parse(text: &str, names: &BTreeMap<String, usize>) -> Self {
        let inner = || Box::new(Self::parse(&text[1..], names));
        let index = |name: &str| *names.get(name).expect("the table holds every message that it mentions");
        match text {
            "S" => Self::Text,
            "i" => Self::Int32,
            "I" => Self::Int64,
            "D" => Self::Double,
            "B" => Self::Bool,
            "Y" => Self::Bytes,
            "Q" => Self::Quantity,
            "T" => Self::Time,
            "M" => Self::MicroTime,
            "X" => Self::IntOrText,
            "R" => Self::Raw,
            _ if text.starts_with('*') => Self::Pointer(inner()),
            _ if text.starts_with('[') => Self::List(inner()),
            _ if text.starts_with('{') => Self::Map(inner()),
            _ if text.starts_with('U') => Self::Union(index(&text[1..])),
            _ => Self::Message(index(text)),
        }
    }
}
