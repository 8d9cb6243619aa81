//! How much an order may hold. The controller has checked it already; nothing here relies on that.

use std::collections::BTreeSet;

use agentcube_protos::agent::{Claim, SandboxSpec};

const MOST_ID: usize = 64;
const MOST_NAME: usize = 253;
const MOST_OBJECT: usize = 1 << 19;
const MOST_COMMAND: usize = 64;
const MOST_ARGS: usize = 256;
const MOST_WORD: usize = 4_096;
const MOST_ENVS: usize = 128;
const MOST_ENV_BYTES: usize = 256 << 10;
const MOST_PORTS: usize = 32;
const MOST_FILES: usize = 64;
const MOST_FILE_BYTES: usize = 256 << 10;
const MOST_LABELS: usize = 256;

/// A run id names directories and containers.
pub(crate) fn run_id(id: &str) -> Result<(), String> {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if id.is_empty() || id.len() > MOST_ID || id.starts_with('-') || !id.bytes().all(plain) {
        return Err(format!("a run id has 1 to {MOST_ID} lower-case letters, digits and dashes"));
    }
    Ok(())
}

pub(crate) fn claim(claim: &Claim) -> Result<(), String> {
    let name = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c);
    for (what, text) in [("namespace", &claim.namespace), ("name", &claim.name)] {
        if text.is_empty() || text.len() > MOST_NAME || !text.bytes().all(name) {
            return Err(format!("the claim's {what} is no name of an object"));
        }
    }
    for (what, text) in [("pool", &claim.pool), ("uid", &claim.uid), ("request id", &claim.request_id)] {
        if text.len() > MOST_NAME {
            return Err(format!("the claim's {what} is longer than {MOST_NAME} bytes"));
        }
    }
    Ok(())
}

pub(crate) fn object(object: &[u8]) -> Result<(), String> {
    match object.len() > MOST_OBJECT {
        true => Err(format!("the object is larger than {MOST_OBJECT} bytes")),
        false => Ok(()),
    }
}

pub(crate) fn spec(spec: &SandboxSpec) -> Result<(), String> {
    let too_many = |what: &str, count: usize, most: usize| match count > most {
        true => Err(format!("{count} {what} are more than {most}")),
        false => Ok(()),
    };
    too_many("words of a command", spec.command.len(), MOST_COMMAND)?;
    too_many("arguments", spec.args.len(), MOST_ARGS)?;
    too_many("variables", spec.envs.len(), MOST_ENVS)?;
    too_many("ports", spec.ports.len(), MOST_PORTS)?;
    too_many("files", spec.files.len(), MOST_FILES)?;
    too_many("labels", spec.labels.len(), MOST_LABELS)?;
    let bytes: usize = spec.envs.iter().map(|(name, value)| name.len() + value.len()).sum();
    too_many("bytes of variables", bytes, MOST_ENV_BYTES)?;
    let bytes: usize = spec.files.iter().map(|file| file.content.len()).sum();
    too_many("bytes of files", bytes, MOST_FILE_BYTES)?;
    words(spec)?;
    if let Some(port) = spec.ports.iter().find(|port| **port == 0 || **port > u32::from(u16::MAX)) {
        return Err(format!("{port} is no port"));
    }
    let distinct: BTreeSet<_> = spec.ports.iter().collect();
    if distinct.len() < spec.ports.len() {
        return Err("a port is listed twice".into());
    }
    let paths: BTreeSet<_> = spec.files.iter().map(|file| &file.path).collect();
    if paths.len() < spec.files.len() {
        return Err("a file is listed twice".into());
    }
    match spec.run_as_user {
        Some(uid) if uid > i32::MAX.unsigned_abs() => Err(format!("{uid} is not the number of a user")),
        _ => Ok(()),
    }
}

/// What ends up in arguments of system calls.
fn words(spec: &SandboxSpec) -> Result<(), String> {
    let paths = spec.files.iter().map(|file| &file.path);
    let words = spec.command.iter().chain(&spec.args).chain(paths).chain([&spec.working_dir, &spec.image]);
    if words.clone().any(|word| word.len() > MOST_WORD) {
        return Err(format!("a word is longer than {MOST_WORD} bytes"));
    }
    let bad = |name: &str| name.is_empty() || name.contains('=');
    if spec.envs.keys().any(|name| bad(name)) {
        return Err("a variable has an empty name, or one with '='".into());
    }
    let variables = spec.envs.iter().flat_map(|(name, value)| [name, value]);
    if words.chain(variables).any(|word| word.contains('\0')) {
        return Err("words cannot have NUL bytes".into());
    }
    Ok(())
}
