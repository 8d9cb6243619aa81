//! What sandboxes of an `agentcube sandbox-agent` reach on a cluster, where everything that they try would answer: the
//! agent, its machine and everybody else are pretended machines.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use agentcube_protos::agent::start_response::Outcome;
use agentcube_protos::agent::{
    Claim, Fence, LogsRequest, SandboxSpec, StartRequest, State, StopRequest, SyncRequest, SyncResponse, Why,
};
use agentcube_protos::link::{AgentApi, Remote};
use agentcube_protos::session::Egress;
use agentcube_testkit::machine::{Answering, Machine};
use agentcube_testkit::supervise::Process;
use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use tonic::transport::Endpoint;

use crate::agents::worker_of;
use crate::alone::answered;
use crate::world::{LONG, LOOK, TOKEN, path};

/// Addresses as the internet has them, so that nothing is refused for being private only.
const AGENT: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 1);
const CONTROLLER: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 2);
const API_SERVER: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 3);
const HOST: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 4);
const CLOSED: Ipv4Addr = Ipv4Addr::new(11, 1, 0, 5);
const PUBLIC: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 6);
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 7);
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
/// Another address of the agent's machine.
const ALSO: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 8);
const PORT: u16 = 7070;

/// Whom sandboxes try, and with which egress they get there.
const TRIED: [(&str, Ipv4Addr, u16, &[Egress]); 11] = [
    ("the agent", AGENT, PORT, &[]),
    ("another port of its machine", AGENT, 80, &[]),
    ("another address of its machine", ALSO, 80, &[]),
    ("its machine's loopback", Ipv4Addr::LOCALHOST, 81, &[]),
    ("the controller", CONTROLLER, 9100, &[]),
    ("the API server", API_SERVER, 443, &[]),
    ("the machine below", HOST, 10250, &[]),
    ("a range that is closed", CLOSED, 80, &[]),
    ("the metadata of a cloud", METADATA, 80, &[]),
    ("those of Azure", AZURE, 80, &[]),
    ("a private network", PRIVATE, 80, &[Egress::Open]),
];
/// The counter-check: nothing is in its way but an egress that is closed.
const ALLOWED: (&str, Ipv4Addr, u16, &[Egress]) =
    ("the internet", PUBLIC, 80, &[Egress::Public, Egress::Open]);
