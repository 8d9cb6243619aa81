//! The files of configMap, secret, downwardAPI and projected volumes. Decides what they hold; writes nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapProjection, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, SecretProjection, Volume,
    VolumeProjection,
};

use super::Problem;
use crate::kubelet::environment::field;
use crate::kubelet::lookup::Lookup;

/// The most that one volume holds. A ConfigMap has at most 1 MiB, but a projected volume has any number of them.
pub(super) const MOST_BYTES: usize = 16 << 20;
const DEFAULT_MODE: i32 = 0o644;
/// What a group of the file system may always do with files that are shared with it.
const GROUP_READS: u32 = 0o440;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) data: Vec<u8>,
    pub(super) mode: u32,
}

/// Files by their path relative to the volume; a path never leaves it.
pub(super) type Payload = BTreeMap<String, File>;

/// What a volume holds now, or `None` for a volume that is not made of such files.
pub(super) fn of(volume: &Volume, pod: &Pod, lookup: &dyn Lookup) -> Result<Option<Payload>, Problem> {
    let mut maker = Maker {
        pod,
        lookup,
        namespace: pod.metadata.namespace.as_deref().unwrap_or("default"),
        mode: DEFAULT_MODE,
        files: Payload::new(),
    };
    if let Some(source) = &volume.config_map {
        maker.mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        maker.config_map(&source.name, source.items.as_deref(), source.optional)?;
    } else if let Some(source) = &volume.secret {
        maker.mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let name = source.secret_name.as_deref().unwrap_or_default();
        maker.secret(name, source.items.as_deref(), source.optional)?;
    } else if let Some(source) = &volume.downward_api {
        maker.mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        maker.fields(source.items.as_deref().unwrap_or_default())?;
    } else if let Some(source) = &volume.projected {
        maker.mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        for part in source.sources.iter().flatten() {
            maker.project(part)?;
        }
    } else {
        return Ok(None);
    }
    maker.finish().map(Some)
}

struct Maker<'a> {
    pod: &'a Pod,
    lookup: &'a dyn Lookup,
    namespace: &'a str,
    mode: i32,
    files: Payload,
}

impl Maker<'_> {
    fn put(&mut self, path: &str, data: &[u8], mode: Option<i32>) {
        let mode = u32::try_from(mode.unwrap_or(self.mode)).unwrap_or_default() & 0o777;
        self.files.insert(path.to_owned(), File { data: data.to_owned(), mode });
    }

    fn config_map(
        &mut self,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), Problem> {
        let optional = optional == Some(true);
        let map = match self.lookup.config_map(self.namespace, name) {
            None if !optional => return Err(Problem::ConfigMap(name.to_owned())),
            found => found.unwrap_or_else(|| ConfigMap::default().into()),
        };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, data) in everything(&map) {
                self.put(key, data, None);
            }
            return Ok(());
        };
        for item in items {
            match everything(&map).find(|(key, _)| *key == item.key) {
                Some((_, data)) => self.put(&item.path, data, item.mode),
                None if optional => {}
                None => return Err(Problem::ConfigMapKey(item.key.clone())),
            }
        }
        Ok(())
    }

    fn secret(
        &mut self,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), Problem> {
        let optional = optional == Some(true);
        let secret = match self.lookup.secret(self.namespace, name) {
            None if !optional => return Err(Problem::Secret(name.to_owned())),
            found => found.unwrap_or_else(|| Secret::default().into()),
        };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, data) in secret.data.iter().flatten() {
                self.put(key, &data.0, None);
            }
            return Ok(());
        };
        for item in items {
            match secret.data.as_ref().and_then(|data| data.get(&item.key)) {
                Some(data) => self.put(&item.path, &data.0, item.mode),
                None if optional => {}
                None => return Err(Problem::SecretKey(item.key.clone())),
            }
        }
        Ok(())
    }

    fn fields(&mut self, items: &[DownwardAPIVolumeFile]) -> Result<(), Problem> {
        for item in items {
            let value = if let Some(field) = &item.field_ref {
                field::of_metadata(self.pod, &field.field_path)?
            } else if let Some(selector) = &item.resource_field_ref {
                field::of_resources(self.pod, None, selector, &self.lookup.allocatable())?
            } else {
                continue;
            };
            self.put(&item.path, value.as_bytes(), item.mode);
        }
        Ok(())
    }

    fn project(&mut self, part: &VolumeProjection) -> Result<(), Problem> {
        if let Some(ConfigMapProjection { name, items, optional }) = &part.config_map {
            self.config_map(name, items.as_deref(), *optional)
        } else if let Some(SecretProjection { name, items, optional }) = &part.secret {
            self.secret(name, items.as_deref(), *optional)
        } else if let Some(source) = &part.downward_api {
            self.fields(source.items.as_deref().unwrap_or_default())
        } else if part.service_account_token.is_some() {
            Err(Problem::Unsupported(
                "serviceAccountToken projections (this cluster has no service account tokens)",
            ))
        } else if part.cluster_trust_bundle.is_some() {
            Err(Problem::Unsupported("clusterTrustBundle projections"))
        } else if part.pod_certificate.is_some() {
            Err(Problem::Unsupported("podCertificate projections"))
        } else {
            Ok(())
        }
    }

    fn finish(self) -> Result<Payload, Problem> {
        let mut total = 0;
        let mut files = Payload::new();
        let shared = super::ownership::group(self.pod).is_some();
        for (path, mut file) in self.files {
            total += path.len() + file.data.len();
            if total > MOST_BYTES {
                return Err(Problem::TooLarge);
            }
            if shared {
                file.mode |= GROUP_READS;
            }
            files.insert(contained(&path)?, file);
        }
        Ok(files)
    }
}

