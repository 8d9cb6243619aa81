//! Starts a run: its image, its sandbox, its program. Whatever was made for a start that fails is gone afterwards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::agent::Reason;
use agentcube_runtime::logs::{Logs, Run as Log};
use agentcube_runtime::native::Native;
use agentcube_runtime::spec::Program;
use agentcube_runtime::{
    ContainerId, ContainerSpec, Error, Exit, Runtime, SandboxId, Sandboxes, Stdio, signals,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::agent::Inner;
use crate::describe::{self, Place, Wanted};
use crate::images::Loaded;
use crate::network::Attached;
use crate::prepared::Waiting;
use crate::ready::Socket;
use crate::record::{Made, Record};
use crate::{network, place};

/// Pauses between tries to give back what a run held.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Of the ids of sandboxes and containers.
pub(crate) const PREFIX: &str = "sb-";

/// Why a run was not started, once and for all.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// A run whose program has been executed.
pub(crate) struct Begun {
    pub(crate) place: Place,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) exit: oneshot::Receiver<Exit>,
    pub(crate) endpoints: Vec<SocketAddr>,
    pub(crate) stop_signal: i32,
    pub(crate) prepared: bool,
    /// Not given up while it runs.
    pub(crate) image: Option<Arc<Loaded>>,
    pub(crate) made: Arc<Made>,
    /// By which its first port is looked at.
    pub(crate) socket: Option<Socket>,
}

/// How a run is made, for whoever comes after this process.
fn made(
    wanted: &Wanted,
    place: &Place,
    attached: &Attached,
    env: &[(String, String)],
    image: &Loaded,
    prepared: bool,
) -> Made {
    Made {
        place: place.id().to_owned(),
        image: wanted.shape.image.clone(),
        ports: wanted.ports.iter().map(|port| u32::from(*port)).collect(),
        env: env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        stop_signal: stop_signal(image),
        prepared,
        address: attached.address.to_bits(),
        endpoints: attached.endpoints.iter().map(ToString::to_string).collect(),
        labels: wanted.who.labels.clone(),
        egress: wanted.who.egress.into(),
        resolv_conf: attached.resolv_conf.clone(),
    }
}

impl Inner {
    /// What is kept with the container of a run; nothing where nobody comes after this process.
    fn tag(&self, run: &str, made: &Made) -> String {
        let record = || self.read(|state| Some(Record::new(run, state.table.get(run)?, made)));
        self.keep.as_ref().and_then(|_| record()).map(Record::encode_text).unwrap_or_default()
    }
}

/// The log of a run.
pub(crate) fn log(run: &str) -> Log {
    Log { pod_uid: run.to_owned(), container: "sandbox".to_owned(), attempt: 0 }
}

pub(crate) async fn perform(
    inner: &Inner,
    run: &str,
    wanted: &Wanted,
    abandoned: &CancellationToken,
) -> Result<Begun, Failure> {
    let stopped = || Failure::new(Reason::Tombstoned, "it was stopped before it ran");
    let image = tokio::select! {
        biased;
        () = abandoned.cancelled() => return Err(stopped()),
        image = inner.images.get(&wanted.shape.image) => image,
    };
    let image = image.map_err(|message| Failure::new(Reason::Image, message))?;
    if let Some(native) = &inner.parts.native
        && let Some(waiting) = inner.prepared.take(wanted)
    {
        match claim(inner, native, run, wanted, &waiting, &image).await {
            Ok(begun) => return Ok(begun),
            Err(failure) => {
                remove(inner, &waiting.place).await;
                if failure.reason == Reason::Invalid {
                    return Err(failure);
                }
                // It may have ended while it waited. That says nothing of the order.
                tracing::debug!(run, "what was prepared cannot be used: {}", failure.message);
            }
        }
    }
    from_nothing(inner, run, wanted, image).await
}

