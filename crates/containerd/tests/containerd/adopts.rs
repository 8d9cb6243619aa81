//! What happens to containers when the agent is killed, as a whole or only its worker.

use agentcube_runtime::spawner::{Handle, Spawner, State};
use agentcube_runtime::spec::Root;
use agentcube_runtime::{ContainerSpec, Runtime, Stdio};
use anyhow::{Context, Result, ensure};

use crate::world::{Node, World, pipe, read_until, until};

/// The processes of a container, as the machine sees them.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

pub(crate) async fn dies_with_the_spawner(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (id, process) = node.waiting("a", &sandbox).await?;
    ensure!(runs(process.pid));
    let containerd = node.containerd.clone();
    node.stop().await;
    until("the kernel kills it", || !runs(process.pid)).await?;
    ensure!(process.exit.await?.code == 137);
    // What containerd has written down is there until somebody removes it.
    ensure!(containerd.inventory().labelled("fast-sandbox.io/managed", None).await?.len() == 1);
    containerd.inventory().remove(id.as_str()).await?;
    Ok(())
}

pub(crate) async fn the_next_worker_goes_on(world: &mut World) -> Result<()> {
    let options = world.spawner(true);
    let spawner = Spawner::start(&std::env::current_exe()?, &options)?;
    let adopt = async || {
        let (socket, process) = spawner.descriptors()?;
        anyhow::Ok(Handle::adopt(socket, process).await?)
    };
    let (handle, _) = adopt().await?;
    let node = world.node_over(handle, &options).await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (read, write) = pipe()?;
    let spec = |name: &str, words: &[&str]| ContainerSpec {
        tag: format!("tag of {name}"),
        ..node.spec(name, &sandbox, words)
    };
    let stdio = Stdio { stdout: Some(write), kept: vec![read], ..Stdio::default() };
    let counting = node.containerd.start(spec("counts", &["count"]), stdio).await?;
    let ended = node.containerd.start(spec("ended", &["exit", "4"]), Stdio::default()).await?;
    ensure!(ended.exit.await?.code == 4);
    // One whose start was cut off: it is held, and containerd has not heard of it.
    let empty = tempfile::tempdir()?;
    let root = Root::Directory(empty.path().to_owned());
    node.handle
        .hold(ContainerSpec { root, read_only_root: true, ..spec("begun", &["wait"]) }, Vec::new())
        .await?;
    drop((node.containerd, node.handle, counting.exit));

    let (handle, mut snapshot) = adopt().await?;
    let node = world.node_over(handle, &options).await?;
    node.containerd.adopt(&mut snapshot).await?;
    let told: Vec<_> =
        snapshot.containers.iter().map(|one| (one.id.clone(), one.tag.clone(), one.state)).collect();
    let ended = agentcube_runtime::Exit { code: 4, signal: None, out_of_memory: false };
    let expected = vec![
        (Node::id("begun"), "tag of begun".to_owned(), State::Starting),
        (Node::id("counts"), "tag of counts".to_owned(), State::Running { pid: counting.pid }),
        (Node::id("ended"), "tag of ended".to_owned(), State::Ended(ended)),
    ];
    ensure!(told == expected, "{told:?}");
    let counts =
        snapshot.containers.iter_mut().find(|one| one.id == Node::id("counts")).context("it counts")?;
    ensure!(counts.kept == 1 && !counts.frozen);
    // Its output goes on where it was.
    let kept = node.handle.kept(&Node::id("counts")).await?;
    ensure!(read_until(&kept[0], "100\n").await?.contains("99\n100\n"));
    ensure!(node.exec(&Node::id("counts"), &["echo", "beside"]).await?.1 == "beside\n");
    let exit = counts.exit.take().context("its end is yet to come")?;
    node.containerd.signal(&Node::id("counts"), 15).await?;
    ensure!(exit.await?.code == 143);
    for name in ["counts", "ended", "begun"] {
        node.containerd.remove(&Node::id(name)).await?;
    }
    node.stop().await;
    spawner.stop();
    Ok(())
}

pub(crate) async fn the_next_start_sweeps(world: &mut World) -> Result<()> {
    let label = "fast-sandbox.io/agent-uid";
    let first = world.node().await?;
    let (sandbox, _sockets) = first.sandbox("pod").await?;
    for (name, agent) in [("a", "one"), ("b", "one"), ("c", "two")] {
        let mut spec = first.spec(name, &sandbox, &["wait"]);
        spec.labels.insert(label.into(), agent.into());
        first.containerd.start(spec, Stdio::default()).await?;
    }
    // One of them stands still when everything ends, which some machines do not let die of that.
    first.containerd.freeze(&Node::id("b"), true).await?;
    first.stop().await;
    let second = world.node().await?;
    ensure!(second.containerd.sweep(label, "one", &[]).await? == 2);
    let left = second.containerd.inventory().labelled(label, None).await?;
    ensure!(left.len() == 1 && left[0].id == Node::id("c").as_str(), "{left:?}");
    ensure!(second.containerd.sweep(label, "two", &[Node::id("c")]).await? == 0);
    ensure!(second.containerd.sweep(label, "two", &[]).await? == 1);
    second.stop().await;
    Ok(())
}

/// The fence of an agent whose worker does not come back: the spawner sees to it, and knows where the program is.
pub(crate) async fn stands_still_when_nobody_is_heard_of(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let (id, process) = node.waiting("a", &sandbox).await?;
    let frozen = || {
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).unwrap_or_default();
        let unified = text.lines().find_map(|line| line.strip_prefix("0::/")).map(str::to_owned);
        let states = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().zip(std::iter::repeat(unified));
        let states = states.filter_map(|(top, group)| {
            std::fs::read_to_string(std::path::Path::new(top).join(group?).join("cgroup.events")).ok()
        });
        let v1 = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
        states.into_iter().any(|state| state.contains("frozen 1")) || v1.contains(") D ")
    };
    ensure!(!frozen(), "it stands still already");
    node.handle.patience(&id, Some(std::time::Duration::from_millis(10))).await?;
    node.handle.heard(std::time::Duration::from_millis(1)).await?;
    until("it stands still", frozen).await?;
    ensure!(runs(process.pid), "it was killed");
    // And dies with the agent all the same.
    let containerd = node.containerd.clone();
    node.stop().await;
    until("the kernel kills it", || !runs(process.pid)).await?;
    containerd.inventory().remove(id.as_str()).await?;
    Ok(())
}
