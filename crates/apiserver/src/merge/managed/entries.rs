//! The entries of `metadata.managedFields`, changed in place: what a write does not touch stays as it is stored.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Writer;
use crate::merge::{FieldSet, fields_v1};

/// How many entries of updates an object may have before the oldest are merged.
const MAX_UPDATERS: usize = 10;

/// The manager of merged entries.
const OLD_UPDATES: &str = "ancient-changes";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// One entry, as JSON. Its `fieldsV1` is an object in canonical form.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry(Map<String, Value>);

/// All entries of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Entries(Vec<Entry>);

impl Entry {
    fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let mut entry = Map::new();
        let mut set = |key: &str, value: &str| entry.insert(key.to_owned(), Value::String(value.to_owned()));
        set("manager", manager);
        set("operation", operation.name());
        set("apiVersion", api_version);
        set("fieldsType", "FieldsV1");
        if !subresource.is_empty() {
            set("subresource", subresource);
        }
        entry.insert("fieldsV1".to_owned(), Value::Object(Map::new()));
        Self(entry)
    }

    fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn manager(&self) -> &str {
        self.text("manager")
    }

    pub(super) fn subresource(&self) -> &str {
        self.text("subresource")
    }

    pub(super) fn api_version(&self) -> &str {
        self.text("apiVersion")
    }

    pub(super) fn is_applied(&self) -> bool {
        self.text("operation") == Operation::Apply.name()
    }

    /// Entries of updates are told apart by their version too; an applier has one entry.
    fn is(&self, manager: &str, operation: Operation, api_version: &str, subresource: &str) -> bool {
        self.text("operation") == operation.name()
            && self.manager() == manager
            && self.subresource() == subresource
            && (operation == Operation::Apply || self.api_version() == api_version)
    }

    fn same_owner(&self, other: &Self) -> bool {
        let operation = if other.is_applied() { Operation::Apply } else { Operation::Update };
        self.is(other.manager(), operation, other.api_version(), other.subresource())
    }

    pub(super) fn set_time(&mut self, time: &str) {
        if time.is_empty() {
            self.0.remove("time");
        } else {
            self.0.insert("time".to_owned(), Value::String(time.to_owned()));
        }
    }

    fn trie(&mut self) -> &mut Map<String, Value> {
        let fields = self.0.entry("fieldsV1").or_insert(Value::Null);
        if !fields.is_object() {
            *fields = Value::Object(Map::new());
        }
        fields.as_object_mut().expect("it was made an object")
    }

    pub(super) fn disown(&mut self, set: &FieldSet) {
        if !set.is_empty() {
            fields_v1::subtract(self.trie(), set);
        }
    }

    pub(super) fn own(&mut self, set: &FieldSet) {
        fields_v1::add(self.trie(), set);
    }

    pub(super) fn set_fields(&mut self, api_version: &str, set: &FieldSet) {
        self.0.insert("apiVersion".to_owned(), Value::String(api_version.to_owned()));
        self.0.insert("fieldsV1".to_owned(), set.to_fields_v1());
    }

    pub(super) fn fields(&self) -> FieldSet {
        let fields = self.0.get("fieldsV1").unwrap_or(&Value::Null);
        FieldSet::from_fields_v1(fields).unwrap_or_default()
    }

    fn owns_nothing(&self) -> bool {
        self.0.get("fieldsV1").and_then(Value::as_object).is_none_or(Map::is_empty)
    }

    /// The order of entries on the wire. Times are in one format, so they sort as text.
    fn rank(&self) -> (&str, &str, &str, &str, &str) {
        let operation = self.text("operation");
        (operation, self.text("time"), self.manager(), self.api_version(), self.subresource())
    }
}

impl Entries {
    /// The entries that a write starts from, taken out of `new`.
    ///
    /// A client may change them, or clear them with `[]` or `[{}]`; one that leaves them out or sends nonsense
    /// does not know them, and those of `live` stay. Through a subresource they cannot be changed.
    pub(super) fn of_write(live: Option<&Value>, new: &mut Value, subresource: &str) -> Self {
        let stored = live.and_then(super::managed_fields).unwrap_or_default();
        let sent = new
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .and_then(|metadata| metadata.remove("managedFields"));
        let stored_entries = || Self::trusted(stored.to_vec());
        match sent {
            _ if !subresource.is_empty() => stored_entries(),
            Some(Value::Array(sent)) if sent == stored && !sent.is_empty() => Self::trusted(sent),
            Some(Value::Array(sent)) if is_reset(&sent) => Self::default(),
            Some(Value::Array(sent)) => match Self::checked(sent) {
                Some(entries) if !entries.is_empty() => entries,
                _ => stored_entries(),
            },
            _ => stored_entries(),
        }
    }

    /// The entries of a stored object.
    pub(super) fn of_stored(object: &Value) -> Self {
        Self::trusted(super::managed_fields(object).unwrap_or_default().to_vec())
    }

    /// Entries that were written by this module.
    fn trusted(entries: Vec<Value>) -> Self {
        let objects = entries.into_iter().filter_map(|entry| match entry {
            Value::Object(entry) => Some(Entry(entry)),
            _ => None,
        });
        Self(objects.collect())
    }

