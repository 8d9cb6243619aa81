//! What the router tells operators of requests that Envoy carries. It sees each only when it is decided; the rest comes by
//! Envoy's access log, maybe to another router. So what was decided travels with the request, in its metadata, and whoever
//! hears of the end has all of it: nothing is kept, and each request is counted once.

use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::provider::{Path, Reserved};
use agentcube_router::observe::{Observer, Outcome, Record, Target, TraceId, Trouble};
use agentcube_router::route::{Route, Table};
use envoy_types::pb::envoy::config::core::v3::RequestMethod;
use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, HttpRequestProperties, HttpResponseProperties,
    ResponseFlags,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{
    ProcessingRequest, ProcessingResponse, processing_request, processing_response,
};
use envoy_types::pb::google::protobuf;
use http::Method;
use http::header::HeaderValue;
use tokio::time::Instant;

use crate::mark::Mark;
use crate::message::{self, DETAILS};

/// A request, from its head until it is decided.
#[derive(Debug)]
pub(crate) struct Asked {
    begun: Instant,
    /// The name of its route.
    route: Option<String>,
    trace: Option<TraceId>,
    /// Only where there is a log.
    method: Method,
    path: String,
    request_id: Option<HeaderValue>,
    reserving: Option<Instant>,
    picked: bool,
}

impl Default for Asked {
    fn default() -> Asked {
        Asked {
            begun: Instant::now(),
            route: None,
            trace: None,
            method: Method::GET,
            path: String::new(),
            request_id: None,
            reserving: None,
            picked: false,
        }
    }
}

impl Asked {
    /// A message came; the first one has the head.
    pub(crate) fn take(&mut self, message: &ProcessingRequest, logs: bool) {
        let Some(processing_request::Request::RequestHeaders(head)) = &message.request else { return };
        self.route = message::route_name(&message.attributes).map(str::to_owned);
        let said = |name: &str| message::field(head, name);
        self.trace = said("traceparent").and_then(TraceId::read);
        if logs {
            let text = |name: &str| said(name).map(String::from_utf8_lossy).unwrap_or_default();
            self.method = said(":method").and_then(|name| Method::from_bytes(name).ok()).unwrap_or_default();
            self.path = text(":path").into_owned();
            self.request_id = Some(message::request_id(head));
        }
    }

    /// An instance is asked for.
    pub(crate) fn reserves(&mut self) {
        self.reserving = Some(Instant::now());
    }

    /// It was found. What is said here comes back with the end of the request.
    pub(crate) fn picked(&mut self, reserved: &Reserved) -> String {
        self.picked = true;
        let Reserved { path, instance, .. } = reserved;
        let decided = Decided {
            path: Some(*path),
            took: self.took(),
            trace: self.trace,
            instance: Some(&instance.name),
        };
        decided.write()
    }

    fn took(&self) -> Option<Duration> {
        self.reserving.map(|begun| begun.elapsed())
    }

    /// Envoy is answered. If that ends the request, this is all that is heard of it.
    pub(crate) fn answered(
        &mut self,
        observer: &Observer,
        table: &parking_lot::RwLock<Table>,
        response: &ProcessingResponse,
    ) {
        let Some(processing_response::Response::ImmediateResponse(answer)) = &response.response else {
            return;
        };
        // With an instance, its end comes by the access log.
        if self.picked {
            return;
        }
        let route = self.route.as_deref().and_then(message::route_task);
        let route = route.and_then(|(namespace, name)| table.read().task(namespace, name).cloned());
        let mut record = Record {
            method: self.method.clone(),
            target: Target(std::mem::take(&mut self.path)),
            request_id: self.request_id.take(),
            trace: self.trace,
            gateway: route.as_deref().and_then(gateway),
            route,
            reserving: self.took(),
            total: self.begun.elapsed(),
            sent: answer.body.len() as u64,
            ..Record::default()
        };
        let status = answer.status.as_ref().and_then(|status| u16::try_from(status.code).ok());
        let code = answer.details.strip_prefix(DETAILS).unwrap_or_default().to_owned();
        record.answered_with(status.unwrap_or(503), code.into());
        observer.ended(record);
    }
}

/// What was decided of a request, as it travels.
#[derive(Debug, Default, PartialEq, Eq)]
struct Decided<'a> {
    path: Option<Path>,
    took: Option<Duration>,
    trace: Option<TraceId>,
    instance: Option<&'a str>,
}

