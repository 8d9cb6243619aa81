//! Sandboxes that start, or are refused.

use std::collections::BTreeMap;

use agentcube_protos::agent::{Fence, Reason, SandboxSpec, StartRequest};
use agentcube_protos::session::{File, Resources};
use anyhow::{Result, ensure};
use futures_util::future::join_all;

use crate::settled;
use crate::streams::said;
use crate::traces::Traces;
use crate::world::{CAPACITY, World, command};

fn spec(order: &mut StartRequest) -> &mut SandboxSpec {
    order.spec.get_or_insert_default()
}

pub(crate) async fn starts_answers_and_stops(world: &World) -> Result<()> {
    let mut order = world.order("web", &["serve", "8080", "hello"]);
    spec(&mut order).ports = vec![8080];
    order.wait_ready_ms = 30_000;
    let started = world.ordered(order.clone()).await?;
    ensure!(started.ready && !started.prepared && started.node == "node", "{started:?}");
    ensure!(started.endpoints.len() == 1 && started.endpoints[0].ends_with(":8080"), "{started:?}");
    let timings = started.timings.unwrap_or_default();
    ensure!(timings.start > 0 && timings.admit > 0, "{timings:?}");
    ensure!(world.ask("web", 8080).await? == "hello");
    let entry = world.until("web", |entry| entry.is_some_and(|entry| entry.ready)).await?;
    ensure!(entry.is_some_and(|entry| entry.endpoints == started.endpoints && entry.started_unix_ms > 0));
    let stopped = world.stop("web", 0).await?;
    ensure!(
        stopped.was_there && stopped.exit.is_some_and(|exit| exit.reason == "Stopped" && exit.code == 137)
    );
    ensure!(!world.stop("web", 0).await?.was_there, "it has gone");
    world.refused_for(order, Reason::Tombstoned).await
}

pub(crate) async fn the_same_order_joins(world: &World) -> Result<()> {
    let order = world.order("once", &["forever"]);
    let all = join_all((0..8).map(|_| world.ordered(order.clone()))).await;
    ensure!(all.iter().all(Result::is_ok), "{all:?}");
    ensure!(world.sync(0).await?.used == 1);
    let again = world.ordered(order.clone()).await?;
    ensure!(again.endpoints == all[0].as_ref().expect("it was started").endpoints);
    let mut other = order;
    other.claim = Some(world.claim("another"));
    world.refused_for(other, Reason::Taken).await?;
    ensure!(world.stop("once", 0).await?.was_there);
    Ok(())
}

type Change = fn(&mut StartRequest);

pub(crate) async fn refusals(world: &World) -> Result<()> {
    let order = |name: &str, change: Change| {
        let mut order = world.order(name, &["forever"]);
        change(&mut order);
        order
    };
    let cases: [(&str, Change, Reason); 16] = [
        ("image", |order| spec(order).image = "example.test/no/such".into(), Reason::Image),
        ("name", |order| spec(order).image = "NO NAME".into(), Reason::Image),
        ("program", |order| spec(order).command = vec!["/no/such".into()], Reason::Invalid),
        ("nothing", |order| spec(order).command.clear(), Reason::Invalid),
        ("nul", |order| spec(order).args = vec!["a\0b".into()], Reason::Invalid),
        ("port", |order| spec(order).ports = vec![70_000], Reason::Invalid),
        ("ports", |order| spec(order).ports = vec![80, 80], Reason::Invalid),
        (
            "cpu",
            |order| spec(order).resources = Some(Resources { cpu: "much".into(), ..Resources::default() }),
            Reason::Invalid,
        ),
        (
            "file",
            |order| spec(order).files = vec![File { path: "/a/../b".into(), ..File::default() }],
            Reason::Invalid,
        ),
        ("directory", |order| spec(order).working_dir = "/proc/version/x".into(), Reason::StartFailed),
        ("pool", |order| order.claim.get_or_insert_default().pool = "other".into(), Reason::Invalid),
        ("id", |order| order.run_id = "../up".into(), Reason::Invalid),
        ("late", |order| order.expire_unix_ms = 1, Reason::Expired),
        ("object", |order| order.object = vec![0; 1 << 20], Reason::Invalid),
        ("fence", |order| order.fence = None, Reason::OtherIncarnation),
        (
            "uid",
            |order| order.fence.get_or_insert_default().agent_uid = "another".into(),
            Reason::OtherIncarnation,
        ),
    ];
    for (name, change, reason) in cases {
        let refusal = world.refused(order(name, change)).await?;
        ensure!(refusal.reason() == reason && !refusal.message.is_empty(), "{name}: {refusal:?}");
    }
    ensure!(world.sync(0).await?.used == 0, "a refusal takes no slot");
    world.started("first", &["forever"]).await?;
    let mut second = world.order("second", &["forever"]);
    second.claim = Some(world.claim("first"));
    let refusal = world.refused(second).await?;
    ensure!(refusal.reason() == Reason::OtherRun && refusal.run_id == world.run("first"), "{refusal:?}");
    let newer = Fence { term: 7, ..world.fence.clone() };
    let mut newest = world.order("newest", &["forever"]);
    newest.fence = Some(newer);
    world.ordered(newest).await?;
    world.refused_for(world.order("old", &["forever"]), Reason::StaleTerm).await
}

