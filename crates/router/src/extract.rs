//! Where a request carries the key of its session. Pure. A request of a session Task without a key is refused and told
//! where keys are looked for: an instance that it got would be one that nobody finds again. (The seed treats it as
//! Oneshot; that hides a client's mistake and costs an instance for each.)

use std::borrow::Cow;

use agentcube_api::agentcube::routing::{ExtractorType, SessionExtractor};
use agentcube_instance::SessionKey;
use agentcube_instance::identity::BadKey;
use http::HeaderMap;
use http::header::{COOKIE, HeaderName};

/// The places to look, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extractors(Vec<Place>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Header(HeaderName),
    PathVar { name: Box<str>, template: Template },
    Query(Box<str>),
    Cookie(Box<str>),
}

/// Why a request has no usable key. Says what the client is to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("this Task serves sessions, and the request names none: give a session key in {places}")]
    Missing { places: String },
    #[error("{place}: {error}")]
    Bad { place: String, error: BadKey },
    #[error("{place}: the value is not UTF-8, or its percent-encoding is broken")]
    Encoding { place: String },
    #[error("{place} is given more than once with different values: give it once")]
    Ambiguous { place: String },
}

impl Extractors {
    /// Reads the places of a spec; what cannot name a place is left out, and the API server lets none in.
    pub fn read<'a>(places: impl Iterator<Item = &'a SessionExtractor>) -> Extractors {
        let place = |spec: &SessionExtractor| {
            let name = || spec.name.as_str().into();
            Some(match spec.type_ {
                ExtractorType::HttpHeader => Place::Header(spec.name.parse().ok()?),
                ExtractorType::Query => Place::Query(name()),
                ExtractorType::Cookie => Place::Cookie(name()),
                ExtractorType::PathVar => {
                    let template = Template::parse(spec.path.as_deref()?, &spec.name)?;
                    Place::PathVar { name: name(), template }
                }
            })
        };
        Extractors(places.filter_map(place).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts of a path that are looked at for a key, as they stand in it.
    pub(crate) fn in_path<'a>(&self, path: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter_map(move |place| match place {
            Place::PathVar { template, .. } => template.find(path),
            _ => None,
        })
    }

    /// The key of a request, given its headers, its path below the prefix, and its query.
    pub fn key(&self, headers: &HeaderMap, path: &str, query: Option<&str>) -> Result<SessionKey, KeyError> {
        for place in &self.0 {
            let value = place.value(headers, path, query.unwrap_or_default());
            match value.map_err(|problem| problem.at(place))? {
                // An empty value is no value: the next place may have one.
                None => {}
                Some(text) if text.is_empty() => {}
                Some(text) => {
                    let bad = |error| KeyError::Bad { place: place.describe(), error };
                    return SessionKey::new(&text).map_err(bad);
                }
            }
        }
        let places: Vec<String> = self.0.iter().map(Place::describe).collect();
        Err(KeyError::Missing { places: places.join(", or ") })
    }
}

impl Extractors {
    /// A path below the prefix with names in the place of the keys in it.
    pub(crate) fn hide(&self, path: &str) -> String {
        let mut found: Vec<(usize, usize, &str)> = Vec::new();
        for place in &self.0 {
            let Place::PathVar { name, template } = place else { continue };
            if let Some(text) = template.find(path) {
                let at = text.as_ptr() as usize - path.as_ptr() as usize;
                found.push((at, at + text.len(), name));
            }
        }
        found.sort_unstable();
        let (mut hidden, mut done) = (String::with_capacity(path.len()), 0);
        for (from, to, name) in found {
            // Two may look in the same place.
            if from >= done {
                hidden.push_str(&path[done..from]);
                hidden.push_str(&format!("{{{name}}}"));
                done = to;
            }
        }
        hidden.push_str(&path[done..]);
        hidden
    }
}

/// What is wrong with a value, wherever it stood.
pub(crate) enum Problem {
    Encoding,
    Ambiguous,
}

impl Problem {
    fn at(self, place: &Place) -> KeyError {
        let place = place.describe();
        match self {
            Problem::Encoding => KeyError::Encoding { place },
            Problem::Ambiguous => KeyError::Ambiguous { place },
        }
    }
}

impl Place {
    fn describe(&self) -> String {
        match self {
            Place::Header(name) => format!("the header {name}"),
            Place::PathVar { name, template } => format!("the path, as {{{name}}} of {}", template.text),
            Place::Query(name) => format!("the query parameter {name}"),
            Place::Cookie(name) => format!("the cookie {name}"),
        }
    }

