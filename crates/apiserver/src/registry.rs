//! The resources that are served right now: built-in ones, and those that definitions have added.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::resource::Resource;

/// The order in which the real server lists its groups; others follow by name.
const ORDER: [&str; 14] = [
    "",
    "apps",
    "events.k8s.io",
    "autoscaling",
    "batch",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
];

/// An immutable view; a change makes a new one.
#[derive(Clone, Default)]
pub struct Registry {
    /// By group, version, plural.
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
}

impl Registry {
    /// The kinds that are always there.
    pub fn builtin() -> Self {
        let mut registry = Self::default();
        for resource in Resource::builtin() {
            registry.insert(resource);
        }
        registry
    }

    pub(crate) fn insert(&mut self, resource: Resource) {
        let key = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
        self.resources.insert(key, Arc::new(resource));
    }

    /// Removes every version of a resource.
    pub(crate) fn remove(&mut self, group: &str, plural: &str) {
        self.resources.retain(|(g, _, p), _| !(g == group && p == plural));
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.resources.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        self.resources.values().find(|r| r.api_version == api_version && r.kind == kind).cloned()
    }

    /// One resource per table, to reach every stored object once.
    pub fn by_storage(&self, storage: &str) -> Option<Arc<Resource>> {
        self.resources.values().find(|r| &*r.storage == storage).cloned()
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// Groups in the order of discovery, each with its versions, preferred first.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (group, version, _) in self.resources.keys() {
            let versions = groups.entry(group).or_default();
            if !versions.contains(version) {
                versions.push(version.clone());
            }
        }
        let mut groups: Vec<(String, Vec<String>)> = groups
            .into_iter()
            .map(|(group, mut versions)| {
                versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
                (group.to_owned(), versions)
            })
            .collect();
        let rank = |group: &str| ORDER.iter().position(|known| *known == group).unwrap_or(ORDER.len());
        groups.sort_by_key(|(group, _)| rank(group));
        groups
    }

    pub fn of_version(&self, group: &str, version: &str) -> Vec<Arc<Resource>> {
        self.resources
            .iter()
            .filter(|((g, v, _), _)| g == group && v == version)
            .map(|(_, r)| r.clone())
            .collect()
    }
}

/// Kubernetes' order of versions: stable before beta before alpha, larger numbers first, others last.
fn priority(version: &str) -> (u8, u32, u32, std::cmp::Reverse<String>) {
    let other = (0, 0, 0, std::cmp::Reverse(version.to_owned()));
    let Some(rest) = version.strip_prefix('v') else { return other };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let Ok(major) = rest[..digits].parse() else { return other };
    let stage = &rest[digits..];
    let plain = std::cmp::Reverse(String::new());
    if stage.is_empty() {
        return (3, major, 0, plain);
    }
    for (name, rank) in [("beta", 2), ("alpha", 1)] {
        if let Some(minor) = stage.strip_prefix(name).and_then(|n| n.parse().ok()) {
            return (rank, major, minor, plain);
        }
    }
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_as_kubernetes_sorts_them() {
        let mut versions =
            ["v1", "v10", "v2", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "foo1", "foo10"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "foo1", "foo10"]
        );
    }
}
