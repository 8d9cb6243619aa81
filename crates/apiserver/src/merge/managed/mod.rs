//! Who wrote which field: `metadata.managedFields`, kept on every write, and server-side apply.
//!
//! Both functions see objects as clients send them, decoded and defaulted (and for built-in kinds without what
//! their types leave out when it is empty), before the server itself changes anything (admission, generated
//! names, status): what the server sets belongs to nobody.

mod apply;
mod entries;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use serde_json::{Map, Value};

use self::entries::{Entries, Operation};
use super::{
    FieldSet,
    typed::{Node, compare},
};
use crate::schema::Schema;

pub use self::apply::apply;

/// The kind of the objects that are written.
#[derive(Clone, Copy)]
pub struct Kind<'a> {
    /// `apps/v1`.
    pub api_version: &'a str,
    /// `Deployment`.
    pub kind: &'a str,
    pub schema: &'a Schema,
    /// What an object has before it is written: [`super::blank`] for built-in kinds, `{}` for custom resources.
    pub blank: &'a Value,
    /// What writers cannot own through this endpoint, with everything below: `status` on the main endpoint of a
    /// kind with a status subresource, `spec` and the like on `/status`.
    pub reset: &'a FieldSet,
}

/// Who writes, and when.
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    /// The field manager; if empty, it is called `unknown`.
    pub manager: &'a str,
    /// Empty on the main endpoint.
    pub subresource: &'a str,
    /// RFC 3339 in UTC with seconds: `2026-01-02T03:04:05Z`. Empty to record no time, as the real server does for
    /// writes through `/scale` (which are writes of the scaled object, to its `.spec.replicas`).
    pub now: &'a str,
}

/// Sets `metadata.managedFields` of `new` after a create, update or patch (other than apply).
///
/// If nothing that anybody can own changed, the managed fields come out as they are in `live`.
pub fn on_update(kind: &Kind<'_>, live: Option<&Value>, new: &mut Value, writer: &Writer<'_>) {
    let mut entries = Entries::of_write(live, new, writer.subresource);
    if entries.is_empty() && live.is_some() {
        // Somebody cleared them: the object is not tracked until it is applied to.
        return;
    }
    take_over(&mut entries, kind, live.unwrap_or(kind.blank), new, writer);
    entries.cap_updaters();
    entries.write_to(new);
}

/// Gives the writer what differs between `old` and `new`, and takes it from everybody else.
fn take_over(entries: &mut Entries, kind: &Kind<'_>, old: &Value, new: &Value, writer: &Writer<'_>) {
    let mut diff = compare(Node::root(kind.schema), old, new, untracked());
    diff.without(kind.reset);
    if !diff.gained.is_empty() || !diff.removed.is_empty() {
        for entry in entries.iter_mut() {
            entry.disown(&diff.gained);
            entry.disown(&diff.removed);
        }
    }
    entries.drop_empty();
    let gained = diff.gained.difference(untracked());
    if !gained.is_empty() {
        let entry = entries.entry(writer, Operation::Update, kind.api_version);
        entry.own(&gained);
        entry.set_time(writer.now);
    }
}

/// If `new` differs from `live` in nothing but the times of its managed fields, gives it those of `live` back, so
/// that the write is seen to change nothing. To be called last, when `new` is what would be stored.
pub fn revert_times(live: &Value, new: &mut Value) {
    let (Some(old), Some(now)) = (managed_fields(live), managed_fields(new)) else { return };
    if old == now || !entries::same_but_times(old, now) || !same_but_managed_fields(live, new) {
        return;
    }
    let old = Value::Array(old.to_vec());
    if let Some(fields) = new.pointer_mut("/metadata/managedFields") {
        *fields = old;
    }
}

fn managed_fields(object: &Value) -> Option<&[Value]> {
    object.pointer("/metadata/managedFields")?.as_array().map(Vec::as_slice)
}

fn same_but_managed_fields(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
    same_but(a, b, "metadata", |a, b| match (a.as_object(), b.as_object()) {
        (Some(a), Some(b)) => same_but(a, b, "managedFields", |_, _| true),
        _ => false,
    })
}

fn same_but(
    a: &Map<String, Value>,
    b: &Map<String, Value>,
    special: &str,
    same: impl Fn(&Value, &Value) -> bool,
) -> bool {
    a.len() == b.len()
        && a.iter()
            .all(|(key, a)| b.get(key).is_some_and(|b| if key == special { same(a, b) } else { a == b }))
}

/// Fields that are never owned: they name the object, or the server keeps them.
fn untracked() -> &'static FieldSet {
    static FIELDS: OnceLock<FieldSet> = OnceLock::new();
    FIELDS.get_or_init(|| {
        FieldSet::of_fields(&[
            &["apiVersion"],
            &["kind"],
            &["metadata"],
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "creationTimestamp"],
            &["metadata", "selfLink"],
            &["metadata", "uid"],
            &["metadata", "clusterName"],
            &["metadata", "generation"],
            &["metadata", "managedFields"],
            &["metadata", "resourceVersion"],
        ])
    })
}
