//! Envoy's access log: how the router hears that requests go on and that they have ended. Nothing that it says can
//! harm more than the leases of the picks that it names.

use std::sync::Arc;

use agentcube_instance::{InstanceId, SessionKey};
use envoy_types::pb::envoy::data::accesslog::v3::{AccessLogCommon, AccessLogType, HttpAccessLogEntry};
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::AccessLogService;
use envoy_types::pb::envoy::service::accesslog::v3::{
    StreamAccessLogsMessage, StreamAccessLogsResponse, stream_access_logs_message::LogEntries,
};
use tonic::{Request, Response, Status, Streaming};

use crate::mark::Mark;
use crate::peers;
use crate::seen;
use crate::server::Shared;

/// What an entry says of a request that a router picked an instance for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub ended: bool,
    pub mark: Mark<'a>,
}

/// Whose request it is, and where: enough to take over a pick of another router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub namespace: &'a str,
    pub task: &'a str,
    /// None for a Oneshot.
    pub key: Option<SessionKey>,
    pub instance: InstanceId,
}

impl Entry<'_> {
    /// Whose request it is; none if the mark does not say it rightly.
    pub fn at(&self) -> Option<Place<'_>> {
        let (namespace, task) = self.mark.task()?;
        let (key, instance) = (self.mark.key().ok()?, InstanceId::parse(self.mark.instance)?);
        Some(Place { namespace, task, key, instance })
    }

    /// Reads an entry; nothing if it says nothing of a pick.
    pub fn read(entry: &HttpAccessLogEntry) -> Option<Entry<'_>> {
        let common = entry.common_properties.as_ref()?;
        let mark = Mark::of(common)?;
        Some(Entry { ended: ended(common)?, mark })
    }
}

/// Whether the request is over; nothing for entries about something else.
fn ended(common: &AccessLogCommon) -> Option<bool> {
    match AccessLogType::try_from(common.access_log_type).ok()? {
        AccessLogType::DownstreamEnd => Some(true),
        AccessLogType::DownstreamStart
        | AccessLogType::DownstreamPeriodic
        | AccessLogType::DownstreamTunnelSuccessfullyEstablished => Some(false),
        // An older Envoy, which says only this of an entry.
        #[expect(deprecated, reason = "read where nothing else is said")]
        AccessLogType::NotSet => Some(!common.intermediate_log_entry),
        _ => None,
    }
}

pub(crate) struct AccessLog(pub(crate) Arc<Shared>);

#[tonic::async_trait]
impl AccessLogService for AccessLog {
    async fn stream_access_logs(
        &self,
        request: Request<Streaming<StreamAccessLogsMessage>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        let mut messages = request.into_inner();
        let mut of_router = false;
        loop {
            // When it stops, Envoys are to tell another router; that one tells us what it takes over.
            let until = if of_router { &self.0.cut } else { &self.0.elsewhere };
            let message = tokio::select! {
                message = messages.message() => message,
                () = until.cancelled() => return Ok(Response::new(StreamAccessLogsResponse {})),
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(Response::new(StreamAccessLogsResponse {})),
                Err(status) => {
                    // What was on its way there is unknown from now on, and held until its lease runs out.
                    tracing::info!(%status, "the access log of an Envoy broke off");
                    return Err(status);
                }
            };
            of_router |= message.identifier.as_ref().is_some_and(|log| log.log_name == peers::LOG);
            if let Some(LogEntries::HttpLogs(entries)) = message.log_entries {
                for entry in entries.log_entry {
                    let read = Entry::read(&entry);
                    if of_router {
                        read.iter().for_each(|entry| self.0.hear_from_router(entry));
                        continue;
                    }
                    read.iter().for_each(|entry| self.0.hear(entry));
                    seen::ended(&self.0.observer, &self.0.table, entry);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::envoy::config::core::v3::Metadata;
    use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};

    use super::*;
    use crate::mark::MARK;
    use crate::message::METADATA;

    fn entry(type_: AccessLogType, mark: &str) -> HttpAccessLogEntry {
        let value = Value { kind: Some(Kind::StringValue(mark.into())) };
        let of_balancer = Struct { fields: HashMap::from([(MARK.to_owned(), value)]) };
        let filter_metadata = HashMap::from([(METADATA.to_owned(), of_balancer)]);
        let common = AccessLogCommon {
            metadata: Some(Metadata { filter_metadata, ..Metadata::default() }),
            access_log_type: type_.into(),
            ..AccessLogCommon::default()
        };
        HttpAccessLogEntry { common_properties: Some(common), ..HttpAccessLogEntry::default() }
    }

    #[test]
    fn entries_say_whether_a_pick_is_over() {
        let place = Place {
            namespace: "prod",
            task: "chat",
            key: Some(SessionKey::new("u/1").unwrap()),
            instance: InstanceId::pod("chat-0", "uid-0"),
        };
        for (type_, ended) in [
            (AccessLogType::DownstreamEnd, Some(true)),
            (AccessLogType::NotSet, Some(true)),
            (AccessLogType::DownstreamPeriodic, Some(false)),
            (AccessLogType::UpstreamEnd, None),
        ] {
            let entry = entry(type_, "p1\nprod/chat\nchat-0/uid-0\nu/1\nseen");
            let read = Entry::read(&entry);
            assert_eq!(read.as_ref().map(|entry| entry.ended), ended, "{type_:?}");
            let said = read.as_ref().map(|entry| (entry.mark.pick, entry.at()));
            assert_eq!(said, ended.map(|_| ("p1", Some(place.clone()))), "{type_:?}");
        }
        let at = |mark: &str| Entry::read(&entry(AccessLogType::DownstreamEnd, mark))?.at().map(|at| at.key);
        assert_eq!(at("p1\nprod/chat\nchat-0/uid-0\n\n"), Some(None), "a Oneshot");
        assert_eq!(at("p1\nprod/chat\nnowhere\n\n"), None);
        for nothing in ["", "p1", "\nprod/chat\nchat-0/uid-0\n\n"] {
            assert_eq!(Entry::read(&entry(AccessLogType::DownstreamEnd, nothing)), None, "{nothing:?}");
        }
        assert_eq!(Entry::read(&HttpAccessLogEntry::default()), None);
    }
}
