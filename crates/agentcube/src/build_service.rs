//! `agentcube build-service`: builds the pages of front ends beside a cluster. `up` has its own, by the same code.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_forge::service::{self, Limits, Options, Service};
use agentcube_forge::token::{Key, SHORTEST_KEY};
use agentcube_operator::metrics::Registry;
use agentcube_router::observe::admin::Ready;
use anyhow::Context;
use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::exit::Outcome;
use crate::router::{say, shutdown};
use crate::up::cluster::this_program;
use crate::{admin, memory};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube build-service --key-file ./key --dir ./builds
  agentcube build-service --listen 0.0.0.0:8080 --key-file /etc/agentcube/key/token --dir /builds   # in a Pod
  agentcube build-service --key-file ./key --dir ./builds --bundler ./esbuild

Every request shows a token, which the controllers make with the same key. Pages are bundled by esbuild, which is looked for on
the PATH, in a process without network. More: docs/frontends.md.")]
pub(crate) struct Arguments {
    /// Where to listen
    #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 8092)))]
    listen: SocketAddr,
    /// The file with the key of runners' tokens, 16 characters or more
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// The directory that results are kept in
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The bundler, esbuild [default: that of the PATH]
    #[arg(long, value_name = "FILE")]
    bundler: Option<PathBuf>,
    /// Builds at once
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// Builds that may wait; beyond that, clients are told to come again
    #[arg(long, value_name = "NUMBER", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    waiting: u16,
    /// How long a build may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    build_seconds: u64,
    /// Memory that a build may take, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(128..=65536))]
    build_memory: u64,
    /// Results to keep, in MiB; the oldest go first
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(8..))]
    keep: u64,
    #[command(flatten)]
    admin: admin::Arguments,
}

/// Runs until it is told to stop.
pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let path = &arguments.key_file;
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let short = || format!("{} has to hold a key of {SHORTEST_KEY} characters or more", path.display());
    let key = Key::new(&text).with_context(short)?;
    let limits = Limits {
        workers: arguments.workers.into(),
        waiting: arguments.waiting.into(),
        build: Duration::from_secs(arguments.build_seconds),
        memory: arguments.build_memory << 20,
        kept: arguments.keep << 20,
    };
    let options = Options {
        directory: std::path::absolute(&arguments.dir)?,
        bundler: arguments.bundler.clone(),
        path: std::env::split_paths(&environment.path).collect(),
        confiner: this_program()?,
        key,
        limits,
    };
    if service::find_bundler(options.bundler.as_deref(), &options.path).is_none() {
        crate::exit::say(&format!("warning: there is no bundler: {}", service::HOW_TO_GET));
    }
    let (metrics, stop, shutdown) = (Registry::new(), CancellationToken::new(), shutdown()?);
    let directory = options.directory.clone();
    let service = Service::open(options, &metrics)
        .with_context(|| format!("cannot use the directory {}", directory.display()))?;
    if let Some(admin) = arguments.admin.bind(None).await? {
        let stopping = shutdown.clone();
        let ready: Ready = Arc::new(move || match stopping.is_cancelled() {
            true => Err("it is stopping".into()),
            false => Ok(()),
        });
        admin.serve(metrics.clone(), admin::no_sessions(), ready, stop.clone())?;
    }
    let listener = TcpListener::bind(arguments.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    say(&format!("builds at http://{}", listener.local_addr()?));
    tokio::spawn(memory::give_back());
    service.run(listener, shutdown).await;
    stop.cancel();
    Ok(Outcome::Done)
}
