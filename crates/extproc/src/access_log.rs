//! Envoy's access log: how the router hears that requests go on and that they have ended. Nothing that it says can
//! harm more than the leases of the picks that it names.

use std::net::SocketAddr;
use std::sync::Arc;

use agentcube_instance::SessionKey;
use agentcube_router::decide::DESTINATION;
use envoy_types::pb::envoy::data::accesslog::v3::{AccessLogCommon, AccessLogType, HttpAccessLogEntry};
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::AccessLogService;
use envoy_types::pb::envoy::service::accesslog::v3::{
    StreamAccessLogsMessage, StreamAccessLogsResponse, stream_access_logs_message::LogEntries,
};
use tonic::{Request, Response, Status, Streaming};

use crate::message::{self, PICK, SESSION, TASK};
use crate::seen;
use crate::server::Shared;

/// What an entry says of a request that a router picked an instance for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub pick: &'a str,
    pub ended: bool,
    pub session: Option<Session<'a>>,
}

/// Whose request it is: enough to take over a pick of another router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session<'a> {
    pub namespace: &'a str,
    pub task: &'a str,
    pub key: SessionKey,
    pub endpoint: SocketAddr,
}

impl Entry<'_> {
    /// Reads an entry; nothing if it says nothing of a pick.
    pub fn read(entry: &HttpAccessLogEntry) -> Option<Entry<'_>> {
        let common = entry.common_properties.as_ref()?;
        let fields = message::picked_metadata(common.metadata.as_ref()?)?;
        let said = |name: &str| fields.get(name).and_then(message::string);
        let session = || {
            let (namespace, task) = said(TASK)?.split_once('/')?;
            let key = SessionKey::new(said(SESSION)?).ok()?;
            let endpoint = said(DESTINATION.as_str())?.parse().ok()?;
            Some(Session { namespace, task, key, endpoint })
        };
        Some(Entry { pick: said(PICK)?, ended: ended(common)?, session: session() })
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
        loop {
            let message = tokio::select! {
                message = messages.message() => message,
                () = self.0.cut.cancelled() => return Ok(Response::new(StreamAccessLogsResponse {})),
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
            if let Some(LogEntries::HttpLogs(entries)) = message.log_entries {
                for entry in &entries.log_entry {
                    if let Some(entry) = Entry::read(entry) {
                        self.0.hear(&entry);
                    }
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

    fn entry(type_: AccessLogType, pairs: &[(&str, &str)]) -> HttpAccessLogEntry {
        let value = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
        let fields = pairs.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
        let filter_metadata = HashMap::from([(message::METADATA.to_owned(), Struct { fields })]);
        let common = AccessLogCommon {
            metadata: Some(Metadata { filter_metadata, ..Metadata::default() }),
            access_log_type: type_.into(),
            ..AccessLogCommon::default()
        };
        HttpAccessLogEntry { common_properties: Some(common), ..HttpAccessLogEntry::default() }
    }

    #[test]
    fn entries_say_whether_a_pick_is_over() {
        let pairs = [
            (PICK, "p1"),
            (TASK, "prod/chat"),
            (SESSION, "u/1"),
            ("x-gateway-destination-endpoint", "10.0.0.1:80"),
        ];
        let session = Session {
            namespace: "prod",
            task: "chat",
            key: SessionKey::new("u/1").unwrap(),
            endpoint: ([10, 0, 0, 1], 80).into(),
        };
        for (type_, ended) in [
            (AccessLogType::DownstreamEnd, Some(true)),
            (AccessLogType::NotSet, Some(true)),
            (AccessLogType::DownstreamPeriodic, Some(false)),
            (AccessLogType::UpstreamEnd, None),
        ] {
            let entry = entry(type_, &pairs);
            let expected = ended.map(|ended| Entry { pick: "p1", ended, session: Some(session.clone()) });
            assert_eq!(Entry::read(&entry), expected, "{type_:?}");
        }
        let oneshot = entry(AccessLogType::DownstreamEnd, &[(PICK, "p1"), (TASK, "prod/chat")]);
        assert_eq!(Entry::read(&oneshot), Some(Entry { pick: "p1", ended: true, session: None }));
        assert_eq!(Entry::read(&entry(AccessLogType::DownstreamEnd, &[])), None);
        assert_eq!(Entry::read(&HttpAccessLogEntry::default()), None);
    }
}
