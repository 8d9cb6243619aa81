//! The node's side of the spawner: many requests at once over one socket, and the ends of processes as they come.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::channel::{self, Packet};
use super::clone;
use super::fuse::Fuse;
use super::protocol::{Answer as Reply, Asked, Message, Request, Streams};
use super::start::{Child, Spawner};
use crate::oci;
use crate::spec::{ContainerId, ContainerSpec, ExecSpec, Program, SandboxId, SandboxSpec};
use crate::sweep::Lock;
use crate::{Answer, Error, Exit, Process, SandboxSockets, Sandboxes, Stdio, Usage};

/// What an instance has come to when the spawner is gone: the kernel has killed it.
const KILLED: Exit = Exit { code: 128 + libc::SIGKILL, signal: Some(libc::SIGKILL), out_of_memory: false };

/// Talks to the spawner. Cheap to clone; when the last one is dropped, the spawner ends with all that it has started.
#[derive(Clone)]
pub struct Handle {
    link: Arc<Link>,
    gone: tokio::sync::watch::Receiver<bool>,
}

/// What happens when the last handle is dropped.
struct Link {
    shared: Arc<Shared>,
    reader: AbortHandle,
    /// The spawner is not ours alone: others come after us.
    inherited: bool,
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.inherited {
            self.reader.abort();
        } else {
            // For both directions, which ends the reader too.
            let _ = rustix::net::shutdown(self.shared.socket.get_ref(), rustix::net::Shutdown::Both);
        }
    }
}

/// The spawner's process.
enum Kept {
    Ours(Child, Lock),
    /// Somebody else waits for it.
    Inherited(OwnedFd),
}

/// The ends of processes that are yet to come, by the numbers under which they will be told.
pub(super) type Exits = HashMap<u64, oneshot::Receiver<Exit>>;

struct Shared {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<State>,
    fuse: Option<Fuse>,
}

#[derive(Default)]
pub(super) struct State {
    last_id: u64,
    gone: bool,
    pending: HashMap<u64, oneshot::Sender<Received>>,
    exits: HashMap<u64, oneshot::Sender<Exit>>,
}

impl State {
    pub(super) fn wait_for(&mut self, id: u64) -> oneshot::Receiver<Received> {
        let (answer, answered) = oneshot::channel();
        self.pending.insert(id, answer);
        answered
    }

    pub(super) fn received(&mut self, message: Message, descriptors: Vec<OwnedFd>) {
        match message {
            Message::Answer { id, answer } => {
                let Some(pending) = self.pending.remove(&id) else {
                    // Of a start that somebody else has asked for, and whose end we wait for.
                    if matches!(answer, Reply::Failed(_)) {
                        self.exits.remove(&id);
                    }
                    return;
                };
                // Here and not where it was asked: its end may be the very next message.
                let exits = match &answer {
                    Reply::Started { .. } => self.expect(id),
                    Reply::Page(page) => {
                        let running = page.containers.iter().filter(|seen| seen.will_end());
                        running.flat_map(|seen| self.expect(seen.asked)).collect()
                    }
                    _ => Exits::new(),
                };
                let _ = pending.send(Received { reply: answer, descriptors, exits });
            }
            Message::Exited { id, exit } => {
                if let Some(ended) = self.exits.remove(&id) {
                    let _ = ended.send(exit);
                }
            }
        }
    }

    /// Somebody will wait for the end of a process.
    fn expect(&mut self, id: u64) -> Exits {
        let (ended, exit) = oneshot::channel();
        self.exits.insert(id, ended);
        Exits::from([(id, exit)])
    }
}

/// An answer with all that belongs to it.
pub(super) struct Received {
    pub(super) reply: Reply,
    pub(super) descriptors: Vec<OwnedFd>,
    pub(super) exits: Exits,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until the spawner is gone.
    async fn read(&self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| channel::receive(socket.get_ref())) {
                Ok(Ok(Some(packet))) => self.received(packet)?,
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    fn received(&self, packet: Packet) -> io::Result<()> {
        let message = packet.read()?;
        self.state().received(message, packet.descriptors);
        Ok(())
    }

    /// Nobody will answer any more.
    fn abandon(&self) {
        let mut state = self.state();
        state.gone = true;
        state.pending.clear();
        for (_, ended) in state.exits.drain() {
            let _ = ended.send(KILLED);
        }
    }
}

/// Somebody waits for an answer. One who stops waiting is forgotten; what was asked is done all the same.
struct Question<'a> {
    shared: &'a Shared,
    id: u64,
}

impl<'a> Question<'a> {
    fn new(shared: &'a Shared) -> Result<(Self, oneshot::Receiver<Received>), Error> {
        let mut state = shared.state();
        if state.gone {
            return Err(Error::SpawnerGone);
        }
        state.last_id += 1;
        let id = state.last_id;
        let answered = state.wait_for(id);
        Ok((Self { shared, id }, answered))
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.shared.state().pending.remove(&self.id);
    }
}

