//! Documents that pages show in frames: those of extensions. Each is at a path that only whoever asked for it knows, for a
//! short while, and says for itself what it may do. No request for one needs, or is given, anything of a session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use parking_lot::Mutex;

use crate::answer::{self, Answer};
use crate::assets;
use crate::session::random;

/// Below this path.
pub(crate) const ROOT: &str = "/frame/";
/// A page opens its frame at once.
const LIFE: Duration = Duration::from_secs(60);
/// With one more, the oldest goes.
const MOST: usize = 64;
const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// What code of an extension may do: run, and draw. It has no origin, reaches no address, and is shown by our pages only.
const CODE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; font-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts";
/// Its script is ours: it lets the extension's in when it has a way to talk to the page.
const CODE: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\">\
    <title>Extension</title><script type=\"module\" src=\"frame.js\"></script></head><body></body></html>";

/// What stands in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Code of an extension.
    Code { module: Bytes },
    /// Another site. The document around it has no script.
    Site { source: String, policy: HeaderValue },
}

/// Frames that were asked for.
#[derive(Default)]
pub(crate) struct Frames(Mutex<BTreeMap<String, (Instant, Content)>>);

impl Frames {
    /// The path of a new frame.
    pub(crate) fn open(&self, content: Content) -> String {
        let (ticket, now) = (random(), Instant::now());
        let mut held = self.0.lock();
        held.retain(|_, (made, _)| now.duration_since(*made) < LIFE);
        if held.len() >= MOST {
            let oldest = held.iter().min_by_key(|(_, (made, _))| *made).map(|(ticket, _)| ticket.clone());
            oldest.and_then(|oldest| held.remove(&oldest));
        }
        let path = format!("{ROOT}{ticket}/");
        held.insert(ticket, (now, content));
        path
    }

    /// What is at a path below [`ROOT`].
    pub(crate) fn answer(&self, path: &str) -> Answer {
        let found = path.strip_prefix(ROOT).and_then(|rest| rest.split_once('/'));
        let content = found.and_then(|(ticket, file)| {
            let held = self.0.lock();
            let (made, content) = held.get(ticket)?;
            (made.elapsed() < LIFE).then(|| (content.clone(), file))
        });
        let policy = HeaderValue::from_static(CODE_POLICY);
        match content {
            Some((Content::Code { .. }, "")) => {
                answer::framed(HTML, &policy, Bytes::from_static(CODE.as_bytes()))
            }
            Some((Content::Code { .. }, "frame.js")) => {
                answer::framed(JAVASCRIPT, &policy, assets::frame_script())
            }
            Some((Content::Code { module }, "index.js")) => answer::framed(JAVASCRIPT, &policy, module),
            Some((Content::Site { source, policy }, "")) => answer::framed(HTML, &policy, site(&source)),
            _ => answer::refuse(StatusCode::NOT_FOUND, "this frame is no longer there: open the page again"),
        }
    }
}

/// The policy around another site, which may be shown and nothing else; or why it may not.
pub(crate) fn around(source: &str, our_host: &str) -> Result<HeaderValue, &'static str> {
    let uri: http::Uri = source.parse().map_err(|_| "the address of the site is none")?;
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err("the address of the site has to begin with https:// or http://");
    };
    if authority.as_str().contains('@') {
        return Err("the address of the site has a password in it");
    }
    if authority.as_str().eq_ignore_ascii_case(our_host) {
        return Err("the address of the site is the console's own");
    }
    // A policy names paths without their query, and knows signs of its own.
    let path = uri.path().replace(';', "%3B").replace(',', "%2C");
    let site = format!("{}://{authority}{path}", uri.scheme_str().unwrap_or_default());
    let policy = format!(
        "default-src 'none'; frame-src {site}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'self'"
    );
    HeaderValue::from_str(&policy).map_err(|_| "the address of the site is none")
}

/// The site keeps its own origin, so that it can have a login; ours it never gets, nor may it lead the page away.
fn site(source: &str) -> Bytes {
    let source = source.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    Bytes::from(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Site</title><style>\
         html,body,iframe{{margin:0;border:0;width:100%;height:100%;display:block}}</style></head><body><iframe title=\"Site\" \
         sandbox=\"allow-scripts allow-same-origin allow-forms allow-popups allow-downloads\" referrerpolicy=\"no-referrer\" \
         src=\"{source}\"></iframe></body></html>"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code() -> Content {
        Content::Code { module: Bytes::from_static(b"export {}") }
    }

    #[test]
    fn a_frame_is_at_its_path_and_nowhere_else() {
        let frames = Frames::default();
        let path = frames.open(code());
        assert!(path.len() > ROOT.len() + 40, "{path} cannot be guessed");
        for (file, status) in
            [("", 200), ("index.js", 200), ("frame.js", 200), ("manifest.json", 404), ("../x/", 404)]
        {
            let answer = frames.answer(&format!("{path}{file}"));
            assert_eq!(answer.status().as_u16(), status, "{file}");
        }
        let document = frames.answer(&path);
        let policy = document.headers()["content-security-policy"].to_str().unwrap().to_owned();
        for words in ["default-src 'none'", "sandbox allow-scripts", "frame-ancestors 'self'"] {
            assert!(policy.contains(words), "{policy}");
        }
        assert!(!policy.contains("allow-same-origin") && !policy.contains("connect-src"), "{policy}");
        assert_eq!(frames.answer("/frame/x/").status(), 404);
        for _ in 0..MOST {
            frames.open(code());
        }
        assert_eq!(frames.answer(&path).status(), 404, "the oldest is gone");
    }

    #[test]
    fn a_site_is_shown_in_a_document_for_it_alone() {
        let ours = "127.0.0.1:8091";
        let policy =
            around("https://grafana.example/d/x;y?orgId=1&a=\"b\"".replace('"', "%22").as_str(), ours)
                .unwrap();
        let policy = policy.to_str().unwrap();
        assert!(policy.contains("frame-src https://grafana.example/d/x%3By;"), "{policy}");
        assert!(!policy.contains("script-src"), "{policy}");
        for wrong in [
            "/here",
            "javascript:alert(1)",
            "http://127.0.0.1:8091/ui/",
            "https://a@b/",
            "https://a b/",
            "data:text/html,x",
            "",
        ] {
            assert!(around(wrong, ours).is_err(), "{wrong}");
        }
        let document = site("https://a/?b=\"><script>&c");
        let document = std::str::from_utf8(&document).unwrap();
        assert!(document.contains("src=\"https://a/?b=&quot;>&lt;script>&amp;c\""), "{document}");
    }
}
