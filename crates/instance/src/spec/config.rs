//! What the platform offers to Tasks: runtimes for code, kinds of isolation, where our own program is. The operator's
//! configuration; whoever runs the controllers reads it and passes it in.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use serde::Deserialize;

/// What the platform offers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Config {
    /// Namespace of the operator, where the Secret with the keys of tokens is.
    pub namespace: String,
    /// Where our own program is found; it fetches code bundles.
    pub program: Program,
    /// Kinds of isolation by the name that `sandboxTemplate.runtime` gives.
    pub isolations: BTreeMap<String, Isolation>,
    /// The isolation of sandboxes that name none.
    pub default_isolation: String,
    /// Guest kernels that were put on the nodes: image name in the Task, path on the nodes.
    pub kernels: BTreeMap<String, String>,
    /// Runtimes of code bundles by name.
    pub runtimes: BTreeMap<String, Runtime>,
    /// Where code bundles are kept by digest; none: each instance fetches its own.
    pub bundle_cache: Option<BundleCache>,
    /// Who may connect to sandboxes: the gateway's Pods. Connections from the node itself are always possible, so a
    /// gateway that runs there needs no entry.
    pub gateway_peers: Vec<NetworkPolicyPeer>,
    /// The user that sandboxes run as; none leaves it to the image.
    pub sandbox_user: Option<i64>,
}

/// Where our own program is found.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Program {
    pub image: String,
    pub path: String,
}

/// A kind of isolation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Isolation {
    /// Name of the RuntimeClass.
    pub runtime_class: String,
    /// What stands between the code and the node; decides which annotations are understood.
    #[serde(default)]
    pub guard: Guard,
    /// Image of sandboxes that name none.
    #[serde(default)]
    pub image: Option<String>,
    /// Further annotations of the Pods.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// What stands between the code and the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Guard {
    /// A virtual machine of Kata Containers, whichever hypervisor runs it.
    Kata,
    /// The kernel of gVisor.
    Gvisor,
    /// Something else that needs no annotations.
    #[default]
    Other,
}

/// A language and version that run code bundles. In commands `{entrypoint}`, `{code}` (the directory of the code),
/// `{root}` (the writable directory above it) and `{file}` (what lists the dependencies) are replaced. No shell runs
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Runtime {
    pub image: String,
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub installer: Option<Installer>,
}

/// How a runtime gets what a bundle depends on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Installer {
    /// The file that lists dependencies when the Task names none.
    pub file: String,
    /// Whether the file, and those of these names beside it, have to lie in `{root}`.
    #[serde(default)]
    pub lift: Vec<String>,
    /// Installs what `{file}` lists.
    pub from_file: Vec<String>,
    /// Installs packages, which are appended.
    pub packages: Vec<String>,
}

/// Where code bundles are kept by digest: a claim for each Task.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleCache {
    pub size: String,
    #[serde(default)]
    pub storage_class: Option<String>,
    /// `ReadWriteMany` where instances run on several nodes.
    #[serde(default = "read_write_many")]
    pub access_mode: String,
}

fn read_write_many() -> String {
    "ReadWriteMany".into()
}

impl Default for Config {
    fn default() -> Config {
        Config {
            namespace: "agentcube-system".into(),
            program: Program { image: "agentcube".into(), path: "agentcube".into() },
            isolations: isolations(),
            default_isolation: "kata-qemu".into(),
            kernels: BTreeMap::new(),
            runtimes: runtimes(),
            bundle_cache: None,
            gateway_peers: Vec::new(),
            sandbox_user: Some(65532),
        }
    }
}

fn isolations() -> BTreeMap<String, Isolation> {
    let isolation = |name: &str, class: &str, guard| {
        let class = class.into();
        (name.into(), Isolation { runtime_class: class, guard, image: None, annotations: BTreeMap::new() })
    };
    BTreeMap::from([
        isolation("firecracker", "kata-fc", Guard::Kata),
        isolation("gvisor", "gvisor", Guard::Gvisor),
        isolation("kata-clh", "kata-clh", Guard::Kata),
        isolation("kata-qemu", "kata-qemu", Guard::Kata),
    ])
}

fn runtimes() -> BTreeMap<String, Runtime> {
    let python = ["3.10", "3.11", "3.12", "3.13", "3.14"].map(|v| (format!("python{v}"), python(v)));
    let node = ["20", "22", "24"]
        .into_iter()
        .flat_map(|v| [format!("node{v}"), format!("nodejs{v}")].map(|name| (name, node(v))));
    python.into_iter().chain(node).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(Into::into).collect()
}

fn python(version: &str) -> Runtime {
    let pip = "python3 -m pip install --no-cache-dir --disable-pip-version-check --target {root}/packages";
    Runtime {
        image: format!("python:{version}-slim"),
        command: words("python3 -u {entrypoint}"),
        env: BTreeMap::from([("PYTHONPATH".into(), "{root}/packages".into())]),
        installer: Some(Installer {
            file: "requirements.txt".into(),
            lift: Vec::new(),
            from_file: words(&format!("{pip} --requirement {{file}}")),
            packages: words(pip),
        }),
    }
}

/// Modules lie above the code, where both ways of importing look for them.
fn node(version: &str) -> Runtime {
    let npm = "npm install --omit=dev --no-audit --no-fund --prefix {root}";
    Runtime {
        image: format!("node:{version}-slim"),
        command: words("node {entrypoint}"),
        env: BTreeMap::new(),
        installer: Some(Installer {
            file: "package.json".into(),
            lift: vec!["package.json".into(), "package-lock.json".into()],
            from_file: words(npm),
            packages: words(npm),
        }),
    }
}
