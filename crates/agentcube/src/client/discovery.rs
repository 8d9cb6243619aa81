//! What a server serves, and which kind somebody means who writes `po`, `pods`, `Pod` or `deployments.apps`.

use anyhow::anyhow;
use serde_json::Value;

use super::server::escape;
use super::{Error, Server};
use crate::exit::Usage;

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// One kind in one version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    pub(crate) namespaced: bool,
    singular: String,
    short_names: Vec<String>,
    categories: Vec<String>,
    verbs: Vec<String>,
}

impl Kind {
    /// Known without asking: every server has Pods.
    pub(crate) fn pods() -> Self {
        let (version, kind, plural) = ("v1".to_owned(), "Pod".to_owned(), "pods".to_owned());
        Self { version, kind, plural, singular: "pod".to_owned(), namespaced: true, ..Self::default() }
    }

    /// Known without asking: one of ours.
    pub(crate) fn backups() -> Self {
        let [group, version, kind, plural] =
            ["middleware.io", "v1alpha1", "Backup", "backups"].map(str::to_owned);
        Self { group, version, kind, plural, namespaced: true, ..Self::default() }
    }

    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The path of all objects, of one namespace's, or of one object.
    pub(crate) fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let mut path = format!("{root}/{}", self.api_version());
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path.push_str(&format!("/namespaces/{}", escape(namespace)));
        }
        path.push('/');
        path.push_str(&self.plural);
        if let Some(name) = name {
            path.push('/');
            path.push_str(&escape(name));
        }
        path
    }

    /// How an object is named to people: `pod/a`, `deployment.apps/a`.
    pub(crate) fn called(&self, name: &str) -> String {
        let singular =
            if self.singular.is_empty() { self.kind.to_lowercase() } else { self.singular.clone() };
        if self.group.is_empty() {
            format!("{singular}/{name}")
        } else {
            format!("{singular}.{}/{name}", self.group)
        }
    }

    pub(crate) fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|own| own == verb)
    }

    fn answers_to(&self, word: &str) -> bool {
        let is = |name: &str| name.eq_ignore_ascii_case(word);
        is(&self.plural)
            || is(&self.singular)
            || is(&self.kind)
            || self.short_names.iter().any(|name| is(name))
    }
}

/// All kinds, core first, preferred versions before others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Discovery(Vec<Kind>);

impl Discovery {
    pub(crate) async fn fetch(server: &Server) -> Result<Self, Error> {
        let mut kinds = Vec::new();
        for path in ["/api", "/apis"] {
            let document = server.get_as(path, AGGREGATED).await?;
            if document["kind"] != "APIGroupDiscoveryList" {
                let reason = "it does not say what it serves; Kubernetes 1.30 or later does".to_owned();
                return Err(Error::Garbled { address: server.address().to_owned(), reason });
            }
            kinds.extend(parse(&document));
        }
        Ok(Self(kinds))
    }

    /// The kind of an object.
    pub(crate) fn of(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        self.0.iter().find(|known| known.kind == kind && known.api_version() == api_version)
    }

    /// The kind that a word means: a plural, singular, short name or kind, with `.group` or `.version.group` or not.
    pub(crate) fn find(&self, word: &str) -> anyhow::Result<&Kind> {
        let plain = self.0.iter().find(|kind| kind.answers_to(word));
        let qualified = || {
            let (name, place) = word.split_once('.')?;
            self.0.iter().find(|kind| {
                let versioned = format!("{}.{}", kind.version, kind.group);
                kind.answers_to(name) && (place == kind.group || place == versioned)
            })
        };
        plain.or_else(qualified).ok_or_else(|| self.unknown(word))
    }

    /// All kinds of a list like `pods,services`; a category like `all` stands for what it holds.
    pub(crate) fn find_all(&self, words: &str) -> anyhow::Result<Vec<&Kind>> {
        let mut found: Vec<&Kind> = Vec::new();
        for word in words.split(',').map(str::trim) {
            if word.is_empty() {
                return Err(Usage(format!("{words:?} names no kind between two commas")).into());
            }
            let members: Vec<&Kind> = self
                .0
                .iter()
                .filter(|kind| kind.categories.iter().any(|category| category == word))
                .collect();
            let meant = if members.is_empty() { vec![self.find(word)?] } else { members };
            for kind in meant {
                let known = |other: &&Kind| other.group == kind.group && other.kind == kind.kind;
                if !found.iter().any(known) {
                    found.push(kind);
                }
            }
        }
        Ok(found)
    }

    fn unknown(&self, word: &str) -> anyhow::Error {
        let names = self.0.iter().flat_map(|kind| [kind.plural.as_str(), kind.singular.as_str()]);
        let near = names
            .filter(|name| !name.is_empty())
            .map(|name| (distance(&word.to_lowercase(), name), name))
            .filter(|(distance, name)| *distance <= 1 + name.len() / 5)
            .min();
        match near {
            Some((_, name)) => anyhow!("the server has no kind {word:?}; did you mean {name:?}?"),
            None => anyhow!(
                "the server has no kind {word:?}: `agentcube get crds` shows what was added to the built-in ones"
            ),
        }
    }
}

