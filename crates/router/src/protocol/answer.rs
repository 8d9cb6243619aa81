//! Reads an answer as far as it takes to learn the ids in it: a JSON body, or the first event of a stream that has data.
//! Pure, and bounded; what was read is passed on as it came.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use super::json::{Error, Found, Scan, Shape};

/// How much of an answer is read for its ids, in bytes.
pub const LIMIT: usize = 1 << 20;

/// An answer that is being read.
#[derive(Debug)]
pub struct Learner {
    scan: Scan<'static>,
    events: Option<Events>,
    size: usize,
}

/// Whether more has to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    More,
    /// This is what there is to learn.
    Done(Found),
    /// The ids did not come within the limit.
    TooLong,
}

/// Where in a stream of events the reader is.
#[derive(Debug, Default)]
struct Events {
    line: Vec<u8>,
    has_data: bool,
    /// The last byte was a carriage return, which ends a line by itself.
    returned: bool,
}

/// Why the ids of an answer cannot be learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded;

impl Learner {
    /// Reads an answer with these headers; nothing if it has no ids that one could learn.
    pub fn new(headers: &HeaderMap, shape: &'static Shape) -> Result<Option<Learner>, Encoded> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content = text(&CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let events = match content.as_str() {
            "text/event-stream" => Some(Events::default()),
            "application/json" | "application/a2a+json" => None,
            _ => return Ok(None),
        };
        match text(&CONTENT_ENCODING) {
            "" | "identity" => Ok(Some(Learner { scan: Scan::new(shape), events, size: 0 })),
            _ => Err(Encoded),
        }
    }

    /// Takes in a piece. `enough` says, given what has been found, that the rest need not be read.
    pub fn push(&mut self, bytes: &[u8], enough: impl Fn(&dyn Fn(usize) -> bool) -> bool) -> Reading {
        self.size += bytes.len();
        let over = match &mut self.events {
            None => self.scan.push(bytes).map(|()| false),
            Some(events) => events.push(bytes, &mut self.scan),
        };
        match over {
            // What is no JSON has no ids; its reader will say so.
            Err(Error::Twice(_) | Error::Malformed(_) | Error::TooDeep | Error::Incomplete) => {
                Reading::Done(Found::default())
            }
            Ok(true) => Reading::Done(self.scan.so_far()),
            Ok(false) if enough(&|leaf| self.scan.has(leaf)) => Reading::Done(self.scan.so_far()),
            Ok(false) if self.size > LIMIT => Reading::TooLong,
            Ok(false) => Reading::More,
        }
    }

    /// Whether the answer is a stream of events, which has to go on while it is read.
    pub fn is_stream(&self) -> bool {
        self.events.is_some()
    }

    /// Nothing of what was taken in can be part of an id: it may go on.
    pub fn is_between(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.line.is_empty() && !events.has_data)
    }

    /// What has been found.
    pub fn so_far(&self) -> Found {
        self.scan.so_far()
    }
}

impl Events {
    /// Hands the data of the first event on; whether that is over.
    fn push(&mut self, bytes: &[u8], scan: &mut Scan<'static>) -> Result<bool, Error> {
        for byte in bytes {
            match byte {
                b'\n' if self.returned => self.returned = false,
                b'\n' | b'\r' => {
                    self.returned = *byte == b'\r';
                    if self.end_line(scan)? {
                        return Ok(true);
                    }
                }
                byte => {
                    self.returned = false;
                    self.line.push(*byte);
                }
            }
        }
        Ok(false)
    }

