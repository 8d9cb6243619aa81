//! The name server of the node's Pods: names of the cluster from what the network knows, all others from the host's
//! name servers. It asks for nothing outside on behalf of a Pod that may not go there.

mod forward;
mod message;
mod resolv;
mod zone;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::view::Reach;
use super::{Counters, Network, decide};
use forward::{Forwarder, Transport};
use message::{Code, Data, Name, Query, Record, Rejected, Response};
use zone::Answer;

/// Questions of one Pod that are under way at once; what comes meanwhile waits in its socket.
const MOST_QUESTIONS: usize = 64;
const LONGEST_QUESTION: usize = 4096;
/// How long a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// Aliases that are followed for one answer.
const MOST_ALIASES: usize = 4;

#[derive(Debug)]
pub(super) struct Server {
    forwarder: Forwarder,
}

impl Network {
    /// What a Pod finds in its `/etc/resolv.conf`.
    pub fn resolv_conf(&self, pod: &Pod) -> String {
        let spec = pod.spec.as_ref();
        resolv::resolv_conf(
            self.gateway(),
            &self.shared.dns.forwarder.host(),
            pod.metadata.namespace.as_deref().unwrap_or("default"),
            spec.and_then(|spec| spec.dns_policy.as_deref()),
            spec.and_then(|spec| spec.dns_config.as_ref()),
        )
    }
}

/// Answers the datagrams of one Pod, for ever.
pub(super) async fn serve_datagrams(
    network: Network,
    source: Ipv4Addr,
    socket: UdpSocket,
    counters: Arc<Counters>,
) {
    network.ready().await;
    let socket = Arc::new(socket);
    let mut questions = JoinSet::new();
    let mut buffer = vec![0; LONGEST_QUESTION];
    loop {
        while questions.len() >= MOST_QUESTIONS {
            questions.join_next().await;
        }
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(_) = questions.join_next() => continue,
        };
        // An error is the echo of an answer that nobody waited for.
        let Ok((length, peer)) = received else { continue };
        counters.queries.fetch_add(1, Ordering::Relaxed);
        let (network, socket, question) = (network.clone(), socket.clone(), buffer[..length].to_vec());
        questions.spawn(async move {
            if let Some(answer) =
                network.shared.dns.answer(&network, source, &question, Transport::Datagram).await
            {
                // The asker may be gone.
                let _ = socket.send_to(&answer, peer).await;
            }
        });
    }
}

impl Server {
    pub(super) fn new(resolv_conf: PathBuf) -> Self {
        Self { forwarder: Forwarder::new(resolv_conf) }
    }

    /// Answers the questions of one connection until it is silent or says something else.
    pub(super) async fn serve_stream(
        &self,
        network: &Network,
        source: Ipv4Addr,
        mut stream: TcpStream,
        counters: &Counters,
    ) {
        while let Some(question) = read_question(&mut stream).await {
            counters.queries.fetch_add(1, Ordering::Relaxed);
            let Some(answer) = self.answer(network, source, &question, Transport::Stream).await else {
                return;
            };
            let length = u16::try_from(answer.len()).unwrap_or_default();
            let written = [&length.to_be_bytes()[..], &answer].concat();
            if !matches!(timeout(PATIENCE, stream.write_all(&written)).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    async fn answer(
        &self,
        network: &Network,
        source: Ipv4Addr,
        question: &[u8],
        transport: Transport,
    ) -> Option<Vec<u8>> {
        let query = match Query::decode(question) {
            Ok(query) => query,
            Err(Rejected::Silently) => return None,
            Err(Rejected::With { id, code }) => return Some(message::rejection(id, code)),
        };
        let limit = match transport {
            Transport::Datagram => query.datagram_limit(),
            Transport::Stream => u16::MAX.into(),
        };
        match zone(network, &query.name, query.kind) {
            Answer::Ours(_) | Answer::Alias(_) if !knows_cluster(network, source) => {
                Some(Response::failure(Code::Refused).encode(&query, limit))
            }
            Answer::Ours(mut response) => {
                // Whoever asks again gets another order, and so another first endpoint.
                let count = response.answers.len().max(1);
                response.answers.rotate_left(usize::from(query.id) % count);
                Some(response.encode(&query, limit))
            }
            Answer::Alias(target) => {
                let response = self.follow(network, source, &query, target, transport).await;
                Some(response.encode(&query, limit))
            }
            Answer::Outside if !may_leave(network, source) => {
                Some(Response::failure(Code::Refused).encode(&query, limit))
            }
            Answer::Outside => {
                let relayed = self.forwarder.ask(&query, transport).await;
                Some(relayed.unwrap_or_else(|| Response::failure(Code::ServerFailure).encode(&query, limit)))
            }
        }
    }

    /// The answer about a Service that stands for another name: the alias, and what is behind it.
    async fn follow(
        &self,
        network: &Network,
        source: Ipv4Addr,
        query: &Query,
        mut target: Name,
        transport: Transport,
    ) -> Response {
        let mut response = Response { authoritative: true, ..Response::failure(Code::NoError) };
        response.answers.push(zone::alias(&query.name, &target));
        for _ in 0..MOST_ALIASES {
            match zone(network, &target, query.kind) {
                Answer::Ours(found) => response.answers.extend(found.answers),
                Answer::Alias(next) => {
                    response.answers.push(zone::alias(&target, &next));
                    target = next;
                    continue;
                }
                Answer::Outside if may_leave(network, source) => {
                    response.answers.extend(self.outside(&query.about(&target), transport).await);
                }
                Answer::Outside => {}
            }
            break;
        }
        response
    }

    async fn outside(&self, query: &Query, transport: Transport) -> Vec<Record> {
        let Some(mut answer) = self.forwarder.ask(query, transport).await else { return Vec::new() };
        if message::is_truncated(&answer) {
            answer = self.forwarder.ask(query, Transport::Stream).await.unwrap_or(answer);
        }
        let records = message::read_answers(&answer).unwrap_or_default();
        records
            .into_iter()
            .filter(|record| record.data.kind() == query.kind || matches!(record.data, Data::Cname(_)))
            .collect()
    }
}

fn zone(network: &Network, name: &Name, kind: u16) -> Answer {
    zone::answer(&network.shared.view.read(), &network.shared.plan, name, kind)
}

/// Whether somebody may hear the names of the cluster.
fn knows_cluster(network: &Network, source: Ipv4Addr) -> bool {
    let view = network.shared.view.read();
    view.member(source).is_some_and(|member| matches!(member.guest, None | Some(Reach::Cluster)))
}

fn may_leave(network: &Network, source: Ipv4Addr) -> bool {
    let view = network.shared.view.read();
    view.member(source).is_some_and(|member| decide::may_resolve(&view, &network.shared.plan, member))
}

async fn read_question(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let reading = async {
        let length = usize::from(stream.read_u16().await.ok()?);
        let mut question = vec![0; Some(length).filter(|length| *length <= LONGEST_QUESTION)?];
        stream.read_exact(&mut question).await.ok()?;
        Some(question)
    };
    timeout(PATIENCE, reading).await.ok()?
}
