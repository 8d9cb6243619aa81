//! What a runner is told by the environment of its Job. The names are part of the API: Jobs of one version run programs of
//! another.

use std::time::Duration;

use crate::hash;

pub const FI_NAMESPACE: &str = "FI_NAMESPACE";
pub const FI_NAME: &str = "FI_NAME";
pub const SPEC_HASH: &str = "SPEC_HASH";
/// What [`SPEC_HASH`] was called in Jobs from before there were two hashes.
pub const MANIFEST_HASH: &str = "MANIFEST_HASH";
pub const JSBUNDLE_NAME: &str = "JSBUNDLE_NAME";
pub const BUILD_SERVICE_BASE_URL: &str = "BUILD_SERVICE_BASE_URL";
pub const BUILD_SERVICE_TOKEN: &str = "BUILD_SERVICE_TOKEN";
pub const BUILD_SERVICE_TIMEOUT_SECONDS: &str = "BUILD_SERVICE_TIMEOUT_SECONDS";
pub const STALE_CHECK_GRACE_SECONDS: &str = "STALE_CHECK_GRACE_SECONDS";
/// The Job that it runs in; else it is guessed from [`HOSTNAME`].
pub const BUILD_JOB: &str = "BUILD_JOB";
pub const HOSTNAME: &str = "HOSTNAME";
/// Where the API server is asked in the runner's name, instead of the Pod's own way.
pub const API_BASE_URL: &str = "API_BASE_URL";

const BUILD_LIMIT: Duration = Duration::from_secs(120);
const STALE_GRACE: Duration = Duration::from_secs(30);
/// Longer than any Job may take.
const LONGEST: u64 = 86_400;

/// A variable that is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {wrong}; a Job that the forge's controller makes has it")]
pub struct Error {
    name: &'static str,
    wrong: String,
}

/// What a runner is to do.
#[derive(Clone)]
pub struct Settings {
    pub namespace: String,
    pub name: String,
    pub spec_hash: String,
    pub bundle: String,
    pub job: String,
    pub build_service: String,
    pub token: String,
    pub api: Option<String>,
    pub build_limit: Duration,
    pub stale_grace: Duration,
}

impl Settings {
    /// Reads variables by their names.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Error> {
        let optional =
            |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let needed = |name: &'static str| optional(name).ok_or(Error { name, wrong: "it is not set".into() });
        let seconds = |name: &'static str, usual: Duration| match optional(name) {
            None => Ok(usual),
            Some(text) => match text.parse::<u64>() {
                Ok(number @ 1..=LONGEST) => Ok(Duration::from_secs(number)),
                _ => Err(Error { name, wrong: format!("{text:?} is no number of seconds") }),
            },
        };
        let spec_hash = optional(SPEC_HASH).or_else(|| optional(MANIFEST_HASH));
        let spec_hash = spec_hash.ok_or(Error { name: SPEC_HASH, wrong: "it is not set".into() })?;
        if !hash::is_hash(&spec_hash) {
            return Err(Error {
                name: SPEC_HASH,
                wrong: format!("{spec_hash:?} is no hash, as sha256:<hex>"),
            });
        }
        let of_host = || optional(HOSTNAME).and_then(|host| Some(host.rsplit_once('-')?.0.to_owned()));
        Ok(Settings {
            namespace: needed(FI_NAMESPACE)?,
            name: needed(FI_NAME)?,
            spec_hash,
            bundle: needed(JSBUNDLE_NAME)?,
            job: optional(BUILD_JOB).or_else(of_host).unwrap_or_default(),
            build_service: needed(BUILD_SERVICE_BASE_URL)?,
            token: needed(BUILD_SERVICE_TOKEN)?,
            api: optional(API_BASE_URL),
            build_limit: seconds(BUILD_SERVICE_TIMEOUT_SECONDS, BUILD_LIMIT)?,
            stale_grace: seconds(STALE_CHECK_GRACE_SECONDS, STALE_GRACE)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn hash_of(letter: &str) -> String {
        format!("sha256:{}", letter.repeat(64))
    }

    fn variables() -> BTreeMap<&'static str, String> {
        [
            (FI_NAMESPACE, "team"),
            (FI_NAME, "tasks"),
            (JSBUNDLE_NAME, "fi-tasks"),
            (BUILD_SERVICE_BASE_URL, "http://build"),
            (BUILD_SERVICE_TOKEN, "secret"),
            (HOSTNAME, "fi-tasks-2c26b46b-1-x7k2p"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into()
    }

    #[test]
    fn the_old_name_of_the_hash_is_read_where_the_new_one_is_missing() {
        let mut all = variables();
        let read = |all: &BTreeMap<&'static str, String>| Settings::read(|name| all.get(name).cloned());
        assert_eq!(read(&all).err().unwrap().name, SPEC_HASH);
        all.insert(MANIFEST_HASH, hash_of("a"));
        let settings = read(&all).ok().unwrap();
        assert_eq!((settings.spec_hash, settings.job.as_str()), (hash_of("a"), "fi-tasks-2c26b46b-1"));
        all.insert(SPEC_HASH, hash_of("b"));
        assert_eq!(read(&all).ok().unwrap().spec_hash, hash_of("b"));
        all.insert(BUILD_SERVICE_TIMEOUT_SECONDS, "0".into());
        assert_eq!(read(&all).err().unwrap().name, BUILD_SERVICE_TIMEOUT_SECONDS);
    }
}
