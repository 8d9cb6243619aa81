//! Deployments, ReplicaSets, StatefulSets, DaemonSets, and what they are made of.

use serde_json::{Value, json};

use super::access::{Errors, IMMUTABLE, NOT_NEGATIVE, Path, Peek, Poke, top};
use super::{PLAIN, Strategy, names, pod, selector};
use crate::status::{FieldError, FieldErrorKind};

pub(crate) const DEPLOYMENT: Strategy = Strategy {
    defaults: |deployment| {
        let Some(spec) = deployment.part("spec") else { return };
        pod::template_defaults(spec);
        spec.fill("replicas", 1);
        rolling_update(spec, "strategy", &[("maxUnavailable", "25%".into()), ("maxSurge", "25%".into())]);
        spec.fill("revisionHistoryLimit", 10);
        spec.fill("progressDeadlineSeconds", 600);
    },
    update_status: |new, old, _| {
        if let Some(meta) = new.make("metadata") {
            super::copy(meta, old.sub("metadata"), "labels");
        }
    },
    validate: validate_deployment,
    validate_update: |new, old, errors| {
        validate_deployment(new, errors);
        same_selector(new, old, errors);
    },
    ..PLAIN
};

/// `RollingUpdate` is what updates do, with the given parameters.
fn rolling_update(spec: &mut Value, key: &str, parameters: &[(&str, Value)]) {
    let Some(strategy) = spec.make(key) else { return };
    strategy.fill_str("type", "RollingUpdate");
    if strategy.str_of("type") != "RollingUpdate" {
        return;
    }
    if let Some(rolling) = strategy.make("rollingUpdate") {
        for (name, value) in parameters {
            rolling.fill(name, value.clone());
        }
    }
}

fn same_selector(new: &Value, old: &Value, errors: &mut Errors) {
    let (now, before) = (new.sub("spec").sub("selector"), old.sub("spec").sub("selector"));
    if now != before {
        let path = Path::root("spec");
        errors.push(path.child("selector").invalid_text(&selector::shown(now), IMMUTABLE));
    }
}

fn validate_deployment(deployment: &Value, errors: &mut Errors) {
    let (spec, path) = (deployment.sub("spec"), Path::root("spec"));
    path.not_negative(spec, "replicas", errors);
    replica_template(spec, "deployment", &path, errors);
    deployment_strategy(spec.sub("strategy"), &path.child("strategy"), errors);
    path.not_negative(spec, "minReadySeconds", errors);
    path.not_negative(spec, "revisionHistoryLimit", errors);
    path.not_negative(spec, "progressDeadlineSeconds", errors);
    if let Some(seconds) = spec.int_of("progressDeadlineSeconds")
        && seconds <= spec.int_of("minReadySeconds").unwrap_or_default()
    {
        errors.push(
            path.child("progressDeadlineSeconds").invalid(seconds, "must be greater than minReadySeconds"),
        );
    }
}

/// Selector and template of what makes ReplicaSets, and of ReplicaSets.
fn replica_template(spec: &Value, kind: &str, path: &Path<'_>, errors: &mut Errors) {
    let chosen = spec.sub("selector");
    required_selector(chosen, kind, path, errors);
    if selector::is_broken(chosen) {
        errors.push(path.child("selector").invalid_text(&selector::shown(chosen), "invalid label selector"));
        return;
    }
    let template = spec.sub("template");
    matching_labels(chosen, template, path, errors);
    pod::validate_template(template, &path.child("template"), errors);
    always_restarts(template, "ReplicaSet", path, errors);
}

fn required_selector(chosen: &Value, kind: &str, path: &Path<'_>, errors: &mut Errors) {
    if chosen.is_null() {
        errors.push(path.child("selector").required(""));
        return;
    }
    selector::validate(chosen, &path.child("selector"), errors);
    if selector::is_empty(chosen) {
        errors.push(
            path.child("selector").invalid_text("{}", &format!("empty selector is invalid for {kind}")),
        );
    }
}

pub(crate) fn matching_labels(chosen: &Value, template: &Value, path: &Path<'_>, errors: &mut Errors) {
    let labels = template.sub("metadata").sub("labels");
    let empty = !chosen.is_null() && selector::is_empty(chosen);
    if !empty && !selector::matches(chosen, labels.as_object()) {
        errors.push(
            path.child("template")
                .child("metadata")
                .child("labels")
                .invalid(labels.clone(), "`selector` does not match template `labels`"),
        );
    }
}

