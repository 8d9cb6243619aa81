//! Obtains what a whole cluster needs beyond a control plane: kubelet, scheduler and kube-proxy, CoreDNS, Envoy Gateway
//! and Helm from their Go modules, gVisor's shim for containerd, plugins of CNI and `nft` from Debian's packages. Nothing of it is
//! needed by suites that do with a control plane.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Program, containerd, debian, envoy, go, go_command, oci, proxy};
use crate::Settings;
use crate::process::{find_program, quietly, timed};

/// Of Helm; the tests know it too.
const HELM: &str = "v4.3.1";
/// Of CoreDNS.
const COREDNS: &str = "v1.14.7";
/// CoreDNS with no more plugins than a cluster needs: those for clouds are most of what there is to fetch and build.
const COREDNS_MAIN: &str = r#"package main

import (
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() { coremain.Run() }
"#;

/// Plugins of CNI and `nft`, in one directory of the cache.
const NETWORK: &str = "network-debian";
const NETWORK_PACKAGES: [&str; 11] = [
    "containernetworking-plugins",
    "nftables",
    "libnftables1",
    "libnftnl11",
    "libmnl0",
    "libjansson4",
    "libedit2",
    "libbsd0",
    "libmd0",
    "libxtables12",
    "libgmp10",
];

/// Where everything is that a cluster consists of.
pub(crate) struct Tools {
    pub(crate) etcd: PathBuf,
    pub(crate) apiserver: PathBuf,
    pub(crate) controller_manager: PathBuf,
    pub(crate) scheduler: PathBuf,
    pub(crate) kubelet: PathBuf,
    pub(crate) kube_proxy: PathBuf,
    pub(crate) kubectl: PathBuf,
    pub(crate) coredns: PathBuf,
    pub(crate) envoy: PathBuf,
    pub(crate) envoy_gateway: PathBuf,
    /// Files with the definitions of the Gateway API and of Envoy Gateway.
    pub(crate) definitions: PathBuf,
    pub(crate) containerd: PathBuf,
    /// A directory.
    pub(crate) cni: PathBuf,
    /// For the programs that run others: containerd its shims, kube-proxy `nft`.
    pub(crate) path: String,
}

/// Makes sure that everything is there.
pub(crate) fn run(settings: &Settings) -> Result<Tools> {
    super::run(settings)?;
    envoy::run(settings)?;
    proxy::run(settings)?;
    containerd::run(settings)?;
    oci::run(settings)?;
    node_programs(settings)?;
    network(settings)?;
    ensure!(
        find_program(&settings.path, "ip").is_some() && find_program(&settings.path, "nsenter").is_some(),
        "a cluster needs the programs ip and nsenter: install iproute2 and util-linux"
    );
    Tools::locate(settings)
}

impl Tools {
    /// Where everything is once it is there.
    pub(crate) fn locate(settings: &Settings) -> Result<Tools> {
        let kubernetes = settings.cache.join(format!("kubernetes-{}", super::KUBERNETES));
        let etcd = settings.cache.join(format!("etcd-{}", super::ETCD));
        let of_user =
            |directory: &Path, name: &str| settings.assets.as_deref().unwrap_or(directory).join(name);
        let oci = settings.cache.join(oci::DIRECTORY);
        let containerd = containerd::directory(settings).context("containerd is not where it was put")?;
        let network = settings.cache.join(NETWORK);
        let own = [network.clone(), containerd.clone(), oci.clone()];
        let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&settings.path)))
            .unwrap_or_else(|_| OsString::from("/usr/sbin:/usr/bin:/sbin:/bin"));
        let gateway = settings.cache.join(format!("envoy-gateway-{}", envoy::VERSION));
        Ok(Tools {
            etcd: of_user(&etcd, "etcd"),
            apiserver: of_user(&kubernetes, "kube-apiserver"),
            kubectl: of_user(&kubernetes, "kubectl"),
            controller_manager: kubernetes.join("kube-controller-manager"),
            scheduler: kubernetes.join("kube-scheduler"),
            kubelet: kubernetes.join("kubelet"),
            kube_proxy: kubernetes.join("kube-proxy"),
            coredns: settings.cache.join(format!("coredns-{COREDNS}")).join("coredns"),
            envoy: settings.cache.join(format!("envoy-{}", proxy::VERSION)).join("envoy"),
            envoy_gateway: settings.cache.join(gateway_directory()).join("envoy-gateway"),
            definitions: gateway,
            containerd: containerd.join("containerd"),
            cni: network.join("debian/usr/lib/cni"),
            path: path.into_string().ok().context("PATH is not text")?,
        })
    }
}

fn gateway_directory() -> String {
    format!("envoy-gateway-program-{}", envoy::VERSION)
}

