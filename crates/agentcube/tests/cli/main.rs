//! The program as its users meet it: a process, its arguments, what it prints and how it exits.
// The whole crate is a test; clippy sees that of functions marked so only.
#![allow(clippy::unwrap_used, clippy::panic)]

mod apps;
mod cluster;
mod definitions;
mod live;
mod node;
mod plugins;
mod router;
mod sample_agent;
mod sessions;
mod streams;
mod terminal;
mod token;
mod up;
mod usage;
