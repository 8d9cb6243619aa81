//! The body of a request, as far as it has to be read to tell which session it is of. Pure, and bounded; who reads it
//! passes it on as it came.

use http::header::CONTENT_ENCODING;
use http::{HeaderMap, StatusCode};

use super::Ask;
use super::json::{Error, Found, Scan};
use crate::refusal::Refusal;

/// How much of a body is read for its ids, in bytes.
pub const LIMIT: usize = 1 << 20;

/// A body that is being read.
#[derive(Debug)]
pub struct Intake(Scan<'static>);

impl Intake {
    /// For a request that asks so, with these headers; nothing if its body need not be read.
    pub fn new(ask: &Ask, headers: &HeaderMap) -> Result<Option<Intake>, Refusal> {
        let Some(shape) = ask.shape() else { return Ok(None) };
        if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            let message = "the body is compressed, and has to be read for the ids in it: send it as it is";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "BodyCompressed", message));
        }
        Ok(Some(Intake(Scan::new(shape))))
    }

    /// Takes in a piece.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.push(bytes)
    }

    /// The body is over.
    pub fn finish(self) -> Result<Found, Error> {
        self.0.finish()
    }

    /// A body that comes in one piece: all of it, or as much as whoever holds it keeps.
    pub fn whole(mut self, ask: &Ask, bytes: &[u8], is_all: bool) -> Result<Found, Refusal> {
        if !is_all || bytes.len() > LIMIT {
            return Err(Refusal::too_large(LIMIT));
        }
        self.push(bytes).and_then(|()| self.finish()).map_err(|why| ask.broken(why))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::super::{a2a, mcp};
    use super::*;

    fn intake() -> Intake {
        Intake::new(&Ask::A2a(a2a::Ask::Rpc), &HeaderMap::new()).unwrap().unwrap()
    }

    #[test]
    fn a_body_is_read_whole_or_not_at_all() {
        let ask = Ask::A2a(a2a::Ask::Rpc);
        let status = |outcome: Result<Found, Refusal>| outcome.map_err(|refusal| refusal.status.as_u16());
        let found = status(intake().whole(&ask, br#"{"method":"GetTask"}"#, true)).unwrap();
        assert_eq!(found.text(0), Some("GetTask"));
        assert_eq!(status(intake().whole(&ask, br#"{"method":"GetTask"}"#, false)), Err(413));
        let long = format!("{{\"method\":\"{}\"}}", "x".repeat(LIMIT));
        assert_eq!(status(intake().whole(&ask, long.as_bytes(), true)), Err(413));
        assert_eq!(status(intake().whole(&ask, b"{", true)), Err(400));
        assert_eq!(status(intake().whole(&ask, b"", true)), Err(400));
    }

    #[test]
    fn what_need_not_be_read_is_not() {
        let packed = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        let session = Ask::Mcp(mcp::Ask::Session { id: "a".into(), ends: false });
        assert!(Intake::new(&session, &packed).unwrap().is_none());
        assert!(Intake::new(&Ask::Plain, &packed).unwrap().is_none());
        assert_eq!(Intake::new(&Ask::A2a(a2a::Ask::Rpc), &packed).unwrap_err().status, 415);
    }
}
