//! What of a Pod's volumes one of its containers sees, and where.

use std::io;
use std::path::{Path, PathBuf};

use agentcube_runtime::spec::{Mount, Source};
use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::{Place, Prepared, beneath};
use crate::kubelet::environment;

/// Why a container cannot have a mount; `kubectl describe` shows it as CreateContainerConfigError.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    Missing { volume: String, container: String },
    #[error(
        "volume {0:?} asks for mount propagation {1:?}, which this node does not support; remove it or use None"
    )]
    Propagation(String, String),
    #[error("missing value for {0:?}")]
    Variable(String),
    #[error("subPath of volume {volume:?} is {source}")]
    TooLong { volume: String, source: environment::TooLong },
    #[error("subPath {0:?} must be a relative path without '..'")]
    SubPath(String),
    #[error(
        "failed to prepare subPath {path:?} for volumeMount {volume:?} of container {container:?}: {source}"
    )]
    Prepare { path: String, volume: String, container: String, source: io::Error },
    #[error("subPath {path:?} of volume {volume:?}: a volume in memory is mounted as a whole only")]
    PartOfMemory { path: String, volume: String },
    #[error("container {container:?} uses {device:?} as a block device, which this node does not support")]
    Device { device: String, container: String },
}

impl Prepared {
    /// The mounts of a container, in order. `env` is what [`environment::resolve`] gave it, for `subPathExpr`.
    ///
    /// Every source that is bound is a path without links. Whoever mounts it must not follow any either: a container
    /// that runs already could put one there in between.
    ///
    /// `recursiveReadOnly` needs no mention: nothing is mounted below a volume, so read-only is all of it.
    pub fn mounts(&self, container: &Container, env: &[(String, String)]) -> Result<Vec<Mount>, Error> {
        if let Some(device) = container.volume_devices.iter().flatten().next() {
            return Err(Error::Device { device: device.name.clone(), container: container.name.clone() });
        }
        container.volume_mounts.iter().flatten().map(|mount| self.mount(container, mount, env)).collect()
    }

    fn mount(
        &self,
        container: &Container,
        mount: &VolumeMount,
        env: &[(String, String)],
    ) -> Result<Mount, Error> {
        let volume = mount.name.clone();
        if let Some(mode) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
            return Err(Error::Propagation(volume, mode.to_owned()));
        }
        let Some(prepared) = self.volumes.get(&volume) else {
            return Err(Error::Missing { volume, container: container.name.clone() });
        };
        let path = sub_path(mount, env)?;
        let source = match (&prepared.place, path) {
            (Place::Path(root), None) => Source::Bind(root.clone()),
            (Place::Path(root), Some(path)) => {
                let resolved = beneath::resolve(root, Path::new(&path));
                let container = container.name.clone();
                Source::Bind(resolved.map_err(|source| Error::Prepare { path, volume, container, source })?)
            }
            (Place::Memory { bytes }, None) => Source::Tmpfs { bytes: *bytes },
            (Place::Memory { .. }, Some(path)) => return Err(Error::PartOfMemory { path, volume }),
        };
        let read_only = prepared.read_only || mount.read_only == Some(true);
        Ok(Mount { target: PathBuf::from(&mount.mount_path), source, read_only })
    }
}

/// The part of the volume that is mounted, or `None` for all of it.
fn sub_path(mount: &VolumeMount, env: &[(String, String)]) -> Result<Option<String>, Error> {
    let path = match mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => {
            let find =
                |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
            let missing = std::cell::RefCell::new(None);
            let expanded = environment::expand(text, |name| {
                let value = find(name);
                if value.is_none() {
                    missing.borrow_mut().get_or_insert_with(|| name.to_owned());
                }
                value
            });
            if let Some(name) = missing.into_inner() {
                return Err(Error::Variable(name));
            }
            expanded.map_err(|source| Error::TooLong { volume: mount.name.clone(), source })?
        }
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if path.starts_with('/') || path.contains('\0') || path.split('/').any(|part| part == "..") {
        return Err(Error::SubPath(path));
    }
    Ok(Some(path).filter(|path| !path.is_empty()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::{Value, json};

    use super::super::Volume;
    use super::*;

    #[test]
    fn mounts_of_a_container() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        symlink("/etc", root.join("escape")).unwrap();
        let disk = Volume { place: Place::Path(root.clone()), read_only: false };
        let fixed = Volume { place: Place::Path(root.clone()), read_only: true };
        let memory = Volume { place: Place::Memory { bytes: 7 }, read_only: false };
        let volumes = [("disk", disk), ("fixed", fixed), ("memory", memory)];
        let prepared = Prepared { volumes: volumes.map(|(name, volume)| (name.to_owned(), volume)).into() };
        let env = [("WHO".to_owned(), "me".to_owned()), ("UP".to_owned(), "..".to_owned())];
        let mounted = |mount: Value| {
            let mut mount = mount;
            mount["mountPath"] = "/m".into();
            let container = serde_json::from_value(json!({"name": "c", "volumeMounts": [mount]})).unwrap();
            prepared
                .mounts(&container, &env)
                .map(|mounts| mounts[0].clone())
                .map_err(|error| error.to_string())
        };
        let bind =
            |path: PathBuf, read_only| Mount { target: "/m".into(), source: Source::Bind(path), read_only };
        for (mount, expected) in [
            (json!({"name": "disk"}), bind(root.clone(), false)),
            (json!({"name": "disk", "readOnly": true, "mountPropagation": "None"}), bind(root.clone(), true)),
            (json!({"name": "fixed"}), bind(root.clone(), true)),
            (json!({"name": "disk", "subPath": "a/b"}), bind(root.join("a/b"), false)),
            (json!({"name": "disk", "subPathExpr": "of-$(WHO)"}), bind(root.join("of-me"), false)),
            (
                json!({"name": "memory"}),
                Mount { target: "/m".into(), source: Source::Tmpfs { bytes: 7 }, read_only: false },
            ),
        ] {
            assert_eq!(mounted(mount), Ok(expected));
        }
        assert!(root.join("of-me").is_dir());
        for (mount, expected) in [
            (json!({"name": "none"}), "cannot find volume \"none\" to mount into container \"c\""),
            (json!({"name": "disk", "subPathExpr": "$(NOBODY)"}), "missing value for \"NOBODY\""),
            (
                json!({"name": "disk", "subPathExpr": "x/$(UP)/y"}),
                "subPath \"x/../y\" must be a relative path without '..'",
            ),
            (json!({"name": "disk", "subPath": "/a"}), "subPath \"/a\" must be a relative path without '..'"),
            (
                json!({"name": "disk", "mountPropagation": "Bidirectional"}),
                "volume \"disk\" asks for mount propagation \"Bidirectional\", which this node does not support; \
                 remove it or use None",
            ),
            (
                json!({"name": "memory", "subPath": "a"}),
                "subPath \"a\" of volume \"memory\": a volume in memory is mounted as a whole only",
            ),
        ] {
            assert_eq!(mounted(mount).unwrap_err(), expected);
        }
        let escaped = mounted(json!({"name": "disk", "subPath": "escape/passwd"})).unwrap_err();
        assert!(escaped.starts_with("failed to prepare subPath \"escape/passwd\""), "{escaped}");
    }
}
