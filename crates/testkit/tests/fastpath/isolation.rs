//! What a program in a sandbox tries, and cannot do.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use agentcube_testkit::machine::Machine;
use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;

use crate::world::{AGENT, World, name};

/// What answers a request from within a sandbox; nothing if the connection is refused or cut.
pub(crate) async fn ask(world: &World, sandbox: &str, address: &str, port: &str) -> Result<String> {
    let script = "exec 3<>/dev/tcp/$0/$1 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && head -c 12 <&3";
    let done = world.sandbox(&["exec", sandbox, "--", "bash", "-c", script, address, port], "").await?;
    Ok(done.out)
}

pub(crate) async fn reach(world: &World) -> Result<()> {
    let serving = ["--pool", "fast", "-p", "8080"];
    let other = world.create(&serving, &AGENT).await?;
    let endpoint = other["endpoints"][0].as_str().context("an endpoint")?.to_owned();
    let (its_address, its_port) = endpoint.split_once(':').context("address and port")?;
    let api = world.http.addr();
    let api_port = api.port().to_string();
    for egress in ["closed", "public"] {
        let own = world.create(&[&serving[..], &["--egress", egress]].concat(), &AGENT).await?;
        let own = name(&own)?;
        let local = ask(world, &own, "127.0.0.1", "8080").await?;
        ensure!(local.starts_with("HTTP/1."), "{egress}: it does not reach itself: {local:?}");
        for (what, address, port) in [
            ("another sandbox", its_address, its_port),
            ("the API server on the machine", "127.0.0.1", &*api_port),
            ("the API server as Pods see it", "10.244.0.1", &*api_port),
            ("the API server as a Service", "10.96.0.1", "443"),
        ] {
            let said = ask(world, &own, address, port).await?;
            ensure!(said.is_empty(), "{egress}: it reaches {what}: {said:?}");
        }
        world.well(&["rm", &own]).await?;
    }
    let open = name(&world.create(&["--pool", "fast", "--egress", "open"], &["sleep", "1000"]).await?)?;
    let said = ask(world, &open, its_address, its_port).await?;
    ensure!(said.starts_with("HTTP/1."), "open: it does not reach its neighbour: {said:?}");
    world.well(&["rm", &open, &name(&other)?]).await?;
    world.active("fast", 0).await
}

/// Outside of the platform, and which sandboxes get there.
const OUTSIDE: [(&str, Ipv4Addr, &[&str]); 5] = [
    ("the machine", Ipv4Addr::new(11, 0, 0, 1), &[]),
    ("the metadata of a cloud", Ipv4Addr::new(169, 254, 169, 254), &[]),
    ("those of Azure", Ipv4Addr::new(168, 63, 129, 16), &[]),
    ("a private network", Ipv4Addr::new(10, 99, 0, 7), &["open"]),
    ("the internet", Ipv4Addr::new(11, 0, 0, 6), &["public", "open"]),
];

/// The same platform on a pretended machine, so that whatever its sandboxes try would answer.
pub(crate) async fn outside(program: &Path) -> Result<()> {
    let (here, there) = Machine::two().await?;
    let mut answering = Vec::new();
    for (number, (_, address, _)) in OUTSIDE.into_iter().enumerate() {
        let machine = if number == 0 { &here } else { &there };
        machine.has(address)?;
        answering.push(machine.answer(SocketAddrV4::new(address, 80))?);
    }
    let program = program.to_owned();
    let tried = tokio::task::spawn_blocking(move || {
        for (what, address, _) in OUTSIDE {
            ensure!(here.hears(SocketAddrV4::new(address, 80))? > 0, "{what} does not answer at all");
        }
        here.within(|| Runtime::new()?.block_on(try_outside(&program)))
    });
    tried.await?
}

async fn try_outside(program: &Path) -> Result<()> {
    let world = World::start(program).await?;
    for egress in ["closed", "public", "open"] {
        let sleeps = ["sleep", "1000"];
        let own = name(&world.create(&["--pool", "fast", "--egress", egress], &sleeps).await?)?;
        for (what, address, reached) in OUTSIDE {
            let said = ask(&world, &own, &address.to_string(), "80").await?;
            let expected = reached.contains(&egress);
            ensure!(said.starts_with("HTTP/1.") == expected, "{egress}: of {what} it hears {said:?}");
        }
        world.well(&["rm", &own]).await?;
    }
    world.stop()
}

pub(crate) async fn sight(world: &World) -> Result<()> {
    let first = name(&world.create(&["--pool", "fast", "-e", "SECRET=of-first"], &["sleep", "1000"]).await?)?;
    let second = name(&world.create(&["--pool", "fast"], &["sleep", "1000"]).await?)?;
    let data = world.place.data().display().to_string();
    let seen = world.well(&["exec", &second, "--", "sh", "-c", "cat /proc/[0-9]*/environ; ls /proc"]).await?;
    ensure!(!seen.contains("of-first"), "it sees the variables of another");
    let processes = seen.split_whitespace().filter(|name| name.parse::<u32>().is_ok()).count();
    ensure!(processes <= 5, "it sees {processes} processes");
    let done = world.sandbox(&["exec", &second, "--", "ls", &data], "").await?;
    ensure!(done.code != 0, "it sees the data directory: {}", done.out);
    for attempt in ["mount -t tmpfs none /mnt", "unshare -n true", "chroot / true", "mknod /tmp/a b 8 0"] {
        let done = world.sandbox(&["exec", &second, "--", "sh", "-c", attempt], "").await?;
        ensure!(done.code != 0, "it can {attempt}");
    }
    world.well(&["rm", &first, &second]).await?;
    world.active("fast", 0).await
}