impl<'a> Decided<'a> {
    fn write(&self) -> String {
        let path = self.path.map_or("", Path::as_str);
        let took = self.took.map_or(0, |took| took.as_micros());
        let trace = self.trace.map(|trace| trace.to_string()).unwrap_or_default();
        format!("{path},{took},{trace},{}", self.instance.unwrap_or_default())
    }

    /// What cannot be read is not known.
    fn read(text: &'a str) -> Decided<'a> {
        let mut parts = text.splitn(4, ',');
        let mut next = || parts.next().unwrap_or_default();
        let (path, took, trace, instance) = (next(), next(), next(), next());
        let paths = [Path::Reused, Path::Bound, Path::Waited, Path::Rebound];
        Decided {
            path: paths.into_iter().find(|one| one.as_str() == path),
            took: took.parse().ok().map(Duration::from_micros),
            trace: TraceId::read(format!("00-{trace}-0000000000000001-00").as_bytes()),
            instance: Some(instance).filter(|instance| !instance.is_empty()),
        }
    }
}

/// Tells of the end of a request, if this is an entry about one.
pub(crate) fn ended(observer: &Observer, table: &parking_lot::RwLock<Table>, mut entry: HttpAccessLogEntry) {
    let request = entry.request.take().unwrap_or_default();
    let Some(common) = entry.common_properties.as_ref().filter(|common| is_end(common)) else { return };
    let mark = Mark::of(common);
    let details =
        entry.response.as_ref().map(|response| &*response.response_code_details).unwrap_or_default();
    let picked = mark.map(|mark| mark.seen);
    // What a router answered without an instance it has told of itself.
    if picked.is_none() && details.starts_with(DETAILS) {
        return;
    }
    let task = mark.and_then(|mark| mark.task()).or_else(|| message::route_task(&common.route_name));
    let route = task.and_then(|(namespace, name)| table.read().task(namespace, name).cloned());
    let decided = Decided::read(picked.unwrap_or_default());
    let mut record = record(request, entry.response.as_ref(), common, route);
    record.key = mark.and_then(|mark| mark.key().ok()).flatten();
    (record.path, record.reserving) = (decided.path, decided.took.filter(|_| picked.is_some()));
    record.instance = decided.instance.map(Into::into);
    record.trace = decided.trace.or(record.trace);
    let flags = common.response_flags.unwrap_or_default();
    let (status, answered) = (record.status.unwrap_or_default(), record.first_byte.is_some());
    match details.strip_prefix(DETAILS) {
        Some(code) => record.answered_with(status, code.to_owned().into()),
        None => {
            let (outcome, reason, trouble) = judge(&flags, status, answered, details);
            (record.outcome, record.reason) = (outcome, reason.into());
            if outcome != Outcome::Passed {
                record.detail = Some(details.to_owned());
            }
            if let Some(trouble) = trouble {
                observer.trouble(record.route.as_ref(), trouble);
            }
        }
    }
    observer.ended(record);
}

fn is_end(common: &AccessLogCommon) -> bool {
    match AccessLogType::try_from(common.access_log_type) {
        Ok(AccessLogType::DownstreamEnd) => true,
        #[expect(deprecated, reason = "read where nothing else is said")]
        Ok(AccessLogType::NotSet) => !common.intermediate_log_entry,
        _ => false,
    }
}

/// What Envoy says that became of a request.
fn judge(
    flags: &ResponseFlags,
    status: u16,
    answered: bool,
    details: &str,
) -> (Outcome, &'static str, Option<Trouble>) {
    let timeout = flags.upstream_request_timeout
        || flags.duration_timeout
        || flags.stream_idle_timeout
        || flags.upstream_max_stream_duration_reached;
    let closed =
        flags.upstream_connection_termination || flags.upstream_remote_reset || flags.upstream_protocol_error;
    let left = flags.downstream_connection_termination || flags.downstream_remote_reset;
    let by_instance = answered || details == "via_upstream";
    match () {
        () if flags.upstream_connection_failure || flags.no_healthy_upstream => {
            (Outcome::Failed, "InstanceUnreachable", Some(Trouble::Connect))
        }
        () if timeout && by_instance => (Outcome::Broken, "", Some(Trouble::Timeout)),
        () if timeout => (Outcome::Failed, "RequestTimeout", Some(Trouble::Timeout)),
        () if closed && by_instance => (Outcome::Broken, "", Some(Trouble::Broken)),
        () if closed => (Outcome::Failed, "InstanceFailed", Some(Trouble::Closed)),
        // A connection that was upgraded ends when somebody closes it.
        () if left && status == 101 => (Outcome::Passed, "", None),
        () if left => (Outcome::Left, "", None),
        () if by_instance => (Outcome::Passed, "", None),
        () => (Outcome::Gateway, "", None),
    }
}

fn record(
    request: HttpRequestProperties,
    response: Option<&HttpResponseProperties>,
    common: &AccessLogCommon,
    route: Option<Arc<Route>>,
) -> Record {
    let method = RequestMethod::try_from(request.request_method).ok();
    let method = method.and_then(|method| method.as_str_name().parse().ok());
    // Before Envoy cut the Task's prefix off.
    let path = if request.original_path.is_empty() { request.path } else { request.original_path };
    let total = common.duration.as_ref().or(common.time_to_last_downstream_tx_byte.as_ref());
    let code = response.and_then(|response| response.response_code.as_ref());
    let status = code.and_then(|code| u16::try_from(code.value).ok()).filter(|code| *code >= 100);
    let trace = request.request_headers.get("traceparent").and_then(|value| TraceId::read(value.as_bytes()));
    Record {
        begun: common.start_time.as_ref().and_then(moment),
        method: method.unwrap_or(Method::GET),
        target: Target(path),
        request_id: HeaderValue::try_from(request.request_id).ok().filter(|id| !id.is_empty()),
        trace,
        gateway: route.as_deref().and_then(gateway),
        route,
        status,
        total: total.and_then(time).unwrap_or_default(),
        first_byte: common.time_to_first_upstream_rx_byte.as_ref().and_then(time),
        received: request.request_body_bytes,
        sent: response.map_or(0, |response| response.response_body_bytes),
        ..Record::default()
    }
}

/// Which of several it came by is not said.
fn gateway(route: &Route) -> Option<agentcube_router::route::GatewayId> {
    match &*route.gateways {
        [one] => Some(one.clone()),
        _ => None,
    }
}

fn time(time: &protobuf::Duration) -> Option<Duration> {
    Some(Duration::new(u64::try_from(time.seconds).ok()?, u32::try_from(time.nanos).ok()?.min(999_999_999)))
}

fn moment(time: &protobuf::Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::new(time.seconds, time.nanos).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_comes_back() {
        let trace = TraceId::read(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let took = Some(Duration::from_micros(1234));
        let decided = Decided { path: Some(Path::Waited), took, trace, instance: Some("chat-0") };
        assert_eq!(Decided::read(&decided.write()), decided);
        for text in ["", ",", ",,,", "x,y,z", "bound,-1,\n,a,b"] {
            let read = Decided::read(text);
            assert!(read.took.is_none() && read.trace.is_none(), "{text:?}: {read:?}");
        }
    }

    #[test]
    fn what_envoy_says_became_of_a_request() {
        type Set = fn(&mut ResponseFlags);
        let judged = |set: Set, status, answered, details| {
            let mut flags = ResponseFlags::default();
            set(&mut flags);
            judge(&flags, status, answered, details)
        };
        let cases: [(Set, u16, bool, &str, Outcome, &str); 9] = [
            (|_| {}, 200, true, "via_upstream", Outcome::Passed, ""),
            (|_| {}, 404, false, "route_not_found", Outcome::Gateway, ""),
            (
                |it| it.upstream_connection_failure = true,
                503,
                false,
                "x",
                Outcome::Failed,
                "InstanceUnreachable",
            ),
            (
                |it| it.upstream_connection_termination = true,
                503,
                false,
                "x",
                Outcome::Failed,
                "InstanceFailed",
            ),
            (|it| it.upstream_remote_reset = true, 200, true, "x", Outcome::Broken, ""),
            (|it| it.upstream_request_timeout = true, 504, false, "x", Outcome::Failed, "RequestTimeout"),
            (|it| it.downstream_connection_termination = true, 200, true, "x", Outcome::Left, ""),
            (|it| it.downstream_connection_termination = true, 101, true, "x", Outcome::Passed, ""),
            (|it| it.rate_limited = true, 429, false, "x", Outcome::Gateway, ""),
        ];
        for (set, status, answered, details, outcome, reason) in cases {
            let (got, why, _) = judged(set, status, answered, details);
            assert_eq!((got, why), (outcome, reason), "{status} {details}");
        }
    }
}