pub(crate) async fn a_sandbox_as_ordered(world: &World) -> Result<()> {
    let status = said(world, world.order("status", &["read", "/proc/self/status"])).await?;
    let line =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let rights = [line("CapEff:"), line("CapBnd:"), line("NoNewPrivs:"), line("Seccomp:")];
    ensure!(rights == ["0000000000000000", "0000000000000000", "1", "2"], "{rights:?}");

    let mut order = world.order("variable", &["variable", "GREETING"]);
    spec(&mut order).envs = BTreeMap::from([("GREETING".into(), "hello".into())]);
    ensure!(said(world, order).await? == "hello\n");
    let mut order = world.order("arguments", &["say"]);
    spec(&mut order).args = vec!["one".into(), "two".into()];
    ensure!(said(world, order).await? == "one\ntwo\n");
    let mut order = world.order("directory", &["directory"]);
    spec(&mut order).working_dir = "/usr".into();
    ensure!(said(world, order).await? == "/usr\n");
    ensure!(said(world, world.order("my-name", &["read", "/etc/hostname"])).await? == "my-name\n");
    ensure!(
        said(world, world.order("kernel-name", &["read", "/proc/sys/kernel/hostname"])).await?
            == "kernel-name\n"
    );

    let file =
        |mode| File { path: "/etc/agent/key".into(), mode, content: b"secret".to_vec(), ..File::default() };
    let mut order = world.order("file", &["read", "/etc/agent/key"]);
    spec(&mut order).files = vec![file(0)];
    ensure!(said(world, order).await? == "secret");
    let mut order = world.order("mode", &["mode", "/etc/agent/key"]);
    spec(&mut order).files = vec![file(0o400)];
    spec(&mut order).run_as_user = Some(1234);
    ensure!(said(world, order).await? == "400 1234\n");

    // By a program that is not in `/tmp`, as this one may be: a directory of its own is mounted there.
    for (name, path, expected) in [("read-only", "/made", "Read-only"), ("scratch", "/tmp/made", "written")] {
        let script = format!("echo x > {path} && echo written");
        let mut order = world.order(name, &[]);
        spec(&mut order).command = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
        spec(&mut order).read_only_root = true;
        let text = said(world, order).await?;
        ensure!(text.contains(expected), "{name}: {text}");
    }
    Ok(())
}

/// As many as fit, at once; one more is refused; all of them are there, and then none.
pub(crate) async fn many_at_once(world: &World) -> Result<()> {
    let node = format!("agent-test-{}", std::process::id());
    let before = Traces::of(&node)?.processes();
    let names: Vec<String> = (0..CAPACITY).map(|number| format!("many-{number}")).collect();
    let mut orders: Vec<StartRequest> = names.iter().map(|name| world.order(name, &["forever"])).collect();
    for order in &mut orders {
        spec(order).command = command(&["serve", "80", "hello"]);
        spec(order).ports = vec![80];
        order.wait_ready_ms = 60_000;
    }
    for started in join_all(orders.into_iter().map(|order| world.ordered(order))).await {
        ensure!(started?.ready);
    }
    world.refused_for(world.order("more", &["forever"]), Reason::Full).await?;
    let told = world.sync(0).await?;
    ensure!(
        (told.used, told.entries.len()) == (CAPACITY, CAPACITY as usize),
        "{} {}",
        told.used,
        told.entries.len()
    );
    // One that is just being made ahead has no name yet by which it could be told.
    settled(&node, |traces| {
        let processes = traces.processes() - before;
        ensure!(processes == CAPACITY as usize, "{processes} processes");
        Ok(())
    })
    .await?;
    for stopped in join_all(names.iter().map(|name| world.stop(name, 0))).await {
        ensure!(stopped?.was_there);
    }
    let told = world.sync(0).await?;
    ensure!((told.used, told.entries.len(), told.tombstones.len()) == (0, 0, CAPACITY as usize));
    Ok(())
}
