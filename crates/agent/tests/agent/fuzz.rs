//! Whatever is said to an agent: it answers, nothing panics, and what it says of itself stays true.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agentcube_protos::agent::{
    Claim, ConfigureRequest, Confirmed, ExecRequest, Fence, LogsRequest, PauseRequest, SandboxSpec, Shape,
    StartRequest, StatsRequest, StopRequest, SyncRequest,
};
use agentcube_protos::link::AgentApi;
use agentcube_protos::session::{ExecInput, ExecStart, File, LogOptions, Resources, exec_input};
use anyhow::{Result, ensure};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::world::{CAPACITY, World, command};

const ROUNDS: usize = 40;
const AT_ONCE: usize = 16;

/// Makes up words, most of which are nearly right.
struct Words<'a> {
    runner: TestRunner,
    world: &'a World,
}

impl Words<'_> {
    fn any<S: Strategy>(&mut self, strategy: S) -> S::Value {
        strategy.new_tree(&mut self.runner).expect("a value").current()
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.any(0_u32..100) < percent
    }

    fn text(&mut self) -> String {
        let odd =
            prop_oneof![Just(String::new()), Just("../..".into()), Just("a\0b".into()), any::<String>()];
        self.any(odd)
    }

    fn fence(&mut self) -> Option<Fence> {
        match self.any(0_u32..20) {
            0 => None,
            1 => Some(Fence { term: 0, ..self.world.fence.clone() }),
            2 => Some(Fence { incarnation: self.text(), ..self.world.fence.clone() }),
            3 => Some(Fence { agent_uid: self.text(), ..self.world.fence.clone() }),
            _ => Some(self.world.fence.clone()),
        }
    }

    fn run(&mut self) -> String {
        let number = self.any(0_u32..24);
        if self.chance(5) { self.text() } else { self.world.run(&format!("fuzz-{number}")) }
    }

    fn claim(&mut self) -> Option<Claim> {
        let name = format!("fuzz-{}", self.any(0_u32..24));
        let mut claim = self.world.claim(&name);
        if self.chance(10) {
            (claim.uid, claim.namespace) = (self.text(), self.text());
        }
        (!self.chance(5)).then_some(claim)
    }

    fn spec(&mut self) -> SandboxSpec {
        let words: &[&str] = if self.chance(50) { &["exit", "1"] } else { &["forever"] };
        let mut spec =
            SandboxSpec { image: "host".into(), command: command(words), ..SandboxSpec::default() };
        if self.chance(30) {
            spec.image = if self.chance(50) { "host".into() } else { self.text() };
            spec.args = vec![self.text()];
            spec.envs = BTreeMap::from([(self.text(), self.text())]);
            spec.working_dir = self.text();
            spec.ports = self.any(proptest::collection::vec(any::<u32>(), 0..3));
            spec.run_as_user = self.any(any::<Option<u32>>());
            spec.egress = self.any(any::<i32>());
            spec.read_only_root = self.any(any::<bool>());
            let (cpu, memory, disk) = (self.text(), self.text(), self.text());
            spec.resources = Some(Resources { cpu, memory, disk });
            let (path, mode) = (self.text(), self.any(any::<u32>()));
            spec.files = vec![File { path, mode, ..File::default() }];
        }
        spec
    }

    fn start(&mut self) -> StartRequest {
        StartRequest {
            fence: self.fence(),
            run_id: self.run(),
            claim: self.claim(),
            spec: (!self.chance(3)).then(|| self.spec()),
            expire_unix_ms: if self.chance(10) { self.any(any::<i64>()) } else { 0 },
            recovery_timeout_seconds: self.any(any::<u32>()),
            wait_ready_ms: self.any(0_u32..20),
            object: self.any(proptest::collection::vec(any::<u8>(), 0..20)),
        }
    }

    fn stop(&mut self) -> StopRequest {
        let (fence, run_id, claim) = (self.fence(), self.run(), self.claim().filter(|_| false));
        let claim = if self.chance(50) { self.claim() } else { claim };
        StopRequest { fence, run_id, claim, grace_seconds: self.any(0_u32..2), why: self.any(any::<i32>()) }
    }

    fn sync(&mut self) -> SyncRequest {
        SyncRequest {
            fence: self.fence(),
            ack: self.any(any::<u64>()),
            known_version: self.any(prop_oneof![0_u64..200, any::<u64>()]),
            wait_ms: self.any(0_u32..20),
            confirmed: vec![Confirmed { run_id: self.run(), uid: self.text() }],
        }
    }

    fn pause(&mut self) -> PauseRequest {
        PauseRequest {
            fence: self.fence(),
            run_id: self.run(),
            paused: self.any(any::<Option<bool>>()),
            fenced: self.any(any::<Option<bool>>()),
            expire_unix_ms: if self.chance(5) { self.any(any::<Option<i64>>()) } else { None },
            recovery_timeout_seconds: self.any(any::<Option<u32>>()),
        }
    }

    fn configure(&mut self) -> ConfigureRequest {
        let shape = Shape { image: self.text(), count: self.any(any::<u32>()), ..Shape::default() };
        ConfigureRequest {
            fence: self.fence(),
            capacity: CAPACITY,
            images: vec![self.text()],
            prepared: vec![shape],
            drain: false,
        }
    }

    fn logs(&mut self) -> LogsRequest {
        let options = LogOptions {
            follow: self.any(any::<bool>()),
            tail: self.any(any::<Option<u32>>()),
            since_unix_ms: self.any(any::<i64>()),
            timestamps: self.any(any::<bool>()),
            limit_bytes: self.any(any::<u64>()),
        };
        LogsRequest { run_id: self.run(), options: (!self.chance(10)).then_some(options) }
    }

    fn exec(&mut self) -> Vec<ExecRequest> {
        let start = ExecStart {
            command: if self.chance(50) { command(&["copy"]) } else { vec![self.text()] },
            stdin: self.any(any::<bool>()),
            tty: self.any(any::<bool>()),
            columns: self.any(any::<u32>()),
            rows: self.any(any::<u32>()),
            envs: if self.chance(20) { vec![self.text()] } else { Vec::new() },
            working_dir: if self.chance(20) { self.text() } else { String::new() },
        };
        let start = (!self.chance(10)).then_some(start);
        let first = ExecRequest { run_id: self.run(), start: start.clone(), input: None };
        let input = Some(exec_input::Input::Stdin(self.text().into_bytes()));
        let more = ExecRequest { run_id: self.run(), start, input: Some(ExecInput { input }) };
        if self.chance(5) { Vec::new() } else { vec![first, more] }
    }
}

