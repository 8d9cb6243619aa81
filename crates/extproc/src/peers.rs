//! The other routers. Envoy tells of a request to whichever router it likes, and only the one that picked its instance holds
//! it. So whoever hears of a pick of another process tells that one: that the request is over, or that it was taken over.
//! Said as Envoy says it, by the access log service, so there is one way to hear. What is lost on the way costs a lease.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::reserve::Peers as Known;
use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::data::accesslog::v3::{AccessLogCommon, AccessLogType, HttpAccessLogEntry};
use envoy_types::pb::envoy::service::accesslog::v3::StreamAccessLogsMessage;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_client::AccessLogServiceClient;
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::{
    HttpAccessLogEntries, Identifier, LogEntries,
};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use futures_util::StreamExt;
use parking_lot::RwLock;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Endpoint;

use crate::ledger::Pick;
use crate::mark::{MARK, Mark};
use crate::message::METADATA;

/// The name of the log that routers send each other.
pub(crate) const LOG: &str = "agentcube-router";
/// How much may wait to be told, and how much is told at once.
const WAITING: usize = 8192;
const AT_ONCE: usize = 256;
const CONNECT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long to wait before a router is called again.
const REST: Duration = Duration::from_secs(1);

/// What is said of a pick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) pick: Pick,
    /// The process that holds the request from now on; none when it is over.
    pub(crate) now_at: Option<Arc<str>>,
}

/// The routers that can be told.
#[derive(Default)]
pub(crate) struct Peers(RwLock<HashMap<Arc<str>, Peer>>);

struct Peer {
    address: SocketAddr,
    words: mpsc::Sender<Word>,
    _calling: DropGuard,
}

impl Peers {
    /// Tells the process that picked. What cannot be told is not: its lease runs out.
    pub(crate) fn tell(&self, process: &str, word: Word) {
        if let Some(peer) = self.0.read().get(process) {
            let _full = peer.words.try_send(word);
        }
    }

    /// Whether there is anybody to tell.
    pub(crate) fn any(&self) -> bool {
        !self.0.read().is_empty()
    }

    pub(crate) fn tell_all(&self, word: &Word) {
        for peer in self.0.read().values() {
            let _full = peer.words.try_send(word.clone());
        }
    }

    /// Calls those that there are, for as long as it is polled.
    pub(crate) async fn follow(&self, own: &str, mut known: watch::Receiver<Known>) {
        loop {
            let now = known.borrow_and_update().clone();
            {
                let mut peers = self.0.write();
                peers.retain(|process, peer| now.get(process) == Some(&peer.address));
                for (process, address) in now {
                    if &*process != own && !peers.contains_key(&process) {
                        peers.insert(process, Peer::call(address));
                    }
                }
            }
            if known.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

impl Peer {
    fn call(address: SocketAddr) -> Peer {
        let (words, waiting) = mpsc::channel(WAITING);
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(talk(address, waiting)));
        Peer { address, words, _calling: stop.drop_guard() }
    }
}

/// Keeps a stream open to a router, from the beginning: one that stops takes no new ones.
async fn talk(address: SocketAddr, mut waiting: mpsc::Receiver<Word>) {
    loop {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let connected = match endpoint {
            Ok(endpoint) => {
                let endpoint = endpoint.connect_timeout(CONNECT).http2_keep_alive_interval(KEEP_ALIVE);
                endpoint.keep_alive_while_idle(true).connect().await
            }
            Err(error) => Err(error),
        };
        match connected {
            Ok(channel) => {
                let mut client = AccessLogServiceClient::new(channel);
                // The half that is sent ends with the call, and gives back what still waits.
                let (sender, receiver) = mpsc::channel(1);
                let sending = pass_on(&mut waiting, sender);
                let messages = futures_util::stream::unfold(receiver, |mut receiver| async move {
                    receiver.recv().await.map(|message| (message, receiver))
                });
                let first = futures_util::stream::once(std::future::ready(introduction()));
                tokio::select! {
                    answered = client.stream_access_logs(first.chain(messages)) => {
                        let status = answered.err();
                        tracing::debug!(%address, ?status, "another router listens no more");
                    }
                    () = sending => return,
                }
            }
            Err(error) => tracing::debug!(%address, %error, "another router cannot be told of requests"),
        }
        tokio::time::sleep(REST).await;
    }
}

/// Comes back when nobody will say anything any more.
async fn pass_on(waiting: &mut mpsc::Receiver<Word>, sender: mpsc::Sender<StreamAccessLogsMessage>) {
    let mut words = Vec::new();
    loop {
        // Not before there is room: words wait where they are counted.
        let Ok(room) = sender.reserve().await else { return std::future::pending().await };
        if waiting.recv_many(&mut words, AT_ONCE).await == 0 {
            return;
        }
        room.send(message(words.drain(..)));
    }
}

fn introduction() -> StreamAccessLogsMessage {
    let identifier = Identifier { log_name: LOG.into(), ..Identifier::default() };
    StreamAccessLogsMessage { identifier: Some(identifier), ..StreamAccessLogsMessage::default() }
}

fn message(words: impl Iterator<Item = Word>) -> StreamAccessLogsMessage {
    let log_entry = words.map(entry).collect();
    let entries = LogEntries::HttpLogs(HttpAccessLogEntries { log_entry });
    StreamAccessLogsMessage { log_entries: Some(entries), ..StreamAccessLogsMessage::default() }
}

fn entry(word: Word) -> HttpAccessLogEntry {
    let type_ = match word.now_at {
        None => AccessLogType::DownstreamEnd,
        Some(_) => AccessLogType::DownstreamPeriodic,
    };
    let mark = Mark::bare(&word.pick, word.now_at.as_deref().unwrap_or_default());
    let value = Value { kind: Some(Kind::StringValue(mark)) };
    let of_balancer = Struct { fields: HashMap::from([(MARK.to_owned(), value)]) };
    let filter_metadata = HashMap::from([(METADATA.to_owned(), of_balancer)]);
    let common = AccessLogCommon {
        metadata: Some(Metadata { filter_metadata, ..Metadata::default() }),
        access_log_type: type_.into(),
        ..AccessLogCommon::default()
    };
    HttpAccessLogEntry { common_properties: Some(common), ..HttpAccessLogEntry::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::Entry;

    #[test]
    fn what_is_said_is_heard_as_from_envoy() {
        for (now_at, ended) in [(None, true), (Some("other".into()), false)] {
            let entry = entry(Word { pick: "p-1".into(), now_at: now_at.clone() });
            let heard = Entry::read(&entry).unwrap();
            let at = Some(heard.mark.instance).filter(|at| !at.is_empty()).map(Arc::from);
            assert_eq!((heard.mark.pick, heard.ended, at, heard.at()), ("p-1", ended, now_at, None));
        }
    }
}
