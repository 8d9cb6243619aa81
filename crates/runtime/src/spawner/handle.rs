//! The node's side of the spawner: many requests at once over one socket, and the ends of processes as they come.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::channel::{self, Packet};
use super::clone;
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

/// Closes the socket for both directions when the last handle is dropped, which ends the reader too.
struct Link(Arc<Shared>);

impl Drop for Link {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(self.0.socket.get_ref(), rustix::net::Shutdown::Both);
    }
}

struct Shared {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_id: u64,
    gone: bool,
    pending: HashMap<u64, oneshot::Sender<Received>>,
    exits: HashMap<u64, oneshot::Sender<Exit>>,
}

/// An answer with all that belongs to it.
struct Received {
    reply: Reply,
    descriptors: Vec<OwnedFd>,
    exit: Option<oneshot::Receiver<Exit>>,
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
        let mut state = self.state();
        match message {
            Message::Answer { id, answer } => {
                // Here and not where it was asked: its end may be the very next message.
                let exit = matches!(answer, Reply::Started { .. }).then(|| {
                    let (ended, exit) = oneshot::channel();
                    state.exits.insert(id, ended);
                    exit
                });
                if let Some(pending) = state.pending.remove(&id) {
                    let _ = pending.send(Received { reply: answer, descriptors: packet.descriptors, exit });
                }
            }
            Message::Exited { id, exit } => {
                if let Some(ended) = state.exits.remove(&id) {
                    let _ = ended.send(exit);
                }
            }
        }
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
        let (answer, answered) = oneshot::channel();
        state.pending.insert(id, answer);
        Ok((Self { shared, id }, answered))
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.shared.state().pending.remove(&self.id);
    }
}

async fn serve(shared: Arc<Shared>, lock: Lock, process: Child, gone: tokio::sync::watch::Sender<bool>) {
    if let Err(error) = shared.read().await {
        tracing::error!(%error, "lost the spawner");
    }
    // The socket is closed before the kernel has killed the instances. Their ends are told when they have ended: the
    // first process of a pid namespace ends last.
    if let Err(error) = ended(process).await {
        tracing::error!(%error, "cannot wait for the spawner to end");
    }
    drop(lock);
    shared.abandon();
    let _ = gone.send(true);
}

async fn ended(process: Child) -> io::Result<()> {
    let pidfd = watch(process.pidfd.try_clone()?)?;
    let _ = pidfd.readable().await?;
    clone::wait(process.pidfd.as_fd()).map(drop)
}

fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is the same open descriptor for as long as the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register(descriptor) }?)
}

impl Handle {
    pub(super) fn new(spawner: Spawner) -> Result<Self, Error> {
        let step = |error: io::Error| Error::Step {
            step: "watching the spawner's socket",
            reason: error.to_string(),
        };
        channel::set_nonblocking(&spawner.socket).map_err(step)?;
        let socket = watch(spawner.socket).map_err(step)?;
        let shared = Arc::new(Shared { socket, state: Mutex::default() });
        let (tell, gone) = tokio::sync::watch::channel(false);
        tokio::spawn(serve(shared.clone(), spawner.lock, spawner.process, tell));
        Ok(Self { link: Arc::new(Link(shared)), gone })
    }

    /// Resolves when the spawner and all that it had started have ended.
    pub async fn gone(&self) {
        let mut gone = self.gone.clone();
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// Ends the spawner with all that it has started, and waits for that.
    pub async fn stop(&self) {
        let _ = rustix::net::shutdown(self.link.0.socket.get_ref(), rustix::net::Shutdown::Write);
        self.gone().await;
    }

    async fn ask(&self, request: Request, descriptors: Vec<OwnedFd>) -> Result<Received, Error> {
        let shared = &self.link.0;
        let (question, answered) = Question::new(shared)?;
        let packet = Packet::new(&Asked { id: question.id, request }, descriptors)
            .map_err(|error| Error::Invalid(error.to_string()))?;
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
        match (received.reply, received.exit) {
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
        let (streams, descriptors) = split(stdio);
        self.run(Request::Start { spec: Box::new(spec), by, streams }, descriptors).await
    }

    pub(crate) async fn prepare(&self, spec: ContainerSpec) -> Result<(), Error> {
        self.ask(Request::Prepare(Box::new(spec)), Vec::new()).await.map(drop)
    }

    pub(crate) async fn claim(
        &self,
        id: &ContainerId,
        program: Program,
        stdio: Stdio,
    ) -> Result<Process, Error> {
        let (streams, descriptors) = split(stdio);
        self.run(Request::Claim { container: id.clone(), program, streams }, descriptors).await
    }

    pub(crate) async fn exec(
        &self,
        id: &ContainerId,
        spec: ExecSpec,
        stdio: Stdio,
    ) -> Result<Process, Error> {
        let (streams, descriptors) = split(stdio);
        self.run(Request::Exec { container: id.clone(), spec, streams }, descriptors).await
    }

    pub(crate) async fn signal(&self, id: &ContainerId, signal: i32) -> Result<(), Error> {
        self.ask(Request::Signal { container: id.clone(), signal }, Vec::new()).await.map(drop)
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

fn split(stdio: Stdio) -> (Streams, Vec<OwnedFd>) {
    let streams = [stdio.stdin, stdio.stdout, stdio.stderr];
    (Streams(streams.each_ref().map(Option::is_some)), streams.into_iter().flatten().collect())
}
