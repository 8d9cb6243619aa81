//! Measures how long a container takes from being asked for to running and to answering, ours against `runc run` and
//! `crun run`: `bench-runtime [--json] [--enforce] [--only=NAME]`. All run the same program, `bench-program` beside this
//! one, in the same root file system; the floor is the program without a container.

mod native;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use agentcube_runtime::spawner;
use agentcube_testkit::containers::bundle::RootFs;
use agentcube_testkit::containers::oci::{self, Oci};
use agentcube_testkit::containers::plain::Plain;
use agentcube_testkit::containers::times::Times;
use anyhow::{Context, Result};
use futures_util::future::try_join_all;

use native::Native;

const ONE_AT_A_TIME: usize = 120;
const AT_ONCE: usize = 50;
const BATCHES: usize = 5;
/// In which a spawner makes sandboxes ready again, as between the Pods of a node that is not busy.
const REST: Duration = Duration::from_millis(300);

/// What was measured of one runtime.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) one: Vec<Times>,
    pub(crate) many: Vec<Times>,
}

enum Peer {
    Plain(Plain),
    Native(Native),
    Oci(Oci),
}

/// A container that has answered, and is to end.
enum Alive {
    Process(oci::Alive),
    Native(native::Alive),
}

impl Peer {
    fn name(&self) -> &str {
        match self {
            Peer::Plain(_) => report::FLOOR,
            Peer::Native(native) => native.name,
            Peer::Oci(oci) => &oci.name,
        }
    }

    /// One container, from nothing to its first answer.
    async fn start(&self, number: usize) -> Result<(Times, Alive)> {
        let started = match self {
            Peer::Plain(plain) => plain.start(number).await.map(|(times, it)| (times, Alive::Process(it))),
            Peer::Native(native) => {
                native.start_container(number).await.map(|(times, it)| (times, Alive::Native(it)))
            }
            Peer::Oci(oci) => oci.start(number).await.map(|(times, it)| (times, Alive::Process(it))),
        };
        started.with_context(|| self.name().to_owned())
    }

    /// Some at once; those that have answered stay until all have.
    async fn run(&self, numbers: std::ops::Range<usize>) -> Result<Vec<Times>> {
        if let Peer::Native(native) = self {
            try_join_all(numbers.clone().map(|number| native.make_ready(number))).await?;
        }
        let started = try_join_all(numbers.map(|number| self.start(number))).await?;
        let (times, alive): (Vec<Times>, Vec<Alive>) = started.into_iter().unzip();
        try_join_all(alive.into_iter().map(Alive::end)).await?;
        Ok(times)
    }
}

impl Alive {
    async fn end(self) -> Result<()> {
        match self {
            Alive::Process(process) => process.end().await,
            Alive::Native(native) => native.end().await,
        }
    }
}

/// Synchronous on purpose: spawners are started while there is one thread.
fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("__spawner") {
        return spawner::main();
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
    let only = std::env::args().find_map(|arg| Some(arg.strip_prefix("--only=")?.to_owned()));
    // A spawner that is started has to be stopped in order, or its cgroups stay.
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    let mut peers = Vec::new();
    if wanted(report::FLOOR) {
        peers.push(Peer::Plain(Plain::new(&root)?));
    }
    let natives = [(report::NATIVE, 0, false), (report::POOLED, AT_ONCE, false), (report::PREPARED, 0, true)];
    for (name, spare, prepare) in natives {
        if wanted(name) {
            peers.push(Peer::Native(Native::start(name, spare, prepare, &root)?));
        }
    }
    let mut skipped = Vec::new();
    for name in ["runc", "crun"] {
        match Oci::find(name, &root) {
            Ok(oci) if wanted(&oci.name) => peers.push(Peer::Oci(oci)),
            Ok(_) => {}
            Err(error) => skipped.push(format!("{name}: {error:#}")),
        }
    }
    // One thread: what is measured has the others.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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
            measured.one.extend(peer.run(number..number + 1).await?);
        }
    }
    for batch in 0..BATCHES {
        for (peer, measured) in peers.iter().zip(&mut measured) {
            tokio::time::sleep(REST).await;
            let first = ONE_AT_A_TIME + batch * AT_ONCE;
            measured.many.extend(peer.run(first..first + AT_ONCE).await?);
        }
    }
    for peer in peers {
        if let Peer::Native(native) = peer {
            native.stop().await;
        }
    }
    Ok(measured)
}
