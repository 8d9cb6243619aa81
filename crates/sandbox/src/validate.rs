//! What the schema of a Sandbox says, checked before a sandbox is started for which there is no object yet: the API
//! server must not refuse an object whose run was acknowledged. Messages are for whoever asked.

use std::collections::HashSet;

use agentcube_api::Sandbox;
use agentcube_api::sandbox::{SandboxFile, SandboxSpec};
use kube::ResourceExt;
use tonic::Status;

/// What is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(crate) String);

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Status {
        Status::invalid_argument(invalid.0)
    }
}

const ENVS_TOGETHER: usize = 256 << 10;
const FILES_TOGETHER: usize = 256 << 10;

fn check(fine: bool, message: impl FnOnce() -> String) -> Result<(), Invalid> {
    if fine { Ok(()) } else { Err(Invalid(message())) }
}

/// Whether the API server would take this object.
pub(crate) fn sandbox(sandbox: &Sandbox) -> Result<(), Invalid> {
    let name = sandbox.name_any();
    check(is_subdomain(&name), || format!("name {name:?} is not a DNS subdomain of up to 253 characters"))?;
    let namespace = sandbox.namespace().unwrap_or_default();
    check(is_label(&namespace), || format!("namespace {namespace:?} is not a DNS label"))?;
    for (key, value) in sandbox.labels() {
        check(is_qualified(key), || format!("label {key:?} has no valid name"))?;
        check(is_label_value(value), || format!("the value of label {key:?} is not valid: {value:?}"))?;
    }
    for (key, value) in sandbox.annotations() {
        check(value.len() <= 4096, || format!("annotation {key} would be longer than 4096 characters"))?;
    }
    spec(&sandbox.spec)
}

fn spec(spec: &SandboxSpec) -> Result<(), Invalid> {
    let chars = |text: &str| text.chars().count();
    check((1..=1024).contains(&chars(&spec.image)), || "image has to have 1 to 1024 characters".into())?;
    check((1..=253).contains(&chars(&spec.pool_ref)), || "pool_ref has to have 1 to 253 characters".into())?;
    let most_of = |what: &str, list: &[String], most: usize| {
        check(list.len() <= most, || format!("{what} has more than {most} parts"))?;
        check(list.iter().all(|one| chars(one) <= 4096), || {
            format!("a part of {what} has more than 4096 characters")
        })
    };
    most_of("command", &spec.command, 64)?;
    most_of("args", &spec.args, 256)?;
    envs(spec)?;
    let dir = spec.working_dir.as_deref().map_or(0, chars);
    check(dir <= 4096, || "working_dir has more than 4096 characters".into())?;
    ports(&spec.exposed_ports)?;
    check((0..=86_400).contains(&spec.recovery_timeout_seconds), || {
        "recovery_timeout_seconds has to be between 0 and 86400".into()
    })?;
    files(&spec.files)
}

fn envs(spec: &SandboxSpec) -> Result<(), Invalid> {
    check(spec.envs.len() <= 128, || "there are more than 128 environment variables".into())?;
    for env in &spec.envs {
        let name = &env.name;
        check((1..=256).contains(&name.chars().count()) && !name.contains(['=', '\0']), || {
            format!("{name:?} is no name of an environment variable")
        })?;
        check(env.value.chars().count() <= 32_768 && !env.value.contains('\0'), || {
            format!("the value of {name} is longer than 32768 characters, or has a NUL in it")
        })?;
    }
    let together: usize = spec.envs.iter().map(|env| env.name.len() + env.value.len()).sum();
    check(together <= ENVS_TOGETHER, || "environment variables have more than 256 KiB together".into())
}

fn ports(ports: &[i32]) -> Result<(), Invalid> {
    check(ports.len() <= 32, || "there are more than 32 ports".into())?;
    check(ports.iter().all(|port| (1..=65_535).contains(port)), || "ports are between 1 and 65535".into())?;
    let different: HashSet<&i32> = ports.iter().collect();
    check(different.len() == ports.len(), || "a port is named twice".into())
}

