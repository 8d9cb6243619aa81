//! Paths with slashes, as Go's `path` cleans and splits them. Those with `os` in their name are the same here.

use super::Param::Text;
use super::{Function, exactly, text};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("base", &[Text], |memory, values| memory.text(base(text(values, 0)))),
    exactly("osBase", &[Text], |memory, values| memory.text(base(text(values, 0)))),
    exactly("dir", &[Text], |memory, values| memory.text(dir(text(values, 0)))),
    exactly("osDir", &[Text], |memory, values| memory.text(dir(text(values, 0)))),
    exactly("clean", &[Text], |memory, values| memory.text(clean(text(values, 0)))),
    exactly("osClean", &[Text], |memory, values| memory.text(clean(text(values, 0)))),
    exactly("ext", &[Text], |memory, values| memory.text(ext(text(values, 0)))),
    exactly("osExt", &[Text], |memory, values| memory.text(ext(text(values, 0)))),
    exactly("isAbs", &[Text], |_, values| Ok(Value::Bool(text(values, 0).starts_with('/')))),
    exactly("osIsAbs", &[Text], |_, values| Ok(Value::Bool(text(values, 0).starts_with('/')))),
];

fn base(path: &str) -> &str {
    if path.is_empty() {
        return ".";
    }
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return "/";
    }
    path.rsplit_once('/').map_or(path, |(_, base)| base)
}

fn dir(path: &str) -> String {
    clean(path.rsplit_once('/').map_or("", |(dir, _)| if dir.is_empty() { "/" } else { dir }))
}

fn ext(path: &str) -> &str {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    name.rfind('.').map_or("", |dot| &name[dot..])
}

/// The shortest path that means the same.
fn clean(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if absolute => {}
            part => parts.push(part),
        }
    }
    match (absolute, parts.is_empty()) {
        (true, _) => format!("/{}", parts.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => parts.join("/"),
    }
}
