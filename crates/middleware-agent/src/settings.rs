//! What the plugin says to the agent, in a file: commands for what controllers do not bring along.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Settings {
    /// Roles that lead the others.
    pub leader_roles: Vec<String>,
    /// Prints the role.
    pub role_command: Option<String>,
    /// The first group of it is the role.
    pub role_pattern: Option<String>,
    /// What roles are called here, by what the middleware calls them.
    pub role_names: BTreeMap<String, String>,
    /// Makes this Pod the leader.
    pub failover_command: Option<String>,
    /// Takes the configuration. Exit code 0: done. 3: a restart is needed. Without it, always a restart.
    pub reload_command: Option<String>,
    /// Instead of it, a command for each thing that can be set; only those that are not as they were run. One that is no
    /// longer there cannot be undone without a restart.
    pub reload_commands: BTreeMap<String, String>,
    /// What such a command says when it takes a restart.
    pub restart_pattern: Option<String>,
    /// Where the configuration is mounted: nothing is taken before it has arrived there.
    pub config_directory: Option<PathBuf>,
    /// Says by its exit code whether the middleware is well; without it, whether it runs.
    pub health_command: Option<String>,
    /// Prints what shows whether it can serve; without it, whether it is well.
    pub ready_command: Option<String>,
    /// What has to be found in that.
    pub ready_pattern: Option<String>,
    /// Called with the scenario and the names; prints them in order, or `concurrent` on the first line.
    pub group_order_command: Option<String>,
    /// The same for Pods. Without it: as asked, the last first.
    pub pod_order_command: Option<String>,
    /// Runs before the middleware is stopped.
    pub stop_command: Option<String>,
    pub command_timeout_seconds: u32,
    pub grace_seconds: u32,
    /// What was stopped because its Pod is to go is started again after this, if the Pod is still there: whoever wanted it may be
    /// dead, and nobody else knows that it stands still.
    pub abandoned_seconds: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            leader_roles: ["master", "primary", "leader"].map(str::to_owned).to_vec(),
            role_command: None,
            role_pattern: None,
            role_names: BTreeMap::new(),
            failover_command: None,
            reload_command: None,
            reload_commands: BTreeMap::new(),
            restart_pattern: None,
            config_directory: None,
            health_command: None,
            ready_command: None,
            ready_pattern: None,
            group_order_command: None,
            pod_order_command: None,
            stop_command: None,
            command_timeout_seconds: 10,
            grace_seconds: 30,
            abandoned_seconds: 10,
        }
    }
}

impl Settings {
    /// Reads a file of settings.
    pub fn read(text: &str) -> Result<Settings, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    pub(crate) fn limit(&self, asked: u32) -> Duration {
        Duration::from_secs(u64::from(if asked == 0 {
            self.command_timeout_seconds
        } else {
            asked.min(3600)
        }))
    }

    pub(crate) fn grace(&self, asked: u32) -> Duration {
        Duration::from_secs(u64::from(if asked == 0 { self.grace_seconds } else { asked.min(3600) }))
    }
}
