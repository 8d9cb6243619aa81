//! How the controllers are configured: by a file as operators know them, and by whoever starts them.

use std::time::Duration;

use agentcube_api::GoDuration;
use agentcube_api::middleware::group::{Policies, RollingUpdate};
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::app::Limits;

/// The namespace with Plugins for everybody.
pub const SYSTEM_NAMESPACE: &str = "middleware-system";

/// Everything that can be set.
#[derive(Clone, Debug)]
pub struct Options {
    pub settings: Settings,
    /// Where Plugins are looked for that the namespace of an App does not have.
    pub system_namespace: String,
    /// Only objects of this namespace are looked after.
    pub watch_namespace: Option<String>,
    /// Who may connect to agents in Pods, besides their nodes; without it there are no NetworkPolicies that say so.
    pub agent_peers: Option<Vec<NetworkPolicyPeer>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            settings: Settings::default(),
            system_namespace: SYSTEM_NAMESPACE.into(),
            watch_namespace: None,
            agent_peers: None,
        }
    }
}

/// The file `controllers.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct File {
    controllers: Settings,
}

/// Settings of the three controllers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Settings {
    pub app: AppSettings,
    pub component: ComponentSettings,
    pub group: GroupSettings,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AppSettings {
    #[serde(deserialize_with = "workers")]
    pub workers: usize,
    #[serde(deserialize_with = "period")]
    pub resync_period: GoDuration,
    /// Metadata is written when it changes; kept for files that have it.
    #[serde(rename = "metadataCacheTTL")]
    pub metadata_cache_ttl: GoDuration,
    #[serde(deserialize_with = "count")]
    pub max_retries: i32,
    #[serde(deserialize_with = "pause")]
    pub retry_backoff: GoDuration,
    #[serde(deserialize_with = "limit")]
    pub default_task_timeout: GoDuration,
    pub enable_manual_retry: bool,
    pub enable_manual_cancel: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ComponentSettings {
    #[serde(deserialize_with = "workers")]
    pub workers: usize,
    #[serde(deserialize_with = "period")]
    pub resync_period: GoDuration,
    /// Caches are kept current by watches; kept for files that have it.
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
    #[serde(deserialize_with = "limit")]
    pub grpc_timeout: GoDuration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GroupSettings {
    #[serde(deserialize_with = "workers")]
    pub workers: usize,
    #[serde(deserialize_with = "period")]
    pub resync_period: GoDuration,
    #[serde(deserialize_with = "limit")]
    pub grpc_timeout: GoDuration,
    /// The smaller of this and the workers counts.
    #[serde(deserialize_with = "workers")]
    pub max_concurrent_reconciles: usize,
    pub rolling_update: Batches,
}

/// How many Pods change at once, and what time lies between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Batches {
    #[serde(deserialize_with = "count")]
    pub batch_size: i32,
    #[serde(deserialize_with = "pause")]
    pub interval: GoDuration,
}

fn seconds(seconds: u64) -> GoDuration {
    Duration::from_secs(seconds).into()
}

impl Default for AppSettings {
    fn default() -> AppSettings {
        AppSettings {
            workers: 5,
            resync_period: seconds(30),
            metadata_cache_ttl: seconds(60),
            max_retries: 3,
            retry_backoff: seconds(1),
            default_task_timeout: seconds(300),
            enable_manual_retry: true,
            enable_manual_cancel: true,
        }
    }
}

impl Default for ComponentSettings {
    fn default() -> ComponentSettings {
        ComponentSettings {
            workers: 10,
            resync_period: seconds(15),
            cache_ttl: seconds(30),
            grpc_timeout: seconds(30),
        }
    }
}

impl Default for GroupSettings {
    fn default() -> GroupSettings {
        GroupSettings {
            workers: 20,
            resync_period: seconds(10),
            grpc_timeout: seconds(30),
            max_concurrent_reconciles: 10,
            rolling_update: Batches::default(),
        }
    }
}

impl Default for Batches {
    fn default() -> Batches {
        Batches { batch_size: 1, interval: seconds(10) }
    }
}

/// Numbers of what goes on at the same time.
fn workers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let said = Value::deserialize(deserializer)?;
    let number = said.as_u64().and_then(|number| usize::try_from(number).ok());
    let number = number.filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| D::Error::custom(format!("{said} is not a number from 1 to 1000")))
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let said = Value::deserialize(deserializer)?;
    let number = said.as_u64().and_then(|number| i32::try_from(number).ok());
    let number = number.filter(|number| *number >= 1);
    number.ok_or_else(|| D::Error::custom(format!("{said} is not a number from 1 on")))
}