async fn serve(shared: Arc<Shared>, process: Kept, gone: tokio::sync::watch::Sender<bool>) {
    if let Err(error) = shared.read().await {
        tracing::error!(%error, "lost the spawner");
    }
    // The socket is closed before the kernel has killed the instances. Their ends are told when they have ended: the
    // first process of a pid namespace ends last.
    if let Err(error) = ended(process).await {
        tracing::error!(%error, "cannot wait for the spawner to end");
    }
    shared.abandon();
    let _ = gone.send(true);
}

async fn ended(process: Kept) -> io::Result<()> {
    match &process {
        Kept::Inherited(pidfd) => watch(pidfd.try_clone()?)?.readable().await.map(drop),
        Kept::Ours(process, _lock) => {
            process.release();
            let _ = watch(process.pidfd.try_clone()?)?.readable().await?;
            clone::wait(process.pidfd.as_fd()).map(drop)
        }
    }
}

fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is the same open descriptor for as long as the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register(descriptor) }?)
}

impl Handle {
    pub(super) fn new(spawner: Spawner) -> Result<Self, Error> {
        Self::over(spawner.socket, Kept::Ours(spawner.process, spawner.lock), 0, None)
    }

    /// Of a spawner that somebody else has started. Requests are numbered from a number on that nobody else has used.
    pub(super) fn inherited(
        socket: OwnedFd,
        spawner: OwnedFd,
        number: u64,
        fuse: Option<Fuse>,
    ) -> Result<Self, Error> {
        Self::over(socket, Kept::Inherited(spawner), number, fuse)
    }

    fn over(socket: OwnedFd, process: Kept, number: u64, fuse: Option<Fuse>) -> Result<Self, Error> {
        let step = |error: io::Error| Error::Step {
            step: "watching the spawner's socket",
            reason: error.to_string(),
        };
        channel::set_nonblocking(&socket).map_err(step)?;
        let socket = watch(socket).map_err(step)?;
        let state = State { last_id: number, ..State::default() };
        let shared = Arc::new(Shared { socket, state: Mutex::new(state), fuse });
        let (tell, gone) = tokio::sync::watch::channel(false);
        let inherited = matches!(process, Kept::Inherited(_));
        let reader = tokio::spawn(serve(shared.clone(), process, tell)).abort_handle();
        Ok(Self { link: Arc::new(Link { shared, reader, inherited }), gone })
    }

    pub(super) fn number_from(&self, number: u64) {
        self.link.shared.state().last_id = number;
    }

