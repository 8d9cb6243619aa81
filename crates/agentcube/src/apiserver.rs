//! `agentcube apiserver`: the embedded API server as a process of its own.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use agentcube_apiserver::Server;
use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Outcome;
use crate::paths::write_private;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube apiserver --memory
  agentcube apiserver --data-dir ./data --kubeconfig ./kubeconfig
  kubectl --kubeconfig ./kubeconfig get namespaces")]
pub(crate) struct Arguments {
    /// Keep objects, certificates and the token in this directory
    #[arg(long, conflicts_with = "memory")]
    data_dir: Option<PathBuf>,
    /// Keep everything in memory; it is gone when the server stops
    #[arg(long)]
    memory: bool,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Write a kubeconfig to this file
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

/// Runs until interrupted.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let builder = Server::builder().listen(arguments.listen);
    let builder = match &arguments.data_dir {
        Some(path) => builder.data_dir(path),
        None => builder.memory(),
    };
    let handle = builder.start().await?;
    let kubeconfig = arguments.kubeconfig.or_else(|| arguments.data_dir.map(|path| path.join("kubeconfig")));
    if let Some(path) = &kubeconfig {
        write_private(path, handle.kubeconfig_yaml().as_bytes())
            .with_context(|| format!("cannot write the kubeconfig {}", path.display()))?;
    }
    println!("ready in {} ms at https://{}", began.elapsed().as_millis(), handle.addr());
    match &kubeconfig {
        Some(path) => println!("kubectl --kubeconfig {} get namespaces", path.display()),
        None => println!("no kubeconfig was written: add --kubeconfig FILE to connect"),
    }
    // A closed pipe on standard output is no reason to stop serving.
    let _closed = std::io::stdout().flush();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminate.recv() => {}
    }
    handle.shutdown().await;
    Ok(Outcome::Done)
}