/// The pods of a workload run until they are deleted.
fn always_restarts(template: &Value, kind: &str, path: &Path<'_>, errors: &mut Errors) {
    let (spec, path) = (template.sub("spec"), path.child("template"));
    let path = path.child("spec");
    let policy = spec.str_of("restartPolicy");
    if !policy.is_empty() && policy != "Always" {
        errors.push(path.child("restartPolicy").unsupported(policy, &["Always"]));
    }
    if spec.has("activeDeadlineSeconds") {
        errors.push(
            path.child("activeDeadlineSeconds")
                .forbidden(format!("activeDeadlineSeconds in {kind} is not Supported")),
        );
    }
}

fn deployment_strategy(strategy: &Value, path: &Path<'_>, errors: &mut Errors) {
    match strategy.str_of("type") {
        "Recreate" => {
            if strategy.has("rollingUpdate") {
                errors.push(
                    path.child("rollingUpdate")
                        .forbidden("may not be specified when strategy `type` is 'Recreate'"),
                );
            }
        }
        "RollingUpdate" => {
            let (rolling, path) = (strategy.sub("rollingUpdate"), path.child("rollingUpdate"));
            let (down, up) = (rolling.sub("maxUnavailable"), rolling.sub("maxSurge"));
            int_or_percent(down, &path.child("maxUnavailable"), errors);
            int_or_percent(up, &path.child("maxSurge"), errors);
            if amount(down) == Some(0) && amount(up) == Some(0) {
                errors.push(
                    path.child("maxUnavailable").invalid(down.clone(), "may not be 0 when `maxSurge` is 0"),
                );
            }
            at_most_all(down, &path.child("maxUnavailable"), errors);
        }
        _ => errors.push(unsupported_strategy(strategy, path, &["Recreate", "RollingUpdate"])),
    }
}

fn shown_strategy(strategy: &Value) -> String {
    format!("{{\"Type\":{},\"RollingUpdate\":null}}", strategy.sub("type"))
}

fn unsupported_strategy(strategy: &Value, path: &Path<'_>, supported: &[&str]) -> FieldError {
    let quoted: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
    let detail = format!("{}: supported values: {}", shown_strategy(strategy), quoted.join(", "));
    FieldError::new(FieldErrorKind::NotSupported, path.to_string(), None, detail)
}

/// A count or a share of the pods.
pub(crate) fn int_or_percent(value: &Value, path: &Path<'_>, errors: &mut Errors) {
    match value {
        Value::String(text) => {
            if let Err(message) = names::percent(text) {
                errors.push(path.invalid(text.as_str(), message));
            }
        }
        number => {
            if let Some(number) = number.as_i64().filter(|number| *number < 0) {
                errors.push(path.invalid(number, NOT_NEGATIVE));
            }
        }
    }
}

pub(crate) fn at_most_all(value: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(text) = value.as_str()
        && names::percent(text).is_ok_and(|percent| percent > 100)
    {
        errors.push(path.invalid(text, "must not be greater than 100%"));
    }
}

fn amount(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => names::percent(text).ok().and_then(|percent| i64::try_from(percent).ok()),
        number => number.as_i64(),
    }
}

pub(crate) const REPLICA_SET: Strategy = Strategy {
    defaults: |set| {
        let Some(spec) = set.part("spec") else { return };
        pod::template_defaults(spec);
        spec.fill("replicas", 1);
    },
    validate: validate_replica_set,
    validate_update: |new, old, errors| {
        validate_replica_set(new, errors);
        same_selector(new, old, errors);
    },
    ..PLAIN
};

fn validate_replica_set(set: &Value, errors: &mut Errors) {
    let (spec, path) = (set.sub("spec"), Path::root("spec"));
    path.not_negative(spec, "replicas", errors);
    path.not_negative(spec, "minReadySeconds", errors);
    // The real server's words: it says `deployment` here, too.
    replica_template(spec, "deployment", &path, errors);
}

