//! Jobs.

use serde_json::{Value, json};

use super::access::{Errors, IMMUTABLE, Path, Peek, Poke};
use super::{PLAIN, Strategy, layout, names, pod, selector, workloads};
use crate::status::{FieldError, FieldErrorKind};

const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";

pub(crate) const JOB: Strategy = Strategy {
    defaults,
    create: |job, _| {
        generate_selector(job);
        // What has no labels of its own takes those of its pods.
        let labels = job.at(&["spec", "template", "metadata", "labels"]).clone();
        if job.sub("metadata").map("labels").is_none_or(serde_json::Map::is_empty)
            && labels.as_object().is_some_and(|labels| !labels.is_empty())
            && let Some(meta) = job.make("metadata")
        {
            meta.set("labels", labels);
        }
    },
    validate: |job, errors| {
        // Labels that come from the template are reported there.
        if job.sub("metadata").sub("labels") == job.at(&["spec", "template", "metadata", "labels"]) {
            errors.retain(|error| error.field != "metadata.labels");
        }
        validate_generated(job, errors);
        validate_spec(job.sub("spec"), &Path::root("spec"), errors);
        validate_selector(job.sub("spec"), &Path::root("spec"), errors);
    },
    validate_update,
    ..PLAIN
};

fn defaults(job: &mut Value) {
    let Some(spec) = job.part("spec") else { return };
    pod::template_defaults(spec);
    // A job without either number runs one pod; one with parallelism alone is a work queue.
    if !spec.has("completions") && !spec.has("parallelism") {
        spec.set("completions", 1);
        spec.set("parallelism", 1);
    }
    spec.fill("parallelism", 1);
    spec.fill("backoffLimit", if spec.has("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 });
    spec.fill("completionMode", "NonIndexed");
    spec.fill("suspend", false);
    spec.fill("manualSelector", false);
    let policy = if spec.has("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    spec.fill("podReplacementPolicy", policy);
    if let Some(policy) = spec.part("podFailurePolicy") {
        policy.each("rules", |rule| {
            rule.each("onPodConditions", |condition| condition.fill_str("status", "True"));
        });
    }
}

fn generate_selector(job: &mut Value) {
    let (uid, name) = (job.sub("metadata").sub("uid").clone(), job.sub("metadata").sub("name").clone());
    let Some(spec) = job.part("spec").filter(|spec| !spec.flag("manualSelector")) else { return };
    let labels =
        spec.make("template").and_then(|one| one.make("metadata")).and_then(|one| one.make("labels"));
    if let Some(labels) = labels {
        for key in ["job-name", NAME_LABEL] {
            labels.fill(key, name.clone());
        }
        for key in ["controller-uid", UID_LABEL] {
            labels.fill(key, uid.clone());
        }
    }
    if let Some(labels) = spec.make("selector").and_then(|one| one.make("matchLabels")) {
        labels.fill(UID_LABEL, uid);
    }
}

/// The generated selector is exactly what was generated.
fn validate_generated(job: &Value, errors: &mut Errors) {
    let (spec, path) = (job.sub("spec"), Path::root("spec"));
    if spec.flag("manualSelector") {
        return;
    }
    let uid = job.sub("metadata").sub("uid");
    let labels = spec.at(&["template", "metadata", "labels"]);
    let label_path = path.child("template");
    let label_path = label_path.child("metadata");
    for (key, wanted) in [
        ("controller-uid", uid),
        (UID_LABEL, uid),
        ("job-name", job.sub("metadata").sub("name")),
        (NAME_LABEL, job.sub("metadata").sub("name")),
    ] {
        if labels.sub(key) != wanted {
            errors.push(
                label_path
                    .child("labels")
                    .invalid(labels.clone(), format!("must be '{}'", wanted.as_str().unwrap_or_default())),
            );
        }
    }
    if *spec.sub("selector") != json!({"matchLabels": {UID_LABEL: uid}}) {
        errors.push(
            path.child("selector")
                .invalid_text(&selector::shown(spec.sub("selector")), "`selector` not auto-generated"),
        );
    }
}

fn validate_selector(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let chosen = spec.sub("selector");
    if chosen.is_null() {
        errors.push(path.child("selector").required(""));
    } else {
        selector::validate(chosen, &path.child("selector"), errors);
    }
    if !selector::is_broken(chosen) {
        workloads::matching_labels(chosen, spec.sub("template"), path, errors);
    }
}

/// The rules of a job's spec but for its selector; CronJobs hold it, too.
pub(crate) fn validate_spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
    ] {
        path.not_negative(spec, key, errors);
    }
    failed_indexes(spec, path, errors);
    path.maybe_one_of(spec, "completionMode", &["NonIndexed", "Indexed"], errors);
    if spec.str_of("completionMode") == "Indexed" {
        indexed(spec, path, errors);
    } else {
        for key in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(number) = spec.int_of(key) {
                errors.push(path.child(key).invalid(number, "requires indexed completion mode"));
            }
        }
    }
    let failure = spec.sub("podFailurePolicy");
    failure_policy(failure, &path.child("podFailurePolicy"), errors);
    success_policy(spec, &path.child("successPolicy"), errors);
    path.maybe_one_of(spec, "podReplacementPolicy", &["Failed", "TerminatingOrFailed"], errors);
    managed_by(spec, path, errors);
    let template = path.child("template");
    pod::validate_template(spec.sub("template"), &template, errors);
    let policy = spec.at(&["template", "spec"]).str_of("restartPolicy");
    let template = template.child("spec");
    let restart = template.child("restartPolicy");
    if !["OnFailure", "Never"].contains(&policy) {
        errors.push(restart.required("valid values: \"OnFailure\", \"Never\""));
    } else if !failure.is_null() && policy != "Never" {
        errors
            .push(restart.invalid(policy, "only \"Never\" is supported when podFailurePolicy is specified"));
    }
}

