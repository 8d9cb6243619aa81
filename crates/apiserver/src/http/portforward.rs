//! `pods/NAME/portforward` over WebSocket: for each port a channel for data and one for an error, each opened by a
//! message with the port's number. `kubectl` speaks another protocol (SPDY), which is not served.

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use http::Response;
use http::request::Parts;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use super::proxy::ports;
use super::reply::ReplyBody;
use super::websocket::{self, Socket};
use crate::api::{Api, Name};
use crate::hooks::Connection;
use crate::request::Query;
use crate::resource::Resource;
use crate::status::Status;

const PROTOCOLS: [&str; 1] = ["v4.channel.k8s.io"];
/// Bytes read from a Pod at once.
const CHUNK: usize = 16 << 10;

pub(super) async fn serve(
    api: &Api,
    resource: &Resource,
    named: &Name<'_>,
    parts: &Parts,
    query: &Query,
) -> Result<Response<ReplyBody>, Status> {
    let ports = ports(query)?;
    let pod = resource.typed(&*api.find(resource, named)?);
    let handshake = websocket::Handshake::read(parts, &PROTOCOLS)?;
    let mut connections = Vec::with_capacity(ports.len());
    for port in ports {
        connections.push((port, api.connect_pod(pod.clone(), port).await));
    }
    Ok(handshake.accept(move |socket| relay(socket, connections)))
}

/// Carries bytes until the client leaves or every connection has ended.
async fn relay(socket: Socket, connections: Vec<(u16, Result<Connection, Status>)>) {
    let (mut sink, mut source) = socket.split();
    let (outward, mut outgoing) = mpsc::channel::<Message>(8);
    let mut writers: Vec<Option<WriteHalf<Connection>>> = Vec::new();
    for (index, (port, connection)) in connections.into_iter().enumerate() {
        let data = 2 * index as u8;
        for channel in [data, data + 1] {
            if sink.send(message(channel, &port.to_le_bytes())).await.is_err() {
                return;
            }
        }
        match connection {
            Ok(connection) => {
                let (reader, writer) = tokio::io::split(connection);
                writers.push(Some(writer));
                tokio::spawn(read(data, reader, outward.clone()));
            }
            Err(status) => {
                writers.push(None);
                if sink.send(message(data + 1, status.message.as_bytes())).await.is_err() {
                    return;
                }
            }
        }
    }
    drop(outward);
    let inward = async {
        while let Some(Ok(incoming)) = source.next().await {
            let Message::Binary(bytes) = incoming else { continue };
            let Some((channel, data)) = bytes.split_first() else { continue };
            let writer = writers.get_mut(usize::from(*channel) / 2).filter(|_| channel % 2 == 0);
            if let Some(slot) = writer
                && let Some(writer) = slot
                && writer.write_all(data).await.is_err()
            {
                *slot = None;
            }
        }
    };
    let back = async {
        while let Some(message) = outgoing.recv().await {
            if sink.send(message).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = inward => {}
        () = back => {}
    }
    websocket::part(sink, source).await;
}

async fn read(channel: u8, mut reader: ReadHalf<Connection>, outward: mpsc::Sender<Message>) {
    let mut buffer = BytesMut::with_capacity(CHUNK);
    loop {
        buffer.clear();
        match reader.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) if outward.send(message(channel, &buffer)).await.is_err() => return,
            Ok(_) => {}
        }
    }
}

fn message(channel: u8, data: &[u8]) -> Message {
    let mut bytes = BytesMut::with_capacity(data.len() + 1);
    bytes.extend_from_slice(&[channel]);
    bytes.extend_from_slice(data);
    Message::Binary(Bytes::from(bytes))
}
