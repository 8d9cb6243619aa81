//! Group `middleware.io`: stateful services that agents use. A user writes an [`App`]; its controller writes
//! [`Component`]s, whose controller writes [`Group`]s, all after the recipe of a
//! [`Plugin`]. A [`Backup`] keeps its data.

pub mod app;
pub mod backup;
pub mod change;
pub mod component;
pub mod group;
pub mod parts;
pub mod plugin;
pub mod taken;

pub use app::{App, AppSpec, AppStatus};
pub use component::{Component, ComponentSpec, ComponentStatus};
pub use group::{Group, GroupSpec, GroupStatus};
pub use plugin::{Plugin, PluginSpec, PluginStatus};
pub use taken::{Backup, BackupOrder, BackupStatus};

/// The API group.
pub const GROUP: &str = "middleware.io";
/// The API version.
pub const VERSION: &str = "v1alpha1";
