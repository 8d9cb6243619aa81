//! Paths that different servers may read differently. They are refused before anything is decided by a path: whoever
//! decides by one reading of it would let another be carried out. Pure.

use http::StatusCode;

use crate::protocol::Spoken;
use crate::refusal::Refusal;
use crate::route::{Route, SessionRule};

/// What is wrong with a path. Says what the client is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Ambiguous {
    #[error("the path has a segment . or .., plain or encoded: send the path that is meant")]
    Dots,
    #[error("the path has a backslash, plain or as %5C: send slashes")]
    Backslash,
    #[error(
        "the path has an encoded slash, %2F, where this Task has no session key: send slashes as they are"
    )]
    Slash,
}

impl From<Ambiguous> for Refusal {
    fn from(ambiguous: Ambiguous) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "PathAmbiguous", ambiguous.to_string())
    }
}

/// Refuses what no Task can want.
pub(crate) fn check(path: &str) -> Result<(), Ambiguous> {
    if !path.bytes().any(|byte| matches!(byte, b'.' | b'%' | b'\\')) {
        return Ok(());
    }
    let (mut segment, mut backslash) = (Segment::default(), false);
    for (byte, _) in decoded(path) {
        backslash |= byte == b'\\';
        if byte == b'/' || byte == b'\\' {
            segment.end()?;
            segment = Segment::default();
        } else {
            segment.push(byte);
        }
    }
    segment.end()?;
    if backslash { Err(Ambiguous::Backslash) } else { Ok(()) }
}

/// Refuses encoded slashes, but for those in ids: a session key in the path, or an id of A2A, may have any character.
pub(crate) fn check_slashes(route: &Route, path: &str) -> Result<(), Ambiguous> {
    let encoded = |text: &str| decoded(text).filter(|(byte, encoded)| *byte == b'/' && *encoded).count();
    let all = encoded(path);
    if all == 0 || matches!(route.spoken, Spoken::A2a(_)) {
        return Ok(());
    }
    let in_key = match &route.session {
        SessionRule::Oneshot => 0,
        SessionRule::BySession(places) => {
            let rest = route.rest(path).unwrap_or("/");
            places.in_path(rest).map(encoded).max().unwrap_or(0)
        }
    };
    if in_key == all { Ok(()) } else { Err(Ambiguous::Slash) }
}

/// As much of a segment as tells whether it is one of dots. What follows a semicolon counts for nothing: some servers
/// cut it off.
#[derive(Default)]
struct Segment {
    dots: usize,
    other: bool,
    cut: bool,
}

impl Segment {
    fn push(&mut self, byte: u8) {
        match byte {
            b';' => self.cut = true,
            _ if self.cut => {}
            b'.' => self.dots += 1,
            _ => self.other = true,
        }
    }

    fn end(&self) -> Result<(), Ambiguous> {
        if !self.other && (1..=2).contains(&self.dots) { Err(Ambiguous::Dots) } else { Ok(()) }
    }
}

/// The bytes of a path without its encoding, and whether each was encoded. What is no encoding stands for itself.
fn decoded(path: &str) -> impl Iterator<Item = (u8, bool)> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut rest = path.as_bytes();
    std::iter::from_fn(move || {
        let (first, after) = rest.split_first()?;
        if *first == b'%'
            && let (Some(high), Some(low)) = (digit(after.first()), digit(after.get(1)))
        {
            rest = &after[2..];
            return Some((u8::try_from(high * 16 + low).unwrap_or(*first), true));
        }
        rest = after;
        Some((*first, false))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_be_read_in_two_ways_is_refused() {
        for good in [
            "/",
            "/a/b",
            "/.well-known/card",
            "/a/...",
            "/a..b/c.",
            "/..a",
            "/a%20b",
            "/a%2Fb",
            "/%zz",
            "/a;b",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for dots in [
            "/..",
            "/a/../b",
            "/a/./b",
            "/a/.",
            "/%2e%2e/b",
            "/a/.%2E",
            "/a%2f..%2fb",
            "/a/..%5cb",
            "/a\\..\\b",
            "/a/..;/b",
            "/a/..;x=1/b",
            "/.;",
            "/a%2F%2e",
        ] {
            assert_eq!(check(dots), Err(Ambiguous::Dots), "{dots}");
        }
        for backslash in ["/a\\b", "/a%5Cb", "/a%5cb"] {
            assert_eq!(check(backslash), Err(Ambiguous::Backslash), "{backslash}");
        }
    }

    fn route(routing: serde_json::Value) -> Route {
        let task = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "name": "t", "namespace": "n", "uid": "1" },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "routing": routing },
        });
        Route::read(&serde_json::from_value(task).unwrap()).unwrap()
    }

    #[test]
    fn a_slash_is_encoded_in_ids_only() {
        let keys = json!({ "extractors": [
            { "type": "query", "name": "q" }, { "type": "pathVar", "name": "id", "path": "/s/{id}/do" }] });
        let keyed = route(json!({ "routePolicy": "BySession", "sessionIdentifier": keys }));
        let plain = route(json!({ "routePolicy": "Oneshot" }));
        let a2a = route(json!({ "routePolicy": "BySession", "protocol": "A2A" }));
        assert_eq!(check_slashes(&keyed, "/n/t/s/u%2F1/do"), Ok(()));
        assert_eq!(check_slashes(&keyed, "/n/t/s/u%2F1/do/more%2Fmore"), Err(Ambiguous::Slash));
        assert_eq!(check_slashes(&keyed, "/n/t/admin%2fusers"), Err(Ambiguous::Slash));
        assert_eq!(check_slashes(&plain, "/n/t/s/u%2F1/do"), Err(Ambiguous::Slash));
        assert_eq!(check_slashes(&plain, "/n/t/s/u/1/do"), Ok(()));
        assert_eq!(check_slashes(&a2a, "/n/t/tasks/t%2F1"), Ok(()));
    }

    proptest! {
        /// Whatever passes has no segment of dots for a server that decodes it, takes backslashes for slashes, or both.
        #[test]
        fn what_passes_has_one_reading(path in "(/|\\\\|\\.|%2[eEfF]|%5[cC]|%|;|a){0,24}", junk in "\\PC*") {
            let _any = check(&junk);
            let bytes: Vec<u8> = decoded(&path).map(|(byte, _)| byte).collect();
            let text = String::from_utf8_lossy(&bytes).replace('\\', "/");
            let dotted = text.split('/').any(|it| matches!(it, "." | ".."));
            prop_assert!(!dotted || check(&path).is_err());
        }
    }
}
