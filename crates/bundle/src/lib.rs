//! Code bundles: fetched, checked, unpacked. Whatever a bundle holds, nothing is written outside of the directory that
//! it is unpacked into, and no more than the limits allow. Knows nothing of Kubernetes.

pub mod archive;
mod cache;
pub mod copy;
pub mod download;
mod limits;
pub mod order;
pub mod path;

pub use limits::Limits;
pub use order::{Error, Order, Origin};
