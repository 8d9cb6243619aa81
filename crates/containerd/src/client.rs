//! Talks to containerd: one connection, made anew when it is lost, and errors in the words of the runtime.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use agentcube_runtime::Error;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

use crate::generated::containerd::services;

/// Whatever containerd is asked for takes no longer, but for waiting.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A list of containers has the whole configuration of each.
const MOST_BYTES: usize = 64 << 20;

pub(crate) type Answered<T> = Result<Response<T>, Status>;

#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
}

macro_rules! service {
    ($name:ident, $package:ident, $module:ident, $client:ident) => {
        pub(crate) fn $name(&self) -> services::$package::v1::$module::$client<Channel> {
            services::$package::v1::$module::$client::new(self.channel.clone())
                .max_decoding_message_size(MOST_BYTES)
        }
    };
}

impl Client {
    /// Connects with the first question. Needs a tokio runtime.
    pub(crate) fn new(socket: &Path, namespace: &str) -> Result<Self, Error> {
        let refused = || Error::Invalid(format!("{namespace:?} cannot be a namespace of containerd"));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let namespace = Some(namespace).filter(|name| !name.is_empty() && name.chars().all(plain));
        let namespace = namespace.and_then(|name| name.parse().ok()).ok_or_else(refused)?;
        let socket = socket.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The address is that of the socket; this is only what HTTP calls it.
        let channel = Endpoint::from_static("http://containerd").connect_with_connector_lazy(connector);
        Ok(Self { channel, namespace })
    }

    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", self.namespace.clone());
        request
    }

    /// What comes of it is kept by a lease.
    pub(crate) fn leased<T>(&self, lease: &MetadataValue<Ascii>, message: T) -> Request<T> {
        let mut request = self.request(message);
        request.metadata_mut().insert("containerd-lease", lease.clone());
        request
    }

    service!(containers, containers, containers_client, ContainersClient);
    service!(content, content, content_client, ContentClient);
    service!(diff, diff, diff_client, DiffClient);
    service!(images, images, images_client, ImagesClient);
    service!(introspection, introspection, introspection_client, IntrospectionClient);
    service!(leases, leases, leases_client, LeasesClient);
    service!(namespaces, namespaces, namespaces_client, NamespacesClient);
    service!(snapshots, snapshots, snapshots_client, SnapshotsClient);
    service!(tasks, tasks, tasks_client, TasksClient);
}

/// Waits for an answer, but not for ever.
pub(crate) async fn ask<T>(asked: impl Future<Output = Answered<T>>) -> Result<T, Status> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answered) => answered.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("containerd does not answer")),
    }
}

/// What was to be had is had, also if it is gone already.
pub(crate) fn or_gone<T>(answered: Result<T, Status>) -> Result<Option<T>, Status> {
    match answered {
        Ok(answer) => Ok(Some(answer)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// Names the step in which containerd did not do as asked.
pub(crate) trait During<T> {
    fn during(self, step: &'static str) -> Result<T, Error>;
}

impl<T> During<T> for Result<T, Status> {
    fn during(self, step: &'static str) -> Result<T, Error> {
        self.map_err(|status| failed(step, &status))
    }
}

fn failed(step: &'static str, status: &Status) -> Error {
    let said = status.message();
    // As runc puts it when there is nothing to execute: the order is wrong, and not the machine.
    match said.find("exec: \"").or_else(|| said.find("mkdir /proc/self/cwd")) {
        Some(at) => Error::Invalid(said[at..].trim_end_matches(": unknown").to_owned()),
        None if status.code() == Code::Unavailable => Error::Step {
            step,
            reason: format!("containerd cannot be reached: {said}; is it running, and is its socket right?"),
        },
        None => Error::Step { step, reason: said.to_owned() },
    }
}