    pub(crate) fn value<'a>(
        &self,
        headers: &'a HeaderMap,
        path: &'a str,
        query: &'a str,
    ) -> Result<Option<Cow<'a, str>>, Problem> {
        match self {
            Place::Header(name) => {
                let text = |value: &'a http::HeaderValue| {
                    std::str::from_utf8(value.as_bytes()).map(str::trim).map_err(|_| Problem::Encoding)
                };
                let values: Result<Vec<&str>, Problem> = headers.get_all(name).iter().map(text).collect();
                Ok(one(values?)?.map(Cow::Borrowed))
            }
            Place::PathVar { template, .. } => {
                template.find(path).map(|text| decode(text, false)).transpose()
            }
            Place::Query(name) => of_query(query, name),
            Place::Cookie(name) => cookie(headers, name),
        }
    }
}

fn of_query<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, Problem> {
    let values: Result<Vec<Cow<'_, str>>, Problem> = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(key, _)| decode(key, true).is_ok_and(|key| *key == *name))
        .map(|(_, value)| decode(value, true))
        .collect();
    one(values?)
}

/// The value of a query's parameter; nothing at all if it cannot be read, or is given twice.
pub(crate) fn parameter<'a>(query: &'a str, name: &str) -> Option<Option<Cow<'a, str>>> {
    of_query(query, name).ok()
}

/// A part of a path without its percent-encoding.
pub(crate) fn decoded(text: &str) -> Option<Cow<'_, str>> {
    decode(text, false).ok()
}

/// Cookies are taken as they are, without quotes: what their value means is the application's business.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<Cow<'a, str>>, Problem> {
    let mut values = Vec::new();
    for header in headers.get_all(COOKIE) {
        // A stray byte in another cookie is no concern of ours.
        let pairs = header.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        for pair in pairs.filter(|pair| pair.starts_with(name.as_bytes())) {
            let Some(value) = pair[name.len()..].trim_ascii_start().strip_prefix(b"=") else { continue };
            let value = std::str::from_utf8(value.trim_ascii_start()).map_err(|_| Problem::Encoding)?;
            let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            values.push(unquoted.unwrap_or(value));
        }
    }
    Ok(one(values)?.map(Cow::Borrowed))
}

/// The one value there is; two that are the same are one.
fn one<T: PartialEq>(values: Vec<T>) -> Result<Option<T>, Problem> {
    let mut values = values.into_iter();
    let first = values.next();
    match first {
        Some(first) if values.any(|other| other != first) => Err(Problem::Ambiguous),
        first => Ok(first),
    }
}

/// Takes percent-encoding away; in a query a plus sign is a space.
fn decode(text: &str, query: bool) -> Result<Cow<'_, str>, Problem> {
    if !text.bytes().any(|byte| byte == b'%' || (query && byte == b'+')) {
        return Ok(Cow::Borrowed(text));
    }
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
                    return Err(Problem::Encoding);
                };
                u8::try_from(high * 16 + low).map_err(|_| Problem::Encoding)?
            }
            b'+' if query => b' ',
            byte => byte,
        });
    }
    String::from_utf8(decoded).map(Cow::Owned).map_err(|_| Problem::Encoding)
}

/// A path with a variable, such as `/{session}/invoke`: the beginning of the paths that it fits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template {
    text: Box<str>,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq)]
enum Segment {
    Literal(Box<str>),
    /// A variable that is not the one looked for.
    Other,
    /// The variable, between what stands before and after it.
    Key(Box<str>, Box<str>),
}

impl Template {
    fn parse(text: &str, name: &str) -> Option<Template> {
        let variable = format!("{{{name}}}");
        let segment = |text: &str| match text.split_once(variable.as_str()) {
            Some((before, after)) => Segment::Key(before.into(), after.into()),
            None if text.starts_with('{') && text.ends_with('}') => Segment::Other,
            None => Segment::Literal(text.into()),
        };
        let path = text.strip_prefix('/')?;
        let segments: Vec<Segment> = path.trim_end_matches('/').split('/').map(segment).collect();
        let keys = segments.iter().filter(|segment| matches!(segment, Segment::Key(..))).count();
        (keys == 1).then(|| Template { text: text.into(), segments })
    }

