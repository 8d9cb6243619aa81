//! Images as snapshots: each layer over the one below it. Most are unpacked when they are imported or pulled; the
//! others are here, under a lease, so that nobody collects what is not finished.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use agentcube_runtime::Error;
use agentcube_runtime::image::{Digest, Manifest};
use tonic::Code;
use tonic::metadata::{Ascii, MetadataValue};

use crate::client::{During, ask, or_gone};
use crate::container::Containerd;
use crate::generated::containerd::services::content::v1::{Info, UpdateRequest};
use crate::generated::containerd::services::diff::v1::ApplyRequest;
use crate::generated::containerd::services::leases::v1 as leases;
use crate::generated::containerd::services::snapshots::v1 as snapshots;
use crate::generated::containerd::types::{Descriptor, FieldMask, Mount};

const STEP: &str = "unpacking the image";
/// A lease of an agent that died ends by itself.
const LEASE: Duration = Duration::from_secs(3600);

impl Containerd {
    pub(crate) fn number(&self) -> u64 {
        self.executed.fetch_add(1, Ordering::Relaxed)
    }

    /// The name of the snapshot that has all layers, which is there afterwards.
    pub(crate) async fn unpacked(&self, manifest: &Manifest, contents: &[Digest]) -> Result<String, Error> {
        let chain = chain(contents);
        let Some(top) = chain.last().cloned() else {
            return Err(Error::Invalid("an image without layers cannot be run by containerd".into()));
        };
        if contents.len() != manifest.layers.len() {
            return Err(Error::Invalid(
                "the image's configuration and manifest differ in their layers".into(),
            ));
        }
        if self.has_snapshot(&top).await? {
            return Ok(top);
        }
        let lease = self.lease().await?;
        let unpacked = self.unpack(manifest, &chain, &lease).await;
        self.end_lease(&lease).await;
        unpacked.map(|()| top)
    }

    async fn unpack(
        &self,
        manifest: &Manifest,
        chain: &[String],
        lease: &MetadataValue<Ascii>,
    ) -> Result<(), Error> {
        let mut below = String::new();
        for (layer, name) in manifest.layers.iter().zip(chain) {
            if !self.has_snapshot(name).await? {
                let diff = Descriptor {
                    media_type: layer.media_type.clone(),
                    digest: layer.digest.to_string(),
                    size: i64::try_from(layer.size).unwrap_or(i64::MAX),
                };
                self.unpack_layer(diff, &below, name, lease).await?;
            }
            below.clone_from(name);
        }
        // The image is what keeps its snapshots from being collected.
        let label = format!("containerd.io/gc.ref.snapshot.{}", self.options.snapshotter);
        let mask = FieldMask { paths: vec![format!("labels.{label}")] };
        let labels = BTreeMap::from([(label, below)]);
        let info = Info { digest: manifest.config.clone(), labels, ..Info::default() };
        let request = UpdateRequest { info: Some(info), update_mask: Some(mask) };
        ask(self.client.content().update(self.client.request(request))).await.map(drop).during(STEP)
    }

    async fn unpack_layer(
        &self,
        diff: Descriptor,
        below: &str,
        name: &str,
        lease: &MetadataValue<Ascii>,
    ) -> Result<(), Error> {
        let (client, snapshotter) = (&self.client, || self.options.snapshotter.clone());
        let key = format!("agentcube-unpack-{}-{}-{name}", std::process::id(), self.number());
        let request = snapshots::PrepareSnapshotRequest {
            snapshotter: snapshotter(),
            key: key.clone(),
            parent: below.to_owned(),
            labels: BTreeMap::new(),
        };
        let prepared = ask(client.snapshots().prepare(client.leased(lease, request))).await.during(STEP)?;
        let request = ApplyRequest { diff: Some(diff), mounts: prepared.mounts };
        // A large layer takes its time.
        let applied = client.diff().apply(client.leased(lease, request)).await.map(drop);
        let committed = match applied {
            Ok(()) => {
                let request = snapshots::CommitSnapshotRequest {
                    snapshotter: snapshotter(),
                    name: name.to_owned(),
                    key: key.clone(),
                    labels: BTreeMap::new(),
                };
                ask(client.snapshots().commit(client.leased(lease, request))).await.map(drop)
            }
            Err(status) => Err(status),
        };
        match committed {
            Ok(()) => Ok(()),
            Err(status) => {
                self.remove_snapshot(&key).await?;
                // Somebody else was faster.
                if status.code() == Code::AlreadyExists { Ok(()) } else { Err(status).during(STEP) }
            }
        }
    }

    pub(crate) async fn end_lease(&self, lease: &MetadataValue<Ascii>) {
        let id = lease.to_str().unwrap_or_default().to_owned();
        let request = self.client.request(leases::DeleteRequest { id, sync: false });
        if let Err(status) = or_gone(ask(self.client.leases().delete(request)).await) {
            tracing::debug!("a lease stays until it expires: {}", status.message());
        }
    }

    pub(crate) async fn lease(&self) -> Result<MetadataValue<Ascii>, Error> {
        let id = format!("agentcube-{}-{}", std::process::id(), self.number());
        let value = id.parse().map_err(|_| Error::Invalid("a lease cannot be called that".into()))?;
        let expire = jiff::Timestamp::now() + LEASE;
        let labels = BTreeMap::from([("containerd.io/gc.expire".to_owned(), expire.to_string())]);
        let request = self.client.request(leases::CreateRequest { id, labels });
        match ask(self.client.leases().create(request)).await {
            // Of an agent before us, with the same number.
            Err(status) if status.code() == Code::AlreadyExists => Ok(value),
            other => other.map(|_| value).during(STEP),
        }
    }

    pub(crate) async fn has_snapshot(&self, name: &str) -> Result<bool, Error> {
        let request = snapshots::StatSnapshotRequest {
            snapshotter: self.options.snapshotter.clone(),
            key: name.to_owned(),
        };
        let stat = ask(self.client.snapshots().stat(self.client.request(request))).await;
        Ok(or_gone(stat).during(STEP)?.is_some())
    }

    /// What an unpacked image is mounted from, while a lease keeps it. To be removed afterwards.
    pub(crate) async fn view(
        &self,
        key: &str,
        parent: &str,
        lease: &MetadataValue<Ascii>,
    ) -> Result<Vec<Mount>, Error> {
        let request = snapshots::ViewSnapshotRequest {
            snapshotter: self.options.snapshotter.clone(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: BTreeMap::new(),
        };
        Ok(ask(self.client.snapshots().view(self.client.leased(lease, request))).await.during(STEP)?.mounts)
    }

    pub(crate) async fn remove_snapshot(&self, key: &str) -> Result<(), Error> {
        let request = snapshots::RemoveSnapshotRequest {
            snapshotter: self.options.snapshotter.clone(),
            key: key.to_owned(),
        };
        or_gone(ask(self.client.snapshots().remove(self.client.request(request))).await)
            .map(drop)
            .during(STEP)
    }
}

/// The names of the snapshots of an image, from the bottom: each is the digest of the one below and of its own content.
fn chain(contents: &[Digest]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::new();
    for content in contents {
        chain.push(match chain.last() {
            None => content.to_string(),
            Some(below) => Digest::of(format!("{below} {content}").as_bytes()).to_string(),
        });
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_snapshots_as_everybody_does() {
        let layers = [Digest::of(b"one"), Digest::of(b"two")];
        let chain = chain(&layers);
        assert_eq!(chain[0], layers[0].to_string());
        assert_eq!(chain[1], Digest::of(format!("{} {}", layers[0], layers[1]).as_bytes()).to_string());
    }
}