const ASKS: &str = "for to in \"$@\"; do
    heard=$(exec 3<>/dev/tcp/${to%:*}/${to#*:} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && head -c 12 <&3 | wc -c)
    echo \"$to ${heard:-0}\"
done 2>/dev/null";

fn tried() -> impl Iterator<Item = (&'static str, SocketAddrV4, &'static [Egress])> {
    let all = TRIED.into_iter().chain([ALLOWED]);
    all.map(|(what, address, port, reached)| (what, SocketAddrV4::new(address, port), reached))
}

struct Reach {
    here: Machine,
    process: Process,
    agent: Remote,
    fence: Fence,
    /// Of the last answer to a Sync.
    seq: AtomicU64,
    _directory: tempfile::TempDir,
    _answering: Vec<Answering>,
}

pub(crate) async fn reach(program: &Path) -> Result<()> {
    let reach = Reach::start(program).await?;
    // It would answer, and does.
    for (what, at, _) in tried() {
        ensure!(reach.here.hears(at)? > 0, "{what} does not answer at all");
    }
    for (number, egress) in [Egress::Closed, Egress::Public, Egress::Open].into_iter().enumerate() {
        reach.tries(&format!("try-{number}"), egress).await?;
    }
    reach.lose_worker().await?;
    reach.tries("again", Egress::Open).await
}

impl Reach {
    async fn start(program: &Path) -> Result<Reach> {
        let (here, there) = Machine::two().await?;
        for own in [AGENT, ALSO] {
            here.has(own)?;
        }
        let others = [CONTROLLER, API_SERVER, HOST, CLOSED, PUBLIC, PRIVATE, METADATA, AZURE];
        others.into_iter().try_for_each(|address| there.has(address))?;
        let mut answering = Vec::new();
        for (_, at, _) in tried().filter(|(_, at, _)| at.port() != PORT) {
            let machine = if others.contains(at.ip()) { &there } else { &here };
            answering.push(machine.answer(at)?);
        }
        let directory = tempfile::tempdir()?;
        let process = Self::process(program, directory.path(), &here)?;
        let there = Arc::new(there);
        let connector = tower::service_fn(move |_: http::Uri| {
            let there = there.clone();
            async move {
                let stream = there.connect(CONTROLLER, SocketAddr::from((AGENT, PORT))).await;
                stream.map(TokioIo::new).map_err(std::io::Error::other)
            }
        });
        let channel = Endpoint::from_static("http://agent").connect_with_connector_lazy(connector);
        let agent = Remote::with_token(channel, TOKEN)?;
        let fence = Fence { term: 1, agent_uid: "reach".into(), incarnation: String::new() };
        let mut reach = Reach {
            here,
            process,
            agent,
            fence,
            seq: AtomicU64::new(0),
            _directory: directory,
            _answering: answering,
        };
        reach.fence.incarnation = reach.sync().await?.incarnation;
        Ok(reach)
    }

    /// As a Pod would start it, by variables.
    fn process(program: &Path, directory: &Path, here: &Machine) -> Result<Process> {
        let (token, data, log) = (directory.join("token"), directory.join("data"), directory.join("log"));
        std::fs::write(&token, TOKEN)?;
        let variables = [
            ("KUBERNETES_SERVICE_HOST", API_SERVER.to_string()),
            ("AGENTCUBE_AGENT_CLOSED_TO", "11.1.0.0/16,10.1.0.0/16".to_owned()),
            ("AGENTCUBE_AGENT_HOST", HOST.to_string()),
            ("AGENTCUBE_AGENT_LISTEN", format!("0.0.0.0:{PORT}")),
            ("AGENTCUBE_AGENT_ADDRESS", AGENT.to_string()),
            ("AGENTCUBE_AGENT_POOL", "pool".to_owned()),
            ("AGENTCUBE_AGENT_UID", "reach".to_owned()),
            ("AGENTCUBE_AGENT_TOKEN_FILE", path(&token)?.to_owned()),
            ("AGENTCUBE_AGENT_DATA_DIR", path(&data)?.to_owned()),
        ];
        let mut words: Vec<String> = variables.map(|(name, value)| format!("{name}={value}")).to_vec();
        words.extend([path(program)?.to_owned(), "sandbox-agent".to_owned()]);
        here.within(|| Process::start(Path::new("env"), &words, &log))
    }

    async fn sync(&self) -> Result<SyncResponse> {
        let request = SyncRequest { fence: Some(self.fence.clone()), ..SyncRequest::default() };
        let answer = answered(&self.agent, &self.seq, request).await;
        answer.with_context(|| self.process.log_tail())
    }

    /// Whether a sandbox of this egress reaches what it should, and nothing else.
    async fn tries(&self, run: &str, egress: Egress) -> Result<()> {
        let told = self.sync().await?;
        ensure!(told.refusal.is_none(), "{told:?}");
        let heard = self.asks(run, egress).await?;
        for (what, at, reached) in tried() {
            let heard = heard.get(&at.to_string()).with_context(|| format!("{run}: {at} was not tried"))?;
            let expected = reached.contains(&egress);
            ensure!((*heard > 0) == expected, "{run}: {egress:?} hears {heard} bytes of {what} ({at})");
        }
        Ok(())
    }

    /// What a sandbox hears of each, in bytes.
    async fn asks(&self, run: &str, egress: Egress) -> Result<BTreeMap<String, usize>> {
        let fence = Some(self.fence.clone());
        let words = ["/bin/bash", "-c", ASKS, "asks"].map(str::to_owned).into_iter();
        let spec = SandboxSpec {
            image: "host".into(),
            command: words.chain(tried().map(|(_, at, _)| at.to_string())).collect(),
            egress: egress.into(),
            ..SandboxSpec::default()
        };
        let claim =
            Claim { namespace: "default".into(), name: run.into(), pool: "pool".into(), ..Claim::default() };
        let order = StartRequest {
            fence: fence.clone(),
            run_id: run.into(),
            claim: Some(claim),
            spec: Some(spec),
            recovery_timeout_seconds: 600,
            ..StartRequest::default()
        };
        match self.agent.start(order).await?.outcome {
            Some(Outcome::Started(_)) => {}
            other => bail!("{run}: {other:?}"),
        }
        self.ended(run).await?;
        let mut chunks = self.agent.logs(LogsRequest { run_id: run.into(), options: None }).await?;
        let mut text = Vec::new();
        while let Some(chunk) = chunks.next().await {
            text.extend(chunk?.content);
        }
        let stop =
            StopRequest { fence, run_id: run.into(), why: Why::Deleted.into(), ..StopRequest::default() };
        self.agent.stop(stop).await?;
        let text = String::from_utf8(text)?;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.map(|(to, count)| Ok((to.to_owned(), count.trim().parse()?))).collect()
    }

    async fn ended(&self, run: &str) -> Result<()> {
        let looking = async {
            loop {
                let entries = self.sync().await?.entries;
                if entries.iter().any(|entry| entry.run_id == run && entry.state() == State::Ended) {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LONG, looking).await.with_context(|| format!("{run} never ends"))?
    }

    /// Kills the worker, and comes back when there is another one.
    async fn lose_worker(&self) -> Result<()> {
        let keeper = self.process.pid();
        let old = worker_of(keeper).context("a worker")?;
        kill_process(Pid::from_raw(old.try_into()?).context("a pid")?, Signal::KILL)?;
        let another = async {
            while worker_of(keeper).is_none_or(|pid| pid == old) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LONG, another).await.context("there is no other worker")
    }
}