/// Controllers that look again all the time do nothing else.
fn period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GoDuration, D::Error> {
    between(deserializer, Duration::from_secs(1), Duration::from_secs(86_400))
}

fn limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GoDuration, D::Error> {
    between(deserializer, Duration::from_millis(100), Duration::from_secs(7 * 86_400))
}

fn pause<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GoDuration, D::Error> {
    between(deserializer, Duration::ZERO, Duration::from_secs(86_400))
}

fn between<'de, D: Deserializer<'de>>(
    deserializer: D,
    least: Duration,
    most: Duration,
) -> Result<GoDuration, D::Error> {
    let (least, most) = (GoDuration::from(least), GoDuration::from(most));
    let duration = GoDuration::deserialize(deserializer)?;
    match (least..=most).contains(&duration) {
        true => Ok(duration),
        false => Err(D::Error::custom(format!("{duration} is not from {least} to {most}"))),
    }
}

/// Why settings are not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("line {line}, column {column}: {reason}")]
    Unreadable { line: u64, column: u64, reason: String },
    #[error("{0:?} is not PATH=VALUE, as in app.workers=3")]
    Unset(String),
    #[error("there is no setting {path}; there are {known}")]
    Unknown { path: String, known: String },
    #[error("{path}: {reason}")]
    Unfit { path: String, reason: String },
}

impl Settings {
    /// Reads a file of settings; what it does not say is as usual.
    pub fn read(text: &str) -> Result<Settings, Error> {
        let blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        if text.lines().all(blank) {
            return Ok(Settings::default());
        }
        let options = serde_saphyr::options! { with_snippet: false };
        let read: Result<File, _> = serde_saphyr::from_str_with_options(text, options);
        read.map(|file| file.controllers).map_err(|error| {
            let shown = error.to_string();
            let reason = shown.lines().next().unwrap_or_default();
            let reason = reason.rsplit_once(" at line ").map_or(reason, |(reason, _)| reason).to_owned();
            let (line, column) = error.location().map_or((1, 1), |place| (place.line(), place.column()));
            Error::Unreadable { line, column, reason }
        })
    }

    /// The same with one of them changed: `app.workers=3`.
    pub fn with(&self, setting: &str) -> Result<Settings, Error> {
        let (path, text) = setting.split_once('=').ok_or_else(|| Error::Unset(setting.into()))?;
        let unfit = |reason: String| Error::Unfit { path: path.into(), reason };
        let mut all = serde_json::to_value(self).map_err(|error| unfit(error.to_string()))?;
        let known = paths(&all);
        let pointer = format!("/{}", path.replace('.', "/"));
        let place = all.pointer_mut(&pointer).filter(|place| !place.is_object());
        let place = place.ok_or_else(|| Error::Unknown { path: path.into(), known: known.join(", ") })?;
        *place = match place {
            Value::String(_) => text.into(),
            _ => serde_json::from_str(text).map_err(|_| unfit(format!("{text:?} is not like {place}")))?,
        };
        serde_json::from_value(all).map_err(|error| unfit(error.to_string()))
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            max_retries: self.app.max_retries,
            retry_backoff: self.app.retry_backoff.to_std(),
            task_timeout: self.app.default_task_timeout.to_std(),
            manual_retry: self.app.enable_manual_retry,
            manual_cancel: self.app.enable_manual_cancel,
            ..Limits::default()
        }
    }

    /// Policies for groups and plugins that do not say.
    pub(crate) fn policies(&self) -> Policies {
        let batch = IntOrString::Int(self.group.rolling_update.batch_size);
        let rolling_update = RollingUpdate { max_unavailable: Some(batch), ..RollingUpdate::default() };
        Policies { rolling_update: Some(rolling_update), ..Policies::default() }
    }
}

