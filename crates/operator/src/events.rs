//! Records Events the way `kubectl describe` shows them. Recording never waits and never fails: what cannot be
//! queued or written is dropped and logged. Repeated Events are counted, similar ones combined, and an object
//! that causes too many is silenced for a while, as in Kubernetes.

mod correlate;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use correlate::{Correlator, Write};

/// More Events than this wait for the server only if it does not answer.
const MOST_WAITING: usize = 1024;
const TRIES: u32 = 5;
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// Whether an Event tells of something expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        }
    }
}

/// What happened to which object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Note {
    about: ObjectReference,
    severity: Severity,
    reason: String,
    message: String,
    at: Timestamp,
}

/// Who records.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    component: &'static str,
    host: Option<String>,
}

/// A handle for recording; cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    notes: mpsc::Sender<Note>,
}

impl Recorder {
    /// A recorder for one component (and, for what happens on a node, the host's name), and its writer in a
    /// task of its own, which writes out what is waiting at the shutdown.
    pub fn start(
        client: Client,
        component: &'static str,
        host: Option<String>,
        shutdown: CancellationToken,
    ) -> Recorder {
        let (notes, waiting) = mpsc::channel(MOST_WAITING);
        tokio::spawn(write(client, Source { component, host }, waiting, shutdown));
        Recorder { notes }
    }

    pub fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: impl Into<String>) {
        self.record(reference(about), Severity::Normal, reason, message);
    }

    pub fn warning<K: Resource<DynamicType = ()>>(
        &self,
        about: &K,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.record(reference(about), Severity::Warning, reason, message);
    }

    /// Records about a reference, which may name a part of the object in its `field_path`.
    pub fn record(
        &self,
        about: ObjectReference,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
    ) {
        let (reason, message, at) = (reason.to_owned(), message.into(), Timestamp::now());
        if let Err(error) = self.notes.try_send(Note { about, severity, reason, message, at }) {
            tracing::debug!("an Event was dropped: {error}");
        }
    }
}

/// What Events say that they are about.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

async fn write(
    client: Client,
    source: Source,
    mut waiting: mpsc::Receiver<Note>,
    shutdown: CancellationToken,
) {
    let mut correlator = Correlator::new(source);
    loop {
        let note = tokio::select! {
            note = waiting.recv() => note,
            () = shutdown.cancelled(), if !waiting.is_closed() => {
                waiting.close();
                continue;
            }
        };
        let Some(note) = note else { return };
        let Some(write) = correlator.observe(note) else { continue };
        if let Err(error) = send(&client, &write).await {
            tracing::debug!("an Event was not written: {error}");
        }
    }
}

/// Writes, again and again if the server is not reached. What the server refuses stays unwritten.
async fn send(client: &Client, write: &Write) -> Result<(), kube::Error> {
    let mut delay = FIRST_RETRY;
    for _ in 1..TRIES {
        match send_once(client, write).await {
            Ok(()) => return Ok(()),
            Err(error @ kube::Error::Api(_)) => return Err(error),
            Err(_) => tokio::time::sleep(delay).await,
        }
        delay *= 2;
    }
    send_once(client, write).await
}

async fn send_once(client: &Client, write: &Write) -> Result<(), kube::Error> {
    let event = write.event();
    let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    if let Write::Repeat(_) = write {
        let name = event.metadata.name.as_deref().unwrap_or_default();
        let change = serde_json::json!({
            "count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message,
        });
        match api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
            // The server forgets Events after a while.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => return other.map(drop),
        }
    }
    api.create(&PostParams::default(), event).await.map(drop)
}
