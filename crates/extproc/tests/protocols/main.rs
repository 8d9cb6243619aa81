//! The official clients and servers of MCP and A2A through a real Envoy, which asks two routers over one API server.

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../../router/tests/protocols/conversations.rs"]
mod conversations;
// Other tests use more of these.
#[allow(dead_code)]
#[path = "../router/envoy.rs"]
mod envoy;
#[allow(dead_code)]
#[path = "../../../router/tests/gateway/replicas.rs"]
mod replicas;
#[allow(dead_code)]
#[path = "../../../router/tests/gateway/world.rs"]
mod world;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agentcube_extproc::{Front as Processor, Options};
use serde_json::Value;
use tokio::net::TcpListener;

use conversations::Front;
use envoy::{Envoy, Logs, Plan, Program};
use replicas::{Runs, World};

struct BehindEnvoy {
    world: World,
    envoy: Option<Envoy>,
}

impl Front for BehindEnvoy {
    async fn start(make: impl Fn(&str, SocketAddr) -> Runs + Send + Sync + 'static) -> Self {
        BehindEnvoy { world: World::bare(make).await, envoy: None }
    }

    async fn serve(&mut self, name: &'static str, routing: Value, most: u32) -> SocketAddr {
        self.world.task(name, routing, most).await;
        // A router serves when it has read all Tasks.
        let mut routers = Vec::new();
        for n in 0..2 {
            routers.push(router(&self.world, n).await);
        }
        let program = Program::find(&conversations::cache()).unwrap();
        let plan = Plan { routers: &routers, tasks: &[name], logs: Logs::Each, tls: None, asks: None };
        let envoy = Envoy::start(&program, plan).await.unwrap();
        self.envoy.insert(envoy).address
    }

    fn started(&self) -> usize {
        self.world.started()
    }
}

async fn router(world: &World, n: usize) -> SocketAddr {
    let reserver = replicas::reserver(&world.client, n, world.keys.clone());
    // For the length of a lease it is not sure that nothing is on its way, and has no instance used again.
    let options = Options { lease: Duration::from_secs(4), ..Options::default() };
    let front = Processor::new(world.client.clone(), Arc::new(reserver.clone()), options);
    replicas::run_reserver(&reserver, &world.stop).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the world of its test.
    tokio::spawn(world.stop.clone().run_until_cancelled_owned(async move {
        let _holds = front.run(listener, tokio_util::sync::CancellationToken::new()).await;
    }));
    address
}

#[test]
fn envoy_is_here_where_nothing_may_be_skipped() {
    if Program::find(&conversations::cache()).is_err() {
        conversations::missing("Envoy");
    }
}

conversations::through!(BehindEnvoy);
