//! Front ends: what a FrontendIntegration declares becomes a JSBundle that the console loads.
//!
//! The controllers decide that there is to be a build and judge what came of it; a Job runs the [`runner`], which makes the
//! manifest, has the [`service`] build it and writes the bundle. Three hashes of the spec (the Job's, the status's, the bundle's
//! label) have to agree before anything counts, so nothing that is late replaces what is newer.

mod bundle;
mod caches;
pub mod canonical;
mod controllers;
mod core;
pub mod files;
pub mod gate;
pub mod hash;
mod http_server;
pub mod integration;
pub mod manifest;
pub mod names;
pub mod options;
pub mod raw;
pub mod runner;
pub mod service;
pub mod token;

pub use controllers::Controllers;
pub use options::Options;
pub use raw::Integration;
