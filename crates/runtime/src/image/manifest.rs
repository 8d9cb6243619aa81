//! The JSON documents of images: indexes, manifests and configurations of OCI and Docker. Reads only; the sizes are
//! limited by whoever hands the bytes in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::Digest;

pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";
pub(super) const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// What a registry is asked for, best first.
pub(super) const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the {what} is not valid JSON: {cause}")]
    Json { what: &'static str, cause: serde_json::Error },
    #[error("the manifest is of the old schema 1; push the image again with a current tool")]
    Schema1,
    #[error("the manifest is not of a container image but of {0:?}")]
    NotAnImage(String),
    #[error("the image is not made for {wanted}; it has {found}")]
    Platform { wanted: String, found: String },
    #[error("the manifest has {manifest} layers and the configuration {config}; the image is damaged")]
    Layers { manifest: usize, config: usize },
    #[error("indexes are nested too deeply")]
    Nested,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Platform {
    #[serde(default)]
    pub(super) os: String,
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) variant: String,
}

impl Platform {
    pub(super) fn of_this_machine() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", ""),
            "aarch64" => ("arm64", "v8"),
            "arm" => ("arm", "v7"),
            "x86" => ("386", ""),
            "powerpc64" if cfg!(target_endian = "little") => ("ppc64le", ""),
            "loongarch64" => ("loong64", ""),
            other => (other, ""),
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: variant.into() }
    }

    /// How well a machine runs what is made for `self`: `None` not at all, else smaller is better.
    fn distance(&self, machine: &Self) -> Option<u8> {
        if self.os != machine.os || self.architecture != machine.architecture {
            return None;
        }
        let version = |platform: &Self| -> Option<u8> {
            match platform.variant.strip_prefix('v') {
                Some(version) => version.parse().ok(),
                None if platform.variant.is_empty() => Some(0),
                None => None,
            }
        };
        match (version(self)?, version(machine)?) {
            // Not said: it is made for any.
            (0, _) => Some(1),
            (made, has) => has.max(1).checked_sub(made),
        }
    }

    fn show(&self) -> String {
        let parts = [&self.os, &self.architecture, &self.variant];
        parts.iter().filter(|part| !part.is_empty()).map(|part| part.as_str()).collect::<Vec<_>>().join("/")
    }
}

/// An index or a manifest, whichever it is.
#[derive(Debug)]
pub(super) enum Document {
    Index(Vec<Descriptor>),
    Manifest(Manifest),
}

#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: Option<u32>,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    artifact_type: String,
}

pub(super) fn document(bytes: &[u8]) -> Result<Document, Error> {
    let raw: Raw = serde_json::from_slice(bytes).map_err(|cause| Error::Json { what: "manifest", cause })?;
    if raw.schema_version == Some(1) {
        return Err(Error::Schema1);
    }
    match (raw.manifests, raw.config, raw.layers) {
        (Some(manifests), ..) => Ok(Document::Index(manifests)),
        (None, Some(config), Some(layers)) => {
            let image = config.media_type.is_empty()
                || config.media_type == "application/vnd.oci.image.config.v1+json"
                || config.media_type == "application/vnd.docker.container.image.v1+json"
                || config.media_type == "application/octet-stream";
            if image {
                Ok(Document::Manifest(Manifest { config, layers }))
            } else {
                Err(Error::NotAnImage(config.media_type))
            }
        }
        _ => Err(Error::NotAnImage(raw.artifact_type)),
    }
}

/// The entry of an index that this machine runs best.
pub(super) fn choose(manifests: Vec<Descriptor>, machine: &Platform) -> Result<Descriptor, Error> {
    let found: Vec<_> =
        manifests.iter().filter_map(|entry| entry.platform.as_ref()).map(Platform::show).collect();
    // An index of one that says no platform is an image by another name.
    let only = manifests.len() == 1;
    let distance = |entry: &Descriptor| match &entry.platform {
        Some(platform) => platform.distance(machine),
        None => only.then_some(u8::MAX),
    };
    manifests
        .into_iter()
        .filter_map(|entry| distance(&entry).map(|distance| (distance, entry)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, entry)| entry)
        .ok_or_else(|| Error::Platform { wanted: machine.show(), found: found.join(", ") })
}

/// What an image says about how to run it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `NAME=VALUE`, in the image's order.
    pub env: Vec<String>,
    pub working_dir: String,
    /// A name or number, and perhaps `:` and a group's; empty for root.
    pub user: String,
    pub stop_signal: String,
    /// Such as `8080/tcp`.
    pub exposed_ports: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

impl Config {
    /// The image's variables, then a container's own over them.
    pub fn environment(&self, own: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String)> {
        let image = self.env.iter().filter_map(|variable| variable.split_once('='));
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, value) in image.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(own) {
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, old)) => *old = value,
                None => all.push((name, value)),
            }
        }
        all
    }
}

/// A configuration and the digests of its layers' content.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) config: Config,
    pub(super) contents: Vec<Digest>,
}