/// One call of any kind; only that it is answered matters.
async fn call(world: &World, words: &mut Words<'_>) -> Box<dyn Future<Output = ()> + Send + Unpin> {
    let agent = world.agent.clone();
    match words.any(0_u32..12) {
        0..=3 => {
            let request = words.start();
            Box::new(Box::pin(async move { drop(agent.start(request).await) }))
        }
        4..=5 => {
            let request = words.stop();
            Box::new(Box::pin(async move { drop(agent.stop(request).await) }))
        }
        6 => {
            let request = words.sync();
            Box::new(Box::pin(async move { drop(agent.sync(request).await) }))
        }
        7 => {
            let request = words.pause();
            Box::new(Box::pin(async move { drop(agent.pause(request).await) }))
        }
        8 => {
            let request = words.configure();
            Box::new(Box::pin(async move { drop(agent.configure(request).await) }))
        }
        9 => {
            let request = StatsRequest { run_id: if words.chance(50) { String::new() } else { words.run() } };
            Box::new(Box::pin(async move { drop(agent.stats(request).await) }))
        }
        10 => {
            let request = words.logs();
            Box::new(Box::pin(async move {
                if let Ok(mut chunks) = agent.logs(request).await {
                    drop(tokio::time::timeout(Duration::from_millis(5), chunks.next()).await);
                }
            }))
        }
        _ => {
            let requests = words.exec();
            Box::new(Box::pin(async move {
                if let Ok(mut outputs) = agent.exec(stream::iter(requests).boxed()).await {
                    drop(tokio::time::timeout(Duration::from_millis(5), outputs.next()).await);
                }
            }))
        }
    }
}

pub(crate) async fn any_words(world: &World) -> Result<()> {
    let panics = Arc::new(AtomicUsize::new(0));
    let before = std::panic::take_hook();
    let counted = panics.clone();
    std::panic::set_hook(Box::new(move |panic| {
        counted.fetch_add(1, Ordering::Relaxed);
        eprintln!("{panic}");
    }));
    let mut words = Words { runner: TestRunner::deterministic(), world };
    let mut hung = 0;
    for _ in 0..ROUNDS {
        let mut calls = Vec::new();
        for _ in 0..AT_ONCE {
            calls.push(call(world, &mut words).await);
        }
        let calls = calls.into_iter().map(|call| tokio::time::timeout(Duration::from_secs(60), call));
        hung += join_all(calls).await.iter().filter(|ended| ended.is_err()).count();
    }
    std::panic::set_hook(before);
    ensure!(hung == 0, "{hung} calls were never answered");
    ensure!(panics.load(Ordering::Relaxed) == 0, "something panicked");
    let told = world.sync(0).await?;
    ensure!(told.used <= CAPACITY && told.entries.len() <= 24, "{told:?}");
    Ok(())
}
