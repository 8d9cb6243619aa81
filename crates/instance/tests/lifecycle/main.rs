//! The lifecycle manager on the embedded API server, with Tasks, instances and sessions made by hand.

#![allow(clippy::unwrap_used, clippy::panic)]

mod crashes;
mod instances;
mod sessions;
mod world;
