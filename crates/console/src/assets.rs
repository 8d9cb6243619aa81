//! The pages, as `console/` was built. They are compressed when first asked for, and kept.

use std::io::Write;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, ETAG, HeaderValue, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, StatusCode};

use crate::answer::{self, Answer};

struct Asset {
    path: &'static str,
    content_type: &'static str,
    content: &'static [u8],
    made: OnceLock<Made>,
}

struct Made {
    etag: String,
    compressed: Option<Bytes>,
}

const fn asset(path: &'static str, content_type: &'static str, content: &'static [u8]) -> Asset {
    Asset { path, content_type, content, made: OnceLock::new() }
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

static ASSETS: [Asset; 8] = [
    asset("/", "text/html; charset=utf-8", include_bytes!("../assets/index.html")),
    asset("/assets/app.css", "text/css; charset=utf-8", include_bytes!("../assets/app.css")),
    asset("/assets/app.js", JAVASCRIPT, include_bytes!("../assets/app.js")),
    asset("/assets/icon.svg", "image/svg+xml", include_bytes!("../assets/icon.svg")),
    asset("/assets/licenses.txt", "text/plain; charset=utf-8", include_bytes!("../assets/licenses.txt")),
    asset("/assets/terminal.css", "text/css; charset=utf-8", include_bytes!("../assets/terminal.css")),
    asset("/assets/terminal.js", JAVASCRIPT, include_bytes!("../assets/terminal.js")),
    asset("/assets/yaml.js", JAVASCRIPT, include_bytes!("../assets/yaml.js")),
];

/// The script of frames with code of extensions.
static FRAME: &[u8] = include_bytes!("../assets/frame.js");

pub(crate) fn frame_script() -> Bytes {
    Bytes::from_static(FRAME)
}

/// Where pages are. Which of them is shown, the script finds from the address.
const PAGES: &str = "/ui/";

/// What a path names, if it names anything of ours.
pub(crate) fn answer(path: &str, headers: &HeaderMap) -> Option<Answer> {
    let path = if path.starts_with(PAGES) { "/" } else { path };
    let asset = ASSETS.iter().find(|asset| asset.path == path)?;
    let made = asset.made.get_or_init(|| make(asset.content));
    let has = |name, word: &str| {
        let value = headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        value.is_some_and(|value| {
            value.split(',').any(|part| part.split(';').next().is_some_and(|p| p.trim() == word))
        })
    };
    let current = has(IF_NONE_MATCH, &made.etag);
    let compressed = made.compressed.clone().filter(|_| has(ACCEPT_ENCODING, "gzip"));
    let mut answer = match (current, &compressed) {
        (true, _) => answer::page(StatusCode::NOT_MODIFIED, asset.content_type, Bytes::new()),
        (false, Some(compressed)) => answer::page(StatusCode::OK, asset.content_type, compressed.clone()),
        (false, None) => answer::page(StatusCode::OK, asset.content_type, Bytes::from_static(asset.content)),
    };
    let headers = answer.headers_mut();
    if compressed.is_some() && !current {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    // Asked for each time, so that pages of one version never meet scripts of another.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(etag) = HeaderValue::from_str(&made.etag) {
        headers.insert(ETAG, etag);
    }
    Some(answer)
}

fn make(content: &[u8]) -> Made {
    let hash = ring::digest::digest(&ring::digest::SHA256, content);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let compressed = encoder.write_all(content).and_then(|()| encoder.finish()).ok();
    Made {
        etag: format!("\"{}\"", URL_SAFE_NO_PAD.encode(&hash.as_ref()[..16])),
        compressed: compressed.filter(|bytes| bytes.len() < content.len()).map(Bytes::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the first page may weigh, compressed (issue: 300 KB of script).
    const BUDGET: usize = 100 * 1024;

    #[test]
    fn the_first_page_is_light() {
        let later = ["yaml.js", "terminal.js", "terminal.css"];
        let first = ASSETS.iter().filter(|asset| !later.iter().any(|name| asset.path.ends_with(name)));
        let sizes = first
            .map(|asset| make(asset.content).compressed.map_or(asset.content.len(), |bytes| bytes.len()));
        let total: usize = sizes.sum();
        assert!(total < BUDGET, "{total} bytes compressed");
    }

    #[test]
    fn an_asset_is_sent_once_and_then_confirmed() {
        let mut headers = HeaderMap::new();
        assert!(answer("/nothing", &headers).is_none());
        assert!(answer("/assets/../src/lib.rs", &headers).is_none());
        let plain = answer("/ui/tasks/default/hello", &headers).unwrap();
        assert_eq!((plain.status(), plain.headers().get(CONTENT_ENCODING)), (StatusCode::OK, None));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("br, gzip;q=0.9"));
        let compressed = answer("/assets/app.js", &headers).unwrap();
        assert_eq!(compressed.headers()[CONTENT_ENCODING], "gzip");
        headers.insert(IF_NONE_MATCH, compressed.headers()[ETAG].clone());
        assert_eq!(answer("/assets/app.js", &headers).unwrap().status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer("/assets/app.css", &headers).unwrap().status(), StatusCode::OK);
    }
}