pub(crate) const STATEFUL_SET: Strategy = Strategy {
    defaults: |set| {
        let Some(spec) = set.part("spec") else { return };
        pod::template_defaults(spec);
        spec.fill_str("podManagementPolicy", "OrderedReady");
        rolling_update(spec, "updateStrategy", &[("partition", 0.into())]);
        if let Some(policy) = spec.make("persistentVolumeClaimRetentionPolicy") {
            policy.fill_str("whenDeleted", "Retain");
            policy.fill_str("whenScaled", "Retain");
        }
        spec.fill("replicas", 1);
        spec.fill("revisionHistoryLimit", 10);
        spec.each("volumeClaimTemplates", |claim| {
            claim.fill_str("kind", "PersistentVolumeClaim");
            claim.fill_str("apiVersion", "v1");
            pod::claim_defaults(claim);
            claim.set("status", json!({"phase": "Pending"}));
        });
    },
    validate: validate_stateful_set,
    validate_update: |new, old, errors| {
        let mut munged = new.sub("spec").clone();
        for key in [
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ] {
            super::copy(&mut munged, old.sub("spec"), key);
        }
        validate_stateful_set(new, errors);
        if munged != *old.sub("spec") {
            errors.push(top("spec").forbidden(
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                 'minReadySeconds' are forbidden",
            ));
        }
    },
    ..PLAIN
};

fn validate_stateful_set(set: &Value, errors: &mut Errors) {
    let (spec, path) = (set.sub("spec"), Path::root("spec"));
    match spec.str_of("podManagementPolicy") {
        "" => errors.push(path.child("podManagementPolicy").required("")),
        "OrderedReady" | "Parallel" => {}
        policy => errors
            .push(path.child("podManagementPolicy").invalid(policy, "must be 'OrderedReady' or 'Parallel'")),
    }
    let (strategy, strategy_path) = (spec.sub("updateStrategy"), path.child("updateStrategy"));
    match strategy.str_of("type") {
        "" => errors.push(strategy_path.required("")),
        "RollingUpdate" => {
            strategy_path.child("rollingUpdate").not_negative(
                strategy.sub("rollingUpdate"),
                "partition",
                errors,
            );
        }
        "OnDelete" => {
            if strategy.has("rollingUpdate") {
                errors.push(
                    strategy_path
                        .child("rollingUpdate")
                        .invalid("", "only allowed for updateStrategy 'RollingUpdate'"),
                );
            }
        }
        _ => errors.push(
            strategy_path.invalid_text(&shown_strategy(strategy), "must be 'RollingUpdate' or 'OnDelete'"),
        ),
    }
    let retention = path.child("persistentVolumeClaimRetentionPolicy");
    for key in ["whenDeleted", "whenScaled"] {
        retention.maybe_one_of(
            spec.sub("persistentVolumeClaimRetentionPolicy"),
            key,
            &["Retain", "Delete"],
            errors,
        );
    }
    path.not_negative(spec, "replicas", errors);
    path.not_negative(spec, "minReadySeconds", errors);
    path.child("ordinals").not_negative(spec.sub("ordinals"), "start", errors);
    let service = spec.str_of("serviceName");
    if !service.is_empty() {
        path.child("serviceName").all_invalid(service, names::label(service), errors);
    }
    let chosen = spec.sub("selector");
    required_selector(chosen, "statefulset", &path, errors);
    if selector::is_broken(chosen) {
        return;
    }
    let template = with_claims(spec);
    matching_labels(chosen, &template, &path, errors);
    pod::validate_template(&template, &path.child("template"), errors);
    always_restarts(&template, "StatefulSet", &path, errors);
}

