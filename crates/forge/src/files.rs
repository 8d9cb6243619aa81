//! The files of a bundle, and whether they are what they say: paths, encodings, sizes, digests.

use agentcube_api::frontend::bundle::{BundleFile, FileEncoding};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::hash;

/// The module that is loaded.
pub const MODULE: &str = "index.js";
/// Its source map.
pub const MAP: &str = "index.js.map";
/// What it was built from.
pub const MANIFEST: &str = "manifest.json";
/// All of them, and what they are served as.
pub const ALL: [(&str, &str); 3] =
    [(MODULE, "application/javascript"), (MAP, "application/json"), (MANIFEST, "application/json")];

/// Bytes of an object that the API server takes, less what is not files.
pub const LARGEST_BUNDLE: usize = 1_000_000;

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{0}: no file of a bundle is called that")]
    Path(String),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is there twice")]
    Twice(String),
    #[error("{0}: its content cannot be decoded")]
    Encoding(String),
    #[error("{path}: it has {found} bytes, and should have {told}")]
    Size { path: String, told: i64, found: usize },
    #[error("{0}: its SHA-256 does not fit its content")]
    Digest(String),
}

/// A file with all that is to be known of it.
pub fn file(path: &str, content_type: &str, content: &[u8]) -> BundleFile {
    BundleFile {
        path: path.to_owned(),
        encoding: FileEncoding::Base64,
        content: BASE64.encode(content),
        sha256: Some(hash::hex(content)),
        size: i64::try_from(content.len()).ok(),
        content_type: Some(content_type.to_owned()),
    }
}

/// What a file holds, if it is what it says.
pub fn content(file: &BundleFile) -> Result<Vec<u8>, Fault> {
    let content = match file.encoding {
        FileEncoding::Base64 => {
            BASE64.decode(&file.content).map_err(|_| Fault::Encoding(file.path.clone()))?
        }
        FileEncoding::Utf8 => file.content.clone().into_bytes(),
    };
    if let Some(told) = file.size
        && i64::try_from(content.len()) != Ok(told)
    {
        return Err(Fault::Size { path: file.path.clone(), told, found: content.len() });
    }
    match &file.sha256 {
        Some(told) if *told == hash::hex(&content) => Ok(content),
        _ => Err(Fault::Digest(file.path.clone())),
    }
}

/// Whether these are the files of a bundle, all of them whole and none besides.
pub fn check(files: &[BundleFile]) -> Result<(), Fault> {
    for (place, file) in files.iter().enumerate() {
        if !ALL.iter().any(|(path, _)| *path == file.path) {
            return Err(Fault::Path(file.path.clone()));
        }
        if files[..place].iter().any(|other| other.path == file.path) {
            return Err(Fault::Twice(file.path.clone()));
        }
        content(file)?;
    }
    match ALL.iter().find(|(path, _)| !files.iter().any(|file| file.path == *path)) {
        Some((path, _)) => Err(Fault::Missing(path)),
        None => Ok(()),
    }
}

/// Bytes that the files take in an object.
pub fn weight(files: &[BundleFile]) -> usize {
    files.iter().map(|file| file.content.len() + file.path.len() + 256).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn whole() -> Vec<BundleFile> {
        ALL.iter().map(|(path, kind)| file(path, kind, path.as_bytes())).collect()
    }

    #[test]
    fn a_bundle_is_whole_or_says_what_is_wrong() {
        assert_eq!(check(&whole()), Ok(()));
        let spoilt = |change: fn(&mut Vec<BundleFile>)| {
            let mut files = whole();
            change(&mut files);
            check(&files).unwrap_err()
        };
        assert_eq!(
            spoilt(|files| files[0].content = BASE64.encode("other.js")),
            Fault::Digest(MODULE.into())
        );
        assert_eq!(spoilt(|files| files[0].sha256 = None), Fault::Digest(MODULE.into()));
        assert_eq!(spoilt(|files| files[1].content = "%".into()), Fault::Encoding(MAP.into()));
        assert_eq!(
            spoilt(|files| files[1].size = Some(1)),
            Fault::Size { path: MAP.into(), told: 1, found: 12 }
        );
        assert_eq!(spoilt(|files| drop(files.pop())), Fault::Missing(MANIFEST));
        assert_eq!(spoilt(|files| files.push(files[0].clone())), Fault::Twice(MODULE.into()));
        assert_eq!(spoilt(|files| files[0].path = "../index.js".into()), Fault::Path("../index.js".into()));
    }
}
