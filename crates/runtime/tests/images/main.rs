//! The image store against archives and registries, honest and not. Needs no network and no tools; what real tools make
//! is taken in where they are installed.

// Clippy takes only what is marked as a test for one; all of this is.
#![allow(clippy::unwrap_used, clippy::panic)]

mod build;
mod import;
mod malicious;
mod pull;
mod server;
mod tools;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentcube_runtime::image::{Image, Reference, Report, Store};
use agentcube_runtime::spec::Root;

fn quiet() -> Report {
    Arc::new(|_| {})
}

fn reference(name: &str) -> Reference {
    Reference::parse(name).unwrap()
}

fn root(image: &Image) -> &Path {
    match &image.root {
        Root::Directory(path) => path,
        other => panic!("{other:?} is no image of ours"),
    }
}

fn import(store: &Store, archive: &[u8]) -> Result<Vec<Image>, agentcube_runtime::image::Error> {
    store.import_reader(archive, "archive", None, &quiet())
}

/// Every path below, with what it is: `d`, `f:CONTENT`, `l:TARGET` or `p`.
fn tree(path: &Path) -> BTreeMap<String, String> {
    fn walk(path: &Path, base: &Path, found: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
            let shown = if kind.is_dir() {
                walk(&path, base, found);
                "d".to_owned()
            } else if kind.is_symlink() {
                format!("l:{}", std::fs::read_link(&path).unwrap().display())
            } else if kind.is_file() {
                format!("f:{}", String::from_utf8_lossy(&std::fs::read(&path).unwrap()))
            } else {
                "p".to_owned()
            };
            found.insert(path.strip_prefix(base).unwrap().display().to_string(), shown);
        }
    }
    let mut found = BTreeMap::new();
    walk(path, path, &mut found);
    found
}

/// What is being made, or was left half made.
fn leftovers(data: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(data.join("images/work")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn inode(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).unwrap().ino()
}
