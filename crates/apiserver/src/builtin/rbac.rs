//! Roles and their bindings.

use serde_json::Value;

use super::access::{Errors, Path, Peek, Poke, top};
use super::{PLAIN, Strategy, names, selector};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) const ROLE: Strategy = Strategy {
    validate: |role, errors| rules(role, true, errors),
    validate_update: |new, _, errors| rules(new, true, errors),
    ..PLAIN
};

pub(crate) const CLUSTER_ROLE: Strategy = Strategy {
    validate: validate_cluster_role,
    validate_update: |new, _, errors| validate_cluster_role(new, errors),
    ..PLAIN
};

fn validate_cluster_role(role: &Value, errors: &mut Errors) {
    rules(role, false, errors);
    if role.has("aggregationRule") {
        let path = Path::root("aggregationRule");
        let path = path.child("clusterRoleSelectors");
        let selectors = role.sub("aggregationRule").list("clusterRoleSelectors");
        if selectors.is_empty() {
            errors.push(
                path.required("at least one clusterRoleSelector required if aggregationRule is non-nil"),
            );
        }
        for (index, one) in selectors.iter().enumerate() {
            selector::validate(one, &path.index(index), errors);
        }
    }
}

fn rules(role: &Value, namespaced: bool, errors: &mut Errors) {
    let path = Path::root("rules");
    for (index, rule) in role.list("rules").iter().enumerate() {
        let path = path.index(index);
        if rule.list("verbs").is_empty() {
            errors.push(path.child("verbs").required("verbs must contain at least one value"));
        }
        if !rule.list("nonResourceURLs").is_empty() {
            let detail = if namespaced {
                "namespaced rules cannot apply to non-resource URLs"
            } else if ["apiGroups", "resources", "resourceNames"].iter().any(|key| !rule.list(key).is_empty())
            {
                "rules cannot apply to both regular resources and non-resource URLs"
            } else {
                continue;
            };
            errors.push(path.child("nonResourceURLs").invalid(rule.sub("nonResourceURLs").clone(), detail));
            continue;
        }
        if rule.list("apiGroups").is_empty() {
            errors
                .push(path.child("apiGroups").required("resource rules must supply at least one api group"));
        }
        if rule.list("resources").is_empty() {
            errors.push(path.child("resources").required("resource rules must supply at least one resource"));
        }
    }
}

pub(crate) const ROLE_BINDING: Strategy = Strategy {
    defaults: binding_defaults,
    validate: |binding, errors| validate_binding(binding, true, errors),
    validate_update: |new, old, errors| {
        validate_binding(new, true, errors);
        role_kept(new, old, errors);
    },
    ..PLAIN
};

pub(crate) const CLUSTER_ROLE_BINDING: Strategy = Strategy {
    defaults: binding_defaults,
    validate: |binding, errors| validate_binding(binding, false, errors),
    validate_update: |new, old, errors| {
        validate_binding(new, false, errors);
        role_kept(new, old, errors);
    },
    ..PLAIN
};

fn binding_defaults(binding: &mut Value) {
    if let Some(role) = binding.part("roleRef") {
        role.fill_str("apiGroup", GROUP);
    }
    binding.each("subjects", |subject| {
        if ["User", "Group"].contains(&subject.str_of("kind")) {
            subject.fill_str("apiGroup", GROUP);
        }
    });
}

fn validate_binding(binding: &Value, namespaced: bool, errors: &mut Errors) {
    let (role, path) = (binding.sub("roleRef"), Path::root("roleRef"));
    if role.str_of("apiGroup") != GROUP {
        errors.push(path.child("apiGroup").unsupported(role.str_of("apiGroup"), &[GROUP]));
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if kinds.contains(&role.str_of("kind")) {
        let name = role.str_of("name");
        if name.is_empty() {
            errors.push(path.child("name").required(""));
        } else {
            path.child("name").all_invalid(name, names::path_segment(name), errors);
        }
    } else {
        errors.push(path.child("kind").unsupported(role.str_of("kind"), kinds));
        if role.str_of("name").is_empty() {
            errors.push(path.child("name").required(""));
        }
    }
    let path = Path::root("subjects");
    for (index, subject) in binding.list("subjects").iter().enumerate() {
        validate_subject(subject, namespaced, &path.index(index), errors);
    }
}

fn validate_subject(subject: &Value, namespaced: bool, path: &Path<'_>, errors: &mut Errors) {
    let (name, group) = (subject.str_of("name"), subject.str_of("apiGroup"));
    if name.is_empty() {
        errors.push(path.child("name").required(""));
    }
    match subject.str_of("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                path.child("name").all_invalid(name, names::subdomain(name), errors);
            }
            if !group.is_empty() {
                errors.push(path.child("apiGroup").unsupported(group, &[""]));
            }
            if !namespaced && subject.str_of("namespace").is_empty() {
                errors.push(path.child("namespace").required(""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(path.child("apiGroup").unsupported(group, &[GROUP]));
            }
        }
        kind => errors.push(path.child("kind").unsupported(kind, &["ServiceAccount", "User", "Group"])),
    }
}

fn role_kept(new: &Value, old: &Value, errors: &mut Errors) {
    let role = new.sub("roleRef");
    if role != old.sub("roleRef") {
        let shown = format!(
            "{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}",
            Value::from(role.str_of("apiGroup")),
            Value::from(role.str_of("kind")),
            Value::from(role.str_of("name"))
        );
        errors.push(top("roleRef").invalid_text(&shown, "cannot change roleRef"));
    }
}