    fn end_line(&mut self, scan: &mut Scan<'static>) -> Result<bool, Error> {
        let line = std::mem::take(&mut self.line);
        // A byte order mark may stand before the first line.
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
        if line.is_empty() {
            return Ok(self.has_data);
        }
        let data = match line.strip_prefix(b"data") {
            Some([b':', b' ', data @ ..] | [b':', data @ ..]) => data,
            _ => return Ok(false),
        };
        // An event without data is none: some servers open a stream with one, to be resumed from.
        if !data.is_empty() {
            self.has_data = true;
            scan.push(data)?;
            scan.push(b"\n")?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::super::a2a;
    use super::*;

    fn learn(content: &str, body: &[u8], cut: usize) -> Reading {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_str(content).unwrap())]);
        let mut learner = Learner::new(&headers, a2a::answer_shape()).unwrap().unwrap();
        for piece in body.chunks(cut) {
            match learner.push(piece, |has| a2a::is_enough(has)) {
                Reading::More => {}
                other => return other,
            }
        }
        Reading::Done(learner.so_far())
    }

    fn ids(reading: Reading) -> (Option<String>, Option<String>) {
        let Reading::Done(found) = reading else { panic!("{reading:?}") };
        let rpc = a2a::Reply::Rpc { id: serde_json::Value::Null };
        let (task, context) = a2a::ids(&rpc, &found);
        if task.is_none() {
            let (task, context) = a2a::ids(&a2a::Reply::Rest, &found);
            return (task.map(Into::into), context.map(Into::into));
        }
        (task.map(Into::into), context.map(Into::into))
    }

    fn some(task: &str, context: &str) -> (Option<String>, Option<String>) {
        (Some(task.into()), Some(context.into()))
    }

    #[test]
    fn the_first_event_with_data_counts() {
        let stream = b": ping\r\n\r\nid: 1\r\ndata:\r\n\r\nevent: message\r\ndata: {\"result\":\r\n\
            data: {\"statusUpdate\":{\"taskId\":\"t\",\r\ndata:\"contextId\":\"c\"}}}\r\n\r\n\
            data: {\"result\":{\"statusUpdate\":{\"taskId\":\"u\"}}}\r\n\r\n";
        for cut in [1, 2, 5, 1000] {
            assert_eq!(ids(learn("text/event-stream; charset=utf-8", stream, cut)), some("t", "c"));
        }
        let lines = b"\xef\xbb\xbfdata: {\"task\":{\"contextId\":\"c\",\"id\":\"t\"}}\n\ndata: {";
        assert_eq!(ids(learn("text/event-stream", lines, 3)), some("t", "c"));
        assert_eq!(ids(learn("text/event-stream", b"data: nonsense\n\n", 3)), (None, None));
    }

    #[test]
    fn a_body_is_read_until_the_ids_have_come() {
        let long = "x".repeat(2 << 20);
        let early =
            format!("{{\"result\":{{\"task\":{{\"id\":\"t\",\"contextId\":\"c\",\"x\":\"{long}\"}}}}}}");
        assert_eq!(ids(learn("application/json", early.as_bytes(), 4096)), some("t", "c"));
        let late =
            format!("{{\"result\":{{\"task\":{{\"x\":\"{long}\",\"id\":\"t\",\"contextId\":\"c\"}}}}}}");
        assert_eq!(learn("application/json", late.as_bytes(), 4096), Reading::TooLong);
        let endless = vec![b'x'; 2 << 20];
        assert_eq!(learn("text/event-stream", &endless, 4096), Reading::TooLong);
        let packed = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (CONTENT_ENCODING, HeaderValue::from_static("gzip")),
        ]);
        assert!(Learner::new(&packed, a2a::answer_shape()).is_err());
        assert!(Learner::new(&HeaderMap::new(), a2a::answer_shape()).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn anything_may_be_answered(
            body in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'{'), Just(b'"')], 0..200),
            cut in 1usize..20, stream: bool)
        {
            let content = if stream { "text/event-stream" } else { "application/json" };
            let pieces = learn(content, &body, cut);
            // Only how soon it is noticed that nothing comes may depend on the pieces.
            prop_assert_eq!(ids(pieces), ids(learn(content, &body, 1000)));
        }
    }
}
