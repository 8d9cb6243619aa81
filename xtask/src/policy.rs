//! The dependency policy: licences, banned crates, sources, lints. What it allows and why is in
//! `dependency-policy.json`; this only applies it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::{cargo, quietly};

/// Everything in the workspace that breaks the policy.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let policy: Value = serde_json::from_str(&std::fs::read_to_string(root.join("dependency-policy.json"))?)?;
    let metadata: Value =
        serde_json::from_str(&quietly(cargo(root).args(["metadata", "--format-version=1", "--locked"]))?)?;
    let mut found = Vec::new();
    for package in array(&metadata["packages"]) {
        found.extend(package_violations(&policy, package));
    }
    let members = array(&metadata["workspace_members"]);
    for package in array(&metadata["packages"]).iter().filter(|package| members.contains(&package["id"])) {
        found.extend(lint_violations(&policy, package)?);
    }
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?;
    if !manifest.lines().any(|line| line.trim() == "unsafe_code = \"forbid\"") {
        found.push("Cargo.toml: the workspace lints must forbid unsafe_code".to_owned());
    }
    found.extend(text_violations(root)?);
    Ok(found)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The reason that a list of `{"crate": …, "reason": …}` gives for a crate.
fn reason<'a>(list: &'a Value, name: &str) -> Option<&'a str> {
    array(list).iter().find(|entry| text(entry, "crate") == name).map(|entry| text(entry, "reason"))
}

fn package_violations(policy: &Value, package: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let name = text(package, "name");
    let label = format!("{name} {}", text(package, "version"));
    if let Some(why) = reason(&policy["banned"], name) {
        found.push(format!("{label}: banned: {why}"));
    }
    let allowed: Vec<&str> = array(&policy["licenses"]).iter().map(|entry| text(entry, "license")).collect();
    let license = text(package, "license");
    if !license_allowed(license, &allowed) && reason(&policy["licenseExceptions"], name).is_none() {
        found.push(format!("{label}: licence {license:?} is not allowed"));
    }
    if package["source"].as_str().is_some_and(|source| !source.starts_with("registry+")) {
        found.push(format!("{label}: not from the registry: {}", text(package, "source")));
    }
    found
}

/// Evaluates an SPDX expression: one side of an `OR`, both sides of an `AND`.
fn license_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut position = 0;
    !words.is_empty() && either(&words, &mut position, allowed) && position == words.len()
}

fn either(words: &[&str], position: &mut usize, allowed: &[&str]) -> bool {
    let mut holds = both(words, position, allowed);
    while words.get(*position) == Some(&"OR") {
        *position += 1;
        let other = both(words, position, allowed);
        holds = holds || other;
    }
    holds
}

fn both(words: &[&str], position: &mut usize, allowed: &[&str]) -> bool {
    let mut holds = single(words, position, allowed);
    while words.get(*position) == Some(&"AND") {
        *position += 1;
        let other = single(words, position, allowed);
        holds = holds && other;
    }
    holds
}

fn single(words: &[&str], position: &mut usize, allowed: &[&str]) -> bool {
    let Some(word) = words.get(*position) else { return false };
    *position += 1;
    if *word == "(" {
        let holds = either(words, position, allowed);
        *position += 1;
        return holds;
    }
    if words.get(*position) == Some(&"WITH") {
        let exception = words.get(*position + 1).copied().unwrap_or_default();
        *position += 2;
        return allowed.contains(&format!("{word} WITH {exception}").as_str());
    }
    allowed.contains(word)
}

fn lint_violations(policy: &Value, package: &Value) -> Result<Option<String>> {
    let name = text(package, "name");
    if reason(&policy["ownLints"], name).is_some() {
        return Ok(None);
    }
    let manifest = std::fs::read_to_string(text(package, "manifest_path"))?;
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    let inherits = lines.next() == Some("workspace = true");
    Ok((!inherits).then(|| format!("{name}: its Cargo.toml must say `[lints]` with `workspace = true`")))
}

const EVERYWHERE: [&str; 8] = ["/", "/tmp", "/root", "/home", "/opt", "/srv", "/mnt", "/var"];

/// No tracked file names the place where this checkout happens to be.
fn text_violations(root: &Path) -> Result<Vec<String>> {
    let files =
        quietly(Command::new("git").current_dir(root).args(["ls-files", "-z"])).context("listing files")?;
    // A checkout right below a directory that every machine has tells nothing of this one.
    let telling = |parent: &&Path| !EVERYWHERE.iter().any(|everywhere| *parent == Path::new(everywhere));
    let Some(place) = root.parent().filter(telling) else {
        return Ok(Vec::new());
    };
    let place = format!("{}/", place.display());
    let mut found = Vec::new();
    for file in files.split('\0').filter(|file| !file.is_empty()) {
        let Ok(content) = std::fs::read(root.join(file)) else { continue };
        if String::from_utf8_lossy(&content).contains(&place) {
            found.push(format!("{file}: names {place:?}, a path of this machine"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluates_licence_expressions() {
        let allowed = ["MIT", "Apache-2.0", "ISC", "Apache-2.0 WITH LLVM-exception"];
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("MIT AND GPL-3.0", false),
            ("MIT/Apache-2.0", true),
            ("(MIT OR GPL-3.0) AND ISC", true),
            ("(GPL-3.0 OR LGPL-2.1) AND ISC", false),
            ("GPL-3.0 OR MIT AND ISC", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH Odd-exception", false),
            ("", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(license_allowed(expression, &allowed), expected, "{expression}");
        }
    }
}
