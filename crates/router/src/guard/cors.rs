//! Which web pages of other origins may send requests. Pure. A browser's question beforehand (a preflight) is answered
//! here: it carries no token, and needs no instance.

use agentcube_api::agentcube::security::CorsSpec;
use http::header::{self, HeaderName, HeaderValue, ORIGIN, VARY};
use http::request::Parts;
use http::{HeaderMap, Method};

/// What pages may do.
pub(crate) struct Cors {
    origins: Vec<Origin>,
    credentials: bool,
    /// What is said of methods, headers and time, in answer to a preflight.
    methods: Option<HeaderValue>,
    headers: Option<HeaderValue>,
    max_age: Option<HeaderValue>,
    /// What every answer says.
    expose: Option<HeaderValue>,
}

#[derive(Debug, PartialEq, Eq)]
enum Origin {
    Any,
    Exact(Box<str>),
    /// `https://*.example.com`: what stands before and after the star.
    Below(Box<str>, Box<str>),
}

impl Origin {
    fn read(text: &str) -> Origin {
        let text = text.to_ascii_lowercase();
        match text.split_once('*') {
            _ if text == "*" => Origin::Any,
            Some((before, after)) => Origin::Below(before.into(), after.into()),
            None => Origin::Exact(text.trim_end_matches('/').into()),
        }
    }

    fn fits(&self, origin: &str) -> bool {
        match self {
            Origin::Any => true,
            Origin::Exact(own) => origin == &**own,
            Origin::Below(before, after) => {
                let rest = origin.strip_prefix(&**before).and_then(|rest| rest.strip_suffix(&**after));
                // The star stands for names: what could end a host name is no part of one.
                let name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
                rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(name))
            }
        }
    }
}

/// What is added to an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing(Vec<(HeaderName, HeaderValue)>);

impl Sharing {
    /// Puts them into an answer. What the instance itself says of sharing does not count: the gateway has the word.
    pub(crate) fn put(self, headers: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        let own: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
        for name in own {
            headers.remove(name);
        }
        for (name, value) in self.0 {
            if name == VARY {
                headers.append(name, value);
            } else {
                headers.insert(name, value);
            }
        }
    }
}

impl Cors {
    pub(crate) fn new(spec: &CorsSpec) -> Result<Cors, String> {
        let list = |names: &[String]| {
            let joined = HeaderValue::from_str(&names.join(", "));
            let joined = joined.map_err(|_| "cors has a name that no header can hold".to_owned())?;
            Ok::<_, String>(Some(joined).filter(|_| !names.is_empty()))
        };
        Ok(Cors {
            origins: spec.allow_origins.iter().map(|origin| Origin::read(origin)).collect(),
            credentials: spec.allow_credentials,
            methods: list(&spec.allow_methods)?,
            headers: list(&spec.allow_headers)?,
            max_age: spec.max_age.map(|age| HeaderValue::from(age.to_std().as_secs())),
            expose: list(&spec.expose_headers)?,
        })
    }

