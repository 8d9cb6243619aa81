//! Measures how long a sandbox takes from being asked for to answering, on `agentcube up`: by the fast path, prepared
//! and not, by an object that is watched, and for the first request of a new session of a Task; against `runc run`, `crun run` and `ctr run`,
//! and the floor, the program as a plain process:
//! `bench-fastpath AGENTCUBE_PROGRAM [--json] [--enforce] [--only=NAME]`. All run the same program, `bench-program` beside
//! this one. A sandbox answers when its port has taken a connection; a container of the others, when it has answered
//! over HTTP.

mod containerd;
mod pool;
mod report;
mod session;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agentcube_protos::session::Timings;
use agentcube_testkit::HttpClient;
use agentcube_testkit::cluster::up::Place;
use agentcube_testkit::containers::bundle::{self, RootFs};
use agentcube_testkit::containers::oci::{self, Oci};
use agentcube_testkit::containers::plain::Plain;
use agentcube_testkit::containers::times;
use agentcube_testkit::suite::Options;
use agentcube_testkit::watch::{self, Objects};
use anyhow::{Context, Result};
use futures_util::future::try_join_all;

use containerd::Containerd;
use pool::{Pool, Way};
use session::Sessions;

/// One at a time, each when the one before has answered: so many in a row, and so many rows.
const IN_A_ROW: usize = 5;
const ROWS: usize = 12;
const AT_ONCE: usize = 50;
const BATCHES: usize = 5;
/// After which a machine on which nothing is left to be cleared away is quiet.
const REST: Duration = Duration::from_millis(300);
/// The runtimes of the machine that agents may use.
const OTHER_RUNTIMES: [&str; 3] = ["runc", "crun", "runsc"];

/// How long one took.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) answering: Duration,
    /// By stage, where there are stages.
    pub(crate) stages: Option<Timings>,
}

/// What was measured of one way.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) one: Vec<Sample>,
    /// Those of them that were the first after a rest.
    pub(crate) first: Vec<Sample>,
    pub(crate) many: Vec<Sample>,
}

enum Peer {
    Pool(Pool),
    Sessions(Sessions),
    Plain(Plain),
    Oci(Oci),
    Containerd(Containerd),
}

impl Peer {
    fn name(&self) -> String {
        match self {
            Peer::Pool(pool) => pool.name.clone(),
            Peer::Sessions(sessions) => sessions.name.clone(),
            Peer::Plain(_) => report::FLOOR.to_owned(),
            Peer::Oci(oci) => oci.name.clone(),
            Peer::Containerd(_) => report::CTR.to_owned(),
        }
    }

    /// Its pool, if it has one, and how many are to wait there.
    fn pool(&self) -> Option<(&str, usize)> {
        match self {
            Peer::Pool(pool) => Some((&pool.object, pool.prepared)),
            Peer::Sessions(sessions) => Some((&sessions.pool, sessions.prepared)),
            Peer::Plain(_) | Peer::Oci(_) | Peer::Containerd(_) => None,
        }
    }

    fn is_prepared(&self) -> bool {
        self.pool().is_some_and(|(_, prepared)| prepared > 0)
    }

    /// So many at once; those that have answered stay until all have.
    async fn run(&self, first: usize, count: usize) -> Result<Vec<Sample>> {
        let numbers = first..first + count;
        let samples = match self {
            Peer::Pool(pool) => pool.run(count).await,
            Peer::Sessions(sessions) => sessions.run(count).await,
            Peer::Plain(plain) => processes(numbers.map(|number| plain.start(number))).await,
            Peer::Oci(oci) => processes(numbers.map(|number| oci.start(number))).await,
            Peer::Containerd(ctr) => processes(numbers.map(|number| ctr.start_one(number))).await,
        };
        samples.with_context(|| self.name())
    }
}

/// Nobody pays for what another has left: programs that do not listen to their signal go a second later.
async fn all_rested(http: &HttpClient, peers: &[Peer]) -> Result<()> {
    let sandboxes = format!("{}/sandboxes", pool::GROUP);
    watch::until(http, &sandboxes, "nothing is left", pool::LIMIT, Objects::is_empty).await?;
    for (pool, prepared) in peers.iter().filter_map(Peer::pool) {
        pool::rested(http, pool, prepared).await?;
    }
    tokio::time::sleep(REST).await;
    Ok(())
}

async fn processes(
    starts: impl Iterator<Item = impl Future<Output = Result<(times::Times, oci::Alive)>>>,
) -> Result<Vec<Sample>> {
    let started = try_join_all(starts).await?;
    let (times, alive): (Vec<times::Times>, Vec<oci::Alive>) = started.into_iter().unzip();
    try_join_all(alive.into_iter().map(oci::Alive::end)).await?;
    Ok(times.iter().map(|times| Sample { answering: times.answering, stages: None }).collect())
}

