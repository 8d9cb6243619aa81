//! `cargo xtask cluster`: a real Kubernetes on this one machine, with a real kubelet, containerd, Services, DNS and Envoy
//! Gateway. All of it lives in one directory and in namespaces of its own, so that nothing of it outlives `down`.

mod addons;
mod certificates;
mod identity;
mod images;
mod network;
mod node;
mod parts;
pub(crate) mod traces;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;

use crate::Settings;
use crate::process::{cargo, quietly, succeeds, timed};
use crate::setup;
use crate::setup::cluster::Tools;
use addons::Kubectl;
use node::Node;
use parts::Parts;

/// On a busy machine everything takes long.
const READY_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
/// A request that was sent while etcd was away is never answered.
const SOON: &str = "--request-timeout=3s";
/// A directory that has this is a cluster's, and may be removed.
const MARK: &str = "agentcube-cluster";

/// What is to be done with the cluster.
#[derive(Subcommand)]
pub(crate) enum Action {
    /// Starts it, or whatever of it does not run
    Up {
        /// Where everything of it is kept [default: in the cache]
        #[arg(long)]
        dir: Option<PathBuf>,
        /// The program that the image `agentcube:dev` is made of [default: it is built]
        #[arg(long)]
        program: Option<PathBuf>,
        /// Builds that program for speed
        #[arg(long, conflicts_with = "program")]
        release: bool,
    },
    /// Ends it and removes all of it
    Down {
        /// Where it is kept [default: in the cache]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Kills one of its parts, for tests of what happens without it
    Stop {
        /// A part as `status` names it
        #[arg(value_parser = parts::ALL)]
        part: String,
        /// Where the cluster is kept [default: in the cache]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Starts one of its parts again, without waiting for it
    Start {
        /// A part as `status` names it
        #[arg(value_parser = parts::ALL)]
        part: String,
        /// Where the cluster is kept [default: in the cache]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Says which parts run
    Status {
        /// Where it is kept [default: in the cache]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
}

/// Does it. `false` is a status that is not good.
pub(crate) fn run(settings: &Settings, action: Action) -> Result<bool> {
    let directory = |dir: Option<PathBuf>| match dir {
        Some(dir) => std::path::absolute(&dir).with_context(|| format!("{} is no path", dir.display())),
        None => Ok(settings.cache.join("cluster")),
    };
    match action {
        Action::Up { dir, program, release } => {
            let program = Image { program, release };
            up(settings, &directory(dir)?, program).map(|()| true)
        }
        Action::Down { dir } => down(&directory(dir)?).map(|()| true),
        Action::Stop { part, dir } => {
            let directory = directory(dir)?;
            let (_, node) = running(settings, &directory)?;
            let _locked = lock(&directory)?;
            node.part(&part).map_or(Ok(()), |part| part.kill()).map(|()| true)
        }
        Action::Start { part, dir } => {
            let directory = directory(dir)?;
            let (tools, node) = running(settings, &directory)?;
            let _locked = lock(&directory)?;
            Parts { tools: &tools, node: &node, directory: &directory }.start(&part).map(|()| true)
        }
        Action::Status { dir } => status(settings, &directory(dir)?),
    }
}

/// What the image of our own program is made of.
struct Image {
    program: Option<PathBuf>,
    release: bool,
}

fn up(settings: &Settings, directory: &Path, image: Image) -> Result<()> {
    ensure_root()?;
    node::ensure_possible(directory)?;
    let begun = Instant::now();
    let tools = setup::cluster::run(settings)?;
    let program = match image.program {
        Some(program) => std::path::absolute(program)?,
        None => build(settings, image.release)?,
    };
    let _locked = claim(directory)?;
    certificates::prepare(&directory.join("secrets"))?;
    let node = match Node::find(directory, &tools.path) {
        Some(node) => node,
        None => timed("starting a node", || Node::start(directory, &tools.path))?,
    };
    let kubeconfig = directory.join("secrets/admin.kubeconfig");
    let parts = Parts { tools: &tools, node: &node, directory };
    let kubectl = Kubectl { tools: &tools, kubeconfig: &kubeconfig };
    timed("starting the control plane", || start_control_plane(&parts, &kubectl))?;
    timed("starting containerd", || start_containerd(&parts))?;
    images::import(settings, &tools, &node, directory, &program)?;
    timed("starting kubelet and kube-proxy", || start_node_parts(&parts, &kubectl))?;
    addons::install(&kubectl, directory)?;
    timed("waiting for DNS and Envoy Gateway", || {
        kubectl.rolled_out("kube-system", "coredns")?;
        kubectl.rolled_out(addons::GATEWAY_NAMESPACE, "envoy-gateway")
    })?;
    eprintln!("    the cluster is ready after {:.1} s", begun.elapsed().as_secs_f64());
    let images = [images::AGENTCUBE, images::PYTHON].join(", ");
    eprintln!("    images for Pods: {images}; GatewayClass of Envoy Gateway: {}", addons::CLASS);
    println!("export KUBECONFIG={}", kubeconfig.display());
    Ok(())
}

fn ensure_root() -> Result<()> {
    let root = quietly(Command::new("id").arg("-u"))?.trim() == "0";
    ensure!(
        root,
        "a cluster with a kubelet needs root: run this as root, or use `agentcube up`, which does not"
    );
    Ok(())
}

/// Our own program, as it is now.
fn build(settings: &Settings, release: bool) -> Result<PathBuf> {
    let mut command = cargo(&settings.root);
    command.args(["build", "--quiet", "-p", "agentcube"]).args(release.then_some("--release"));
    ensure!(succeeds(&mut command)?, "agentcube does not build");
    let profile = if release { "release" } else { "debug" };
    Ok(settings.root.join("target").join(profile).join("agentcube"))
}

/// Makes the directory a cluster's, and locks it. One with other things in it is left alone.
fn claim(directory: &Path) -> Result<File> {
    let text = directory.display().to_string();
    ensure!(!text.contains(['\'', '"', '\n']), "the path of the cluster has a quote in it: {text}");
    loop {
        if !directory.join(MARK).is_file() {
            let used = std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
            ensure!(!used, "{text} has other things in it: choose an empty or a new directory with --dir");
            std::fs::create_dir_all(directory)?;
            std::fs::write(directory.join(MARK), "made by cargo xtask cluster\n")?;
        }
        let locked = lock(directory)?;
        // Whoever had it before may have removed it.
        if directory.join(MARK).is_file() {
            return Ok(locked);
        }
    }
}

/// Waits until nobody else changes the cluster. The lock ends with the file, or with this program.
fn lock(directory: &Path) -> Result<File> {
    let file = File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
    if file.try_lock().is_err() {
        eprintln!("    waiting for somebody else who is changing the cluster");
        file.lock().with_context(|| format!("cannot lock {}", directory.display()))?;
    }
    Ok(file)
}

fn start_control_plane(parts: &Parts<'_>, kubectl: &Kubectl<'_>) -> Result<()> {
    parts.start("etcd")?;
    parts.start("kube-apiserver")?;
    until(parts, "kube-apiserver", || kubectl.run(&["get", "--raw=/readyz", SOON]).map(drop))?;
    parts.start("kube-controller-manager")?;
    parts.start("kube-scheduler")?;
    // Pods are refused before it is there.
    let account = ["get", "serviceaccount", "default", "-n", "default", SOON];
    until(parts, "kube-controller-manager", || kubectl.run(&account).map(drop))
}

fn start_containerd(parts: &Parts<'_>) -> Result<()> {
    parts.start("containerd")?;
    until(parts, "containerd", || parts.node.run("ctr", &["version"]).map(drop))
}

fn start_node_parts(parts: &Parts<'_>, kubectl: &Kubectl<'_>) -> Result<()> {
    parts.start("kubelet")?;
    parts.start("kube-proxy")?;
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    until(parts, "kubelet", || {
        let status = kubectl.run(&["get", "node", node::NAME, "-o", ready, SOON])?;
        ensure!(status == "True", "the node is not ready");
        Ok(())
    })
}

/// Waits until something is so, for as long as the part that makes it so runs.
fn until(parts: &Parts<'_>, part: &str, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let Err(error) = check() else { return Ok(()) };
        let log = || parts.node.log_tail(part);
        ensure!(parts.node.part(part).is_some(), "{part} has ended:\n{}", log());
        if Instant::now() > deadline {
            bail!("{part} does not get ready: {error:#}\n{}", log());
        }
        std::thread::sleep(POLL);
    }
}

fn down(directory: &Path) -> Result<()> {
    if !directory.join(MARK).is_file() {
        eprintln!("    there is no cluster in {}", directory.display());
        return Ok(());
    }
    ensure_root()?;
    let _locked = lock(directory)?;
    timed("ending the cluster", || {
        node::clear(directory)?;
        node::remove(directory)
    })
}

/// Whether the one in the cache runs.
pub(crate) fn runs(settings: &Settings) -> bool {
    running(settings, &settings.cache.join("cluster")).is_ok()
}

fn running(settings: &Settings, directory: &Path) -> Result<(Tools, Node)> {
    let tools = Tools::locate(settings)?;
    let node = Node::find(directory, &tools.path);
    let node = node.with_context(|| format!("no cluster runs in {}", directory.display()))?;
    Ok((tools, node))
}

fn status(settings: &Settings, directory: &Path) -> Result<bool> {
    let tools = Tools::locate(settings)?;
    let Some(node) = Node::find(directory, &tools.path) else {
        println!("no cluster runs in {}", directory.display());
        return Ok(false);
    };
    let kubeconfig = directory.join("secrets/admin.kubeconfig");
    let kubectl = Kubectl { tools: &tools, kubeconfig: &kubeconfig };
    let mut good = true;
    println!("{:<26}{:<12}WHAT", "PART", "STATE");
    for part in parts::ALL {
        let state = node.part(part);
        good &= state.is_some();
        let pid = state.as_ref().map(|state| format!("process {}", state.pid)).unwrap_or_default();
        println!("{part:<26}{:<12}{pid}", if state.is_some() { "running" } else { "ended" });
    }
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status} {.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion}";
    good &= row("node", kubectl.run(&["get", "node", node::NAME, "-o", ready, SOON]), "True");
    let available = "jsonpath={.status.conditions[?(@.type==\"Available\")].status} {.spec.template.spec.containers[0].image}";
    for (namespace, name) in [("kube-system", "coredns"), (addons::GATEWAY_NAMESPACE, "envoy-gateway")] {
        good &=
            row(name, kubectl.run(&["get", "deployment", "-n", namespace, name, "-o", available]), "True");
    }
    println!("\nAPI server: {}", network::api_server());
    println!("export KUBECONFIG={}", kubeconfig.display());
    Ok(good)
}

fn row(name: &str, answer: Result<String>, good: &str) -> bool {
    let answer = answer.unwrap_or_default();
    let (state, what) = answer.split_once(' ').unwrap_or((&answer, ""));
    println!("{name:<26}{:<12}{what}", if state == good { "ready" } else { "not ready" });
    state == good
}

/// Puts values where a text names them as `{{name}}`.
fn fill(text: &str, values: &[(&str, &str)]) -> String {
    let put = |text: String, (name, value): &(&str, &str)| text.replace(&format!("{{{{{name}}}}}"), value);
    values.iter().fold(text.to_owned(), put)
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn fills_every_place() {
        assert_eq!(fill("{{a}} {{b}} {{a}} {c}", &[("a", "1"), ("b", "2")]), "1 2 1 {c}");
    }
}
