//! Measures how long a container takes from being asked for to running and to answering, ours against `runc run` and
//! `crun run`: `bench-runtime [--json] [--enforce]`. All run the same program, this one, in the same root file system.

mod bundle;
mod native;
mod oci;
mod program;
mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use agentcube_runtime::spawner;
use anyhow::{Context, Result};
use futures_util::future::try_join_all;

use bundle::RootFs;
use native::Native;
use oci::Oci;

const ONE_AT_A_TIME: usize = 120;
const AT_ONCE: usize = 50;
const BATCHES: usize = 5;
/// In which a spawner makes sandboxes ready again, as between the Pods of a node that is not busy.
const REST: Duration = Duration::from_millis(300);

/// The times of one container.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// From asking for it to its program's first output.
    pub(crate) running: Duration,
    /// From asking for it to the end of its first HTTP answer.
    pub(crate) answering: Duration,
}

/// What was measured of one runtime.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) one: Vec<Times>,
    pub(crate) many: Vec<Times>,
}

enum Peer {
    Native(Native),
    Oci(Oci),
}

impl Peer {
    fn name(&self) -> &str {
        match self {
            Peer::Native(native) => native.name,
            Peer::Oci(oci) => &oci.name,
        }
    }

    /// One container, from nothing to its end.
    async fn run(&self, number: usize) -> Result<Times> {
        match self {
            Peer::Native(native) => native.run(number).await,
            Peer::Oci(oci) => oci.run(number).await,
        }
    }
}

/// Synchronous on purpose: spawners are started while there is one thread.
fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("__spawner") => return spawner::main(),
        Some("serve") => return program::serve(&args.next().unwrap_or_default()),
        _ => {}
    }
    let flag = |name: &str| std::env::args().any(|arg| arg == name);
    match measure() {
        Ok((measured, skipped)) => report::print(&measured, &skipped, flag("--json"), flag("--enforce")),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(Vec<Measured>, Vec<String>)> {
    let root = RootFs::make()?;
    let mut peers = vec![
        Peer::Native(Native::start(report::NATIVE, 0, &root)?),
        Peer::Native(Native::start(report::POOLED, AT_ONCE, &root)?),
    ];
    let mut skipped = Vec::new();
    for name in ["runc", "crun"] {
        match Oci::find(name, &root) {
            Ok(oci) => peers.push(Peer::Oci(oci)),
            Err(error) => skipped.push(format!("{name}: {error:#}")),
        }
    }
    let runtime = tokio::runtime::Runtime::new().context("threads can be started")?;
    Ok((runtime.block_on(compare(peers))?, skipped))
}

/// Takes turns, so that whatever else the machine does meets all of them alike.
async fn compare(mut peers: Vec<Peer>) -> Result<Vec<Measured>> {
    for peer in &mut peers {
        if let Peer::Native(native) = peer {
            native.connect()?;
        }
    }
    let mut measured: Vec<Measured> = peers
        .iter()
        .map(|peer| Measured { name: peer.name().to_owned(), one: Vec::new(), many: Vec::new() })
        .collect();
    tokio::time::sleep(REST).await;
    for number in 0..ONE_AT_A_TIME {
        for (peer, measured) in peers.iter().zip(&mut measured) {
            measured.one.push(peer.run(number).await.with_context(|| peer.name().to_owned())?);
        }
    }
    for batch in 0..BATCHES {
        for (peer, measured) in peers.iter().zip(&mut measured) {
            tokio::time::sleep(REST).await;
            let first = ONE_AT_A_TIME + batch * AT_ONCE;
            let all = (first..first + AT_ONCE).map(|number| peer.run(number));
            measured.many.extend(try_join_all(all).await.with_context(|| peer.name().to_owned())?);
        }
    }
    Ok(measured)
}

/// Waits for the program's two words, then asks; `connect` is the way to it.
pub(crate) async fn time<S>(
    begun: Instant,
    output: &mut tokio::net::unix::pipe::Receiver,
    connect: impl Future<Output = Result<S>>,
) -> Result<Times>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let word = output.read_u8().await.context("the program did not run")?;
    anyhow::ensure!(word == program::RUNNING, "the program says {word}");
    let running = begun.elapsed();
    let word = output.read_u8().await.context("the program does not listen")?;
    anyhow::ensure!(word == program::LISTENING, "the program says {word}");
    let mut stream = connect.await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: bench\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    anyhow::ensure!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "the program answers {answer:?}");
    Ok(Times { running, answering: begun.elapsed() })
}
