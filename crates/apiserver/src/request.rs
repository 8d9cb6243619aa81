//! What a request asks for: the path taken apart, and the query options of every verb.

use std::collections::HashMap;

use crate::selector::{Fields, Labels};
use crate::status::Status;

/// A path below `/api` or `/apis`, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    /// The old `/watch/` prefix.
    pub watch_prefix: bool,
}

impl Target {
    /// `None` when the path is not one of a resource.
    pub fn parse(path: &str) -> Option<Self> {
        let segments: Vec<String> =
            path.trim_matches('/').split('/').map(percent_decode).collect::<Option<_>>()?;
        let mut rest = segments.iter().map(String::as_str);
        let (group, version) = match rest.next()? {
            "api" => ("", rest.next()?),
            "apis" => (rest.next()?, rest.next()?),
            _ => return None,
        };
        let mut rest: Vec<&str> = rest.collect();
        let watch_prefix = rest.first() == Some(&"watch");
        if watch_prefix {
            rest.remove(0);
        }
        let mut target =
            Self { group: group.into(), version: version.into(), watch_prefix, ..Self::default() };
        let own = |s: &&str| (*s).to_owned();
        // `namespaces/x/pods/...` is a scope; `namespaces/x`, `namespaces/x/status` and `/finalize` are the object.
        let parts: &[&str] = match rest.as_slice() {
            ["namespaces", _, "status" | "finalize"] | ["namespaces"] | ["namespaces", _] => &rest,
            ["namespaces", namespace, tail @ ..] => {
                // An empty namespace is all of them.
                target.namespace = Some(own(namespace)).filter(|namespace| !namespace.is_empty());
                tail
            }
            all => all,
        };
        match parts {
            [resource] => target.resource = own(resource),
            [resource, name] => {
                target.resource = own(resource);
                target.name = Some(own(name));
            }
            [resource, name, subresource] => {
                target.resource = own(resource);
                target.name = Some(own(name));
                target.subresource = Some(own(subresource));
            }
            _ => return None,
        }
        (!target.resource.is_empty() && target.name.as_deref() != Some("")).then_some(target)
    }
}

/// `None` when the escapes are none; what is not UTF-8 is replaced, as Go prints it.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let hex = text.get(at + 1..at + 3)?;
            plain.push(u8::from_str_radix(hex, 16).ok()?);
            at += 3;
        } else {
            plain.push(bytes[at]);
            at += 1;
        }
    }
    Some(String::from_utf8_lossy(&plain).into_owned())
}

/// The query of a request; the last of several equal keys does not matter: the first counts, as in Go.
#[derive(Debug, Clone, Default)]
pub struct Query(HashMap<String, Vec<String>>);

impl Query {
    pub fn parse(query: Option<&str>) -> Self {
        let mut values: HashMap<String, Vec<String>> = HashMap::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |s: &str| percent_decode(&s.replace('+', " "));
            if let (Some(key), Some(value)) = (decode(key), decode(value)) {
                values.entry(key).or_default().push(value);
            }
        }
        Self(values)
    }

    pub fn get(&self, key: &str) -> &str {
        self.0.get(key).and_then(|values| values.first()).map_or("", String::as_str)
    }

    pub fn all(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// A boolean as Kubernetes reads one: present and empty is true, `0` and `false` are false.
    pub fn flag(&self, key: &str) -> bool {
        self.0
            .get(key)
            .and_then(|values| values.first())
            .is_some_and(|value| !matches!(value.as_str(), "0" | "false"))
    }

    /// A number; one that is not is told as Go tells it.
    pub fn number(&self, key: &str) -> Result<Option<i64>, Status> {
        match self.get(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            }),
        }
    }
}

/// How a list or watch is narrowed.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub labels: Labels,
    pub fields: Fields,
}

impl Selection {
    pub fn parse(query: &Query) -> Result<Self, Status> {
        let labels = Labels::parse(query.get("labelSelector")).map_err(Status::bad_request)?;
        let fields = Fields::parse(query.get("fieldSelector")).map_err(Status::bad_request)?;
        Ok(Self { labels, fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        let target = |path: &str| Target::parse(path);
        let pods = target("/api/v1/namespaces/a/pods/b/log").unwrap();
        assert_eq!(
            (pods.namespace.as_deref(), pods.name.as_deref(), pods.subresource.as_deref()),
            (Some("a"), Some("b"), Some("log"))
        );
        let namespace = target("/api/v1/namespaces/a/status").unwrap();
        assert_eq!((namespace.resource.as_str(), namespace.namespace), ("namespaces", None));
        let tasks = target("/apis/agentcube.io/v1alpha1/tasks").unwrap();
        assert_eq!((tasks.group.as_str(), tasks.resource.as_str()), ("agentcube.io", "tasks"));
        let rbac = target("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode").unwrap();
        assert_eq!(rbac.name.as_deref(), Some("system:node"));
        for path in ["/", "/healthz", "/api/v1", "/apis/apps/v1", "/api/v1/pods/a/b/c", "/api/v1/pods/%zz"] {
            assert_eq!(target(path), None, "{path}");
        }
    }

    #[test]
    fn flags_read_as_in_kubernetes() {
        let query = Query::parse(Some("watch&a=false&b=1&labelSelector=x%3Dy+z"));
        assert!(query.flag("watch") && !query.flag("a") && query.flag("b") && !query.flag("c"));
        assert_eq!(query.get("labelSelector"), "x=y z");
    }
}
