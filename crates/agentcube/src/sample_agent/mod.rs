//! `agentcube sample-agent`: a small agent over HTTP for the examples and the demonstration, and a client to talk to it.

mod agent;
mod ask;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::exit::Outcome;
use agent::Agent;

/// Names the session that a request belongs to.
const SESSION_HEADER: &str = "x-session-id";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Where it listens
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// How long each word of a streamed answer takes, in milliseconds
    #[arg(long, default_value_t = 30, value_name = "MILLISECONDS")]
    word_delay: u64,
    /// Say this to the agent that listens on this machine, and print its answer
    #[arg(long, value_name = "MESSAGE")]
    ask: Option<String>,
    /// In which session
    #[arg(long, default_value = "default", requires = "ask")]
    session: String,
    /// Have the answer word by word
    #[arg(long, requires = "ask")]
    stream: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    if let Some(message) = arguments.ask {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
        return ask::run(address, &arguments.session, message, arguments.stream).await;
    }
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, arguments.port));
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let mut terminate = signal(SignalKind::terminate())?;
    crate::output::write(format!("listening on {}\n", listener.local_addr()?).as_bytes())?;
    let instance = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let agent = Agent::new(instance, Duration::from_millis(arguments.word_delay));
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        stop.send_replace(true);
    });
    agent::serve(listener, agent, stopped).await;
    Ok(Outcome::Done)
}
