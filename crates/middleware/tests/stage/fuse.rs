//! The death of a controller after its n-th effect: the effect happens, nobody hears the answer, and nothing that the
//! controller does afterwards reaches anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Method;
use kube::Client;
use kube::client::Body;
use tokio_util::sync::CancellationToken;

use super::NAMESPACE;

#[derive(Clone, Debug)]
pub(crate) struct Fuse {
    left: Arc<AtomicU64>,
    pub(crate) blown: CancellationToken,
}

impl Fuse {
    pub(crate) fn after(effects: u64) -> Fuse {
        Fuse { left: Arc::new(AtomicU64::new(effects)), blown: CancellationToken::new() }
    }

    pub(crate) fn never() -> Fuse {
        Fuse::after(u64::MAX)
    }

    /// An effect that counts.
    pub(crate) async fn effect<T>(&self, work: impl Future<Output = T>) -> T {
        let answer = self.through(work).await;
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.blown.cancel();
        }
        // Whoever is dead hears nothing.
        self.through(async { answer }).await
    }

    /// Something that changes nothing.
    pub(crate) async fn through<T>(&self, work: impl Future<Output = T>) -> T {
        if self.blown.is_cancelled() {
            std::future::pending::<()>().await;
        }
        work.await
    }

    /// A client whose writes are effects. Events say what happened, and are no part of it.
    pub(crate) fn client(&self, client: &Client) -> Client {
        let (client, fuse) = (client.clone(), self.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (client, fuse) = (client.clone(), fuse.clone());
            async move {
                let counts = request.method() != Method::GET && !request.uri().path().contains("/events");
                let answering = client.send(request);
                if counts { fuse.effect(answering).await } else { fuse.through(answering).await }
            }
        });
        Client::new(service, NAMESPACE)
    }
}