    /// Resolves when the spawner and all that it had started have ended.
    pub async fn gone(&self) {
        let mut gone = self.gone.clone();
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// Ends the spawner with all that it has started, and waits for that.
    pub async fn stop(&self) {
        let _ = rustix::net::shutdown(self.link.shared.socket.get_ref(), rustix::net::Shutdown::Write);
        self.gone().await;
    }

    pub(super) async fn ask(&self, request: Request, descriptors: Vec<OwnedFd>) -> Result<Received, Error> {
        let shared = &self.link.shared;
        let (question, answered) = Question::new(shared)?;
        let packet = Packet::new(&Asked { id: question.id, request }, descriptors)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        shared.fuse.iter().for_each(Fuse::effect);
        let sent = shared.socket.async_io(tokio::io::Interest::WRITABLE, |socket| packet.send(socket)).await;
        sent.map_err(|_| Error::SpawnerGone)?;
        drop(packet);
        let received = answered.await.map_err(|_| Error::SpawnerGone)?;
        match received.reply {
            Reply::Failed(failure) => Err(failure.into()),
            _ => Ok(received),
        }
    }

    async fn run(&self, request: Request, stdio: Vec<OwnedFd>) -> Result<Process, Error> {
        let mut received = self.ask(request, stdio).await?;
        match (received.reply, received.exits.into_values().next()) {
            (Reply::Started { pid }, Some(exit)) => {
                Ok(Process { pid, terminal: received.descriptors.pop(), exit })
            }
            _ => Err(Error::SpawnerGone),
        }
    }

    pub(crate) async fn start(
        &self,
        spec: ContainerSpec,
        by: Option<oci::Program>,
        stdio: Stdio,
    ) -> Result<Process, Error> {
        let (streams, descriptors) = split(stdio)?;
        self.run(Request::Start { spec: Box::new(spec), by, streams }, descriptors).await
    }

    pub(crate) async fn prepare(&self, spec: ContainerSpec) -> Result<(), Error> {
        self.ask(Request::Prepare(Box::new(spec)), Vec::new()).await.map(drop)
    }

    /// Makes a container that runs nothing: its first process waits for as long as the container is there, and its
    /// namespaces and what is kept with it are for a program that somebody else runs ([`Handle::namespaces`]). When
    /// the spawner ends, the kernel kills whatever is in its pid namespace.
    pub async fn hold(&self, spec: ContainerSpec, kept: Vec<OwnedFd>) -> Result<(), Error> {
        let (_, kept) = split(Stdio { kept, ..Stdio::default() })?;
        self.ask(Request::Hold(Box::new(spec)), kept).await.map(drop)
    }

    /// The namespaces of a container that is held: network, host name, IPC, processes.
    pub async fn namespaces(&self, id: &ContainerId) -> Result<[OwnedFd; 4], Error> {
        let open = self.ask(Request::Namespaces(id.clone()), Vec::new()).await?.descriptors;
        <[OwnedFd; 4]>::try_from(open).map_err(|_| Error::SpawnerGone)
    }

    /// Keeps at least so many sandboxes ready, made when nothing else is to be done, for those who ask for many at once.
    /// With `embryos`, the first process of the first native container waits in each as well. Holds until the same `who`
    /// asks again; of several, whoever wants most decides.
    pub async fn spare(&self, who: &str, count: usize, embryos: bool) -> Result<(), Error> {
        let request = Request::Spare { who: who.to_owned(), count, embryos };
        self.ask(request, Vec::new()).await.map(drop)
    }

    /// Gives back a container, as [`crate::Runtime::remove`] does.
    pub async fn release(&self, id: &ContainerId) -> Result<(), Error> {
        self.remove_container(id).await
    }

    pub(crate) async fn claim(
        &self,
        id: &ContainerId,
        program: Program,
        stdio: Stdio,
    ) -> Result<Process, Error> {
        let (streams, descriptors) = split(stdio)?;
        self.run(Request::Claim { container: id.clone(), program, streams }, descriptors).await
    }

    pub(crate) async fn exec(
        &self,
        id: &ContainerId,
        spec: ExecSpec,
        stdio: Stdio,
    ) -> Result<Process, Error> {
        let (streams, descriptors) = split(stdio)?;
        self.run(Request::Exec { container: id.clone(), spec, streams }, descriptors).await
    }

    pub(crate) async fn signal(&self, id: &ContainerId, signal: i32) -> Result<(), Error> {
        self.ask(Request::Signal { container: id.clone(), signal }, Vec::new()).await.map(drop)
    }

    pub(crate) async fn freeze(&self, id: &ContainerId, frozen: bool) -> Result<(), Error> {
        self.ask(Request::Freeze { container: id.clone(), frozen }, Vec::new()).await.map(drop)
    }

    /// Stops a container that is held, or lets it go on, as [`crate::Runtime::freeze`] does: the processes of its
    /// program are in a cgroup of whoever runs it.
    pub async fn freeze_held(&self, id: &ContainerId, program: &Path, frozen: bool) -> Result<(), Error> {
        let request = Request::FreezeHeld { container: id.clone(), program: program.to_owned(), frozen };
        self.ask(request, Vec::new()).await.map(drop)
    }

    pub(crate) async fn remove_container(&self, id: &ContainerId) -> Result<(), Error> {
        self.ask(Request::Remove(id.clone()), Vec::new()).await.map(drop)
    }

    pub(crate) async fn usage(&self, id: &ContainerId) -> Result<Usage, Error> {
        match self.ask(Request::Usage(id.clone()), Vec::new()).await?.reply {
            Reply::Usage(usage) => Ok(usage),
            _ => Err(Error::SpawnerGone),
        }
    }
}

impl Sandboxes for Handle {
    fn create<'a>(&'a self, spec: SandboxSpec) -> Answer<'a, SandboxSockets> {
        Box::pin(async move {
            let received = self.ask(Request::CreateSandbox(spec), Vec::new()).await?;
            let mut descriptors = received.descriptors.into_iter();
            match (descriptors.next(), descriptors.next()) {
                (Some(outgoing), Some(dns)) => Ok(SandboxSockets { outgoing, dns }),
                _ => Err(Error::SpawnerGone),
            }
        })
    }

    fn remove<'a>(&'a self, id: &'a SandboxId) -> Answer<'a, ()> {
        Box::pin(async move { self.ask(Request::RemoveSandbox(id.clone()), Vec::new()).await.map(drop) })
    }

    fn socket<'a>(&'a self, id: &'a SandboxId, source: Option<Ipv4Addr>) -> Answer<'a, OwnedFd> {
        Box::pin(async move {
            let request = Request::Socket { sandbox: id.clone(), source };
            self.ask(request, Vec::new()).await?.descriptors.pop().ok_or(Error::SpawnerGone)
        })
    }
}

fn split(stdio: Stdio) -> Result<(Streams, Vec<OwnedFd>), Error> {
    if stdio.kept.len() > Stdio::MOST_KEPT {
        let message = format!("at most {} descriptors are kept with a container", Stdio::MOST_KEPT);
        return Err(Error::Invalid(message));
    }
    let streams = [stdio.stdin, stdio.stdout, stdio.stderr];
    let given = Streams(streams.each_ref().map(Option::is_some));
    Ok((given, streams.into_iter().flatten().chain(stdio.kept).collect()))
}
