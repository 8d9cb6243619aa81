//! Our own runtime, asked as the kubelet asks it: a sandbox, a container in it, a connection into its network.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use agentcube_runtime::spawner::{Handle, Options, Spawner};
use agentcube_runtime::spec::{Program, Resources, Root, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Process, Runtime, SandboxId, SandboxSockets, SandboxSpec, Sandboxes, Stdio,
    capabilities, native,
};
use agentcube_testkit::containers::bundle::{PROGRAM, RootFs};
use agentcube_testkit::containers::times::{Times, time};
use agentcube_testkit::containers::words;
use anyhow::{Context, Result, anyhow};
use tokio::net::unix::pipe::Receiver;
use tokio::net::{TcpSocket, TcpStream};

pub(crate) struct Native {
    pub(crate) name: &'static str,
    options: Options,
    root: PathBuf,
    spawner: Option<Spawner>,
    handle: Option<(Handle, native::Native)>,
    /// Containers that wait to be told what to run, by their numbers; none where they are made from nothing.
    prepared: Option<Mutex<HashMap<usize, SandboxSockets>>>,
}

impl Native {
    /// Starts a spawner that keeps so many sandboxes ready.
    pub(crate) fn start(name: &'static str, spare: usize, prepare: bool, root: &RootFs) -> Result<Native> {
        let node = format!("bench-{}-{spare}-{}", std::process::id(), u8::from(prepare));
        let directory = root.beside(&node)?;
        let options = Options { spare_sandboxes: spare, ..Options::new(node, directory) };
        let spawner = Spawner::start(&std::env::current_exe()?, &options)?;
        Ok(Native {
            name,
            options,
            root: root.path(),
            spawner: Some(spawner),
            handle: None,
            prepared: prepare.then(Mutex::default),
        })
    }

    /// To be called in a tokio runtime.
    pub(crate) fn connect(&mut self) -> Result<()> {
        let handle = self.spawner.take().context("it is connected once")?.into_handle()?;
        self.handle = Some((handle.clone(), native::Native::new(handle)));
        Ok(())
    }

    /// Ends the spawner; its cgroups go with it.
    pub(crate) async fn stop(self) {
        if let Some((handle, _)) = self.handle {
            handle.stop().await;
        }
    }

    /// Prepares a container that is started later, if this is one who does.
    pub(crate) async fn make_ready(&self, number: usize) -> Result<()> {
        let Some(prepared) = &self.prepared else { return Ok(()) };
        let (handle, native) = self.handle.clone().context("it is connected")?;
        let sockets = handle.create(sandbox(number)?).await?;
        let spec = ContainerSpec { args: Vec::new(), ..self.spec(number, sandbox(number)?.id)? };
        native.prepare(spec).await?;
        prepared.lock().map_err(|_| anyhow!("a preparation failed"))?.insert(number, sockets);
        Ok(())
    }

    fn take_ready(&self, number: usize) -> Option<SandboxSockets> {
        self.prepared.as_ref()?.lock().ok()?.remove(&number)
    }

    pub(crate) async fn start_container(&self, number: usize) -> Result<(Times, Alive)> {
        let (handle, native) = self.handle.clone().context("it is connected")?;
        let spec = sandbox(number)?;
        let (sandbox, address) = (spec.id.clone(), spec.address);
        let (output, stdout) = std::io::pipe()?;
        let mut output = Receiver::from_owned_fd(output.into())?;
        let begun = Instant::now();
        let stdio = Stdio { stdin: None, stdout: Some(stdout.into()), stderr: None, ..Stdio::default() };
        let container = self.spec(number, sandbox.clone())?;
        let id = container.id.clone();
        let (process, sockets) = match self.take_ready(number) {
            Some(sockets) => {
                let program = Program { args: container.args, ..Program::default() };
                (native.claim(&id, program, stdio).await?, sockets)
            }
            None => {
                let sockets = handle.create(spec).await?;
                (native.start(container, stdio).await?, sockets)
            }
        };
        let connect = async {
            let socket = std::net::TcpStream::from(handle.socket(&sandbox, None).await?);
            let to = SocketAddr::from((address, words::PORT));
            Ok(TcpSocket::from_std_stream(socket).connect(to).await?)
        };
        let (times, connection) = time(begun, &mut output, connect).await?;
        Ok((times, Alive { handle, native, sandbox, id, process, connection, _sockets: sockets }))
    }

    fn spec(&self, number: usize, sandbox: SandboxId) -> Result<ContainerSpec> {
        let id = ContainerId::new(format!("c{number}"))?;
        let scratch = self.options.scratch(&id);
        Ok(ContainerSpec {
            id,
            sandbox,
            root: Root::Directory(self.root.clone()),
            read_only_root: true,
            scratch,
            args: vec![PROGRAM.to_owned()],
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            user: User::default(),
            mounts: Vec::new(),
            resources: Resources::default(),
            capabilities: capabilities::default_set(),
            no_new_privileges: true,
            seccomp: true,
            terminal: false,
            files: Vec::new(),
            tag: String::new(),
            labels: Default::default(),
        })
    }
}

fn sandbox(number: usize) -> Result<SandboxSpec> {
    let [.., high, low] = number.to_be_bytes();
    Ok(SandboxSpec {
        id: SandboxId::new(format!("s{number}"))?,
        hostname: format!("s{number}"),
        address: Ipv4Addr::new(10, 244, 1 + high, low),
        name_server: Ipv4Addr::new(10, 96, 0, 10),
    })
}

/// A container that has answered.
pub(crate) struct Alive {
    handle: Handle,
    native: native::Native,
    sandbox: SandboxId,
    id: ContainerId,
    process: Process,
    connection: TcpStream,
    _sockets: SandboxSockets,
}

impl Alive {
    /// Lets the program end, and removes the container and its sandbox.
    pub(crate) async fn end(self) -> Result<()> {
        drop(self.connection);
        self.process.exit.await?;
        self.native.remove(&self.id).await?;
        self.handle.remove(&self.sandbox).await?;
        Ok(())
    }
}
