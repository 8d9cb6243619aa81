//! An embedded, Kubernetes-compatible API server.
//!
//! The parts, from the pure to the effectful:
//! - [`schema`]: structural schemas: parsing, pruning, defaulting, validation, CEL rules;
//! - [`merge`]: patches of every kind, field sets, managed fields and server-side apply;
//! - [`builtin`], [`table`]: the built-in kinds: names, defaults, rules, and how `kubectl get` shows them;
//! - [`store`]: versioned objects in memory, or durable in a file;
//! - [`resource`], [`registry`]: what is served, built-in and custom alike;
//! - [`api`]: create, read, update, patch, delete, watch;
//! - [`http`], [`server`]: the same over HTTP, in process or behind TLS.
//!
//! Nothing here knows any kind of AgentCube's own: those arrive as CustomResourceDefinitions.

mod allocate;
pub mod api;
pub mod builtin;
pub mod codec;
mod controllers;
mod credentials;
mod custom;
pub mod faults;
mod go_json;
pub mod hooks;
pub mod http;
pub mod merge;
pub mod output;
mod protobuf;
pub mod registry;
pub mod request;
pub mod resource;
pub mod schema;
pub mod selector;
pub mod server;
pub mod status;
pub mod store;
pub mod table;

pub use server::{Builder, Handle, Server};
