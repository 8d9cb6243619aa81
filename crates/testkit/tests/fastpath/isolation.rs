//! What a program in a sandbox tries, and cannot do.

use anyhow::{Context, Result, ensure};

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
            ("the metadata of a cloud", "169.254.169.254", "80"),
            ("a private network", "192.168.255.254", "80"),
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
