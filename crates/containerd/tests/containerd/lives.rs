//! Containers from their start to their removal.

use std::io::Write;
use std::os::fd::OwnedFd;

use agentcube_containerd::{Containerd, Inventory, Options};
use agentcube_runtime::image::Source as _;
use agentcube_runtime::spawner::{self, Spawner};
use agentcube_runtime::spec::Root;
use agentcube_runtime::{Error, Exit, Runtime, SandboxId, Stdio};
use anyhow::{Context, Result, ensure};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::world::{Node, World, exec, pipe, read_all, read_until};

pub(crate) async fn tells_output_and_exit_codes(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (exit, output) = node.run(node.spec("a", &sandbox, &["echo", "hello"])).await?;
    ensure!((exit.code, output.as_str()) == (0, "hello\n"), "{exit:?} {output}");
    for code in [1, 7, 255] {
        let (exit, _) = node.run(node.spec("b", &sandbox, &["exit", &code.to_string()])).await?;
        ensure!(exit == Exit { code, signal: None, out_of_memory: false }, "{exit:?}");
    }
    node.stop().await;
    Ok(())
}

pub(crate) async fn connects_the_streams(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let ((stdin, input), (output, stdout)) = (pipe()?, pipe()?);
    let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), ..Stdio::default() };
    let process = node.containerd.start(node.spec("a", &sandbox, &["cat"]), stdio).await?;
    std::fs::File::from(input).write_all(b"through and through")?;
    ensure!(read_all(output).await? == "through and through");
    ensure!(process.exit.await?.code == 0);
    node.containerd.remove(&Node::id("a")).await?;
    node.stop().await;
    Ok(())
}

pub(crate) async fn says_what_cannot_be(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let start = async |spec| node.containerd.start(spec, Stdio::default()).await.err().context("it started");
    let mut spec = node.spec("a", &sandbox, &[]);
    spec.args = vec!["no-such-program".to_owned()];
    let error = start(spec).await?;
    ensure!(matches!(&error, Error::Invalid(said) if said.contains("no-such-program")), "{error:?}");
    let error = start(node.spec("b", &SandboxId::new("nowhere")?, &["exit", "0"])).await?;
    ensure!(matches!(error, Error::NotFound { what: "sandbox", .. }), "{error:?}");
    let mut spec = node.spec("c", &sandbox, &["exit", "0"]);
    spec.root = Root::Host { also: Vec::new() };
    let error = start(spec).await?;
    ensure!(matches!(error, Error::Unsupported(_)), "{error:?}");
    let mut spec = node.spec("d", &sandbox, &["exit", "0"]);
    spec.root = Root::Snapshot("sha256:none".into());
    ensure!(start(spec).await?.to_string().starts_with("preparing the root file system: "));
    // One that was not started is not there, and removing it is no error.
    let id = Node::id("a");
    let error = node.containerd.signal(&id, 15).await.err().context("there is nothing")?;
    ensure!(matches!(error, Error::NotFound { what: "container", .. }), "{error:?}");
    node.containerd.remove(&id).await?;
    let (id, _process) = node.waiting("e", &sandbox).await?;
    let error = start(node.spec("e", &sandbox, &["exit", "0"])).await?;
    ensure!(matches!(error, Error::Exists { .. }), "{error:?}");
    node.containerd.signal(&id, 0).await.err().context("that is no signal")?;
    ensure!(node.exec(&id, &["echo", "still here"]).await?.1 == "still here\n", "the first one was harmed");
    node.containerd.remove(&id).await?;
    // A socket where nobody listens.
    let nowhere = Options { socket: "/nowhere/socket".into(), ..world.options() };
    let error = Containerd::connect(nowhere, node.handle.clone()).await.err().context("it connected")?;
    ensure!(error.to_string().contains("containerd cannot be reached"), "{error}");
    let unnamed = Options { namespace: "a b".into(), ..world.options() };
    ensure!(matches!(Inventory::new(&unnamed).err(), Some(Error::Invalid(_))));
    node.stop().await;
    Ok(())
}