/// Go writes `null` for what is empty.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawConfig {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    stop_signal: Option<String>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct RawConfiguration {
    #[serde(default)]
    config: Option<RawConfig>,
    #[serde(default)]
    rootfs: RawRoot,
    #[serde(flatten)]
    platform: Platform,
}

#[derive(Deserialize, Default)]
struct RawRoot {
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

/// Reads a configuration; one that says it is for another kind of machine is refused.
pub(super) fn configuration(bytes: &[u8], machine: &Platform) -> Result<Configuration, Error> {
    let raw: RawConfiguration =
        serde_json::from_slice(bytes).map_err(|cause| Error::Json { what: "configuration", cause })?;
    let said = !raw.platform.architecture.is_empty() && !raw.platform.os.is_empty();
    if said && raw.platform.distance(machine).is_none() {
        return Err(Error::Platform { wanted: machine.show(), found: raw.platform.show() });
    }
    let config = raw.config.unwrap_or_default();
    Ok(Configuration {
        contents: raw.rootfs.diff_ids.unwrap_or_default(),
        config: Config {
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
            env: config.env.unwrap_or_default(),
            working_dir: config.working_dir.unwrap_or_default(),
            user: config.user.unwrap_or_default(),
            stop_signal: config.stop_signal.unwrap_or_default(),
            exposed_ports: config.exposed_ports.unwrap_or_default().into_keys().collect(),
            labels: config.labels.unwrap_or_default(),
        },
    })
}

/// `manifest.json` of a docker archive.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Archived {
    pub(super) config: String,
    #[serde(default)]
    pub(super) repo_tags: Option<Vec<String>>,
    #[serde(default)]
    pub(super) layers: Option<Vec<String>>,
}

pub(super) fn archived(bytes: &[u8]) -> Result<Vec<Archived>, Error> {
    serde_json::from_slice(bytes).map_err(|cause| Error::Json { what: "archive's manifest.json", cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        Platform { os: next(), architecture: next(), variant: next() }
    }

    fn chosen(machine: &str, offered: &[&str]) -> Option<usize> {
        let manifests = offered.iter().enumerate().map(|(at, offered)| Descriptor {
            media_type: String::new(),
            digest: Digest::of(b""),
            size: at as u64,
            platform: (!offered.is_empty()).then(|| platform(offered)),
            annotations: BTreeMap::new(),
        });
        choose(manifests.collect(), &platform(machine)).ok().map(|chosen| chosen.size as usize)
    }

    #[test]
    fn the_best_platform_is_chosen() {
        for (machine, offered, expected) in [
            ("linux/amd64", &["linux/arm64/v8", "linux/amd64"][..], Some(1)),
            ("linux/amd64", &["windows/amd64", "linux/386"], None),
            ("linux/arm64/v8", &["linux/arm64", "linux/arm64/v8"], Some(1)),
            ("linux/arm64/v8", &["linux/arm64", "linux/arm64/v9"], Some(0)),
            ("linux/arm/v7", &["linux/arm/v5", "linux/arm/v6"], Some(1)),
            ("linux/arm/v6", &["linux/arm/v7"], None),
            ("linux/amd64", &["linux/amd64/v3", "linux/amd64"], Some(1)),
            ("linux/amd64", &[""], Some(0)),
            ("linux/amd64", &["unknown/unknown", ""], None),
            ("linux/amd64", &[], None),
        ] {
            assert_eq!(chosen(machine, offered), expected, "{machine} {offered:?}");
        }
    }

    #[test]
    fn nulls_and_missing_fields_are_empty() {
        let machine = platform("linux/amd64");
        for text in ["{}", r#"{"config":null,"rootfs":{"diff_ids":null}}"#, r#"{"config":{"Cmd":null}}"#] {
            let read = configuration(text.as_bytes(), &machine).unwrap();
            assert_eq!((read.config, read.contents.len()), (Config::default(), 0), "{text}");
        }
        let full = br#"{"os":"linux","architecture":"amd64","config":{"Entrypoint":["/a"],"Cmd":["b"],
            "Env":["A=b"],"WorkingDir":"/w","User":"1:2","StopSignal":"SIGINT",
            "ExposedPorts":{"80/tcp":{}},"Labels":{"l":"m"}},"rootfs":{"type":"layers","diff_ids":[]}}"#;
        let config = configuration(full, &machine).unwrap().config;
        assert_eq!(config.exposed_ports, ["80/tcp"]);
        assert_eq!((config.user.as_str(), config.stop_signal.as_str()), ("1:2", "SIGINT"));
        assert!(configuration(full, &platform("linux/arm64/v8")).is_err());
    }

    #[test]
    fn documents_that_are_no_images_are_refused() {
        assert!(matches!(document(br#"{"schemaVersion":1}"#), Err(Error::Schema1)));
        assert!(matches!(document(b"{}"), Err(Error::NotAnImage(_))));
        assert!(matches!(document(b"<html>"), Err(Error::Json { .. })));
        let digest = Digest::of(b"");
        let chart = format!(
            r#"{{"config":{{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"{digest}","size":1}},"layers":[]}}"#
        );
        assert!(matches!(document(chart.as_bytes()), Err(Error::NotAnImage(kind)) if kind.contains("helm")));
    }
}