/// Has a sandbox that waits become the run.
async fn claim(
    inner: &Inner,
    native: &Native,
    run: &str,
    wanted: &Wanted,
    waiting: &Waiting,
    image: &Arc<Loaded>,
) -> Result<Begun, Failure> {
    if waiting.image.image.id != image.image.id {
        return Err(Failure::new(Reason::StartFailed, "its image has changed since"));
    }
    let (place, config) = (waiting.place.clone(), &image.image.config);
    let env = describe::environment(wanted, config, &waiting.home);
    let program = Program {
        args: describe::arguments(wanted, config)
            .map_err(|message| Failure::new(Reason::Invalid, message))?,
        env: env.clone(),
        cwd: Some(describe::directory(wanted, config)),
        files: describe::files(wanted),
        hostname: Some(wanted.who.hostname()),
        tag: None,
    };
    let renamed = inner.parts.network.rename(&place.sandbox, wanted.who.clone(), &wanted.ports).await;
    let attached = renamed.map_err(|error| no_network(&error))?;
    let endpoints = attached.endpoints.clone();
    let made = made(wanted, &place, &attached, &env, image, true);
    let program = Program { tag: Some(inner.tag(run, &made)), ..program };
    // For its log. What else is in it goes with it.
    inner.stock.take(&inner.directory.join(run));
    // Here and not where blocking does no harm: it is done sooner than a thread is woken.
    let laid_out = place::write_names(&place, &wanted.who, &attached);
    let stdio = laid_out.and_then(|()| output(&inner.logs, run, inner.keep.is_some()));
    let stdio = stdio.map_err(|error| no_directory(&error))?;
    let claiming = native.claim(&place.container, program, stdio);
    let (process, socket) = tokio::join!(claiming, socket(inner, wanted, &place));
    let process = process.map_err(|error| failed(&error))?;
    let (runtime, exit, stop_signal) = (inner.runtime.clone(), process.exit, stop_signal(image));
    let (image, made) = (Some(image.clone()), Arc::new(made));
    Ok(Begun { place, runtime, env, exit, endpoints, stop_signal, prepared: true, image, made, socket })
}

/// Asked for while the program starts, so that its port can be looked at as soon as it runs.
async fn socket(inner: &Inner, wanted: &Wanted, place: &Place) -> Option<Socket> {
    if wanted.ports.is_empty() {
        return None;
    }
    // Whoever looks asks again.
    inner.parts.network.socket(&place.sandbox).await.ok()
}

/// What the program writes goes to its log.
fn output(logs: &Logs, run: &str, keeps: bool) -> std::io::Result<Stdio> {
    let (stdout, stderr, kept) = match keeps {
        false => {
            let (stdout, stderr) = logs.begin(&log(run))?;
            (stdout, stderr, Vec::new())
        }
        true => {
            let ([stdout, stderr], kept) = logs.begin_kept(&log(run))?;
            (stdout, stderr, kept.into())
        }
    };
    Ok(Stdio { stdin: None, stdout: Some(stdout), stderr: Some(stderr), kept })
}

fn no_network(error: &network::Error) -> Failure {
    let exhausted = matches!(error, network::Error::Exhausted(_));
    Failure::new(if exhausted { Reason::NoPort } else { Reason::StartFailed }, error.to_string())
}

async fn from_nothing(
    inner: &Inner,
    run: &str,
    wanted: &Wanted,
    image: Arc<Loaded>,
) -> Result<Begun, Failure> {
    let place = inner.place(run).map_err(|error| Failure::new(Reason::Invalid, error.to_string()))?;
    // Before anything is made: this cannot fail later.
    let spec = describe::describe(wanted, &place, &image, &inner.options)
        .map_err(|message| Failure::new(Reason::Invalid, message))?;
    let attaching = inner.parts.network.attach(&place.sandbox, wanted.who.clone(), &wanted.ports);
    // The disk is busy while the spawner is. In this order: the spawner takes the processor of whoever wakes it.
    let (stdio, attached) = tokio::join!(lay_out(inner, run, wanted, &place, &spec), attaching);
    let env = spec.env.clone();
    let ran = async {
        let attached = attached.map_err(|error| no_network(&error))?;
        let made = made(wanted, &place, &attached, &spec.env, &image, false);
        let spec = ContainerSpec { tag: inner.tag(run, &made), ..spec };
        let (exit, socket) = execute(inner, wanted, &place, &attached, spec, stdio?).await?;
        Ok((attached, exit, made, socket))
    };
    match ran.await {
        Ok((attached, exit, made, socket)) => Ok(Begun {
            place,
            runtime: inner.runtime.clone(),
            env,
            exit,
            endpoints: attached.endpoints,
            stop_signal: stop_signal(&image),
            prepared: false,
            image: Some(image),
            made: Arc::new(made),
            socket,
        }),
        Err(failure) => {
            remove(inner, &place).await;
            Err(failure)
        }
    }
}

