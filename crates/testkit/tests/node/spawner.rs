//! The process that starts Pods is killed: `up` says so and ends, and the next one starts clean with the same objects.

use std::path::Path;
use std::time::Duration;

use agentcube_testkit::cluster::up::Place;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::traces::{Traces, no_process};
use crate::{manifests, workload};

const PODS: usize = 10;
const END_LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn run(program: &Path) -> Result<()> {
    let place = Place::new(program)?;
    place.start().await?.down(&place)?;
    let before = Traces::of(&place)?;

    let up = place.start().await?;
    workload::create(&up.http, &place).await?;
    let bare: Vec<String> = (0..PODS).map(|number| format!("bare-{number}")).collect();
    for name in &bare {
        workload::post(&up.http, workload::PODS, &manifests::pod(&place, name)).await?;
    }
    workload::settled(&up.http, &bare).await?;
    let seen = Traces::of(&place)?;
    ensure!(seen.processes.len() > PODS && seen.files.len() > before.files.len(), "blind: {seen:?}");
    ensure!(seen.cgroups.len() == place.cgroups()?.len(), "blind to cgroups: {:?}", seen.cgroups);
    let spawner = Pid::from_raw(i32::try_from(place.spawner()?)?).context("a process has a number")?;
    kill_process(spawner, Signal::KILL)?;
    let said = up.ended(END_LIMIT).await?;
    ensure!(said.contains("error: the process that runs Pods has ended"), "it does not say why:\n{said}");
    no_process(&place).await?;

    let up = place.start().await?;
    workload::settled(&up.http, &bare).await.context("after the next start")?;
    workload::delete_all(&up.http).await?;
    up.down(&place)?;
    Traces::of(&place)?.ensure_same(&before)
}