fn parse(document: &Value) -> Vec<Kind> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| list(value).iter().map(text).collect::<Vec<_>>();
    let mut kinds = Vec::new();
    for group in list(&document["items"]) {
        for version in list(&group["versions"]) {
            for resource in list(&version["resources"]) {
                kinds.push(Kind {
                    group: text(&group["metadata"]["name"]),
                    version: text(&version["version"]),
                    kind: text(&resource["responseKind"]["kind"]),
                    plural: text(&resource["resource"]),
                    namespaced: resource["scope"] == "Namespaced",
                    singular: text(&resource["singularResource"]),
                    short_names: texts(&resource["shortNames"]),
                    categories: texts(&resource["categories"]),
                    verbs: texts(&resource["verbs"]),
                });
            }
        }
    }
    kinds
}

/// The number of single-character edits between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(left != *right);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(group: &str, version: &str, name: &str, plural: &str, short: &[&str]) -> Kind {
        Kind {
            group: group.into(),
            version: version.into(),
            kind: name.into(),
            plural: plural.into(),
            singular: name.to_lowercase(),
            namespaced: true,
            short_names: short.iter().map(ToString::to_string).collect(),
            categories: if name == "Pod" || name == "Deployment" { vec!["all".into()] } else { vec![] },
            verbs: vec!["list".into()],
        }
    }

    fn discovery() -> Discovery {
        Discovery(vec![
            kind("", "v1", "Pod", "pods", &["po"]),
            kind("", "v1", "Event", "events", &["ev"]),
            kind("apps", "v1", "Deployment", "deployments", &["deploy"]),
            kind("events.k8s.io", "v1", "Event", "events", &["ev"]),
        ])
    }

    #[test]
    fn words_mean_kinds() {
        let discovery = discovery();
        for (word, group, plural) in [
            ("po", "", "pods"),
            ("Pod", "", "pods"),
            ("PODS", "", "pods"),
            ("deploy", "apps", "deployments"),
            ("deployments.apps", "apps", "deployments"),
            ("deployment.v1.apps", "apps", "deployments"),
            ("ev", "", "events"),
            ("events.events.k8s.io", "events.k8s.io", "events"),
        ] {
            let found = discovery.find(word).unwrap();
            assert_eq!((found.group.as_str(), found.plural.as_str()), (group, plural), "{word}");
        }
        for (word, expected) in
            [("podz", "did you mean \"pod\""), ("zzz", "get crds"), ("pods.apps", "no kind")]
        {
            let error = discovery.find(word).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn lists_and_categories_name_each_kind_once() {
        let discovery = discovery();
        let plurals = |words| -> Vec<&str> {
            discovery.find_all(words).unwrap().iter().map(|kind| kind.plural.as_str()).collect()
        };
        assert_eq!(plurals("po,deploy,pods"), ["pods", "deployments"]);
        assert_eq!(plurals("all"), ["pods", "deployments"]);
        assert!(discovery.find_all("po,,deploy").is_err());
    }

    #[test]
    fn paths_and_names() {
        let pod = kind("", "v1", "Pod", "pods", &[]);
        assert_eq!(pod.path(Some("n"), Some("a")), "/api/v1/namespaces/n/pods/a");
        assert_eq!(pod.path(None, None), "/api/v1/pods");
        assert_eq!(pod.path(Some("n"), Some("a/b?c")), "/api/v1/namespaces/n/pods/a%2Fb%3Fc");
        assert_eq!(pod.called("a"), "pod/a");
        let mut deployment = kind("apps", "v1", "Deployment", "deployments", &[]);
        assert_eq!(deployment.called("a"), "deployment.apps/a");
        deployment.namespaced = false;
        assert_eq!(deployment.path(Some("n"), None), "/apis/apps/v1/deployments");
    }

    #[test]
    fn documents_are_read() {
        let document = serde_json::json!({"kind": "APIGroupDiscoveryList", "items": [{
            "metadata": {"name": "apps"},
            "versions": [{"version": "v1", "resources": [{
                "resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced",
                "singularResource": "deployment", "shortNames": ["deploy"], "categories": ["all"], "verbs": ["list"],
            }]}],
        }]});
        assert_eq!(parse(&document), [kind("apps", "v1", "Deployment", "deployments", &["deploy"])]);
        assert_eq!(parse(&serde_json::json!({"kind": "APIVersions"})), []);
    }

    #[test]
    fn distances_count_edits() {
        for (a, b, expected) in
            [("pods", "pods", 0), ("podz", "pods", 1), ("", "abc", 3), ("tasks", "task", 1)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
