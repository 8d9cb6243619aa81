//! Server-side apply: a writer states the fields that it wants, and gives up those that it no longer states.

use serde_json::{Map, Value};

use super::{Kind, Writer, entries::Entries, entries::Entry, entries::Operation, take_over, untracked};
use crate::merge::{
    ApplyError, Conflict, FieldSet,
    typed::{Node, compare, field_set, merge, remove, same, validate, with_named_fields},
};

/// The manager of what was there before the first apply to an untracked object.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The manager for which the annotation of client-side apply is honoured and kept up to date.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Applies `config` to `live`, or makes a new object of it. The result has its managed fields, but no defaults yet:
/// it is `live` as it was if the configuration asks for nothing new.
pub fn apply(
    kind: &Kind<'_>,
    live: Option<&Value>,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    check(kind, config)?;
    let nothing = Value::Object(Map::new());
    let mut attempt = Attempt {
        kind,
        live: live.unwrap_or(&nothing),
        config,
        writer,
        entries: live.map(Entries::of_stored).unwrap_or_default(),
    };
    if live.is_some() && attempt.entries.is_empty() {
        let before = Writer { manager: BEFORE_FIRST_APPLY, ..*writer };
        take_over(&mut attempt.entries, kind, kind.blank, attempt.live, &before);
    }
    let mut object = attempt.run(force)?;
    if writer.manager == KUBECTL {
        update_last_applied(&mut object, config);
    }
    Ok(object)
}

/// What can be refused without looking at the live object.
fn check(kind: &Kind<'_>, config: &Value) -> Result<(), ApplyError> {
    let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (api_version, name) = (text("/apiVersion"), text("/kind"));
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let shown = format!("{group}/{version}, Kind={name}");
    if api_version != kind.api_version || name != kind.kind {
        return Err(ApplyError::BadRequest(format!("invalid object type: {shown}")));
    }
    if config.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    match validate(Node::root(kind.schema), config) {
        None => Ok(()),
        Some(errors) => {
            let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
            let object = format!("{namespace}/{name}; {shown}");
            Err(ApplyError::Mistyped(format!("failed to create typed patch object ({object}): {errors}")))
        }
    }
}

struct Attempt<'a> {
    kind: &'a Kind<'a>,
    live: &'a Value,
    config: &'a Value,
    writer: &'a Writer<'a>,
    /// Before the apply, and after it if it succeeds.
    entries: Entries,
}

