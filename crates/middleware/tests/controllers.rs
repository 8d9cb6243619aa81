//! The controllers on the embedded API server, with a stand-in for the StatefulSet controller and the kubelet, and agents
//! in memory.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cases;
mod deaths;
mod stage;