fn node_programs(settings: &Settings) -> Result<()> {
    let kubernetes =
        |name, package| Program { directory: format!("kubernetes-{}", super::KUBERNETES), name, package };
    super::obtain(
        settings,
        vec![
            kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ],
    )?;
    let shim = Module {
        name: "gvisor-shim".to_owned(),
        requires: format!("gvisor.dev/gvisor {}", oci::GVISOR),
        main: None,
        change: Some(SHIM_CHANGE),
        package: "gvisor.dev/gvisor/shim",
        target: settings.cache.join(oci::DIRECTORY).join("containerd-shim-runsc-v1"),
    };
    let coredns = Module {
        name: format!("coredns-{COREDNS}"),
        requires: format!("github.com/coredns/coredns {COREDNS}"),
        main: Some(COREDNS_MAIN),
        change: None,
        package: ".",
        target: settings.cache.join(format!("coredns-{COREDNS}")).join("coredns"),
    };
    let gateway = Module {
        name: gateway_directory(),
        requires: format!("github.com/envoyproxy/gateway {}", envoy::VERSION),
        main: None,
        change: None,
        package: "github.com/envoyproxy/gateway/cmd/envoy-gateway",
        target: settings.cache.join(gateway_directory()).join("envoy-gateway"),
    };
    let helm = Module {
        name: format!("helm-{HELM}"),
        requires: format!("helm.sh/helm/v4 {HELM}"),
        main: None,
        change: None,
        package: "helm.sh/helm/v4/cmd/helm",
        target: settings.cache.join(format!("helm-{HELM}")).join("helm"),
    };
    [shim, coredns, gateway, helm].iter().try_for_each(|module| module.build(settings))
}

/// A file of a module, and what is put for what in it.
#[derive(Clone, Copy)]
struct Change {
    module: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

/// The shim protects itself from the kernel's killer and does not start where it may not, as on machines without
/// `CAP_SYS_RESOURCE`. It need not be protected here.
const SHIM_CHANGE: Change = Change {
    module: "gvisor.dev/gvisor",
    file: "pkg/shim/v1/service.go",
    from: "oomScoreMaxKillable = -999",
    to: "oomScoreMaxKillable = 0",
};

impl Change {
    /// Has the module built from a copy that is changed; Go allows no change of files that it has fetched.
    fn apply(self, go: &Path, work: &Path) -> Result<()> {
        let mut list = go_command(go, work);
        let fetched = quietly(list.args(["mod", "download", "-json", self.module]))?;
        let fetched: serde_json::Value = serde_json::from_str(&fetched)?;
        let original = fetched["Dir"].as_str().context("go named no directory for the module")?;
        let copy = work.join("changed");
        let _ = std::fs::remove_dir_all(&copy);
        quietly(Command::new("cp").args(["-R", original]).arg(&copy))?;
        quietly(Command::new("chmod").args(["-R", "u+w"]).arg(&copy))?;
        let file = copy.join(self.file);
        let text = std::fs::read_to_string(&file)?;
        ensure!(text.contains(self.from), "{} of {} is not as it was", self.file, self.module);
        std::fs::write(file, text.replace(self.from, self.to))?;
        let replaced = format!("{}=./changed", self.module);
        quietly(go_command(go, work).args(["mod", "edit", "-replace", &replaced]))?;
        Ok(())
    }
}

/// A program of a Go module that is not Kubernetes.
struct Module {
    /// Of the directory that it is built in.
    name: String,
    requires: String,
    /// The text of a program of our own; a package of the module is built without it.
    main: Option<&'static str>,
    change: Option<Change>,
    package: &'static str,
    target: PathBuf,
}

impl Module {
    fn build(&self, settings: &Settings) -> Result<()> {
        let name = self.target.file_name().context("a program has a name")?.to_string_lossy();
        if self.target.is_file() {
            eprintln!("    {name}: present");
            return Ok(());
        }
        let go = go(settings)?;
        let work = settings.cache.join("build").join(&self.name);
        std::fs::create_dir_all(&work)?;
        let manifest = format!("module agentcube.io/tools\n\ngo 1.21\n\nrequire {}\n", self.requires);
        std::fs::write(work.join("go.mod"), manifest)?;
        if let Some(main) = self.main {
            std::fs::write(work.join("main.go"), main)?;
        }
        let directory = self.target.parent().context("a program is in a directory")?;
        std::fs::create_dir_all(directory)?;
        let unfinished = directory.join(format!(".{name}.{}", std::process::id()));
        timed(&format!("building {name} (minutes when nothing is cached)"), || {
            if let Some(change) = self.change {
                change.apply(&go, &work)?;
            }
            let mut command = go_command(&go, &work);
            command.args(["build", "-mod=mod", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(&unfinished);
            quietly(command.arg(self.package))
        })?;
        std::fs::rename(&unfinished, &self.target)?;
        Ok(())
    }
}

fn network(settings: &Settings) -> Result<()> {
    let directory = settings.cache.join(NETWORK);
    if directory.join("nft").is_file() {
        eprintln!("    plugins of CNI and nft: present");
        return Ok(());
    }
    std::fs::create_dir_all(&directory)?;
    timed("unpacking plugins of CNI and nft of Debian", || {
        debian::unpack(settings, &directory, &NETWORK_PACKAGES, &["nft"])
    })
}