pub(crate) async fn signals_and_removes(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (id, process) = node.waiting("a", &sandbox).await?;
    node.containerd.signal(&id, 15).await?;
    let exit = process.exit.await?;
    ensure!((exit.code, exit.signal) == (143, Some(15)), "{exit:?}");
    // One that has ended is no error.
    node.containerd.signal(&id, 15).await?;
    node.containerd.remove(&id).await?;
    let (id, process) = node.waiting("b", &sandbox).await?;
    node.containerd.remove(&id).await?;
    ensure!(process.exit.await?.code == 137);
    node.containerd.remove(&id).await?;
    node.stop().await;
    Ok(())
}

pub(crate) async fn executes(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (id, _process) = node.waiting("a", &sandbox).await?;
    ensure!(node.exec(&id, &["echo", "beside"]).await?.1 == "beside\n");
    ensure!(node.exec(&id, &["exit", "9"]).await?.0.code == 9);
    let (_, output) = node.exec(&id, &["status"]).await?;
    ensure!(
        output.contains("CapEff: 0000000000000000\n") && output.contains("NoNewPrivs: 1\nSeccomp: 2\n"),
        "{output}"
    );
    let mut missing = exec(&[]);
    missing.args = vec!["no-such-program".into()];
    let error =
        node.containerd.exec(&id, missing, Stdio::default()).await.err().context("it was executed")?;
    ensure!(matches!(&error, Error::Invalid(said) if said.contains("no-such-program")), "{error:?}");
    node.containerd.remove(&id).await?;
    let error = node.exec(&id, &["exit", "0"]).await.err().context("it is gone")?;
    ensure!(matches!(error, Error::NotFound { .. }), "{error:?}");
    node.stop().await;
    Ok(())
}

pub(crate) async fn gives_terminals(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (id, _process) = node.waiting("a", &sandbox).await?;
    let mut spec = exec(&["terminal"]);
    spec.terminal = true;
    let process = node.containerd.exec(&id, spec, Stdio::default()).await?;
    let master: OwnedFd = process.terminal.context("there is no terminal")?;
    let shown = read_until(&master, "ready").await?;
    ensure!(shown.contains("terminal true"), "{shown}");
    std::fs::File::from(master.try_clone()?).write_all(b"typed\r")?;
    let shown = read_until(&master, "read typed").await?;
    ensure!(shown.contains("read typed"), "{shown}");
    tcsetwinsize(&master, Winsize { ws_col: 123, ws_row: 45, ws_xpixel: 0, ws_ypixel: 0 })?;
    let shown = read_until(&master, "size").await?;
    let shown = shown + &read_all(master).await?;
    ensure!(shown.contains("size Some((123, 45))"), "{shown}");
    ensure!(process.exit.await?.code == 0);
    node.containerd.remove(&id).await?;
    node.stop().await;
    Ok(())
}

pub(crate) async fn freezes_and_measures(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (id, process) = node.waiting("a", &sandbox).await?;
    let usage = node.containerd.usage(&id).await?;
    ensure!(usage.processes > 0 && usage.memory_bytes > 0 && usage.cpu_nanoseconds > 0, "{usage:?}");
    for frozen in [true, true] {
        node.containerd.freeze(&id, frozen).await?;
    }
    let error = node.exec(&id, &["exit", "0"]).await.err().context("it stands still")?;
    ensure!(error.to_string().contains("is frozen: thaw it first"), "{error}");
    for frozen in [false, false] {
        node.containerd.freeze(&id, frozen).await?;
    }
    ensure!(node.exec(&id, &["echo", "on"]).await?.1 == "on\n");
    node.containerd.freeze(&id, true).await?;
    // What stands still is removed all the same.
    node.containerd.remove(&id).await?;
    ensure!(process.exit.await?.code == 137);
    let error = node.containerd.usage(&id).await.err().context("it is gone")?;
    ensure!(matches!(error, Error::NotFound { .. }), "{error:?}");
    let error = node.containerd.freeze(&id, true).await.err().context("it is gone")?;
    ensure!(matches!(error, Error::NotFound { .. }), "{error:?}");
    node.stop().await;
    Ok(())
}

