//! Makes tar archives and images in memory, also such as no honest tool would make.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use agentcube_runtime::image::Digest;
use serde_json::json;

/// One entry of a tar archive, written as it is told.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) kind: u8,
    pub(crate) path: String,
    pub(crate) link: String,
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
    pub(crate) modified: u64,
    pub(crate) owner: u32,
    pub(crate) records: Vec<(String, Vec<u8>)>,
}

pub(crate) fn entry(kind: u8, path: &str, link: &str) -> Entry {
    Entry {
        kind,
        path: path.into(),
        link: link.into(),
        mode: 0o644,
        content: Vec::new(),
        modified: 1_000_000_000,
        owner: 0,
        records: Vec::new(),
    }
}

pub(crate) fn file(path: &str, content: &str) -> Entry {
    Entry { content: content.into(), ..entry(b'0', path, "") }
}

pub(crate) fn directory(path: &str) -> Entry {
    Entry { mode: 0o755, ..entry(b'5', path, "") }
}

pub(crate) fn symlink(path: &str, target: &str) -> Entry {
    entry(b'2', path, target)
}

pub(crate) fn hard_link(path: &str, target: &str) -> Entry {
    entry(b'1', path, target)
}

impl Entry {
    pub(crate) fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn owner(self, owner: u32) -> Self {
        Self { owner, ..self }
    }

    pub(crate) fn record(mut self, key: &str, value: &[u8]) -> Self {
        self.records.push((key.into(), value.into()));
        self
    }
}

pub(crate) fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut archive = Vec::new();
    for entry in entries {
        let mut records = entry.records.clone();
        if entry.path.len() > 100 {
            records.push(("path".into(), entry.path.clone().into()));
        }
        if entry.link.len() > 100 {
            records.push(("linkpath".into(), entry.link.clone().into()));
        }
        if !records.is_empty() {
            let content = records.iter().flat_map(|(key, value)| pax(key, value)).collect();
            append(&mut archive, &Entry { content, ..super::build::entry(b'x', "pax", "") });
        }
        append(&mut archive, entry);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn pax(key: &str, value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let length = (body..).find(|length| body + length.to_string().len() == *length).unwrap();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn append(archive: &mut Vec<u8>, entry: &Entry) {
    let mut header = [0_u8; 512];
    let mut put = |at: usize, limit: usize, bytes: &[u8]| {
        let length = bytes.len().min(limit);
        header[at..at + length].copy_from_slice(&bytes[..length]);
    };
    put(0, 100, entry.path.as_bytes());
    put(100, 8, format!("{:07o}", entry.mode).as_bytes());
    put(108, 8, format!("{:07o}", entry.owner).as_bytes());
    put(116, 8, format!("{:07o}", entry.owner).as_bytes());
    put(124, 12, format!("{:011o}", entry.content.len()).as_bytes());
    put(136, 12, format!("{:011o}", entry.modified).as_bytes());
    put(148, 8, b"        ");
    put(156, 1, &[entry.kind]);
    put(157, 100, entry.link.as_bytes());
    put(257, 8, b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend(header);
    archive.extend(&entry.content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The configuration of an image with these layers, which are not compressed.
pub(crate) fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let contents: Vec<_> = layers.iter().map(|layer| Digest::of(layer)).collect();
    let config = json!({
        "os": "linux", "architecture": architecture(),
        "config": {"Cmd": ["/bin/sh"], "Env": ["A=b"], "User": "1000"},
        "rootfs": {"type": "layers", "diff_ids": contents},
    });
    config.to_string().into_bytes()
}

/// What `docker save` wrote for years.
pub(crate) fn docker_archive(name: &str, layers: &[Vec<u8>]) -> Vec<u8> {
    let config = config(layers);
    let config_name = format!("{}.json", Digest::of(&config).hex());
    let names: Vec<_> = (0..layers.len()).map(|at| format!("{at}/layer.tar")).collect();
    let manifest = json!([{"Config": config_name, "RepoTags": [name], "Layers": names}]);
    let mut entries = vec![Entry { content: config, ..file(&config_name, "") }];
    for (name, layer) in names.iter().zip(layers) {
        entries.push(Entry { content: layer.clone(), ..file(name, "") });
    }
    entries.push(file("manifest.json", &manifest.to_string()));
    tar(&entries)
}

/// The blobs of an image, and the digest of its manifest.
pub(crate) struct Blobs {
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) manifest: Digest,
    pub(crate) id: Digest,
}

pub(crate) fn blobs(layers: &[Vec<u8>], compress: fn(&[u8]) -> Vec<u8>) -> Blobs {
    let mut blobs = BTreeMap::new();
    let mut add = |bytes: Vec<u8>| {
        let (digest, size) = (Digest::of(&bytes), bytes.len());
        blobs.insert(digest.clone(), bytes);
        (digest, size)
    };
    let described: Vec<_> = layers
        .iter()
        .map(|layer| {
            let (digest, size) = add(compress(layer));
            json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size})
        })
        .collect();
    let (id, size) = add(config(layers));
    let config = json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": id, "size": size});
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": described});
    let (manifest, _) = add(manifest.to_string().into_bytes());
    Blobs { blobs, manifest, id }
}

/// An index of one image for another kind of machine and one for this.
pub(crate) fn index(blobs: &Blobs) -> Vec<u8> {
    let other = Digest::of(b"for another machine");
    let size = blobs.blobs[&blobs.manifest].len();
    let index = json!({"schemaVersion": 2, "manifests": [
        {"digest": other, "size": 1, "platform": {"os": "plan9", "architecture": "mips"}},
        {"digest": blobs.manifest, "size": size, "platform": {"os": "linux", "architecture": architecture()}},
    ]});
    index.to_string().into_bytes()
}

pub(crate) fn write_layout(path: &Path, name: &str, blobs: &Blobs) {
    let folder = path.join("blobs/sha256");
    std::fs::create_dir_all(&folder).unwrap();
    for (digest, bytes) in &blobs.blobs {
        std::fs::write(folder.join(digest.hex()), bytes).unwrap();
    }
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": blobs.manifest, "size": blobs.blobs[&blobs.manifest].len(),
        "annotations": {"org.opencontainers.image.ref.name": name},
    }]});
    std::fs::write(path.join("index.json"), index.to_string()).unwrap();
    std::fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}
