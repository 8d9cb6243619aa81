//! `agentcube sandbox-agent`: runs the sandboxes of one pool on this machine, for a controller of another process. Three
//! processes: a keeper that does nothing but watch, the spawner, and a worker that can die without anything that runs
//! noticing (docs/decisions/0020).

mod mortal;
mod network;
mod worker;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use agentcube_api::GoDuration;
use agentcube_extproc::Tls;
use agentcube_node::network::Range;
use agentcube_runtime::{keeper, spawner};
use anyhow::Context;
use clap::Args;

use crate::environment::Environment;
use crate::exit::{Outcome, Usage};
use crate::up::cluster::{node_id, this_program};
use network::Ports;

/// The least length of a token.
const SHORTEST_TOKEN: usize = 16;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox-agent --pool fast --uid agent-1 --token-file token
  agentcube sandbox-agent --pool fast --uid agent-1 --listen 0.0.0.0:7070 --sandbox-address 192.0.2.7 \\
      --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt
  agentcube sandbox-agent --pool fast --uid agent-1 --token-file token --runtime runsc --data-dir /var/lib/agent

Sandboxes outlive the death of its worker, which is started again; they end when it is told to stop. In a Pod that
`agentcube fastpath` made, everything is said by variables.")]
pub(crate) struct Arguments {
    /// The pool whose sandboxes it runs
    #[arg(long, env = "AGENTCUBE_AGENT_POOL", hide_env_values = true)]
    pool: String,
    /// The namespace of the pool
    #[arg(short, long, env = "AGENTCUBE_AGENT_NAMESPACE", hide_env_values = true, default_value = "default")]
    namespace: String,
    /// What tells it from every other agent there ever was: the UID of its Pod
    #[arg(long, env = "AGENTCUBE_AGENT_UID", hide_env_values = true)]
    uid: String,
    /// Its name: that of its Pod [default: the UID]
    #[arg(long, env = "AGENTCUBE_AGENT_NAME", hide_env_values = true)]
    name: Option<String>,
    /// The machine that it runs on, as its sandboxes show it
    #[arg(long, env = "AGENTCUBE_AGENT_NODE", hide_env_values = true, default_value = "")]
    node: String,
    /// How many sandboxes it takes on, until the controller says otherwise
    #[arg(long, env = "AGENTCUBE_AGENT_CAPACITY", hide_env_values = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    capacity: u32,
    /// How sandboxes are isolated: native, an OCI runtime that is here (runc, crun, runsc), or containerd
    #[arg(long, env = "AGENTCUBE_AGENT_RUNTIME", hide_env_values = true, default_value = "native")]
    runtime: String,
    /// Where to listen for the controller
    #[arg(long, env = "AGENTCUBE_AGENT_LISTEN", hide_env_values = true, default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// The address at which ports of sandboxes are reached [default: that of --listen]
    #[arg(long, env = "AGENTCUBE_AGENT_ADDRESS", hide_env_values = true, value_name = "IP")]
    sandbox_address: Option<IpAddr>,
    /// The ports that those of sandboxes get there
    #[arg(long, value_name = "FIRST-LAST", default_value = "20000-29999")]
    sandbox_ports: Ports,
    /// The token that the controller has to show, of 16 characters or more
    #[arg(long, env = "AGENTCUBE_AGENT_TOKEN_FILE", hide_env_values = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The certificate to show instead; read anew when it changes
    #[arg(long, env = "AGENTCUBE_AGENT_TLS_CERT", hide_env_values = true, value_name = "FILE", requires_all = ["tls_key", "client_ca"], conflicts_with = "token_file")]
    tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(
        long,
        env = "AGENTCUBE_AGENT_TLS_KEY",
        hide_env_values = true,
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
    /// Only a controller with a certificate of these authorities may call
    #[arg(
        long,
        env = "AGENTCUBE_AGENT_CLIENT_CA",
        hide_env_values = true,
        value_name = "FILE",
        requires = "tls_cert"
    )]
    client_ca: Option<PathBuf>,
    /// Keep images, logs and what sandboxes write in this directory [default: as `agentcube up`, in agents/UID]
    #[arg(long, env = "AGENTCUBE_AGENT_DATA_DIR", hide_env_values = true)]
    data_dir: Option<PathBuf>,
    /// Show this directory, read-only, to sandboxes of the image `host`; may be given several times
    #[arg(long, value_name = "DIR")]
    host_image_dir: Vec<PathBuf>,
    /// Look for runc, crun and runsc in this directory before those of PATH; may be given several times
    #[arg(long, value_name = "DIR")]
    oci_runtime_dir: Vec<PathBuf>,
    /// containerd's socket, for the runtime containerd: images are its own, and the process has to see its processes
    #[arg(
        long,
        env = "AGENTCUBE_AGENT_CONTAINERD",
        hide_env_values = true,
        value_name = "FILE",
        default_value = "/run/containerd/containerd.sock"
    )]
    containerd: PathBuf,
    /// The namespace of containerd in which images are, and containers will be
    #[arg(
        long,
        env = "AGENTCUBE_AGENT_CONTAINERD_NAMESPACE",
        hide_env_values = true,
        value_name = "NAME",
        default_value = "agentcube"
    )]
    containerd_namespace: String,
    /// No sandbox reaches anything outside
    #[arg(long)]
    no_egress: bool,
    /// No sandbox reaches addresses in this range, whatever its egress; may be given several times, or with commas between.
    /// Closed anyway: this machine, whoever calls as the controller, and the API server of a Pod's variables
    #[arg(
        long,
        env = "AGENTCUBE_AGENT_CLOSED_TO",
        hide_env_values = true,
        value_name = "CIDR",
        value_delimiter = ','
    )]
    closed_to: Vec<Range>,
    /// The address of the machine that its Pod is on, which no sandbox reaches either
    #[arg(long, env = "AGENTCUBE_AGENT_HOST", hide_env_values = true, value_name = "IP")]
    host_address: Option<IpAddr>,
    /// After how long of silence the controller takes it for lost; has to be what the controller has
    #[arg(long, value_name = "DURATION", default_value = "15s", hide = true)]
    dropped: GoDuration,
    /// For tests: after how many effects the first worker dies, and the next, and so on. Debug builds only
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', hide = true)]
    die_after: Vec<u64>,
    /// This is a worker, and what its keeper says
    #[arg(long, hide = true)]
    worker: Option<String>,
}

