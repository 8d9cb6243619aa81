//! Namespaces, ConfigMaps and Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::access::{Errors, IMMUTABLE, Path, Peek, Poke, top};
use super::{PLAIN, Strategy, metadata, names};

const SIZE_LIMIT: usize = 1024 * 1024;
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(crate) const NAMESPACE: Strategy = Strategy {
    defaults: label_namespace,
    create: |namespace, _| {
        if let Some(spec) = namespace.make("spec")
            && !spec.list("finalizers").iter().any(|name| name == "kubernetes")
        {
            spec.fill("finalizers", json!([]));
            if let Some(list) = spec.get_mut("finalizers").and_then(Value::as_array_mut) {
                list.push("kubernetes".into());
            }
        }
        namespace.set("status", json!({"phase": "Active"}));
    },
    update: |new, old| {
        if let Some(spec) = new.make("spec") {
            super::copy(spec, old.sub("spec"), "finalizers");
        }
    },
    validate: |namespace, errors| {
        let path = Path::root("spec");
        for name in namespace.sub("spec").list("finalizers").iter().filter_map(Value::as_str) {
            let path = path.child("finalizers");
            path.all_invalid(name, names::qualified(name), errors);
            errors.extend(metadata::unknown_finalizer(name, &path));
        }
    },
    ..PLAIN
};

/// Every namespace carries its own name as a label.
fn label_namespace(namespace: &mut Value) {
    let name = namespace.sub("metadata").str_of("name").to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(labels) = namespace.part("metadata").and_then(|meta| meta.make("labels")) {
        labels.set(NAME_LABEL, name);
    }
}

pub(crate) const CONFIG_MAP: Strategy = Strategy {
    validate: validate_config_map,
    validate_update: |new, old, errors| {
        frozen(new, old, &["data", "binaryData"], errors);
        validate_config_map(new, errors);
    },
    ..PLAIN
};

fn validate_config_map(config: &Value, errors: &mut Errors) {
    let (data, binary) = (config.map("data"), config.map("binaryData"));
    let mut size = 0;
    for (key, value) in data.into_iter().flatten() {
        let path = Path::root("data");
        path.key(key).all_invalid(key, names::config_key(key), errors);
        if binary.is_some_and(|binary| binary.contains_key(key)) {
            errors.push(path.key(key).invalid(key.as_str(), "duplicate of key present in binaryData"));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary.into_iter().flatten() {
        Path::root("binaryData").key(key).all_invalid(key, names::config_key(key), errors);
        size += decoded_len(value);
    }
    if size > SIZE_LIMIT {
        // The real server names no field here.
        errors.push(Path::root("").key("").too_long(SIZE_LIMIT));
    }
}

/// The length of base64 text once it is decoded.
fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    (text.len() / 4 * 3).saturating_sub(text.bytes().rev().take(2).filter(|c| *c == b'=').count())
}

/// What `immutable: true` forbids.
fn frozen(new: &Value, old: &Value, keys: &[&str], errors: &mut Errors) {
    const DETAIL: &str = "field is immutable when `immutable` is set";
    if !old.flag("immutable") {
        return;
    }
    if !new.flag("immutable") {
        errors.push(top("immutable").forbidden(DETAIL));
    }
    for key in keys {
        if new.sub(key) != old.sub(key) {
            errors.push(top(key).forbidden(DETAIL));
        }
    }
}

pub(crate) const SECRET: Strategy = Strategy {
    defaults: |secret| {
        secret.fill_str("type", "Opaque");
        merge_string_data(secret);
    },
    validate: validate_secret,
    validate_update: |new, old, errors| {
        if new.str_of("type") != old.str_of("type") {
            errors.push(top("type").invalid(new.str_of("type"), IMMUTABLE));
        }
        frozen(new, old, &["data"], errors);
        validate_secret(new, errors);
    },
    ..PLAIN
};

/// `stringData` is a way to write `data`; it is never stored.
fn merge_string_data(secret: &mut Value) {
    let Some(Value::Object(texts)) = secret.unset("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    secret.fill("data", Value::Object(Map::new()));
    if let Some(data) = secret.part("data") {
        for (key, text) in texts {
            data.set(&key, STANDARD.encode(text.as_str().unwrap_or_default()));
        }
    }
}

fn validate_secret(secret: &Value, errors: &mut Errors) {
    let path = Path::root("data");
    let data = secret.map("data");
    let mut size = 0;
    for (key, value) in data.into_iter().flatten() {
        path.key(key).all_invalid(key, names::config_key(key), errors);
        size += decoded_len(value);
    }
    if size > SIZE_LIMIT {
        errors.push(path.too_long(SIZE_LIMIT));
    }
    let has = |key: &str| data.is_some_and(|data| data.contains_key(key));
    let mut require = |keys: &[&str]| {
        for key in keys.iter().filter(|key| !has(key)) {
            errors.push(path.key(key).required(""));
        }
    };
    match secret.str_of("type") {
        "kubernetes.io/tls" => require(&["tls.crt", "tls.key"]),
        "kubernetes.io/ssh-auth" => require(&["ssh-privatekey"]),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            require(&["username", "password"]);
        }
        "kubernetes.io/dockercfg" => docker_config(secret, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => docker_config(secret, ".dockerconfigjson", errors),
        "kubernetes.io/service-account-token" => {
            const NAME: &str = "kubernetes.io/service-account.name";
            if secret.at(&["metadata", "annotations"]).str_of(NAME).is_empty() {
                errors.push(Path::root("metadata").child("annotations").key(NAME).required(""));
            }
        }
        _ => {}
    }
}

fn docker_config(secret: &Value, key: &str, errors: &mut Errors) {
    let path = Path::root("data");
    let Some(text) = secret.sub("data").sub(key).as_str() else {
        errors.push(path.key(key).required(""));
        return;
    };
    let bytes = STANDARD.decode(text).unwrap_or_default();
    if serde_json::from_slice::<Map<String, Value>>(&bytes).is_err() {
        let detail = crate::go_json::syntax_error(&bytes);
        errors.push(path.key(key).invalid("<secret contents redacted>", detail));
    }
}
