//! Reservation over the embedded API server, with Tasks made by hand and a tiny kubelet.

#![allow(clippy::unwrap_used, clippy::panic)]

mod aliases;
mod binding;
mod ending;
mod faults;
mod known;
mod oneshot;
mod tokens;
mod world;
