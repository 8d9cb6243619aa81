//! Who pulls: user names and passwords by registry, as `imagePullSecrets` hold them. Never printed.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// The largest secret that is read; Kubernetes allows no larger one.
const BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the pull secret is larger than {BYTES} bytes")]
    TooLarge,
    #[error("the pull secret is not JSON of the form {{\"auths\": {{REGISTRY: {{\"auth\": ...}}}}}}")]
    Malformed,
}

/// What one registry is told.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: user.into(), password: password.into() }
    }

    /// The value of an `Authorization` header.
    pub(super) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Credentials by registry, most specific first.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    entries: Vec<(String, Credentials)>,
}

#[derive(Deserialize)]
struct File {
    auths: Option<BTreeMap<String, Entry>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
}

impl Keyring {
    /// Reads the `.dockerconfigjson` of a Secret, or the older `.dockercfg`. Entries that hold nothing usable are left out.
    pub fn parse(secret: &[u8]) -> Result<Self, Error> {
        if secret.len() > BYTES {
            return Err(Error::TooLarge);
        }
        // What the parser says may quote the secret.
        let file: File = serde_json::from_slice(secret).map_err(|_| Error::Malformed)?;
        let entries = match file.auths {
            Some(entries) => entries,
            None => serde_json::from_slice(secret).map_err(|_| Error::Malformed)?,
        };
        let entries = entries.into_iter();
        let mut entries: Vec<_> =
            entries.filter_map(|(key, entry)| Some((pattern(&key), credentials(entry)?))).collect();
        entries.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
        Ok(Self { entries })
    }

    /// Adds those of another secret behind its own.
    pub fn extend(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// All that fit a repository such as `registry.example/team/app`, best first.
    pub fn find<'a>(&'a self, repository: &'a str) -> impl Iterator<Item = &'a Credentials> {
        self.entries.iter().filter(move |(pattern, _)| matches(pattern, repository)).map(|(_, found)| found)
    }
}

/// Keys are hosts, perhaps with a path; some tools write whole addresses with the version of the protocol.
fn pattern(key: &str) -> String {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key);
    key.to_owned()
}

/// The host may have `*` for a whole label; the path must begin with the pattern's, by whole parts.
fn matches(pattern: &str, repository: &str) -> bool {
    let (host, path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let (actual, rest) = repository.split_once('/').unwrap_or((repository, ""));
    let labels = host.split('.').count() == actual.split('.').count()
        && host.split('.').zip(actual.split('.')).all(|(label, actual)| label == "*" || label == actual);
    let below = rest.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    labels && (path.is_empty() || below)
}

fn credentials(entry: Entry) -> Option<Credentials> {
    if !entry.username.is_empty() {
        return Some(Credentials::new(entry.username, entry.password));
    }
    let decoded = String::from_utf8(STANDARD.decode(entry.auth.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some(Credentials::new(user, password.trim_end_matches('\0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_read_and_found() {
        let auth = STANDARD.encode("u:p:q");
        let secret = format!(
            r#"{{"auths":{{"https://registry.example/v2/":{{"auth":"{auth}"}},
                "registry.example/team":{{"username":"team","password":"x"}},
                "*.wild.example":{{"username":"wild","password":"y"}},
                "empty.example":{{}}}},"credHelpers":{{}}}}"#
        );
        let keyring = Keyring::parse(secret.as_bytes()).unwrap();
        let found = |repository| keyring.find(repository).map(|c| c.user.as_str()).collect::<Vec<_>>();
        assert_eq!(found("registry.example/app"), ["u"]);
        assert_eq!(found("registry.example/team/app"), ["team", "u"]);
        assert_eq!(found("registry.example/teams/app"), ["u"]);
        assert_eq!(found("a.wild.example/app"), ["wild"]);
        assert!(found("a.b.wild.example/app").is_empty());
        assert!(found("empty.example/app").is_empty());
        let older =
            Keyring::parse(format!(r#"{{"registry.example":{{"auth":"{auth}"}}}}"#).as_bytes()).unwrap();
        assert_eq!(older.find("registry.example/app").next(), Some(&Credentials::new("u", "p:q")));
    }

    #[test]
    fn passwords_are_not_printed() {
        let shown = format!("{:?}", Credentials::new("user", "hunter2"));
        assert_eq!(shown, "Credentials(..)");
        let damaged = Keyring::parse(br#"{"auths":{"a":{"auth":["hunter2"]}}}"#).unwrap_err();
        assert!(!damaged.to_string().contains("hunter2"));
    }
}
