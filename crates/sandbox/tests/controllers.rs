//! The controllers and the fast path over an API server and agents in memory: what goes well, what goes wrong, with and
//! without the log. Here on the embedded server; the suite `sandbox_controllers` of the testkit has the same cases on
//! kube-apiserver.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cases;
mod stage;
