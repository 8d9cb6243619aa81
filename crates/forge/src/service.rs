//! The build service: manifests in, bundles out. Builds are known by what they are made of, so the same one is made once, and found
//! again after a restart. What is served is whole: files are written beside, synced and renamed into their place, and looked at
//! before they are given out.

mod bundler;
pub mod contract;
mod queue;
mod routes;
mod step;
mod store;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_operator::metrics::Registry;
use http::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use bundler::{HOW_TO_GET, find as find_bundler};

use crate::http_server::{self, Answer};
use crate::token::Key;
use queue::Queue;

/// How a build service works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where results are kept.
    pub directory: PathBuf,
    /// esbuild; looked for on `path` if it is not named.
    pub bundler: Option<PathBuf>,
    /// Where programs are looked for.
    pub path: Vec<PathBuf>,
    /// The program that confines the bundler: this one.
    pub confiner: PathBuf,
    pub key: Key,
    pub limits: Limits,
}

#[derive(Clone, Debug)]
pub struct Limits {
    /// Builds at once.
    pub workers: usize,
    /// Builds that wait; beyond that clients are told to come again.
    pub waiting: usize,
    /// How long one may take.
    pub build: Duration,
    /// Bytes of memory that one may take.
    pub memory: u64,
    /// Bytes on disk; the oldest results go first.
    pub kept: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            workers: 2,
            waiting: 128,
            build: Duration::from_secs(30),
            memory: 512 << 20,
            kept: 512 << 20,
        }
    }
}

/// A handle; cheap to clone.
#[derive(Clone)]
pub struct Service {
    queue: Arc<Queue>,
}

impl Service {
    /// Opens the directory, and sweeps out what a killed predecessor has left half done.
    pub fn open(options: Options, metrics: &Registry) -> io::Result<Service> {
        Ok(Service { queue: Arc::new(Queue::open(options, metrics)?) })
    }

    /// Serves on a socket until it is told to stop; builds under way are given up then.
    pub async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let service = self.clone();
        let handle = move |request| {
            let service = service.clone();
            async move { service.answer(request).await }
        };
        http_server::serve(listener, handle, stop).await;
        self.stop().await;
    }

    /// Whether a request is for it, by its path.
    pub(crate) fn is_for(path: &str) -> bool {
        path == contract::BUILDS || path.starts_with("/v1/builds/")
    }

    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Answer {
        routes::answer(&self.queue, request).await
    }

    pub(crate) async fn stop(&self) {
        self.queue.stop().await;
    }
}
