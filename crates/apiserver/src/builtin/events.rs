//! Events: two API groups, one storage. Core events are what is stored; `events.k8s.io` is a view of them.

use serde_json::Value;

use super::access::{Errors, IMMUTABLE, Peek, Poke, top};
use super::{PLAIN, Strategy, names};

/// Names in `v1` and in `events.k8s.io/v1` of the fields that differ.
const FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Turns an `events.k8s.io/v1` Event into a `v1` Event. A `v1` Event stays as it is.
pub fn to_core(event: &mut Value) {
    if event.sub("apiVersion") == "v1" {
        return;
    }
    for (core, other) in FIELDS {
        rename(event, other, core);
    }
    event.set("apiVersion", "v1");
    super::shape::conform(event, "core.Event");
}

/// Turns a `v1` Event into an `events.k8s.io/v1` Event.
pub fn to_events_v1(event: &mut Value) {
    if event.sub("apiVersion") == "events.k8s.io/v1" {
        return;
    }
    for (core, other) in FIELDS {
        rename(event, core, other);
    }
    event.set("apiVersion", "events.k8s.io/v1");
    super::shape::conform(event, "events.Event");
}

fn rename(event: &mut Value, from: &str, to: &str) {
    if let Some(value) = event.unset(from) {
        event.set(to, value);
    }
}

pub(crate) const CORE: Strategy = Strategy {
    validate: |event, errors| every_version(event, &IN_CORE, errors),
    validate_update: |new, _, errors| every_version(new, &IN_CORE, errors),
    ..PLAIN
};

pub(crate) const EVENTS_V1: Strategy = Strategy {
    validate: |event, errors| {
        every_version(event, &IN_EVENTS, errors);
        strict(event, errors);
    },
    validate_update: strict_update,
    ..PLAIN
};

/// The names of the fields that the common rules read.
struct View {
    controller: &'static str,
    object: &'static str,
    message: &'static str,
}

const IN_CORE: View = View { controller: "reportingComponent", object: "involvedObject", message: "message" };
const IN_EVENTS: View = View { controller: "reportingController", object: "regarding", message: "note" };

/// The rules of both groups. An event lives in the namespace of what it is about.
fn every_version(event: &Value, view: &View, errors: &mut Errors) {
    let own = event.sub("metadata").str_of("namespace");
    let about = event.sub(view.object).str_of("namespace");
    let timed = event.has("eventTime");
    let fine = match (timed, about.is_empty()) {
        (false, true) => own.is_empty() || own == "default",
        (false, false) => own == about,
        (true, true) => own == "default" || own == "kube-system",
        (true, false) => true,
    };
    if !fine {
        errors.push(top("involvedObject.namespace").invalid(about, "does not match event.namespace"));
    }
    if !timed {
        return;
    }
    let controller = event.str_of(view.controller);
    if controller.is_empty() {
        errors.push(top(view.controller).required(""));
    }
    top(view.controller).all_invalid(controller, names::qualified(controller), errors);
    for key in ["reportingInstance", "action", "reason"] {
        let text = event.str_of(key);
        if text.is_empty() {
            errors.push(top(key).required(""));
        }
        if text.len() > 128 {
            errors.push(top(key).invalid("", "can have at most 128 characters"));
        }
    }
    if event.str_of(view.message).len() > 1024 {
        errors.push(top("message").invalid("", "can have at most 1024 characters"));
    }
}

/// What only `events.k8s.io` demands of a new event.
fn strict(event: &Value, errors: &mut Errors) {
    series(event, errors);
    if !event.has("eventTime") {
        errors.push(top("eventTime").required(""));
    }
    let kind = event.str_of("type");
    if !["Normal", "Warning"].contains(&kind) {
        errors.push(top("type").invalid("", format!("has invalid value: {kind}")));
    }
    let unset = [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("deprecatedSource", "source"),
    ];
    for (key, shown) in unset {
        let value = event.sub(key);
        let empty = value.is_null() || value == 0 || value.as_object().is_some_and(serde_json::Map::is_empty);
        if !empty {
            errors.push(top(shown).invalid("", "needs to be unset"));
        }
    }
}

fn series(event: &Value, errors: &mut Errors) {
    if !event.has("series") {
        return;
    }
    if event.sub("series").int_of("count").unwrap_or_default() < 2 {
        errors.push(top("series.count").invalid("", "should be at least 2"));
    }
    if !event.sub("series").has("lastObservedTime") {
        errors.push(top("series.lastObservedTime").required(""));
    }
}

/// What only `events.k8s.io` demands of a changed event: the series alone may change.
fn strict_update(new: &Value, old: &Value, errors: &mut Errors) {
    every_version(new, &IN_EVENTS, errors);
    if new.sub("series") != old.sub("series") {
        series(new, errors);
    }
    // The real server looks at the reason twice.
    let fixed = [
        ("regarding", "involvedObject"),
        ("reason", "reason"),
        ("note", "message"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (key, shown) in fixed {
        if new.sub(key) != old.sub(key) {
            errors.push(top(shown).invalid(new.sub(key).clone(), IMMUTABLE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn two_views_of_one_event() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "name": "p"}, "message": "m", "reason": "R", "type": "Normal",
            "count": 3, "source": {"component": "c"}, "firstTimestamp": "2024-01-01T00:00:00Z",
            "lastTimestamp": "2024-01-01T00:00:01Z", "eventTime": null, "reportingComponent": "",
            "reportingInstance": "",
        });
        let mut event = core.clone();
        to_events_v1(&mut event);
        assert_eq!(event["regarding"]["name"], "p");
        assert_eq!(event["note"], "m");
        assert_eq!(event["deprecatedCount"], 3);
        assert_eq!(event["deprecatedSource"], json!({"component": "c"}));
        assert!(event.get("reportingController").is_none(), "empty text is left out in this group");
        to_core(&mut event);
        assert_eq!(event, core);
    }
}
