//! A refusal that says when to try again, as gRPC clients read it: `google.rpc.RetryInfo` in the details of a status.

use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Details {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, Copy, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<Span>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Span {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// A status that asks its reader to try again after a while.
pub fn retry_after(code: Code, message: impl Into<String>, after: Duration) -> Status {
    let message = message.into();
    let delay = Some(Span { seconds: after.as_secs().min(3600) as i64, nanos: after.subsec_nanos() as i32 });
    let info = RetryInfo { delay }.encode_to_vec();
    let details = vec![Detail { type_url: RETRY_INFO.into(), value: info }];
    let details = Details { code: code as i32, message: message.clone(), details }.encode_to_vec();
    Status::with_details(code, message, details.into())
}

/// When a status asks its reader to try again; none if it does not, or cannot be read.
pub fn retry_of(status: &Status) -> Option<Duration> {
    let details = Details::decode(status.details()).ok()?;
    let info = details.details.iter().find(|detail| detail.type_url == RETRY_INFO)?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.delay?;
    Some(Duration::new(u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?.min(999_999_999)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_said_is_read() {
        let status = retry_after(Code::ResourceExhausted, "full", Duration::from_millis(1500));
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "full"));
        assert_eq!(retry_of(&status), Some(Duration::from_millis(1500)));
        assert_eq!(retry_of(&Status::unavailable("no details")), None);
    }

    proptest! {
        #[test]
        fn any_details_are_read_or_passed_over(details in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = retry_of(&Status::with_details(Code::Unknown, "", details.into()));
        }
    }
}