pub(crate) async fn labels_say_whose_it_is(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (id, _process) = node.waiting("a", &sandbox).await?;
    node.containerd.label(&id, "fast-sandbox.io/claim-uid", "u-1").await?;
    node.containerd.label(&id, "fast-sandbox.io/sandbox-name", "na\"me").await?;
    let inventory = Inventory::new(&world.options())?;
    let found = inventory.labelled("fast-sandbox.io/managed", None).await?;
    ensure!(found.len() == 1 && found[0].id == id.as_str() && found[0].created > 1_600_000_000, "{found:?}");
    ensure!(found[0].running, "{found:?}");
    ensure!(found[0].labels["fast-sandbox.io/claim-uid"] == "u-1", "{found:?}");
    for (value, count) in [("u-1", 1), ("u-2", 0)] {
        let found = inventory.labelled("fast-sandbox.io/claim-uid", Some(value)).await?;
        ensure!(found.len() == count, "{value}: {found:?}");
    }
    ensure!(inventory.labelled("fast-sandbox.io/sandbox-name", Some("na\"me")).await?.len() == 1);
    inventory.remove(id.as_str()).await?;
    ensure!(inventory.labelled("fast-sandbox.io/managed", None).await?.is_empty());
    inventory.remove(id.as_str()).await?;
    node.containerd.remove(&id).await?;
    node.stop().await;
    Ok(())
}

pub(crate) async fn uses_images(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let containerd = &node.containerd;
    let names = ["tests/probe:1", "example.com/tests/probe:1"];
    let (image, accounts) = containerd.get(names[0]).await?;
    for name in names {
        ensure!(containerd.get(name).await?.0 == image, "{name}");
    }
    ensure!(image.config.user == "web" && image.config.env == ["OF_IMAGE=yes"], "{image:?}");
    // The upper layer's file hides the lower one's.
    let web = accounts.of_image("web")?.0;
    ensure!((web.uid, web.gid, web.home.as_str()) == (33, 34, "/srv"), "{web:?}");
    ensure!(accounts.of_image("old").is_err());
    ensure!(containerd.names().await? == ["example.com/tests/probe:1"]);
    for missing in ["other:1", "tests/probe", "probe:2"] {
        let error = containerd.get(missing).await.err().context("there is none")?.to_string();
        ensure!(error.contains("has no image") && error.contains(missing), "{error}");
    }
    // One that nobody has unpacked is unpacked here, once.
    world.daemon.ctr(&["images", "rm", "--sync", "example.com/tests/probe:1"])?;
    let gone = || anyhow::Ok(!world.daemon.ctr(&["snapshots", "ls"])?.contains("Committed"));
    ensure!(gone()?, "snapshots outlive their image");
    world.daemon.import("example.com/tests/probe:1", false)?;
    ensure!(gone()?, "it was unpacked");
    let fresh = world.node().await?;
    let (again, _) = fresh.containerd.get(names[0]).await?;
    ensure!(matches!(again.root, Root::Snapshot(_)) && again.config == image.config, "{again:?}");
    let (sandbox, _sockets) = fresh.sandbox("pod").await?;
    ensure!(fresh.run(fresh.spec("a", &sandbox, &["read", "/etc/given"])).await?.1 == "by the image");
    fresh.stop().await;
    node.stop().await;
    Ok(())
}

pub(crate) async fn goes_on_without_containerd(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (id, process) = node.waiting("a", &sandbox).await?;
    world.daemon.restart()?;
    ensure!(node.exec(&id, &["echo", "on"]).await?.1 == "on\n");
    node.containerd.signal(&id, 15).await?;
    ensure!(process.exit.await?.code == 143);
    node.containerd.remove(&id).await?;
    node.stop().await;
    Ok(())
}

pub(crate) async fn refuses_another_pid_namespace(world: &mut World) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(program).arg("abroad").arg(world.daemon.socket());
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// In a pid namespace of its own: the same numbers are those of other processes to containerd.
pub(crate) fn abroad(socket: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let name = format!("ctrd-abroad-{}", directory.path().display().to_string().len());
    let options = spawner::Options::new(name, directory.path().join("runtime"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let handle = Spawner::start(&std::env::current_exe()?, &options)?.into_handle()?;
        let connected = Containerd::connect(Options::new(socket, directory.path()), handle.clone()).await;
        handle.stop().await;
        let error = connected.err().context("it connected")?;
        ensure!(error.to_string().contains("another pid namespace"), "{error}");
        Ok(())
    })
}
