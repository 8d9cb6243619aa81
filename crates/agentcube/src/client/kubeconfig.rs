//! Which kubeconfig: the one that is named, `KUBECONFIG`, the running `up` of the default data directory, or the one
//! in the home directory.

use std::path::Path;

use anyhow::Context;
use kube::config::Kubeconfig;

use crate::environment::Environment;
use crate::exit::Absent;
use crate::paths;
use crate::up::running::{Phase, Running};

pub(crate) fn resolve(named: Option<&Path>, environment: &Environment) -> anyhow::Result<Kubeconfig> {
    if let Some(path) = named {
        return read_file(path);
    }
    if let Some(list) = &environment.kubeconfig {
        return read_list(list);
    }
    let data = paths::default_data_dir(environment);
    if let Some(running) = Running::find(&data)?
        && running.record.phase != Phase::Starting
    {
        return read_file(&data.kubeconfig());
    }
    let home = environment.home.as_ref().map(|home| home.join(".kube/config"));
    match home.filter(|path| path.is_file()) {
        Some(path) => read_file(&path),
        None => Err(Absent(
            "there is no cluster to talk to: `agentcube up` starts one, or name one with --kubeconfig FILE"
                .into(),
        )
        .into()),
    }
}

pub(crate) fn read_file(path: &Path) -> anyhow::Result<Kubeconfig> {
    Kubeconfig::read_from(path).with_context(|| format!("cannot use the kubeconfig {}", path.display()))
}

/// All files of the list that exist, earlier ones first in rank.
fn read_list(list: &std::ffi::OsStr) -> anyhow::Result<Kubeconfig> {
    let mut merged: Option<Kubeconfig> = None;
    for path in std::env::split_paths(list).filter(|path| path.is_file()) {
        let next = read_file(&path)?;
        merged = Some(match merged {
            Some(earlier) => {
                earlier.merge(next).with_context(|| format!("cannot merge {}", path.display()))?
            }
            None => next,
        });
    }
    merged.with_context(|| format!("KUBECONFIG names no file that exists: {}", list.display()))
}