/// The template as a Pod of the set has it: each claim template is a volume, instead of one of the same name.
fn with_claims(spec: &Value) -> Value {
    let mut template = spec.sub("template").clone();
    let claims = spec.list("volumeClaimTemplates");
    let names: Vec<&str> = claims.iter().map(|claim| claim.sub("metadata").str_of("name")).collect();
    if let Some(pod) = template.part("spec").filter(|_| !names.is_empty()) {
        let own = pod.list("volumes").iter().filter(|volume| !names.contains(&volume.str_of("name")));
        let claimed = names
            .iter()
            .map(|name| serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        let volumes: Vec<Value> = own.cloned().chain(claimed).collect();
        pod.set("volumes", volumes);
    }
    template
}

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(crate) const DAEMON_SET: Strategy = Strategy {
    defaults: |set| {
        let Some(spec) = set.part("spec") else { return };
        pod::template_defaults(spec);
        rolling_update(spec, "updateStrategy", &[("maxUnavailable", 1.into()), ("maxSurge", 0.into())]);
        spec.fill("revisionHistoryLimit", 10);
        // Part of how the version is written, so whoever writes the object owns it.
        if set.at(&["metadata", "annotations"]).str_of(TEMPLATE_GENERATION).is_empty() {
            template_generation(set, 0);
        }
    },
    create: |set, _| template_generation(set, 1),
    update: |new, old| {
        let before =
            old.at(&["metadata", "annotations"]).str_of(TEMPLATE_GENERATION).parse().unwrap_or(0_i64);
        let changed = new.sub("spec").sub("template") != old.sub("spec").sub("template");
        template_generation(new, before + i64::from(changed));
    },
    validate: validate_daemon_set,
    validate_update: |new, old, errors| {
        validate_daemon_set(new, errors);
        same_selector(new, old, errors);
    },
    ..PLAIN
};

fn template_generation(set: &mut Value, generation: i64) {
    if let Some(annotations) = set.make("metadata").and_then(|meta| meta.make("annotations")) {
        annotations.set(TEMPLATE_GENERATION, generation.to_string());
    }
}

fn validate_daemon_set(set: &Value, errors: &mut Errors) {
    let (spec, path) = (set.sub("spec"), Path::root("spec"));
    let (chosen, template) = (spec.sub("selector"), spec.sub("template"));
    selector::validate(chosen, &path.child("selector"), errors);
    if !selector::is_broken(chosen) {
        matching_labels(chosen, template, &path, errors);
    }
    if !chosen.is_null() && selector::is_empty(chosen) {
        errors.push(path.child("selector").invalid_text("{}", "empty selector is invalid for daemonset"));
    }
    pod::validate_template(template, &path.child("template"), errors);
    always_restarts(template, "DaemonSet", &path, errors);
    path.not_negative(spec, "minReadySeconds", errors);
    daemon_strategy(spec.sub("updateStrategy"), &path.child("updateStrategy"), errors);
    path.not_negative(spec, "revisionHistoryLimit", errors);
}

fn daemon_strategy(strategy: &Value, path: &Path<'_>, errors: &mut Errors) {
    match strategy.str_of("type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let (rolling, path) = (strategy.sub("rollingUpdate"), path.child("rollingUpdate"));
            let (down, up) = (rolling.sub("maxUnavailable"), rolling.sub("maxSurge"));
            for (value, key) in [(down, "maxUnavailable"), (up, "maxSurge")] {
                int_or_percent(value, &path.child(key), errors);
                at_most_all(value, &path.child(key), errors);
            }
            let (has_down, has_up) =
                (amount(down).unwrap_or_default() != 0, amount(up).unwrap_or_default() != 0);
            if has_down && has_up {
                errors.push(
                    path.child("maxSurge")
                        .invalid(up.clone(), "may not be set when maxUnavailable is non-zero"),
                );
            } else if !has_down && !has_up {
                errors.push(path.child("maxUnavailable").required("cannot be 0 when maxSurge is 0"));
            }
        }
        _ => errors.push(unsupported_strategy(strategy, path, &["RollingUpdate", "OnDelete"])),
    }
}

pub(crate) const REVISION: Strategy = Strategy {
    validate: validate_revision,
    validate_update: |new, old, errors| {
        validate_revision(new, errors);
        if new.sub("data") != old.sub("data") {
            errors.push(top("data").invalid(new.sub("data").clone(), IMMUTABLE));
        }
    },
    ..PLAIN
};

fn validate_revision(revision: &Value, errors: &mut Errors) {
    if revision.sub("data").is_null() {
        errors.push(top("data").required("data is mandatory"));
    }
    if let Some(number) = revision.int_of("revision").filter(|number| *number < 0) {
        errors.push(top("revision").invalid(number, NOT_NEGATIVE));
    }
}

pub(crate) const POD_TEMPLATE: Strategy = Strategy {
    defaults: pod::template_defaults,
    validate: |template, errors| pod::validate_template(template.sub("template"), &top("template"), errors),
    validate_update: |new, _, errors| pod::validate_template(new.sub("template"), &top("template"), errors),
    ..PLAIN
};