    /// What the answer to a request says of sharing it. Answers differ by origin, which caches have to know.
    pub(crate) fn sharing(&self, headers: &HeaderMap) -> Sharing {
        let mut said = vec![(VARY, HeaderValue::from_static("origin"))];
        if let Some(origin) = self.allowed(headers) {
            said.push((header::ACCESS_CONTROL_ALLOW_ORIGIN, origin));
            if self.credentials {
                said.push((header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true")));
            }
            said.extend(self.expose.clone().map(|names| (header::ACCESS_CONTROL_EXPOSE_HEADERS, names)));
        }
        Sharing(said)
    }

    /// The answer to a preflight; none if the request is something else. Without a word of allowance it is a no.
    pub(crate) fn preflight(&self, parts: &Parts) -> Option<Sharing> {
        let asked = parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if parts.method != Method::OPTIONS || !asked || !parts.headers.contains_key(ORIGIN) {
            return None;
        }
        let Sharing(mut said) = self.sharing(&parts.headers);
        said.retain(|(name, _)| *name != header::ACCESS_CONTROL_EXPOSE_HEADERS);
        if self.allowed(&parts.headers).is_some() {
            let each = [
                (header::ACCESS_CONTROL_ALLOW_METHODS, &self.methods),
                (header::ACCESS_CONTROL_ALLOW_HEADERS, &self.headers),
                (header::ACCESS_CONTROL_MAX_AGE, &self.max_age),
            ];
            said.extend(each.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        }
        Some(Sharing(said))
    }

    /// The origin of a request, as it is to be repeated, if its page may send it.
    fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let (origin, None) = (origins.next()?, origins.next()) else { return None };
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        let fits = self.origins.iter().any(|own| own.fits(&text));
        let any = !self.credentials && self.origins.contains(&Origin::Any);
        fits.then(|| if any { HeaderValue::from_static("*") } else { origin.clone() })
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use serde_json::json;

    use super::*;

    fn cors(origins: &[&str], credentials: bool) -> Cors {
        let spec = json!({ "allowOrigins": origins, "allowMethods": ["GET", "POST"], "allowHeaders": ["X-A"],
            "exposeHeaders": ["Retry-After"], "maxAge": "1h", "allowCredentials": credentials });
        Cors::new(&serde_json::from_value(spec).unwrap()).unwrap()
    }

    fn parts(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn said(sharing: Sharing) -> Vec<String> {
        let mut headers = HeaderMap::new();
        sharing.put(&mut headers);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn origins_are_compared_whole() {
        let cors = cors(&["https://a.example.com", "https://*.example.org", "http://localhost:*"], true);
        let allowed = |origin: &str| cors.allowed(&parts("GET", &[("origin", origin)]).headers).is_some();
        for yes in [
            "https://a.example.com",
            "https://A.example.com",
            "https://x.y.example.org",
            "http://localhost:3000",
        ] {
            assert!(allowed(yes), "{yes}");
        }
        for no in [
            "https://b.example.com",
            "http://a.example.com",
            "https://a.example.com.evil.com",
            "https://example.org",
            "https://.example.org.evil.com",
            "https://evil.com/.example.org",
            "https://evil.com#.example.org",
            "https://evil.com:443@x.example.org",
            "null",
            "",
        ] {
            assert!(!allowed(no), "{no}");
        }
        let twice = parts("GET", &[("origin", "https://a.example.com"), ("origin", "https://evil.com")]);
        assert_eq!(cors.allowed(&twice.headers), None);
    }

    #[test]
    fn preflights_are_told_from_requests() {
        let cors = cors(&["https://a.example.com"], true);
        let origin = ("origin", "https://a.example.com");
        let asks = ("access-control-request-method", "POST");
        assert_eq!(
            said(cors.preflight(&parts("OPTIONS", &[origin, asks])).unwrap()),
            [
                "vary: origin",
                "access-control-allow-origin: https://a.example.com",
                "access-control-allow-credentials: true",
                "access-control-allow-methods: GET, POST",
                "access-control-allow-headers: X-A",
                "access-control-max-age: 3600",
            ]
        );
        let evil = parts("OPTIONS", &[("origin", "https://evil.com"), asks]);
        assert_eq!(said(cors.preflight(&evil).unwrap()), ["vary: origin"]);
        for other in [parts("OPTIONS", &[origin]), parts("OPTIONS", &[asks]), parts("GET", &[origin, asks])] {
            assert_eq!(cors.preflight(&other), None);
        }
    }

    #[test]
    fn the_gateways_word_replaces_the_instances() {
        let any = cors(&["*"], false);
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("https://evil.com"));
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        headers.insert(VARY, HeaderValue::from_static("accept"));
        any.sharing(&parts("GET", &[("origin", "https://x")]).headers).put(&mut headers);
        assert_eq!(headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        assert!(!headers.contains_key(header::ACCESS_CONTROL_ALLOW_CREDENTIALS));
        assert_eq!(headers.get_all(VARY).iter().count(), 2);
    }
}