/// Every setting, as it is named on a command line.
fn paths(settings: &Value) -> Vec<String> {
    let Value::Object(map) = settings else { return vec![String::new()] };
    let inner = |(name, value): (&String, &Value)| {
        let below = paths(value).into_iter();
        let join = |below: String| if below.is_empty() { name.clone() } else { format!("{name}.{below}") };
        below.map(join).collect::<Vec<_>>()
    };
    map.iter().flat_map(inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_design_is_read() {
        let text = "controllers:\n  app:\n    workers: 5\n    resyncPeriod: 30s\n    metadataCacheTTL: 60s\n    \
                    maxRetries: 3\n    retryBackoff: 1s\n    defaultTaskTimeout: \"300s\"\n    enableManualRetry: true\n    \
                    enableManualCancel: false\n  component:\n    workers: 10\n    resyncPeriod: 15s\n    cacheTTL: 30s\n    \
                    grpcTimeout: 30s\n  group:\n    workers: 20\n    resyncPeriod: 10s\n    grpcTimeout: 30s\n    \
                    maxConcurrentReconciles: 10\n    rollingUpdate:\n      batchSize: 1\n      interval: 10s\n";
        let settings = Settings::read(text).unwrap();
        assert!(!settings.limits().manual_cancel);
        let usual = AppSettings { enable_manual_cancel: false, ..AppSettings::default() };
        assert_eq!(settings, Settings { app: usual, ..Settings::default() });
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, line, wanted) in [
            ("controllers:\n  app:\n    worker: 5\n", 3, "worker"),
            ("controllers:\n  group:\n    workers: 0\n", 3, "0 is not a number from 1 to 1000"),
            ("controllers:\n  group:\n    workers: many\n", 3, "many"),
            ("controllers:\n  app:\n    resyncPeriod: 1\n", 3, "1"),
            ("controllers:\n  app:\n\n    resyncPeriod: 10ms\n", 4, "10ms is not from 1s to 24h0m0s"),
            ("controllers:\n  app:\n    workers: 1\n    workers: 1\n", 4, "workers"),
            (
                "controllers:\n  group:\n    rollingUpdate: {batchSize: -1}\n",
                3,
                "-1 is not a number from 1 on",
            ),
            ("controllers: [\n", 1, ""),
        ] {
            let Err(Error::Unreadable { line: found, reason, .. }) = Settings::read(text) else {
                panic!("{text}")
            };
            assert!(reason.contains(wanted) && !reason.contains('\n'), "{text}: {reason}");
            assert_eq!(found, line, "{text}: {reason}");
        }
        assert_eq!(Settings::read("# nothing\n\n"), Ok(Settings::default()));
        assert_eq!(Settings::read("{}"), Ok(Settings::default()));
    }

    #[test]
    fn single_settings_count_more() {
        let settings = Settings::default().with("app.workers=7").unwrap();
        let settings = settings.with("group.rollingUpdate.interval=3s").unwrap();
        let settings = settings.with("app.enableManualCancel=false").unwrap();
        assert_eq!(settings.app.workers, 7);
        assert_eq!(settings.group.rolling_update.interval, seconds(3));
        assert!(!settings.app.enable_manual_cancel);
        for (wrong, said) in [
            ("app.workers", "PATH=VALUE"),
            ("app.worker=3", " app.workers, "),
            ("app=3", "no setting app"),
            ("app.workers=0", "app.workers: 0 is not a number from 1 to 1000"),
            ("app.workers=x", "not like 5"),
            ("app.resyncPeriod=5", "app.resyncPeriod: "),
        ] {
            let error = Settings::default().with(wrong).unwrap_err().to_string();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }
}
