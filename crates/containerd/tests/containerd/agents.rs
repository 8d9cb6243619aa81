//! An agent whose sandboxes containerd runs, asked as its controller asks it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_agent::network::Isolated;
use agentcube_agent::{Agent, Options, Parts};
use agentcube_protos::agent::start_response::Outcome;
use agentcube_protos::agent::{
    Claim, Confirmed, ExecRequest, Fence, LogsRequest, PauseRequest, Reason, Refusal, SandboxSpec,
    StartRequest, Started, StatsRequest, StopRequest, SyncRequest,
};
use agentcube_protos::link::AgentApi;
use agentcube_protos::session::exec_output::Output;
use agentcube_protos::session::{ExecStart, File, LogOptions, Resources};
use agentcube_runtime::Handlers;
use agentcube_runtime::image::Store;
use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, stream};

use crate::world::{IMAGE, Node, World};

const UID: &str = "agent-uid";
const CLAIM_UID: &str = "fast-sandbox.io/claim-uid";

struct Controller {
    agent: Agent,
    fence: Fence,
}

impl Controller {
    async fn new(node: &Node) -> Result<Self> {
        let data = node.directory.join("agent");
        let parts = Parts {
            spawner: node.handle.clone(),
            runtimes: Handlers::from([("containerd".to_owned(), Arc::new(node.containerd.clone()) as _)]),
            native: None,
            images: Store::open(&data)?,
            network: Arc::new(Isolated::new(node.handle.clone())),
            data: data.clone(),
        };
        let options = Options {
            uid: UID.into(),
            runtime: "containerd".into(),
            dropped: Duration::from_secs(3_600),
            ..Options::new("default", "pool", "pool-agent")
        };
        let agent = Agent::new(options, parts)?;
        let fence = Fence { term: 1, agent_uid: UID.into(), incarnation: String::new() };
        let mut this = Self { agent, fence };
        let first = this.agent.sync(this.sync()).await?;
        ensure!(first.images == [format!("example.com/{IMAGE}")], "{:?}", first.images);
        this.fence.incarnation = first.incarnation;
        this.agent.sync(SyncRequest { ack: first.seq, ..this.sync() }).await?;
        Ok(this)
    }

    fn sync(&self) -> SyncRequest {
        SyncRequest { fence: Some(self.fence.clone()), ..SyncRequest::default() }
    }

    fn run(name: &str) -> String {
        format!("{}-{name}", std::process::id())
    }

    async fn start(&self, name: &str, spec: SandboxSpec) -> Result<Result<Started, Refusal>> {
        let claim =
            Claim { namespace: "default".into(), name: name.into(), pool: "pool".into(), ..Claim::default() };
        let order = StartRequest {
            fence: Some(self.fence.clone()),
            run_id: Self::run(name),
            claim: Some(claim),
            spec: Some(spec),
            recovery_timeout_seconds: 600,
            ..StartRequest::default()
        };
        match self.agent.start(order).await?.outcome {
            Some(Outcome::Started(started)) => Ok(Ok(started)),
            Some(Outcome::Refusal(refusal)) => Ok(Err(refusal)),
            None => bail!("an answer without an outcome"),
        }
    }

    async fn stop(&self, name: &str) -> Result<()> {
        let request = StopRequest {
            fence: Some(self.fence.clone()),
            run_id: Self::run(name),
            ..StopRequest::default()
        };
        let answer = self.agent.stop(request).await?;
        ensure!(answer.refusal.is_none() && answer.was_there, "{answer:?}");
        Ok(())
    }

    async fn log(&self, name: &str, words: &str) -> Result<String> {
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let request = LogsRequest { run_id: Self::run(name), options: Some(options) };
        let mut chunks = self.agent.logs(request).await?;
        let mut text = String::new();
        while !text.contains(words) {
            let chunk = chunks.next().await.with_context(|| format!("the log ended with {text:?}"))?;
            text.push_str(&String::from_utf8_lossy(&chunk?.content));
        }
        Ok(text)
    }