fn main() -> ExitCode {
    let options = Options::from_environment();
    let flag = |name: &str| std::env::args().any(|arg| arg == name);
    let only = std::env::args().find_map(|arg| Some(arg.strip_prefix("--only=")?.to_owned()));
    // One thread: what is measured has the others.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let measured =
        runtime.context("no runtime").and_then(|it| it.block_on(measure(&options, only.as_deref())));
    match measured {
        Ok((measured, skipped)) => report::print(&measured, &skipped, flag("--json"), flag("--enforce")),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options, only: Option<&str>) -> Result<(Vec<Measured>, Vec<String>)> {
    let program = PathBuf::from(options.filter.as_ref().context("name the agentcube program")?);
    let root = RootFs::make()?;
    let archive = agentcube_testkit::image::archive(
        pool::IMAGE,
        &bundle::program()?,
        bundle::PROGRAM,
        &root.beside("archive")?,
    )?;
    let place = Place::new(&program)?;
    let runtimes = options.cache.join(oci::CACHED).display().to_string();
    let up = place.start_with(&["--oci-runtime-dir".to_owned(), runtimes]).await?;
    pool::import(&place, &archive)?;
    let mut skipped = Vec::new();
    let measures = |name: &str| only.is_none_or(|only| name == only);
    let mut peers = pools(&up.http, measures, &mut skipped).await?;
    for (name, prepared) in [(report::SESSION, 0), (report::SESSION_PREPARED, AT_ONCE)] {
        if measures(name) {
            peers.push(Peer::Sessions(Sessions::make(&up.http, &place, name, prepared).await?));
        }
    }
    peers.push(Peer::Plain(Plain::new(&root)?));
    peers.extend(others(&root, &archive, &mut skipped));
    peers.retain(|peer| measures(&peer.name()));
    // Last in each turn: what was claimed is made anew soon after.
    peers.sort_by_key(Peer::is_prepared);
    let measured = compare(&up.http, &peers).await?;
    drop(peers);
    up.down(&place)?;
    Ok((measured, skipped))
}

async fn pools(
    http: &HttpClient,
    measures: impl Fn(&str) -> bool,
    skipped: &mut Vec<String>,
) -> Result<Vec<Peer>> {
    let ways = [
        (report::FAST, "native", 0, Way::Fast),
        (report::PREPARED, "native", AT_ONCE, Way::Fast),
        (report::STRONG, "native", 0, Way::Strong),
        (report::OBJECT, "native", 0, Way::Object),
    ];
    let mut peers = Vec::new();
    for (name, runtime, prepared, way) in ways.into_iter().filter(|(name, ..)| measures(name)) {
        peers.push(Peer::Pool(Pool::make(http, name, runtime, prepared, way).await?));
    }
    for runtime in OTHER_RUNTIMES {
        let name = format!("fast path, {runtime}");
        if !measures(&name) {
            continue;
        }
        if let Err(error) = oci::on_the_path(runtime) {
            skipped.push(format!("{name}: {error:#}"));
            continue;
        }
        let pool = Pool::make(http, &name, runtime, 0, Way::Fast).await?;
        match pool.run(1).await {
            Ok(_) => peers.push(Peer::Pool(pool)),
            Err(error) => {
                skipped.push(format!("{name}: {error:#}"));
                pool.give_up().await?;
            }
        }
    }
    Ok(peers)
}

fn others(root: &RootFs, archive: &Path, skipped: &mut Vec<String>) -> Vec<Peer> {
    let mut peers = Vec::new();
    for name in OTHER_RUNTIMES {
        match Oci::find(name, root) {
            Ok(oci) => peers.push(Peer::Oci(oci)),
            Err(error) => skipped.push(format!("{name} run: {error:#}")),
        }
    }
    match Containerd::start(root, archive) {
        Ok(containerd) => peers.push(Peer::Containerd(containerd)),
        Err(error) => skipped.push(format!("{}: {error:#}", report::CTR)),
    }
    peers
}

/// Takes turns, so that whatever else the machine does meets all of them alike.
async fn compare(http: &HttpClient, peers: &[Peer]) -> Result<Vec<Measured>> {
    let empty =
        |peer: &Peer| Measured { name: peer.name(), one: Vec::new(), first: Vec::new(), many: Vec::new() };
    let mut measured: Vec<Measured> = peers.iter().map(empty).collect();
    eprintln!("one at a time");
    for row in 0..ROWS {
        for (peer, measured) in peers.iter().zip(&mut measured) {
            // A row is over before the first of it are killed.
            all_rested(http, peers).await?;
            for place in 0..IN_A_ROW {
                let samples = peer.run(row * IN_A_ROW + place, 1).await?;
                measured.first.extend(samples.iter().filter(|_| place == 0));
                measured.one.extend(samples);
            }
        }
    }
    eprintln!("{AT_ONCE} at once");
    for batch in 0..BATCHES {
        for (peer, measured) in peers.iter().zip(&mut measured) {
            all_rested(http, peers).await?;
            measured.many.extend(peer.run(ROWS * IN_A_ROW + batch * AT_ONCE, AT_ONCE).await?);
        }
    }
    Ok(measured)
}
