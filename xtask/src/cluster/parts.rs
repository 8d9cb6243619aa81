//! The programs that make up the cluster, and how each is told to behave on this machine.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::node::{CGROUP, NAME, Node};
use super::{fill, network};
use crate::setup::cluster::Tools;

/// In the order of their start; the control plane comes before the node's own.
pub(crate) const ALL: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
];

/// The image of a Pod's sandbox.
pub(crate) const PAUSE: &str = "pause:dev";

/// What kubelet wants the kernel to be set to. It would set it for the whole machine, so it is shown that it is.
const KERNEL: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Starts parts of one cluster.
pub(crate) struct Parts<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) node: &'a Node,
    pub(crate) directory: &'a Path,
}

impl Parts<'_> {
    /// Starts a part unless it runs.
    pub(crate) fn start(&self, name: &str) -> Result<()> {
        let (program, arguments) = match name {
            "etcd" => (self.tools.etcd.clone(), self.etcd()),
            "kube-apiserver" => (self.tools.apiserver.clone(), self.apiserver()),
            "kube-controller-manager" => (self.tools.controller_manager.clone(), self.controller_manager()),
            "kube-scheduler" => (self.tools.scheduler.clone(), self.scheduler()),
            "containerd" => (self.tools.containerd.clone(), self.containerd()?),
            "kubelet" => (PathBuf::from("unshare"), self.kubelet()?),
            _ => (self.tools.kube_proxy.clone(), self.kube_proxy()?),
        };
        self.node.start_part(name, &program, &arguments)
    }

    fn secret(&self, name: &str) -> String {
        self.directory.join("secrets").join(name).display().to_string()
    }

    fn data(&self, name: &str) -> String {
        self.directory.join("data").join(name).display().to_string()
    }

    /// Writes a configuration file and names it.
    fn config(&self, name: &str, text: &str) -> Result<String> {
        let directory = self.directory.join("config");
        std::fs::create_dir_all(&directory)?;
        let path = directory.join(name);
        // kube-proxy ends when its file is written again, even if it says the same.
        if !std::fs::read_to_string(&path).is_ok_and(|known| known == text) {
            std::fs::write(&path, text)?;
        }
        Ok(path.display().to_string())
    }

    fn etcd(&self) -> Vec<String> {
        vec![
            format!("--data-dir={}", self.data("etcd")),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--log-level=warn".to_owned(),
        ]
    }

    fn apiserver(&self) -> Vec<String> {
        vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--bind-address={}", network::NODE),
            format!("--advertise-address={}", network::NODE),
            "--secure-port=6443".to_owned(),
            format!("--tls-cert-file={}", self.secret("apiserver.crt")),
            format!("--tls-private-key-file={}", self.secret("apiserver.key")),
            format!("--client-ca-file={}", self.secret("ca.crt")),
            format!("--token-auth-file={}", self.secret("tokens.csv")),
            "--anonymous-auth=false".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            format!("--service-account-issuer=https://kubernetes.default.svc.{}", network::DOMAIN),
            format!("--service-account-key-file={}", self.secret("sa.pub")),
            format!("--service-account-signing-key-file={}", self.secret("sa.key")),
            format!("--service-cluster-ip-range={}", network::SERVICES),
            format!("--kubelet-client-certificate={}", self.secret("kubelet-client.crt")),
            format!("--kubelet-client-key={}", self.secret("kubelet-client.key")),
            format!("--kubelet-certificate-authority={}", self.secret("ca.crt")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--allow-privileged=true".to_owned(),
        ]
    }

    /// Flags that the controller manager and the scheduler have in common.
    fn client(&self, name: &str) -> Vec<String> {
        let kubeconfig = self.secret(&format!("{name}.kubeconfig"));
        vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", self.data(name)),
            // Nobody else would take over.
            "--leader-elect=false".to_owned(),
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
        ]
    }

    fn controller_manager(&self) -> Vec<String> {
        let mut arguments = self.client("kube-controller-manager");
        arguments.extend([
            format!("--root-ca-file={}", self.secret("ca.crt")),
            format!("--service-account-private-key-file={}", self.secret("sa.key")),
            "--use-service-account-credentials=true".to_owned(),
        ]);
        arguments
    }

    fn scheduler(&self) -> Vec<String> {
        self.client("kube-scheduler")
    }

    fn containerd(&self) -> Result<Vec<String>> {
        let cni = self.directory.join("config/cni");
        std::fs::create_dir_all(&cni)?;
        let values = [("pods", network::PODS), ("data", &self.data("cni"))];
        std::fs::write(cni.join("10-agentcube.conflist"), fill(include_str!("manifests/cni.json"), &values))?;
        let runsc = self.config("runsc.toml", include_str!("manifests/runsc.toml"))?;
        let values = [
            ("root", &*self.data("containerd")),
            ("pause", PAUSE),
            ("cni_plugins", &self.tools.cni.display().to_string()),
            ("cni_config", &cni.display().to_string()),
            ("runsc_config", &runsc),
        ];
        let text = fill(include_str!("manifests/containerd.toml"), &values);
        Ok(vec![format!("--config={}", self.config("containerd.toml", &text)?)])
    }

    fn kubelet(&self) -> Result<Vec<String>> {
        let resolver = self.config("resolv.conf", "")?;
        let values = [
            ("cgroup", CGROUP),
            ("dns_service", network::DNS_SERVICE),
            ("domain", network::DOMAIN),
            ("resolver", &*resolver),
            ("ca_file", &self.secret("ca.crt")),
            ("certificate", &self.secret("kubelet.crt")),
            ("key", &self.secret("kubelet.key")),
        ];
        let text = fill(include_str!("manifests/kubelet.yaml"), &values);
        let config = self.config("kubelet.yaml", &text)?;
        // Its mounts reach the others, but for what it is shown of the kernel.
        let mut script = "set -e; mount --make-rprivate /proc".to_owned();
        for (index, (name, value)) in KERNEL.iter().enumerate() {
            let file = self.config(&format!("kernel-{index}"), &format!("{value}\n"))?;
            script.push_str(&format!("; mount --bind '{file}' /proc/sys/{name}"));
        }
        script.push_str("; exec \"$0\" \"$@\"");
        let mut arguments: Vec<String> =
            ["--mount", "--propagation=unchanged", "--", "sh", "-c"].map(str::to_owned).to_vec();
        arguments.extend([
            script,
            self.tools.kubelet.display().to_string(),
            format!("--config={config}"),
            format!("--kubeconfig={}", self.secret("kubelet.kubeconfig")),
            format!("--hostname-override={NAME}"),
            format!("--node-ip={}", network::NODE),
        ]);
        Ok(arguments)
    }

    fn kube_proxy(&self) -> Result<Vec<String>> {
        let values =
            [("kubeconfig", &*self.secret("kube-proxy.kubeconfig")), ("name", NAME), ("pods", network::PODS)];
        let text = fill(include_str!("manifests/kube-proxy.yaml"), &values);
        Ok(vec![format!("--config={}", self.config("kube-proxy.yaml", &text)?)])
    }
}
