//! Sandboxes that are made before anybody asks.

use std::collections::BTreeMap;

use agentcube_protos::agent::{ConfigureRequest, Shape, SyncRequest};
use agentcube_protos::link::AgentApi;
use agentcube_protos::session::{Egress, File};
use anyhow::{Result, ensure};
use futures_util::future::join_all;

use crate::registry::Registry;
use crate::streams::said;
use crate::world::{CAPACITY, World, command};

async fn configure(world: &World, count: u32, capacity: u32) -> Result<()> {
    let shape = Shape { image: "host".into(), count, egress: Egress::Closed.into(), ..Shape::default() };
    let prepared = if count == 0 { Vec::new() } else { vec![shape] };
    let fence = Some(world.fence.clone());
    let request = ConfigureRequest { fence, capacity, prepared, ..ConfigureRequest::default() };
    let answer = world.agent.configure(request).await?;
    ensure!(answer.refusal.is_none(), "{answer:?}");
    Ok(())
}

/// Listens until so many wait.
async fn until(world: &World, wanted: u32) -> Result<()> {
    let mut known = 0;
    loop {
        let news = world.sync(known).await?;
        if news.prepared.first().map_or(0, |shape| shape.count) == wanted {
            return Ok(());
        }
        known = news.version;
    }
}

pub(crate) async fn what_waits_is_claimed(world: &World) -> Result<()> {
    configure(world, 2, CAPACITY).await?;
    until(world, 2).await?;
    ensure!(world.sync(0).await?.used == 0, "they take no slot");
    let mut order = world.order("claimed", &["serve", "8080", "hello"]);
    order.spec.get_or_insert_default().ports = vec![8080];
    order.wait_ready_ms = 30_000;
    let started = world.ordered(order).await?;
    ensure!(started.prepared && started.ready && started.endpoints[0].ends_with(":8080"), "{started:?}");
    ensure!(world.sync(0).await?.used == 1);
    until(world, 2).await?;

    let mut order = world.order("my-name", &["read", "/proc/sys/kernel/hostname"]);
    order.spec.get_or_insert_default().envs = BTreeMap::from([("A".into(), "b".into())]);
    ensure!(said(world, order).await? == "my-name\n");
    until(world, 2).await?;
    ensure!(said(world, world.order("names", &["read", "/etc/hostname"])).await? == "names\n");
    until(world, 2).await?;
    let mut order = world.order("file", &["read", "/tmp/key"]);
    let file = File { path: "/tmp/key".into(), content: b"secret".to_vec(), ..File::default() };
    order.spec.get_or_insert_default().files = vec![file];
    ensure!(said(world, order).await? == "secret");
    until(world, 2).await?;
    let mut order = world.order("wrong", &[]);
    order.spec.get_or_insert_default().command = vec!["/no/such".into()];
    world.refused_for(order, agentcube_protos::agent::Reason::Invalid).await?;
    let mut other = world.order("other", &["forever"]);
    other.spec.get_or_insert_default().read_only_root = true;
    other.spec.get_or_insert_default().command = ["/bin/sh", "-c", "read x"].map(str::to_owned).to_vec();
    ensure!(!world.ordered(other).await?.prepared, "another shape");
    world.stop("claimed", 0).await?;
    world.stop("other", 0).await.map(drop)
}

pub(crate) async fn what_waits_gives_way(world: &World) -> Result<()> {
    configure(world, 4, 4).await?;
    until(world, 4).await?;
    let names = ["one", "two", "three", "four"];
    for (number, name) in names.into_iter().enumerate() {
        let mut order = world.order(name, &[]);
        // Of another shape, so that none of those who wait is of use.
        order.spec.get_or_insert_default().command = command(&["forever"]);
        order.spec.get_or_insert_default().run_as_user = Some(0);
        ensure!(!world.ordered(order).await?.prepared);
        until(world, 3 - number as u32).await?;
    }
    world.stop("one", 0).await?;
    until(world, 1).await?;
    configure(world, 0, 4).await?;
    until(world, 0).await?;
    for name in &names[1..] {
        world.stop(name, 0).await?;
    }
    ensure!(world.sync(0).await?.prepared.is_empty());
    Ok(())
}

/// More at once than wait: all start, each in one of its own.
pub(crate) async fn a_burst(world: &World) -> Result<()> {
    configure(world, 8, CAPACITY).await?;
    until(world, 8).await?;
    let names: Vec<String> = (0..20).map(|number| format!("burst-{number}")).collect();
    let started = join_all(names.iter().map(|name| world.started(name, &["forever"]))).await;
    let prepared = started.into_iter().collect::<Result<Vec<_>>>()?.iter().filter(|one| one.prepared).count();
    ensure!(prepared >= 8, "{prepared} of 8 were used");
    ensure!(world.sync(0).await?.used == 20);
    for stopped in join_all(names.iter().map(|name| world.stop(name, 0))).await {
        ensure!(stopped?.was_there);
    }
    Ok(())
}

/// What the agent says of images to one who knows this version, at once.
async fn images(world: &World, known_version: u64) -> Result<Vec<String>> {
    let fence = Some(world.fence.clone());
    let request = SyncRequest { fence, known_version, ..SyncRequest::default() };
    Ok(world.agent.sync(request).await?.images)
}

/// Images that are to be kept are fetched, and told to whoever chooses among agents, now and later.
pub(crate) async fn images_are_fetched_ahead(world: &World) -> Result<()> {
    let registry = Registry::start().await?;
    let image = registry.image();
    let known = world.sync(0).await?;
    ensure!(!known.images.contains(&image), "{:?}", known.images);
    let wanted = ["NO NAME".to_owned(), image.clone()];
    let request = ConfigureRequest {
        fence: Some(world.fence.clone()),
        capacity: CAPACITY,
        images: wanted.to_vec(),
        ..ConfigureRequest::default()
    };
    let answer = world.agent.configure(request).await?;
    ensure!(answer.refusal.is_none(), "{answer:?}");
    while !images(world, known.version).await?.contains(&image) {
        tokio::task::yield_now().await;
    }
    let all = images(world, 0).await?;
    ensure!(all.contains(&image) && !all.contains(&wanted[0]), "{all:?}");
    // Another agent of the machine finds it here, and nobody has to start it first.
    let other = world.another(|_| {}).await?;
    let known = other.sync(0).await?;
    for version in [0, known.version] {
        let names = images(&other, version).await?;
        ensure!(names.contains(&image) && names.contains(&"host".to_owned()), "{version}: {names:?}");
    }
    other.end().await
}
