//! Backups of an App: where they go, how they are taken and how long they are kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parts::SecretRef;
use crate::cel;
use crate::duration::GoDuration;

/// Backups of an App.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!self.enabled || has(self.storage)", "an enabled backup needs storage"),
])))]
pub struct BackupSpec {
    /// Whether backups are taken.
    #[serde(default)]
    pub enabled: bool,
    /// Where they go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<BackupStorage>,
    /// How they are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<BackupSettings>,
    /// How long they are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<BackupRetention>,
    /// When they are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<BackupSchedule>,
}

/// Where backups go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupStorage {
    /// Kind of store, one of the plugin's providers, such as s3.
    #[schemars(length(min = 1, max = 63))]
    pub provider: String,
    /// Bucket, or path.
    #[schemars(length(min = 1, max = 1024))]
    pub bucket: String,
    /// Region, for stores that have some.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub region: Option<String>,
    /// Secret with the credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// How backups are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSettings {
    /// What makes the data consistent before it is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<BackupConsistency>,
    /// How files are packed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<BackupArchive>,
    /// Whether a checksum is stored and verified.
    #[serde(default)]
    pub checksum: bool,
    /// How files are encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<BackupEncryption>,
}

/// What makes the data consistent before it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupConsistency {
    /// Command to run in the Pod.
    #[schemars(length(min = 1, max = 4096))]
    pub command: String,
    /// Longest time for it. Defaults to 60s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
}

/// How files are packed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupArchive {
    /// Format, such as tar.gz.
    #[schemars(length(min = 1, max = 32))]
    pub format: String,
    /// How hard to compress, 0 to 9.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9))]
    pub compression_level: Option<i32>,
}

/// How files are encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupEncryption {
    /// Algorithm, such as aes-256-gcm.
    #[schemars(length(min = 1, max = 63))]
    pub algorithm: String,
    /// Secret with the key.
    pub key_secret_ref: SecretRef,
}

/// How long backups are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRetention {
    /// Longest time that a backup is kept, such as 720h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_retention: Option<GoDuration>,
    /// Most backups that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub keep_count: Option<i32>,
}

/// When backups are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!self.enabled || has(self.cron)", "an enabled schedule needs cron"),
])))]
pub struct BackupSchedule {
    /// Whether the schedule is on.
    #[serde(default)]
    pub enabled: bool,
    /// Times in cron notation, such as `0 2 * * *`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 128), regex(pattern = r"^\S+(\s+\S+){4}$"))]
    pub cron: Option<String>,
}