    /// Entries that a client made up, brought into canonical form; `None` if one of them is nonsense.
    fn checked(sent: Vec<Value>) -> Option<Self> {
        let mut entries: Vec<Entry> = Vec::with_capacity(sent.len());
        for value in sent {
            let Value::Object(mut fields) = value else { return None };
            fields.retain(|_, value| !value.is_null());
            let mut entry = Entry(fields);
            let valid = matches!(entry.text("operation"), "Apply" | "Update")
                && !entry.api_version().is_empty()
                && entry.text("fieldsType") == "FieldsV1";
            if !valid {
                return None;
            }
            let set = FieldSet::from_fields_v1(entry.0.get("fieldsV1").unwrap_or(&Value::Null)).ok()?;
            entry.0.insert("fieldsV1".to_owned(), set.to_fields_v1());
            if let Some(time) = entry.0.remove("time") {
                let time: jiff::Timestamp = time.as_str()?.parse().ok()?;
                entry.set_time(&time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            }
            entries.retain(|earlier| !earlier.same_owner(&entry));
            entries.push(entry);
        }
        Some(Self(entries))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.0.iter_mut()
    }

    pub(super) fn drop_empty(&mut self) {
        self.0.retain(|entry| !entry.owns_nothing());
    }

    pub(super) fn find(
        &self,
        writer: &Writer<'_>,
        operation: Operation,
        api_version: &str,
    ) -> Option<&Entry> {
        let manager = named(writer.manager);
        self.0.iter().find(|entry| entry.is(manager, operation, api_version, writer.subresource))
    }

    /// The entry of a writer, made if there is none.
    pub(super) fn entry(
        &mut self,
        writer: &Writer<'_>,
        operation: Operation,
        api_version: &str,
    ) -> &mut Entry {
        let manager = named(writer.manager);
        let found = self.0.iter().position(|e| e.is(manager, operation, api_version, writer.subresource));
        let at = found.unwrap_or_else(|| {
            self.0.push(Entry::new(manager, operation, api_version, writer.subresource));
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Merges the oldest entries of updates into one per version until there are few enough.
    pub(super) fn cap_updaters(&mut self) {
        let mut updaters: Vec<usize> = (0..self.0.len()).filter(|&at| !self.0[at].is_applied()).collect();
        let mut count = updaters.len();
        if count <= MAX_UPDATERS {
            return;
        }
        updaters.sort_by(|&a, &b| {
            let key = |at: usize| (self.0[at].text("time"), self.0[at].manager(), self.0[at].api_version());
            key(a).cmp(&key(b))
        });
        // Where the merged entry of each version is, once there is a first one to merge with.
        let mut buckets: BTreeMap<String, usize> = BTreeMap::new();
        let mut merged_away = Vec::new();
        for at in updaters {
            if count <= MAX_UPDATERS {
                break;
            }
            let version = self.0[at].api_version().to_owned();
            let Some(&bucket) = buckets.get(&version) else {
                buckets.insert(version, at);
                continue;
            };
            let (fields, time) = (self.0[at].fields(), self.0[at].0.get("time").cloned());
            let entry = &mut self.0[bucket];
            if entry.manager() != OLD_UPDATES {
                entry.0.remove("subresource");
                entry.0.insert("manager".to_owned(), Value::String(OLD_UPDATES.to_owned()));
            }
            entry.own(&fields);
            entry.0.remove("time");
            entry.0.extend(time.map(|time| ("time".to_owned(), time)));
            merged_away.push(at);
            count -= 1;
        }
        merged_away.sort_unstable();
        for at in merged_away.into_iter().rev() {
            self.0.remove(at);
        }
    }

    /// Puts the entries into an object, in order; without any, it has no managed fields.
    pub(super) fn write_to(mut self, object: &mut Value) {
        let Value::Object(object) = object else { return };
        let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(metadata) = metadata else { return };
        if self.0.is_empty() {
            metadata.remove("managedFields");
            return;
        }
        self.0.sort_by(|a, b| a.rank().cmp(&b.rank()));
        let entries = self.0.into_iter().map(|entry| Value::Object(entry.0)).collect();
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
}

fn named(manager: &str) -> &str {
    if manager.is_empty() { "unknown" } else { manager }
}

/// Whether a client asks for managed fields to be forgotten.
fn is_reset(entries: &[Value]) -> bool {
    match entries {
        [] => true,
        [one] => one.as_object().is_some_and(|entry| entry.values().all(is_zero)),
        _ => false,
    }
}

fn is_zero(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(str::is_empty)
}

pub(super) fn same_but_times(old: &[Value], new: &[Value]) -> bool {
    old.len() == new.len()
        && old.iter().zip(new).all(|(old, new)| {
            let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return false };
            let rest = |entry: &Map<String, Value>| entry.len() - usize::from(entry.contains_key("time"));
            rest(old) == rest(new)
                && old.iter().all(|(key, value)| key == "time" || new.get(key) == Some(value))
        })
}
