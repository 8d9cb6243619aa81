//! Holds the servers to what kube-rs needs: each trial is one body that runs through an in-process client of
//! the embedded server, over its TLS socket, and on the real kube-apiserver.
//!
//! `--only real|embedded` runs one server; what the real one refuses, no trial may expect of ours.

mod collection;
mod controller;
mod discovery;
mod durability;
mod faults;
mod fixtures;
mod hooks;
mod metadata;
mod node;
mod objects;
mod patches;
mod pressure;
mod watching;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agentcube_testkit::Kind;
use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use world::{Place, World};

/// Trials in flight at once: enough to hide waits, few enough for two cores.
const CONCURRENCY: usize = 6;
/// No trial takes nearly as long; one that does is stuck.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Clone, Copy)]
struct Trial {
    name: &'static str,
    on: On,
    run: fn(World) -> BoxFuture<'static, Result<()>>,
}

/// Where a trial makes sense.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Every,
    /// Every server on which nobody else works: on a whole cluster Pods run, Deployments are looked after, and each
    /// namespace has a ConfigMap.
    Quiet,
    /// The embedded server, in process and over its socket.
    Embedded,
    /// The embedded server over its socket.
    Socket,
    /// Sockets: the embedded server's and the real one's.
    Wire,
    /// An embedded server of its own, with nothing else running.
    Alone,
}

macro_rules! trials {
    ($($area:ident :: $name:ident on $on:ident),* $(,)?) => {
        vec![$(Trial {
            name: concat!(stringify!($area), "/", stringify!($name)),
            on: On::$on,
            run: |world| Box::pin($area::$name(world)),
        }),*]
    };
}

fn all() -> Vec<Trial> {
    trials![
        objects::lifecycle on Every,
        objects::refusals on Every,
        objects::pages on Quiet,
        objects::selectors on Quiet,
        objects::collection on Every,
        objects::entry on Every,
        objects::dry_run on Every,
        objects::generated_names on Every,
        objects::preconditions on Every,
        objects::leases on Every,
        objects::namespaces on Every,
        objects::pods on Quiet,
        objects::eviction on Quiet,
        patches::merge on Every,
        patches::json on Every,
        patches::strategic on Every,
        patches::apply on Every,
        patches::racing on Every,
        patches::status on Every,
        patches::scale on Quiet,
        patches::custom on Every,
        metadata::of_objects on Every,
        metadata::watched on Every,
        discovery::everything on Every,
        discovery::oneshot on Every,
        discovery::custom_kinds on Every,
        watching::list_watch on Every,
        watching::streaming_list on Every,
        watching::selected on Every,
        watching::one_object on Every,
        watching::gone on Alone,
        watching::conditions on Every,
        controller::converges_and_rests on Every,
        controller::finalizes on Every,
        controller::records_events on Every,
        collection::background on Every,
        collection::foreground on Every,
        collection::orphans on Every,
        collection::namespace on Every,
        node::logs on Embedded,
        node::log_refusals on Quiet,
        node::exec on Socket,
        node::proxy on Embedded,
        node::portforward on Socket,
        node::exec_refusals on Wire,
        node::kubectl_logs on Socket,
        node::kubectl_exec on Socket,
        node::leaving_ends_commands on Alone,
        node::unreachable_pods on Alone,
        faults::controller_converges on Alone,
        faults::a_seed_repeats on Alone,
        pressure::many_watchers on Alone,
        pressure::slow_watcher on Alone,
        durability::reopened on Alone,
    ]
}

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(run(&options, &mut report));
    report.close(options.strict)
}

async fn run(options: &Options, report: &mut Report) {
    let trials: Vec<Trial> = all().into_iter().filter(|trial| options.selects(trial.name)).collect();
    let on = |wanted: &[On]| -> Vec<Trial> {
        trials.iter().copied().filter(|trial| wanted.contains(&trial.on)).collect()
    };
    let kubectl = options.binaries().ok().map(|binaries| binaries.kubectl);
    if options.wants(Kind::Embedded) {
        let place = Place::in_process().await;
        run_on("in-process", place, &on(&[On::Every, On::Quiet, On::Embedded]), report).await;
        let place = Place::socket(kubectl).await;
        let wanted = [On::Every, On::Quiet, On::Embedded, On::Socket, On::Wire];
        run_on("embedded", place, &on(&wanted), report).await;
        for trial in on(&[On::Alone]) {
            run_on("alone", Place::in_process().await, &[trial], report).await;
        }
    }
    if options.wants(Kind::Real) {
        let trials = match options.cluster {
            true => on(&[On::Every]),
            false => on(&[On::Every, On::Quiet, On::Wire]),
        };
        match options.binaries() {
            Err(error) => {
                report.skip("kube-rs on the real kube-apiserver", trials.len(), &format!("{error:#}"))
            }
            Ok(binaries) => run_on("real", Place::real(&binaries).await, &trials, report).await,
        }
    }
}

async fn run_on(label: &str, place: Result<Place>, trials: &[Trial], report: &mut Report) {
    if trials.is_empty() {
        return;
    }
    let place = match place {
        Ok(place) => Arc::new(place),
        Err(error) => return report.note(&format!("{label} starts"), Err(error)),
    };
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let mut running = JoinSet::new();
    for trial in trials.iter().copied() {
        let (place, permits) = (place.clone(), permits.clone());
        running.spawn(async move {
            let _permit = permits.acquire().await;
            let ran = async { (trial.run)(place.world(trial.name).await?).await };
            let outcome = tokio::time::timeout(LIMIT, ran).await.context("stuck").flatten();
            (trial.name, outcome)
        });
    }
    let mut outcomes = Vec::new();
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => report.note("a trial panicked", Err(error.into())),
        }
    }
    outcomes.sort_by_key(|outcome| outcome.0);
    for (name, outcome) in outcomes {
        match outcome {
            Err(error) if error.is::<world::NotHere>() => {
                report.skip(&format!("{label}/{name}"), 1, &format!("{error:#}"));
            }
            outcome => report.note(&format!("{label}/{name}"), outcome),
        }
    }
}
