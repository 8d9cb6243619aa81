//! An embedded, Kubernetes-compatible API server.
//!
//! The parts, from the pure to the effectful:
//! - [`schema`]: structural schemas: parsing, pruning, defaulting, validation, CEL rules;
//! - [`merge`]: patches of every kind, field sets, managed fields and server-side apply;
//! - [`builtin`]: the built-in kinds: what they are called, their defaults, rules and table columns;
//! - [`table`]: objects as the rows that `kubectl get` prints;
//! - [`status`]: errors as clients see them.
//!
//! Nothing here knows any kind of AgentCube's own: those arrive as CustomResourceDefinitions.

pub mod builtin;
pub mod merge;
pub mod schema;
pub mod status;
pub mod table;