    fn find<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut given = path.strip_prefix('/')?.split('/');
        let mut found = None;
        for segment in &self.segments {
            let text = given.next()?;
            match segment {
                Segment::Literal(literal) if &**literal != text => return None,
                Segment::Literal(_) => {}
                Segment::Other if text.is_empty() => return None,
                Segment::Other => {}
                Segment::Key(before, after) => {
                    found = Some(text.strip_prefix(&**before)?.strip_suffix(&**after)?);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn extractors() -> Extractors {
        let specs: Vec<SessionExtractor> = serde_json::from_value(json!([
            { "type": "httpHeader", "name": "X-Session-ID" },
            { "type": "pathVar", "name": "id", "path": "/s/{id}/invoke" },
            { "type": "query", "name": "session" },
            { "type": "cookie", "name": "sid" },
        ]))
        .unwrap();
        Extractors::read(specs.iter())
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn the_first_place_with_a_value_wins() {
        type Case<'a> = (&'a [(&'static str, &'a str)], &'a str, Option<&'a str>, &'a str);
        let cases: &[Case<'_>] = &[
            (&[("x-session-id", " u 1 ")], "/", None, "u 1"),
            (&[("x-session-id", "Grüße")], "/", None, "Grüße"),
            (&[("x-session-id", "u1"), ("x-session-id", "u1")], "/s/u2/invoke", Some("session=u3"), "u1"),
            (&[("x-session-id", "")], "/s/u2/invoke", Some("session=u3"), "u2"),
            (&[], "/s/u%2F2/invoke/more", None, "u/2"),
            (&[], "/s/u+2/invoke", None, "u+2"),
            (&[], "/s//invoke", Some("session=u3"), "u3"),
            (&[], "/s/u2/revoke", Some("a=b&session=u+%333&c"), "u 33"),
            (&[("cookie", "a=b; sid=u4")], "/s", None, "u4"),
            (&[("cookie", "sidx=u5; sid=\"u4\"")], "/s", None, "u4"),
            (&[("cookie", "a=b"), ("cookie", "sid=u%204")], "/", Some("sessions=1"), "u%204"),
        ];
        for (pairs, path, query, expected) in cases {
            let key = extractors().key(&headers(pairs), path, *query);
            assert_eq!(key.as_ref().map(SessionKey::as_str), Ok(*expected), "{pairs:?} {path} {query:?}");
        }
    }

    #[test]
    fn what_cannot_be_a_key_says_where_and_why() {
        let says = |pairs: &[(&'static str, &str)], path: &str, query: Option<&str>| {
            extractors().key(&headers(pairs), path, query).unwrap_err().to_string()
        };
        assert_eq!(
            says(&[], "/", None),
            "this Task serves sessions, and the request names none: give a session key in the header \
             x-session-id, or the path, as {id} of /s/{id}/invoke, or the query parameter session, or the \
             cookie sid"
        );
        let twice = [("x-session-id", "u1"), ("x-session-id", "u2")];
        assert!(says(&twice, "/", None).starts_with("the header x-session-id is given more than once"));
        let long = "x".repeat(513);
        assert_eq!(
            says(&[("x-session-id", &long)], "/", None),
            "the header x-session-id: the session key has 513 bytes; at most 512 are allowed"
        );
        for (path, query, place) in [
            ("/s/%ff/invoke", None, "the path"),
            ("/s/%4/invoke", None, "the path"),
            ("/", Some("session=%"), "the query parameter session"),
            ("/", Some("session=%0A"), "the query parameter session"),
        ] {
            assert!(says(&[], path, query).starts_with(place), "{path} {query:?}");
        }
    }

    #[test]
    fn templates() {
        let template = |text: &str| Template::parse(text, "id");
        assert_eq!(template("/users-{id}.v1").unwrap().find("/users-7.v1/x"), Some("7"));
        assert_eq!(template("/{tenant}/{id}/").unwrap().find("/t/7"), Some("7"));
        assert_eq!(template("/{tenant}/{id}").unwrap().find("//7"), None);
        assert_eq!(template("/{id}/{id}"), None);
        assert_eq!(template("/none"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics_and_keys_come_through(text in "\\PC{1,40}", junk in "\\PC*") {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let query = format!("session={encoded}");
            let key = extractors().key(&HeaderMap::new(), "/", Some(&query)).unwrap();
            prop_assert_eq!(key.as_str(), text.as_str());
            let _any = extractors().key(&HeaderMap::new(), &junk, Some(&junk));
        }
    }
}
