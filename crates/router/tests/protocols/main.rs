//! The official clients and servers of MCP and A2A through two gateways over one API server. Every request of a client
//! comes in by the other gateway than the one before.

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod conversations;
// The gateway's tests use more of it.
#[allow(dead_code)]
#[path = "../gateway/replicas.rs"]
mod replicas;
#[allow(dead_code)]
#[path = "../gateway/world.rs"]
mod world;

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

use conversations::Front;
use replicas::{Runs, World};

struct Gateways(World);

impl Front for Gateways {
    async fn start(make: impl Fn(&str, SocketAddr) -> Runs + Send + Sync + 'static) -> Self {
        Gateways(World::with(make).await)
    }

    async fn serve(&mut self, name: &'static str, routing: Value, most: u32) -> SocketAddr {
        self.0.task(name, routing, most).await;
        spread(&self.0).await
    }

    fn started(&self) -> usize {
        self.0.started()
    }
}

/// Spreads connections over both gateways, in turn.
async fn spread(world: &World) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let ports = world.ports.clone();
    tokio::spawn(async move {
        for port in ports.iter().cycle() {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut gateway = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await.unwrap();
            tokio::spawn(async move {
                // Either side may leave.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut gateway).await;
            });
        }
    });
    address
}

conversations::through!(Gateways);