/// Who may call.
enum Credentials {
    Token(String),
    Certificates(Tls),
}

impl Arguments {
    fn data_dir(&self, environment: &Environment) -> PathBuf {
        let default = || crate::paths::default_data_dir(environment).path().join("agents").join(&self.uid);
        self.data_dir.clone().unwrap_or_else(default)
    }

    fn credentials(&self) -> anyhow::Result<Credentials> {
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let client_authorities = self.client_ca.clone();
            let tls = Tls { certificate: certificate.clone(), key: key.clone(), client_authorities };
            tls.check().context("--tls-cert, --tls-key or --client-ca")?;
            return Ok(Credentials::Certificates(tls));
        }
        let Some(path) = &self.token_file else {
            let message = "whoever reaches an agent may run anything: give --token-file, or --tls-cert, --tls-key \
                           and --client-ca";
            return Err(Usage(message.into()).into());
        };
        Ok(Credentials::Token(read_token(path)?))
    }

    fn sandbox_address(&self) -> anyhow::Result<IpAddr> {
        match self.sandbox_address.unwrap_or(self.listen.ip()) {
            address if address.is_unspecified() => {
                let message = "--listen is any address, so --sandbox-address has to say at which one sandboxes are \
                               reached";
                Err(Usage(message.into()).into())
            }
            address => Ok(address),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        // It becomes a part of directory names.
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        if self.uid.is_empty()
            || self.uid.len() > 128
            || !self.uid.bytes().all(allowed)
            || self.uid.starts_with('.')
        {
            return Err(Usage(format!("--uid {:?}: use letters, digits, '-', '_' and '.'", self.uid)).into());
        }
        self.sandbox_address()?;
        self.credentials().map(drop)
    }
}

/// A token of a file, without white space around it.
pub(crate) fn read_token(path: &std::path::Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let token = text.trim().to_owned();
    if token.len() < SHORTEST_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message =
            format!("{} has to hold a token of {SHORTEST_TOKEN} characters or more", path.display());
        return Err(Usage(message).into());
    }
    Ok(token)
}

/// The keeper, or a worker of it. To be called while there is one thread.
pub(crate) fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    if let Some(inherited) = &arguments.worker {
        let inherited = keeper::Worker::inherit(inherited)?;
        return worker::run(arguments, inherited, environment);
    }
    arguments.check()?;
    let data = arguments.data_dir(environment);
    let made = std::fs::create_dir_all(&data).and_then(|()| data.canonicalize());
    let data = made.with_context(|| format!("cannot make the data directory {}", data.display()))?;
    // The same words again: a worker is this command with one more.
    let words = std::env::args_os().skip(1).chain([OsString::from("--worker")]);
    let options = keeper::Options {
        program: this_program()?,
        arguments: words.collect(),
        spawner: spawner::Options::new(node_id(&data), data.join("runtime")),
    };
    let code = keeper::run(options)
        .context("cannot run sandboxes on this machine (`agentcube doctor` says more)")?;
    Ok(Outcome::Exited(code))
}
