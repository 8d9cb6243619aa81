//! Our own runtime, asked as the kubelet asks it: a sandbox, a container in it, a connection into its network.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use agentcube_runtime::spawner::{Handle, Options, Spawner};
use agentcube_runtime::spec::{Resources, Root, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Process, Runtime, SandboxId, SandboxSockets, SandboxSpec, Sandboxes, Stdio,
    capabilities, native,
};
use anyhow::{Context, Result};
use tokio::net::unix::pipe::Receiver;
use tokio::net::{TcpSocket, TcpStream};

use crate::bundle::{PROGRAM, RootFs};
use crate::{Times, time, words};

pub(crate) struct Native {
    pub(crate) name: &'static str,
    options: Options,
    root: PathBuf,
    spawner: Option<Spawner>,
    handle: Option<(Handle, native::Native)>,
}

impl Native {
    /// Starts a spawner that keeps so many sandboxes ready.
    pub(crate) fn start(name: &'static str, spare: usize, root: &RootFs) -> Result<Native> {
        let node = format!("bench-{}-{spare}", std::process::id());
        let directory = root.beside(&node)?;
        let options = Options { spare_sandboxes: spare, ..Options::new(node, directory) };
        let spawner = Spawner::start(&std::env::current_exe()?, &options)?;
        Ok(Native { name, options, root: root.path(), spawner: Some(spawner), handle: None })
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

    pub(crate) async fn start_container(&self, number: usize) -> Result<(Times, Alive)> {
        let (handle, native) = self.handle.clone().context("it is connected")?;
        let [.., high, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(10, 244, 1 + high, low);
        let sandbox = SandboxId::new(format!("s{number}"))?;
        let spec = SandboxSpec {
            id: sandbox.clone(),
            hostname: format!("s{number}"),
            address,
            name_server: Ipv4Addr::new(10, 96, 0, 10),
        };
        let (output, stdout) = std::io::pipe()?;
        let mut output = Receiver::from_owned_fd(output.into())?;
        let begun = Instant::now();
        let sockets = handle.create(spec).await?;
        let container = self.spec(number, sandbox.clone())?;
        let id = container.id.clone();
        let stdio = Stdio { stdin: None, stdout: Some(stdout.into()), stderr: None };
        let process = native.start(container, stdio).await?;
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
        })
    }
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