    async fn exec(&self, name: &str, words: &[&str]) -> Result<String> {
        let command = ["/probe", "inside"].iter().chain(words).map(|word| (*word).to_owned()).collect();
        let start = ExecStart { command, ..ExecStart::default() };
        let first = ExecRequest { run_id: Self::run(name), start: Some(start), ..ExecRequest::default() };
        let input = stream::iter([first]).chain(stream::pending()).boxed();
        let mut answers = self.agent.exec(input).await?;
        let mut text = String::new();
        while let Some(answer) = answers.next().await {
            match answer?.output {
                Some(Output::Stdout(bytes)) => text.push_str(&String::from_utf8_lossy(&bytes)),
                Some(Output::Exit(_)) | None => break,
                Some(Output::Stderr(bytes)) => bail!("{}", String::from_utf8_lossy(&bytes)),
            }
        }
        Ok(text)
    }

    async fn pause(&self, name: &str, paused: bool) -> Result<()> {
        let request = PauseRequest {
            fence: Some(self.fence.clone()),
            run_id: Self::run(name),
            paused: Some(paused),
            ..PauseRequest::default()
        };
        let refusal = self.agent.pause(request).await?.refusal;
        ensure!(refusal.is_none(), "{refusal:?}");
        Ok(())
    }
}

fn order(words: &[&str]) -> SandboxSpec {
    let command = ["/probe", "inside"].iter().chain(words).map(|word| (*word).to_owned()).collect();
    SandboxSpec { image: IMAGE.into(), command, ..SandboxSpec::default() }
}

async fn labels(node: &Node) -> Result<BTreeMap<String, String>> {
    let found = node.containerd.inventory().labelled("fast-sandbox.io/agent-uid", Some(UID)).await?;
    Ok(found.into_iter().next().context("there is no container")?.labels)
}

pub(crate) async fn an_agent_runs_sandboxes_by_it(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let controller = Controller::new(&node).await?;
    let file = File { path: "/etc/secret".into(), content: b"of the order".to_vec(), ..File::default() };
    let spec = SandboxSpec {
        read_only_root: true,
        files: vec![file],
        envs: [("A".to_owned(), "b".to_owned())].into(),
        resources: Some(Resources { memory: "64Mi".into(), cpu: "500m".into(), ..Resources::default() }),
        ..order(&["count"])
    };
    controller.start("one", spec).await?.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
    controller.log("one", "3\n").await?;
    let said = labels(&node).await?;
    let expected = [
        ("managed", "true"),
        ("agent-uid", UID),
        ("agent-name", "pool-agent"),
        ("namespace", "default"),
        ("id", &Controller::run("one")),
        ("sandbox-name", "one"),
    ];
    for (label, value) in expected {
        let found = said.get(&format!("fast-sandbox.io/{label}")).map(String::as_str);
        ensure!(found == Some(value), "{label}: {found:?}");
    }
    // Its object was made after it was started.
    let confirmed = vec![Confirmed { run_id: Controller::run("one"), uid: "s-1".into() }];
    controller.agent.sync(SyncRequest { confirmed, ..controller.sync() }).await?;
    ensure!(!said.contains_key(CLAIM_UID), "{said:?}");
    while labels(&node).await?.get(CLAIM_UID).map(String::as_str) != Some("s-1") {
        tokio::task::yield_now().await;
    }
    // The image's user is looked up in the image; the order's files are there.
    let status = controller.exec("one", &["status"]).await?;
    ensure!(status.contains("Uid: 33 33 33 33\n") && status.contains("hostname one\n"), "{status}");
    ensure!(controller.exec("one", &["read", "/etc/secret"]).await? == "of the order");
    ensure!(controller.exec("one", &["write", "/etc/given", "x"]).await?.starts_with("Read-only"));
    let usage = controller.agent.stats(StatsRequest { run_id: Controller::run("one") }).await?.runs;
    ensure!(usage.len() == 1 && usage[0].memory_bytes > 0 && usage[0].processes > 0, "{usage:?}");
    controller.pause("one", true).await?;
    ensure!(controller.exec("one", &["exit", "0"]).await.is_err(), "it stands still");
    controller.pause("one", false).await?;
    controller.stop("one").await?;
    for (name, image) in [("none", "none:1"), ("machine", "host")] {
        let refused = controller.start(name, SandboxSpec { image: image.into(), ..order(&[]) }).await?;
        ensure!(
            refused.as_ref().is_err_and(|refusal| refusal.reason() == Reason::Image),
            "{image}: {refused:?}"
        );
    }
    // What it is not told to stop, it stops when it ends.
    controller.start("three", order(&["wait"])).await?.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
    controller.agent.shutdown().await;
    node.stop().await;
    Ok(())
}
