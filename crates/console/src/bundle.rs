//! A JSBundle, read and checked: nothing of it is used unless every file is what its digest says. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ring::digest::{SHA256, digest};
use serde_json::Value;

/// The module of the pages, and what says which there are.
const MODULE: &str = "index.js";
const MANIFEST: &str = "manifest.json";
/// An object has room for a third of it.
const SIZE_LIMIT: usize = 4 << 20;

/// What the console uses of a bundle.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) manifest: Value,
    pub(crate) module: Bytes,
}

/// Why a bundle is not used. It waits for another build.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    #[error("the bundle has no {0}")]
    Missing(&'static str),
    #[error("the bundle has {0} twice")]
    Twice(String),
    #[error("{0} cannot be decoded")]
    Encoding(String),
    #[error("{0} has no digest")]
    NoDigest(String),
    #[error("{0} is not what its digest says: it was changed after it was built")]
    Digest(String),
    #[error("{0} is not as long as it says")]
    Size(String),
    #[error("the bundle is larger than {SIZE_LIMIT} bytes")]
    TooLarge,
    #[error("manifest.json cannot be read: {0}")]
    Manifest(String),
}

/// Reads a JSBundle as the API server sends it.
pub(crate) fn read(object: &Value) -> Result<Bundle, Error> {
    let files = object["spec"]["files"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (mut module, mut manifest, mut whole) = (None, None, 0);
    for file in files {
        let path = file["path"].as_str().unwrap_or_default();
        let content = decode(path, file)?;
        whole += content.len();
        if whole > SIZE_LIMIT {
            return Err(Error::TooLarge);
        }
        let kept = match path {
            MODULE => &mut module,
            MANIFEST => &mut manifest,
            _ => continue,
        };
        if kept.replace(content).is_some() {
            return Err(Error::Twice(path.to_owned()));
        }
    }
    let manifest = manifest.ok_or(Error::Missing(MANIFEST))?;
    let manifest: Value =
        serde_json::from_slice(&manifest).map_err(|error| Error::Manifest(error.to_string()))?;
    if !manifest.is_object() {
        return Err(Error::Manifest("it is no object".to_owned()));
    }
    Ok(Bundle { manifest, module: Bytes::from(module.ok_or(Error::Missing(MODULE))?) })
}

/// The content of a file, if it is what was built.
fn decode(path: &str, file: &Value) -> Result<Vec<u8>, Error> {
    let text = file["content"].as_str().unwrap_or_default();
    let content = match file["encoding"].as_str().unwrap_or("base64") {
        "utf-8" => text.as_bytes().to_vec(),
        "base64" => STANDARD.decode(text).map_err(|_| Error::Encoding(path.to_owned()))?,
        _ => return Err(Error::Encoding(path.to_owned())),
    };
    if file["size"].as_u64().is_some_and(|size| size != content.len() as u64) {
        return Err(Error::Size(path.to_owned()));
    }
    let expected = file["sha256"].as_str().ok_or_else(|| Error::NoDigest(path.to_owned()))?;
    let found = digest(&SHA256, &content);
    let found: String = found.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    match found == expected {
        true => Ok(content),
        false => Err(Error::Digest(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(path: &str, content: &str) -> Value {
        let sha256: String =
            digest(&SHA256, content.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        json!({ "path": path, "encoding": "base64", "content": STANDARD.encode(content), "sha256": sha256, "size": content.len() })
    }

    fn bundle(files: Vec<Value>) -> Value {
        json!({ "spec": { "manifest_hash": "sha256:x", "files": files } })
    }

    #[test]
    fn a_bundle_is_read_when_every_digest_fits() {
        let mut good =
            vec![file(MODULE, "export {}"), file(MANIFEST, r#"{"pages":[]}"#), file("index.js.map", "{}")];
        let read_one = read(&bundle(good.clone())).unwrap();
        assert_eq!((&read_one.module[..], &read_one.manifest["pages"]), (&b"export {}"[..], &json!([])));
        good[0]["content"] = json!("export {}");
        good[0]["encoding"] = json!("utf-8");
        assert!(read(&bundle(good)).is_ok());
    }

    #[test]
    fn whatever_does_not_fit_is_told() {
        let changed = |change: &dyn Fn(&mut Vec<Value>)| {
            let mut files = vec![file(MODULE, "export {}"), file(MANIFEST, "{}")];
            change(&mut files);
            read(&bundle(files)).unwrap_err()
        };
        let other = STANDARD.encode("export []");
        for (error, expected) in [
            (changed(&|files| files[0]["content"] = json!(other)), Error::Digest(MODULE.into())),
            (changed(&|files| files[0]["size"] = json!(3)), Error::Size(MODULE.into())),
            (changed(&|files| files[0]["sha256"] = Value::Null), Error::NoDigest(MODULE.into())),
            (changed(&|files| files[0]["content"] = json!("%")), Error::Encoding(MODULE.into())),
            (changed(&|files| files[0]["encoding"] = json!("gzip")), Error::Encoding(MODULE.into())),
            (changed(&|files| drop(files.remove(0))), Error::Missing(MODULE)),
            (changed(&|files| drop(files.remove(1))), Error::Missing(MANIFEST)),
            (changed(&|files| files.push(files[0].clone())), Error::Twice(MODULE.into())),
            // A file that is not used has to fit as well.
            (
                changed(&|files| files.push(json!({ "path": "index.js.map", "content": "" }))),
                Error::NoDigest("index.js.map".into()),
            ),
        ] {
            assert_eq!(error, expected);
        }
        let unreadable = changed(&|files| files[1] = file(MANIFEST, "[]"));
        assert!(matches!(unreadable, Error::Manifest(_)), "{unreadable:?}");
        assert_eq!(read(&json!({})).unwrap_err(), Error::Missing(MANIFEST));
        let large = file("large", &"x".repeat(SIZE_LIMIT + 1));
        assert_eq!(read(&bundle(vec![large])).unwrap_err(), Error::TooLarge);
    }
}
