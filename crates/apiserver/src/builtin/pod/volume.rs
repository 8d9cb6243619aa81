//! The rules of the volumes of a pod.

use serde_json::Value;

use super::super::access::{Errors, Path, Peek};
use super::super::names;
use super::super::resources as amounts;
use super::container;

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const TOO_MANY: &str = "may not specify more than 1 volume type";
const HOST_PATHS: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// The volumes without fault, which containers may mount.
pub(super) struct Volumes<'a>(Vec<&'a Value>);

impl Volumes<'_> {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|volume| volume.str_of("name") == name)
    }

    /// Whether the volume comes from a claim; nothing if there is no such volume.
    pub(super) fn is_claim(&self, name: &str) -> Option<bool> {
        let volume = self.0.iter().find(|volume| volume.str_of("name") == name)?;
        Some(volume.has("persistentVolumeClaim") || volume.has("ephemeral"))
    }
}

pub(super) fn validate_all<'a>(spec: &'a Value, path: &Path<'_>, errors: &mut Errors) -> Volumes<'a> {
    let path = path.child("volumes");
    let mut fine = Volumes(Vec::new());
    for (index, volume) in spec.list("volumes").iter().enumerate() {
        let path = path.index(index);
        let before = errors.len();
        source(volume, &path, errors);
        let name = volume.str_of("name");
        if name.is_empty() {
            errors.push(path.child("name").required(""));
        } else {
            path.child("name").all_invalid(name, names::label(name), errors);
        }
        if fine.contains(name) {
            errors.push(path.child("name").duplicate(name));
        }
        if errors.len() == before {
            fine.0.push(volume);
        }
    }
    fine
}

/// The order in which the real server looks at sources: the second one found is the one too many.
const SOURCES: &[&str] = &[
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

fn source(volume: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut count = 0;
    for key in SOURCES.iter().filter(|key| volume.has(key)) {
        let path = path.child(key);
        count += 1;
        if count > 1 {
            errors.push(path.forbidden(TOO_MANY));
            continue;
        }
        one_source(volume.sub(key), key, &path, errors);
    }
    if count == 0 {
        errors.push(path.required("must specify a volume type"));
    }
}

fn one_source(source: &Value, kind: &str, path: &Path<'_>, errors: &mut Errors) {
    match kind {
        "emptyDir" if amounts::parse(source.sub("sizeLimit")).is_some_and(|size| size.is_negative()) => {
            errors
                .push(path.child("sizeLimit").forbidden("SizeLimit field must be a valid resource quantity"));
        }
        "hostPath" => host_path(source, path, errors),
        "secret" => {
            required(source, &["secretName"], path, errors);
            keyed_files(source, path, errors);
        }
        "configMap" => {
            required(source, &["name"], path, errors);
            keyed_files(source, path, errors);
        }
        "nfs" => nfs(source, path, errors),
        "persistentVolumeClaim" => required(source, &["claimName"], path, errors),
        "downwardAPI" => {
            mode(source, "defaultMode", path, errors);
            for item in source.list("items") {
                downward_file(item, path, errors);
            }
        }
        "projected" => projected(source, path, errors),
        "csi" => required(source, &["driver"], path, errors),
        _ => {}
    }
}

fn required(source: &Value, keys: &[&str], path: &Path<'_>, errors: &mut Errors) {
    for key in keys.iter().filter(|key| source.str_of(key).is_empty()) {
        errors.push(path.child(key).required(""));
    }
}

pub(crate) fn host_path(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let text = source.str_of("path");
    if text.is_empty() {
        errors.push(path.child("path").required(""));
        return;
    }
    path_without_backsteps(text, &path.child("path"), errors);
    path.maybe_one_of(source, "type", HOST_PATHS, errors);
}

pub(crate) fn nfs(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    required(source, &["server", "path"], path, errors);
    let text = source.str_of("path");
    if !text.is_empty() && !text.starts_with('/') {
        errors.push(path.child("path").invalid(text, "must be an absolute path"));
    }
}

fn mode(object: &Value, key: &str, path: &Path<'_>, errors: &mut Errors) {
    if let Some(bits) = object.int_of(key).filter(|bits| !(0..=0o777).contains(bits)) {
        errors.push(path.child(key).invalid(bits, MODE));
    }
}

fn keyed_files(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    mode(source, "defaultMode", path, errors);
    let items = path.child("items");
    for (index, item) in source.list("items").iter().enumerate() {
        let path = items.index(index);
        required(item, &["key", "path"], &path, errors);
        if !item.str_of("path").is_empty() {
            relative_path(item.str_of("path"), &path.child("path"), errors);
        }
        mode(item, "mode", &path, errors);
    }
}

fn downward_file(item: &Value, path: &Path<'_>, errors: &mut Errors) {
    let file = item.str_of("path");
    if file.is_empty() {
        errors.push(path.child("path").required(""));
    } else {
        relative_path(file, &path.child("path"), errors);
    }
    if item.has("fieldRef") {
        container::field_ref(item.sub("fieldRef"), container::FILE_FIELDS, &path.child("fieldRef"), errors);
        if item.has("resourceFieldRef") {
            errors.push(
                path.invalid("resource", "fieldRef and resourceFieldRef can not be specified simultaneously"),
            );
        }
    } else if item.has("resourceFieldRef") {
        container::resource_ref(item.sub("resourceFieldRef"), &path.child("resourceFieldRef"), errors);
    } else {
        errors.push(path.required("one of fieldRef and resourceFieldRef is required"));
    }
    mode(item, "mode", path, errors);
}

fn projected(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    mode(source, "defaultMode", path, errors);
    let sources = path.child("sources");
    for (index, one) in source.list("sources").iter().enumerate() {
        let item = sources.index(index);
        let mut count = 0;
        for key in ["secret", "configMap"].iter().filter(|key| one.has(key)) {
            count += 1;
            required(one.sub(key), &["name"], &item.child(key), errors);
            keyed_files(one.sub(key), &item.child(key), errors);
        }
        if one.has("downwardAPI") {
            count += 1;
            for file in one.sub("downwardAPI").list("items") {
                downward_file(file, &item.child("downwardAPI"), errors);
            }
        }
        if one.has("serviceAccountToken") {
            count += 1;
            token(one.sub("serviceAccountToken"), &item.child("serviceAccountToken"), path, errors);
        }
        if count > 1 {
            errors.push(item.forbidden("may not specify more than 1 volume type"));
        }
    }
}

fn token(token: &Value, path: &Path<'_>, volume: &Path<'_>, errors: &mut Errors) {
    if let Some(seconds) = token.int_of("expirationSeconds").filter(|seconds| *seconds < 600) {
        errors.push(
            path.child("expirationSeconds")
                .invalid(seconds, "may not specify a duration less than 10 minutes"),
        );
    }
    match token.str_of("path") {
        "" => errors.push(volume.child("path").required("")),
        file => relative_path(file, &volume.child("path"), errors),
    }
}

/// A path below a directory.
pub(crate) fn relative_path(text: &str, path: &Path<'_>, errors: &mut Errors) {
    if text.starts_with('/') {
        errors.push(path.invalid(text, "must be a relative path"));
    }
    path_without_backsteps(text, path, errors);
}

pub(crate) fn path_without_backsteps(text: &str, path: &Path<'_>, errors: &mut Errors) {
    if text.split('/').any(|part| part == "..") {
        errors.push(path.invalid(text, "must not contain '..'"));
    }
}