fn failed_indexes(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(number) = spec.int_of("maxFailedIndexes") {
        path.not_negative(spec, "maxFailedIndexes", errors);
        if !spec.has("backoffLimitPerIndex") {
            errors.push(path.child("backoffLimitPerIndex").required("when maxFailedIndexes is specified"));
        }
        let indexed = spec.str_of("completionMode") == "Indexed";
        if indexed && spec.int_of("completions").is_some_and(|completions| number > completions) {
            errors.push(
                path.child("maxFailedIndexes").invalid(number, "must be less than or equal to completions"),
            );
        }
    }
}

fn indexed(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    const MOST: i64 = 100_000;
    if !spec.has("completions") {
        errors.push(path.child("completions").required("when completion mode is Indexed"));
    }
    if let Some(number) = spec.int_of("parallelism").filter(|number| *number > MOST) {
        errors.push(path.child("parallelism").invalid(
            number,
            format!("must be less than or equal to {MOST} when completion mode is Indexed"),
        ));
    }
}

fn failure_policy(policy: &Value, path: &Path<'_>, errors: &mut Errors) {
    let rules = path.child("rules");
    for (index, rule) in policy.list("rules").iter().enumerate() {
        let path = rules.index(index);
        path.one_of(rule, "action", &["Count", "FailIndex", "FailJob", "Ignore"], errors);
        let (codes, conditions) = (rule.has("onExitCodes"), !rule.list("onPodConditions").is_empty());
        let detail = match (codes, conditions) {
            (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
            (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
            _ => continue,
        };
        errors.push(FieldError::new(FieldErrorKind::Invalid, path.to_string(), None, detail));
    }
}

fn success_policy(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if !spec.has("successPolicy") || spec.str_of("completionMode") == "Indexed" {
        return;
    }
    let rules: Vec<String> = spec
        .sub("successPolicy")
        .list("rules")
        .iter()
        .map(|rule| {
            format!(
                "{{\"SucceededIndexes\":{},\"SucceededCount\":{}}}",
                rule.sub("succeededIndexes"),
                rule.sub("succeededCount")
            )
        })
        .collect();
    errors.push(
        path.invalid_text(
            &format!("{{\"Rules\":[{}]}}", rules.join(",")),
            "requires indexed completion mode",
        ),
    );
}

fn managed_by(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(name) = spec.sub("managedBy").as_str() else { return };
    let path = path.child("managedBy");
    match name.split_once('/') {
        Some((prefix, _)) if !prefix.is_empty() => {
            path.all_invalid(name, names::subdomain(prefix), errors);
        }
        _ => errors.push(path.invalid(name, "must be a domain-prefixed path (such as \"acme.io/foo\")")),
    }
}

/// Most of a job is settled when it is created; a suspended one may still choose where its pods run.
fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::root("spec");
    let (spec, before) = (new.sub("spec"), old.sub("spec"));
    // The real server does this twice.
    for _ in 0..2 {
        validate_spec(spec, &path, errors);
        validate_selector(spec, &path, errors);
    }
    completions(spec, before, &path, errors);
    if spec.sub("selector") != before.sub("selector") {
        errors.push(path.child("selector").invalid_text(&selector::shown(spec.sub("selector")), IMMUTABLE));
    }
    template(new, old, &path, errors);
    for key in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        path.immutable(spec, before, key, errors);
    }
}

fn completions(spec: &Value, before: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (now, then) = (spec.sub("completions"), before.sub("completions"));
    if now == then {
        return;
    }
    let elastic = spec.str_of("completionMode") == "Indexed" && !now.is_null() && !then.is_null();
    if !elastic {
        errors.push(path.child("completions").invalid(now.clone(), IMMUTABLE));
    } else if now != spec.sub("parallelism") {
        errors.push(
            path.child("completions")
                .invalid(now.clone(), "can only be modified in tandem with spec.parallelism"),
        );
    }
}

fn template(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (now, before) = (new.at(&["spec", "template"]), old.at(&["spec", "template"]));
    if now == before {
        return;
    }
    let path = path.child("template");
    let started = old.sub("status").has("startTime");
    if !old.sub("spec").flag("suspend") || started {
        errors.push(path.invalid_text(&layout::shown(now, "PodTemplateSpec"), IMMUTABLE));
        return;
    }
    let mut munged = now.sub("spec").clone();
    for key in ["nodeSelector", "tolerations", "schedulingGates"] {
        super::copy(&mut munged, before.sub("spec"), key);
    }
    if let Some(affinity) = munged.make("affinity") {
        super::copy(affinity, before.at(&["spec", "affinity"]), "nodeAffinity");
    }
    if munged.map("affinity").is_some_and(serde_json::Map::is_empty) && !before.sub("spec").has("affinity") {
        munged.unset("affinity");
    }
    for key in ["containers", "initContainers"] {
        let mut then = before.sub("spec").list(key).iter();
        munged.each(key, |container| {
            if let Some(then) = then.next().filter(|then| then.sub("name") == container.sub("name")) {
                super::copy(container, then, "resources");
            }
        });
    }
    if munged != *before.sub("spec") {
        errors.push(path.child("spec").invalid_text(&layout::shown(now.sub("spec"), "PodSpec"), IMMUTABLE));
    }
}
