//! How long from asking for a container until its program is executed. Prints; asserts nothing about time.
//!
//! `cargo test -p agentcube-runtime --test speed -- --ignored --nocapture`

mod harness;

use std::time::{Duration, Instant};

use agentcube_runtime::{Runtime, SandboxId, Sandboxes, Stdio};
use harness::Node;

const RUNS: usize = 200;
const AT_ONCE: usize = 50;

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "{what}: least {:?}, p10 {:?}, p50 {:?}, p90 {:?}, p99 {:?}",
        at(0),
        at(10),
        at(50),
        at(90),
        at(99)
    );
}

async fn start(node: &Node, sandbox: &SandboxId, name: &str) -> (Duration, agentcube_runtime::Process) {
    let spec = node.spec(name, sandbox, &["exit", "0"]);
    let begin = Instant::now();
    let process = node.native.start(spec, Stdio::default()).await.unwrap();
    (begin.elapsed(), process)
}

#[tokio::test]
#[ignore = "measures"]
async fn one_at_a_time() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut times = Vec::new();
    for run in 0..RUNS {
        let (time, process) = start(&node, &sandbox, &format!("c{run}")).await;
        times.push(time);
        process.exit.await.unwrap();
        node.native.remove(&agentcube_runtime::ContainerId::new(format!("c{run}")).unwrap()).await.unwrap();
    }
    print("container, one at a time", times);
    let mut times = Vec::new();
    for run in 0..RUNS {
        let begin = Instant::now();
        let (id, _sockets) = node.sandbox(&format!("p{run}")).await;
        times.push(begin.elapsed());
        node.handle.remove(&id).await.unwrap();
        // Lets the spawner make the next one ready, as between the Pods of a node that is not busy.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    print("sandbox from the pool, one at a time", times);
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let begin = Instant::now();
        node.handle.socket(&sandbox, None).await.unwrap();
        times.push(begin.elapsed());
    }
    print("socket in a sandbox", times);
    node.handle.stop().await;
}

#[tokio::test]
#[ignore = "measures"]
async fn fifty_at_once() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let begin = Instant::now();
    let names: Vec<_> = (0..AT_ONCE).map(|number| format!("c{number}")).collect();
    let started = futures_util::future::join_all(names.iter().map(|name| start(&node, &sandbox, name))).await;
    let all = begin.elapsed();
    print("container, fifty at once", started.iter().map(|(time, _)| *time).collect());
    println!("all fifty: {all:?}");
    node.handle.stop().await;
}
