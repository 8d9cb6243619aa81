//! Connections between real sandboxes, through Services, by name, and to where they must not go.

// The helpers of the tests are not tests themselves, but fail like them.
#![allow(clippy::unwrap_used)]

mod cluster;
mod connections;
mod names;
