//! The controllers of Apps, Components, Groups and Backups: stateful services after the recipe of a Plugin, changed in order.
//!
//! Each kind has a pure planner: what was observed and the time in; operations, status and requeue out. What is wanted
//! flows down as specs, one level writing the next; what came of it flows up as status. Undoing a change is nothing but
//! wanting the former state again.

pub mod agents;
pub mod app;
pub mod backup;
mod caches;
pub mod component;
mod controllers;
mod core;
pub mod group;
pub mod options;
pub mod order;
mod outputs;
pub mod parts;
pub mod preview;
pub mod refusals;
pub mod remote;
pub mod render;

pub use controllers::Controllers;
pub use options::Options;
