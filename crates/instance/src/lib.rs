//! Instances of Tasks: how they are made, how a session gets one of its own, and how they are given back.
//!
//! An instance is a Pod, or a Sandbox on a pool. The control plane prepares (a `PodTemplate` per revision, a Job where the
//! work runs to completion); the data plane reserves, from memory where a session is bound. `docs/decisions/0011-reservation.md` has the protocol.

pub mod alias;
pub mod bearer;
pub mod identity;
pub mod late;
pub mod lifecycle;
pub mod provider;
pub mod record;
pub mod reserve;
pub mod revision;
pub mod spec;
pub mod timing;
pub mod token;

pub use identity::{Endpoint, InstanceId, Kind, SessionKey, SpecId, TaskId};