fn files(files: &[SandboxFile]) -> Result<(), Invalid> {
    check(files.len() <= 64, || "there are more than 64 files".into())?;
    let paths: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    check(paths.len() == files.len(), || "two files have the same path".into())?;
    for file in files {
        let path = &file.path;
        check(is_path(path), || format!("{path:?} is no absolute path without `.` and `..`"))?;
        let mode = file.mode.unwrap_or(0);
        check((0..=0o777).contains(&mode), || format!("the mode of {path} has to be between 0 and 0777"))?;
        for reference in file.secret_key_ref.iter().chain(&file.config_map_key_ref) {
            let fits = |text: &str| (1..=253).contains(&text.chars().count());
            check(fits(&reference.name) && fits(&reference.key), || {
                format!(
                    "file {path} needs the name of its Secret or ConfigMap and a key of 1 to 253 characters"
                )
            })?;
        }
        let sources =
            [file.content.is_some(), file.secret_key_ref.is_some(), file.config_map_key_ref.is_some()];
        check(sources.iter().filter(|there| **there).count() == 1, || {
            format!("file {path} has to have one of content, secret and config_map")
        })?;
    }
    let together: usize = files.iter().filter_map(|file| file.content.as_ref()).map(String::len).sum();
    check(together <= FILES_TOGETHER, || "files have more than 256 KiB together".into())
}

/// `^(/([^/.]|\.[^/.]|\.\.[^/])[^/]*)+$`, as the schema has it.
fn is_path(path: &str) -> bool {
    let fits = |part: &str| {
        let mut chars = part.chars();
        match (chars.next(), chars.next(), chars.next()) {
            (None, ..) => false,
            (Some('.'), Some('.'), third) => third.is_some(),
            (Some('.'), second, _) => second.is_some(),
            _ => true,
        }
    };
    let length = path.chars().count();
    let parts = path.strip_prefix('/');
    (2..=1024).contains(&length) && parts.is_some_and(|parts| parts.split('/').all(fits))
}

fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (1..=63).contains(&bytes.len())
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

fn is_subdomain(text: &str) -> bool {
    let fits = |part: &str| {
        let bytes = part.as_bytes();
        let ends = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    (1..=253).contains(&text.len()) && text.split('.').all(fits)
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.first().copied().is_some_and(is_alphanumeric)
        && bytes.last().copied().is_some_and(is_alphanumeric)
        && bytes.iter().all(|b| is_alphanumeric(*b) || matches!(b, b'-' | b'_' | b'.'))
}

fn is_qualified(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name_part(name),
        None => is_name_part(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Sandbox {
        let spec = SandboxSpec { image: "i".into(), pool_ref: "p".into(), ..SandboxSpec::default() };
        let mut sandbox = Sandbox::new("name", spec);
        sandbox.metadata.namespace = Some("default".into());
        sandbox
    }

    fn with(change: impl FnOnce(&mut Sandbox)) -> bool {
        let mut changed = base();
        change(&mut changed);
        sandbox(&changed).is_ok()
    }

    #[test]
    fn what_the_schema_takes_is_taken_and_what_it_refuses_refused() {
        assert!(with(|_| {}));
        assert!(with(|s| s.spec.exposed_ports = vec![1, 65_535]));
        assert!(!with(|s| s.spec.exposed_ports = vec![0]));
        assert!(!with(|s| s.spec.exposed_ports = vec![80, 80]));
        assert!(!with(|s| s.spec.image.clear()));
        assert!(!with(|s| s.spec.image = "i".repeat(1025)));
        assert!(!with(|s| s.spec.recovery_timeout_seconds = -1));
        assert!(!with(|s| s.metadata.name = Some("Upper".into())));
        assert!(!with(|s| s.metadata.name = Some("a..b".into())));
        assert!(!with(|s| s.spec.command = vec![String::new(); 65]));
        assert!(!with(|s| drop(s.labels_mut().insert("a b".into(), String::new()))));
        assert!(with(|s| drop(s.labels_mut().insert("example.com/a".into(), "b".into()))));
    }

    #[test]
    fn paths_are_absolute_and_stay_where_they_are() {
        for path in ["/a", "/a/b", "/.a", "/..a", "/a.b/c", "/..."] {
            assert!(is_path(path), "{path}");
        }
        for path in ["", "/", "a", "/.", "/..", "/a/../b", "/a//b", "/a/", "/a/."] {
            assert!(!is_path(path), "{path}");
        }
    }
}
