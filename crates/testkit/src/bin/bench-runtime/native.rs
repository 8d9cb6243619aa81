//! Our own runtime, asked as the kubelet asks it: a sandbox, a container in it, a connection into its network.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use agentcube_runtime::spawner::{Handle, Options, Spawner};
use agentcube_runtime::spec::{Resources, Root, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Runtime, SandboxId, SandboxSpec, Sandboxes, Stdio, capabilities, native,
};
use anyhow::{Context, Result};
use tokio::net::TcpSocket;
use tokio::net::unix::pipe::Receiver;

use crate::bundle::{PROGRAM, RootFs};
use crate::{Times, program, time};

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

    pub(crate) async fn run(&self, number: usize) -> Result<Times> {
        let (handle, native) = self.handle.as_ref().context("it is connected")?;
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
        let _sockets = handle.create(spec).await?;
        let container = self.spec(number, sandbox.clone())?;
        let id = container.id.clone();
        let stdio = Stdio { stdin: None, stdout: Some(stdout.into()), stderr: None };
        let process = native.start(container, stdio).await?;
        let connect = async {
            let socket = std::net::TcpStream::from(handle.socket(&sandbox, None).await?);
            let to = SocketAddr::from((address, program::PORT));
            Ok(TcpSocket::from_std_stream(socket).connect(to).await?)
        };
        let times = time(begun, &mut output, connect).await?;
        process.exit.await?;
        native.remove(&id).await?;
        handle.remove(&sandbox).await?;
        Ok(times)
    }

    fn spec(&self, number: usize, sandbox: SandboxId) -> Result<ContainerSpec> {
        let id = ContainerId::new(format!("c{number}"))?;
        let scratch = self.options.scratch(&id);
        std::fs::create_dir_all(&scratch)?;
        Ok(ContainerSpec {
            id,
            sandbox,
            root: Root::Directory(self.root.clone()),
            read_only_root: true,
            scratch,
            args: vec![PROGRAM.to_owned(), "serve".to_owned()],
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