pub(crate) fn stop_signal(image: &Loaded) -> i32 {
    signals::number(&image.image.config.stop_signal).unwrap_or(signals::TERM)
}

/// What a run has on the disk before it starts.
async fn lay_out(
    inner: &Inner,
    run: &str,
    wanted: &Wanted,
    place: &Place,
    spec: &ContainerSpec,
) -> Result<Stdio, Failure> {
    let (keeps, tmp) = (inner.keep.is_some(), spec.read_only_root);
    if inner.stock.take(&place.directory) && wanted.files.is_empty() && !tmp {
        // Here and not where blocking does no harm: it is done sooner than a thread is woken.
        return output(&inner.logs, run, keeps).map_err(|error| no_directory(&error));
    }
    let (logs, run, place) = (inner.logs.clone(), run.to_owned(), place.clone());
    let (files, user) = (wanted.files.clone(), spec.user.clone());
    blocking(move || {
        place::make(&place, tmp, &files, &user)?;
        output(&logs, &run, keeps)
    })
    .await
}

/// The program, in a sandbox that is there.
async fn execute(
    inner: &Inner,
    wanted: &Wanted,
    place: &Place,
    attached: &Attached,
    spec: ContainerSpec,
    stdio: Stdio,
) -> Result<(oneshot::Receiver<Exit>, Option<Socket>), Failure> {
    // Here and not where blocking does no harm: three files of a line or two are written sooner than a thread is woken.
    place::write_names(place, &wanted.who, attached).map_err(|error| no_directory(&error))?;
    let (started, socket) = tokio::join!(inner.runtime.start(spec, stdio), socket(inner, wanted, place));
    started.map(|process| (process.exit, socket)).map_err(|error| failed(&error))
}

/// What cannot be executed will not be elsewhere either.
pub(crate) fn failed(error: &Error) -> Failure {
    let reason = if matches!(error, Error::Invalid(_)) { Reason::Invalid } else { Reason::StartFailed };
    Failure::new(reason, error.to_string())
}

/// Runs what blocks on the disk; a panic there is an error here.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    done.map_err(|error| no_directory(&error))
}

fn no_directory(error: &std::io::Error) -> Failure {
    Failure::new(Reason::StartFailed, format!("cannot prepare its directory: {error}"))
}

/// Kills what still runs and gives back all that was made. Comes back when that is so: nobody may be told that a run
/// is over while a part of it is there.
pub(crate) async fn remove(inner: &Inner, place: &Place) {
    inner.parts.network.detach(&place.sandbox);
    insist(place, || inner.runtime.remove(&place.container)).await;
    insist(place, || inner.parts.spawner.remove(&place.sandbox)).await;
    let directory = place.directory.clone();
    // The log of a run is read until nobody wants to know of it any more.
    let parts =
        [describe::ETC, describe::TMP, describe::FILES, describe::SCRATCH].map(|part| directory.join(part));
    let removed = blocking(move || {
        parts.iter().try_for_each(|part| place::remove(part))?;
        // Only where there is no log.
        let _kept = std::fs::remove_dir(directory);
        Ok(())
    });
    let removed = removed.await;
    if let Err(failure) = removed {
        tracing::warn!(sandbox = %place.sandbox, "what it wrote stays until the next start: {}", failure.message);
    }
}

async fn insist<'a>(place: &Place, mut work: impl FnMut() -> agentcube_runtime::Answer<'a, ()>) {
    let mut pause = FIRST_PAUSE;
    loop {
        match work().await {
            // With the spawner, everything has ended.
            Ok(()) | Err(Error::SpawnerGone) => return,
            Err(error) => tracing::warn!(sandbox = %place.sandbox, "it could not be removed yet: {error}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl Inner {
    /// Where a run, or a sandbox that waits for one, has its things.
    pub(crate) fn place(&self, id: &str) -> Result<Place, Error> {
        // Agents of one node share its spawner, so that the names of what is theirs alone would meet.
        let sandbox = SandboxId::new(format!("{PREFIX}{id}"))?;
        let container = ContainerId::new(format!("{PREFIX}{id}"))?;
        Ok(Place { sandbox, container, directory: self.directory.join(id) })
    }
}