fn everything(map: &ConfigMap) -> impl Iterator<Item = (&str, &[u8])> {
    let text = map.data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_bytes()));
    text.chain(map.binary_data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice())))
}

/// A path in its simplest form, if it stays in the volume and does not get in the way of the volume's own links.
fn contained(path: &str) -> Result<String, Problem> {
    let refused = |reason| Err(Problem::Path { path: path.to_owned(), reason });
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    match parts.first() {
        None => refused("must not be empty"),
        _ if path.starts_with('/') => refused("must be a relative path"),
        _ if path.len() > 4096 => refused("must be at most 4096 characters"),
        _ if path.contains('\0') => refused("must not contain NUL"),
        _ if parts.iter().any(|part| part.len() > 255) => {
            refused("file names must be at most 255 characters")
        }
        _ if parts.contains(&"..") => refused("must not contain '..'"),
        Some(first) if first.starts_with("..") => refused("must not start with '..'"),
        _ => Ok(parts.join("/")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kubelet::lookup::fixed::Fixed;

    fn made(volume: Value, group: Option<i64>) -> Result<Vec<String>, String> {
        let cluster = Fixed::default()
            .with(json!({"kind": "ConfigMap", "metadata": {"name": "conf", "namespace": "ns"},
                "data": {"a": "1", "b": "2"}, "binaryData": {"bin": "/w=="}}))
            .with(json!({"kind": "ConfigMap", "metadata": {"name": "dots", "namespace": "ns"}, "data": {"..x": "1"}}))
            .with(json!({"kind": "Secret", "metadata": {"name": "cred", "namespace": "ns"}, "data": {"pass": "cw=="}}));
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c"}], "securityContext": {"fsGroup": group}},
        }))
        .unwrap();
        let mut volume = volume;
        volume["name"] = "v".into();
        let files =
            of(&serde_json::from_value(volume).unwrap(), &pod, &cluster).map_err(|e| e.to_string())?;
        let files = files.ok_or("none")?;
        let line = |(path, file): (String, File)| {
            format!("{path} {:o} {}", file.mode, String::from_utf8_lossy(&file.data))
        };
        Ok(files.into_iter().map(line).collect())
    }

    #[test]
    fn files_of_every_source() {
        let projected = json!({"projected": {"defaultMode": 0o400, "sources": [
            {"secret": {"name": "cred"}},
            {"configMap": {"name": "conf", "items": [{"key": "a", "path": "x/./y//a", "mode": 0o755}]}},
            {"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}}]}},
        ]}});
        for (volume, expected) in [
            (json!({"configMap": {"name": "conf"}}), vec!["a 644 1", "b 644 2", "bin 644 \u{fffd}"]),
            (json!({"configMap": {"name": "conf", "items": [{"key": "b", "path": "c"}]}}), vec!["c 644 2"]),
            (json!({"configMap": {"name": "gone", "optional": true}}), vec![]),
            (
                json!({"configMap": {"name": "conf", "optional": true, "items": [{"key": "z", "path": "z"}]}}),
                vec![],
            ),
            (json!({"secret": {"secretName": "cred", "defaultMode": 0o600}}), vec!["pass 600 s"]),
            (projected, vec!["cpu 400 2", "labels 400 app=\"web\"", "pass 400 s", "x/y/a 755 1"]),
        ] {
            assert_eq!(made(volume.clone(), None).unwrap(), expected, "{volume}");
        }
        let shared = made(json!({"secret": {"secretName": "cred", "defaultMode": 0o400}}), Some(7));
        assert_eq!(shared.unwrap(), ["pass 440 s"]);
        assert_eq!(made(json!({"emptyDir": {}}), None).unwrap_err(), "none");
    }

    #[test]
    fn what_is_refused() {
        let at = |path: &str| json!({"configMap": {"name": "conf", "items": [{"key": "a", "path": path}]}});
        for (volume, expected) in [
            (json!({"configMap": {"name": "gone"}}), "configmap \"gone\" not found"),
            (json!({"secret": {"secretName": "gone"}}), "secret \"gone\" not found"),
            (
                json!({"configMap": {"name": "conf", "items": [{"key": "z", "path": "z"}]}}),
                "configmap references non-existent config key: z",
            ),
            (
                json!({"secret": {"secretName": "cred", "items": [{"key": "z", "path": "z"}]}}),
                "references non-existent secret key: z",
            ),
            (at("../up"), "invalid path \"../up\": must not contain '..'"),
            (at("x/../../up"), "invalid path \"x/../../up\": must not contain '..'"),
            (at("/abs"), "invalid path \"/abs\": must be a relative path"),
            (at("..data"), "invalid path \"..data\": must not start with '..'"),
            (at("./"), "invalid path \"./\": must not be empty"),
            (json!({"configMap": {"name": "dots"}}), "invalid path \"..x\": must not start with '..'"),
            (
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
                "serviceAccountToken projections (this cluster has no service account tokens) are not supported by \
                 this node",
            ),
        ] {
            assert_eq!(made(volume.clone(), None).unwrap_err(), expected, "{volume}");
        }
    }
}