impl Attempt<'_> {
    fn run(mut self, force: bool) -> Result<Value, ApplyError> {
        let root = Node::root(self.kind.schema);
        let api_version = self.kind.api_version;
        let stated = field_set(root, self.config).recursive_difference(self.kind.reset);
        let last = self.entries.find(self.writer, Operation::Apply, api_version).map(Entry::fields);
        let merged = merge(root, self.live, self.config);
        let object = match last {
            // Whoever states again what it owns, with everything that contains it, gives nothing up.
            Some(last) if !last.difference(&stated).is_empty() => self.prune(merged, &last, &stated),
            _ => merged,
        };

        let mut diff = compare(root, self.live, &object, &FieldSet::new());
        diff.without(self.kind.reset);
        let is_own = |entry: &Entry| {
            entry.is_applied()
                && entry.manager() == self.writer.manager
                && entry.subresource() == self.writer.subresource
        };
        if !force && !diff.gained.is_empty() {
            let others = self.entries.iter().filter(|entry| !is_own(entry));
            self.allow(conflicts(others, &diff.gained))?;
        }
        for entry in self.entries.iter_mut().filter(|entry| !is_own(entry)) {
            entry.disown(&diff.gained);
            entry.disown(&diff.removed);
        }
        self.entries
            .entry(self.writer, Operation::Apply, api_version)
            .set_fields(api_version, &stated.difference(untracked()));

        let mut result = if same(self.live, &object) {
            self.live.clone()
        } else {
            self.entries.entry(self.writer, Operation::Apply, api_version).set_time(self.writer.now);
            object
        };
        self.entries.drop_empty();
        self.entries.write_to(&mut result);
        Ok(result)
    }

    /// Removes what this writer stated last time but not now, unless somebody else owns it.
    fn prune(&self, merged: Value, last: &FieldSet, stated: &FieldSet) -> Value {
        let root = Node::root(self.kind.schema);
        let named = |set: &FieldSet| with_named_fields(set, Some(root));
        let last = named(last);
        let all = named(&field_set(root, &merged));
        let pruned = remove(root, &merged, &last);

        // What others own comes back. The writer's own entry still is the old one here.
        let owned = self.entries.iter().fold(stated.clone(), |owned, entry| {
            let own = entry.is_applied()
                && entry.manager() == self.writer.manager
                && entry.subresource() == self.writer.subresource;
            if own { owned } else { owned.union(&entry.fields()) }
        });
        let kept = named(&field_set(root, &pruned)).union(&named(&owned));
        let pruned = remove(root, &merged, &all.difference(&kept));

        // And so does what this writer never owned.
        let gone = all.difference(&named(&field_set(root, &pruned))).intersection(&last);
        remove(root, &merged, &gone)
    }

    /// Fails on conflicts, except on those with a client-side apply whose values still stand: `kubectl` moves its
    /// fields over from that.
    fn allow(&self, found: Vec<(Conflict, FieldSet)>) -> Result<(), ApplyError> {
        if found.is_empty() {
            return Ok(());
        }
        let own = if self.writer.manager == KUBECTL { self.last_applied() } else { None };
        let remaining: Vec<Conflict> = match own {
            None => found.into_iter().map(|(conflict, _)| conflict).collect(),
            Some(own) => {
                let foreign = |(conflict, path): (Conflict, FieldSet)| {
                    (!path.difference(&own).is_empty()).then_some(conflict)
                };
                found.into_iter().filter_map(foreign).collect()
            }
        };
        if remaining.is_empty() { Ok(()) } else { Err(ApplyError::Conflicts(remaining)) }
    }

    /// The fields that the annotation of client-side apply states and the object still has so.
    fn last_applied(&self) -> Option<FieldSet> {
        let text = annotations(self.live)?.get(LAST_APPLIED)?.as_str()?;
        let last: Value = serde_json::from_str(text).ok()?;
        if last.get("apiVersion")?.as_str()? != self.kind.api_version {
            return None;
        }
        let root = Node::root(self.kind.schema);
        let diff = compare(root, &last, self.live, &FieldSet::new());
        Some(field_set(root, &last).difference(&diff.gained).difference(&diff.removed))
    }
}

/// The fields that others own and that get another value, each with its path as a set of one.
fn conflicts<'e>(others: impl Iterator<Item = &'e Entry>, gained: &FieldSet) -> Vec<(Conflict, FieldSet)> {
    let mut found: Vec<(&Entry, FieldSet)> = others
        .map(|entry| (entry, entry.fields().intersection(gained)))
        .filter(|(_, fields)| !fields.is_empty())
        .collect();
    found.sort_by(|(a, _), (b, _)| identity(a).cmp(&identity(b)));
    let each = found.iter().flat_map(|(entry, fields)| {
        let owner = shown(entry);
        fields.members().into_iter().map(move |(path, set)| {
            let conflict = Conflict { owner: owner.clone(), field: path };
            (conflict, set)
        })
    });
    each.collect()
}

/// What entries are sorted by in messages.
fn identity(entry: &Entry) -> (&str, bool, &str, &str) {
    (entry.manager(), !entry.is_applied(), entry.api_version(), entry.subresource())
}

/// An owner as messages name it.
fn shown(entry: &Entry) -> String {
    let mut text = format!("{:?}", entry.manager());
    if !entry.subresource().is_empty() {
        text.push_str(&format!(" with subresource {:?}", entry.subresource()));
    }
    if !entry.is_applied() {
        text.push_str(&format!(" using {}", entry.api_version()));
    }
    text
}

fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object.pointer("/metadata/annotations")?.as_object()
}

/// Whoever still uses client-side apply finds there what was applied last.
fn update_last_applied(object: &mut Value, config: &Value) {
    let present = |annotations: &Map<String, Value>| {
        annotations.get(LAST_APPLIED).and_then(Value::as_str).is_some_and(|text| !text.is_empty())
    };
    if !annotations(object).is_some_and(present) {
        return;
    }
    let mut config = config.clone();
    let stated = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    let emptied = stated.is_some_and(|annotations| {
        annotations.remove(LAST_APPLIED);
        annotations.is_empty()
    });
    if emptied && let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("annotations");
    }
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.insert(LAST_APPLIED.to_owned(), Value::String(format!("{config}\n")));
    }
}
