//! The id of a trace, as W3C Trace Context has it in `traceparent`. Read for the log; the header itself goes through as it
//! came.

use std::fmt::{self, Display, Formatter};

use http::HeaderMap;

/// The id of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

impl TraceId {
    /// That of a request, if it has one that is well formed.
    pub fn of(headers: &HeaderMap) -> Option<TraceId> {
        let mut given = headers.get_all("traceparent").iter();
        let (first, None) = (given.next()?, given.next()) else { return None };
        TraceId::read(first.as_bytes())
    }

    /// Reads the value of the header.
    pub fn read(value: &[u8]) -> Option<TraceId> {
        let text = std::str::from_utf8(value).ok()?;
        let mut parts = text.split('-');
        let (version, trace) = (parts.next()?, parts.next()?);
        let (parent, flags) = (parts.next()?, parts.next()?);
        let hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let whole = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
        // Later versions may have more to say; this one has not.
        if !whole || version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0).map(TraceId)
    }
}

impl Display for TraceId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_well_formed_is_a_trace() {
        let id = "0af7651916cd43dd8448eb211c80319c";
        let read = |text: &str| TraceId::read(text.as_bytes()).map(|id| id.to_string());
        assert_eq!(read(&format!("00-{id}-b7ad6b7169203331-01")).as_deref(), Some(id));
        assert_eq!(read(&format!("01-{id}-b7ad6b7169203331-01-more")).as_deref(), Some(id));
        for bad in [
            "".to_owned(),
            id.to_owned(),
            format!("00-{id}-b7ad6b7169203331"),
            format!("00-{id}-b7ad6b7169203331-01-more"),
            format!("ff-{id}-b7ad6b7169203331-01"),
            format!("00-{}-b7ad6b7169203331-01", id.to_uppercase()),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-{id}\"-b7ad6b7169203331-01"),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }
}
