//! What tests share: a cluster (embedded, or a real kube-apiserver), a raw HTTP client, and the recorder
//! that turns requests into transcripts which compare across servers.
//!
//! Nothing here reads the environment or decides what a server should answer: the real one does.

pub mod cases;
pub mod cluster;
pub mod containers;
pub mod difference;
pub mod envoy;
#[cfg(feature = "fastpath")]
pub mod fastpath;
#[cfg(feature = "router")]
pub mod gateway;
pub mod golden;
pub mod http_client;
pub mod image;
pub mod inventory;
pub mod machine;
pub mod mask;
pub mod openapi;
pub mod rights;
pub mod suite;
pub mod supervise;
pub mod tape;
pub mod target;
pub mod watch;

pub use cluster::{Binaries, Cluster, Kind};
pub use http_client::{HttpClient, Reply, Request};
pub use tape::Tape;
