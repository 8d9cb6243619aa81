//! One request as a line of JSON. Pure. Nothing but printable ASCII comes out, so that no client can end a line, begin one,
//! or speak to a terminal; and neither a query, a header of credentials, nor the id of a session.

use std::io::Write;
use std::time::Duration;

use jiff::Timestamp;

use super::{Hiding, Record, shown};

/// The longest text of a client's, or of Envoy's, in bytes.
const LONGEST: usize = 256;

/// Appends the line.
pub(super) fn render(begun: Timestamp, front: &str, record: &Record, hiding: &Hiding, line: &mut Vec<u8>) {
    let mut object = Object { line, first: true };
    object.text("time", &format!("{begun:.3}"));
    object.text("front", front);
    object.text("method", cut(record.method.as_str()));
    let route = record.route.as_deref();
    object.text("path", &shown::path(record.target.path(), route, record.key.as_ref()));
    object.number("status", record.status);
    object.text("outcome", record.outcome.as_str());
    object.some("reason", Some(&*record.reason).filter(|reason| !reason.is_empty()));
    object.some("detail", record.detail.as_deref().map(cut));
    if let Some(route) = route {
        object.text("namespace", &route.task.namespace);
        object.text("task", &route.task.name);
        let session = record.key.as_ref().map(|key| hiding.session(&route.task.uid, key));
        object.some("session", session.as_deref());
    }
    if let Some(gateway) = &record.gateway {
        object.text("gateway", &format!("{}/{}", gateway.namespace, gateway.name));
    }
    object.some("instance", record.instance.as_deref());
    object.some("reserve", record.path.map(|path| path.as_str()));
    object.milliseconds("reserveMs", record.reserving);
    object.milliseconds("firstByteMs", record.first_byte);
    object.milliseconds("durationMs", Some(record.total));
    object.number("bytesIn", Some(record.received));
    object.number("bytesOut", Some(record.sent));
    let id = record.request_id.as_ref().map(|id| String::from_utf8_lossy(id.as_bytes()));
    object.some("requestId", id.as_deref().map(cut));
    object.some("traceId", record.trace.map(|trace| trace.to_string()).as_deref());
    line.extend_from_slice(b"}\n");
}

fn cut(text: &str) -> &str {
    match text.char_indices().map(|(at, _)| at).find(|at| *at >= LONGEST) {
        Some(end) => &text[..end],
        None => text,
    }
}

struct Object<'a> {
    line: &'a mut Vec<u8>,
    first: bool,
}

impl Object<'_> {
    fn name(&mut self, name: &str) {
        self.line.push(if self.first { b'{' } else { b',' });
        self.first = false;
        string(self.line, name);
        self.line.push(b':');
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        string(self.line, text);
    }

    fn some(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn number(&mut self, name: &str, number: Option<impl Into<u64>>) {
        if let Some(number) = number {
            self.name(name);
            write(self.line, format_args!("{}", number.into()));
        }
    }

    fn milliseconds(&mut self, name: &str, time: Option<Duration>) {
        if let Some(time) = time {
            self.name(name);
            write(self.line, format_args!("{:.3}", time.as_secs_f64() * 1000.0));
        }
    }
}

fn string(line: &mut Vec<u8>, text: &str) {
    line.push(b'"');
    for unit in text.chars() {
        match unit {
            '"' | '\\' => line.extend_from_slice(&[b'\\', unit as u8]),
            ' '..='~' => line.push(unit as u8),
            _ => {
                for half in unit.encode_utf16(&mut [0; 2]) {
                    write(line, format_args!("\\u{half:04x}"));
                }
            }
        }
    }
    line.push(b'"');
}

fn write(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    line.write_fmt(text).expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use agentcube_instance::SessionKey;
    use http::HeaderValue;
    use proptest::prelude::*;
    use ring::hmac;
    use serde_json::Value;

    use super::super::{Outcome, Target};
    use super::*;
    use crate::refusal::Refusal;

    fn line(record: &Record) -> String {
        let hiding = Hiding::new(hmac::Key::new(hmac::HMAC_SHA256, b"key"));
        let mut line = Vec::new();
        render(Timestamp::UNIX_EPOCH, "gateway", record, &hiding, &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_line_says_what_there_is_to_say() {
        let record = Record {
            target: Target("/a?token=secret".into()),
            status: Some(503),
            outcome: Outcome::Refused,
            reason: "NoInstance".into(),
            total: Duration::from_micros(1500),
            request_id: Some(HeaderValue::from_static("id-1")),
            key: Some(SessionKey::new("secret").unwrap()),
            ..Record::default()
        };
        let expected = concat!(
            r#"{"time":"1970-01-01T00:00:00.000Z","front":"gateway","method":"GET","path":"/a","status":503,"#,
            r#""outcome":"refused","reason":"NoInstance","durationMs":1.500,"bytesIn":0,"bytesOut":0,"#,
            r#""requestId":"id-1"}"#,
            "\n"
        );
        assert_eq!(line(&record), expected);
    }

    #[test]
    fn a_path_that_nobody_has_looked_into_is_not_shown() {
        for (refusal, shown) in [
            (Refusal::no_route("a.example", "/a/secret"), "/a/secret"),
            (Refusal::misdirected("a.example"), ""),
        ] {
            let mut record = Record { target: Target("/a/secret".into()), ..Record::default() };
            record.refused(&refusal);
            assert_eq!(record.target.path(), shown, "{}", refusal.code);
        }
    }

    proptest! {
        #[test]
        fn nothing_gets_out_of_its_line(text in "\\PC*|.*|(\u{0}|\n|\r|\"|\\\\|\u{7f}|\u{9b}|\u{2028}|😀)*") {
            let record = Record { target: Target(text.clone()), detail: Some(text), ..Record::default() };
            let line = line(&record);
            prop_assert!(line.bytes().rev().skip(1).all(|byte| (b' '..=b'~').contains(&byte)), "{line:?}");
            let read: Value = serde_json::from_str(&line).unwrap();
            if record.detail.as_ref().is_some_and(|detail| detail.len() < 200) {
                prop_assert_eq!(read["path"].as_str(), Some(record.target.path()));
                prop_assert_eq!(read["detail"].as_str(), record.detail.as_deref());
            }
        }
    }
}
