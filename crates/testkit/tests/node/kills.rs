//! 200 Pods are created and deleted, with a Deployment, a StatefulSet and Jobs beside them, while the node is killed with
//! SIGKILL again and again. After each start, what was acknowledged is there and runs; in the end nothing is left over.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use agentcube_testkit::cluster::up::{Place, Up};
use agentcube_testkit::suite::Report;
use agentcube_testkit::watch::Watch;
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::manifests;
use crate::traces::{Traces, no_process};
use crate::workload::{self, LIMIT, PODS};

const PODS_IN_ALL: usize = 200;
/// Bare Pods that a round creates, and how many it leaves running.
const CREATED_IN_A_ROUND: usize = 25;
const KEPT: usize = 15;
const POLL: Duration = Duration::from_millis(20);

/// When the node is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Starting,
    Deleting,
    Both,
    Running,
}

use Moment::{Both, Deleting, Running, Starting};

const ROUNDS: [Moment; 10] =
    [Starting, Both, Deleting, Starting, Running, Both, Starting, Deleting, Both, Running];

/// What is known of a Pod.
#[derive(Clone, Debug)]
enum Fate {
    /// Its creation got no answer.
    Asked,
    Created(String),
    /// Its deletion got no answer.
    Dismissed(String),
    Deleted(String),
}

enum Operation {
    Create(String),
    Delete(String),
    Scale(u64),
    Job(String),
    /// Of a Pod that its owner makes anew.
    Replace(String),
}

/// What the campaign did and was told.
struct Journal {
    random: Random,
    pods: BTreeMap<String, Fate>,
    /// Pods whose creation was acknowledged, over all rounds.
    created: usize,
    named: usize,
    jobs: Vec<String>,
}

/// The seed says where the kills fall: another number, another campaign.
pub(crate) async fn run(program: &Path, seed: u64, report: &mut Report) {
    let place = match Place::new(program) {
        Ok(place) => place,
        Err(error) => return report.note("a place for the kills", Err(error)),
    };
    let mut journal = Journal {
        random: Random(seed.max(1)),
        pods: BTreeMap::new(),
        created: 0,
        named: 0,
        jobs: vec!["work".to_owned()],
    };
    let before = match begin(&place).await {
        Ok(before) => before,
        Err(error) => return report.note("kills: the workloads start", Err(error)),
    };
    for (number, moment) in ROUNDS.into_iter().enumerate() {
        let name = format!("kill {:02} of {}, {moment:?}", number + 1, ROUNDS.len());
        let outcome = round(&place, number, moment, &mut journal).await;
        let failed = outcome.is_err();
        report.note(&name, outcome);
        if failed {
            return;
        }
    }
    report.note("kills: nothing is left over in the end", end(&place, &before, &mut journal).await);
}

/// What a node leaves that never ran a Pod; then starts the workloads.
async fn begin(place: &Place) -> Result<Traces> {
    place.start().await?.down(place)?;
    let before = Traces::of(place)?;
    let up = place.start().await?;
    workload::create(&up.http, place).await?;
    workload::settled(&up.http, &[]).await?;
    up.kill();
    Ok(before)
}

async fn end(place: &Place, before: &Traces, journal: &mut Journal) -> Result<()> {
    let up = restart(place, journal).await?;
    let missing = PODS_IN_ALL.saturating_sub(journal.created);
    let rest = journal.creations(missing);
    drive(&up.http, place, journal, rest).await;
    workload::settled(&up.http, &journal.living()).await?;
    ensure!(journal.created >= PODS_IN_ALL, "only {} Pods were created", journal.created);
    workload::delete_all(&up.http).await?;
    up.down(place)?;
    Traces::of(place)?.ensure_same(before)
}

/// One life of the node: everything is as it was acknowledged, then there is work, and in the middle of it the end.
async fn round(place: &Place, number: usize, moment: Moment, journal: &mut Journal) -> Result<()> {
    let up = restart(place, journal).await?;
    let http = up.http.clone();
    if moment == Deleting {
        let more = journal.creations(CREATED_IN_A_ROUND);
        drive(&http, place, journal, more).await;
        workload::settled(&http, &journal.living()).await?;
    }
    let (operations, fewest_events) = journal.work(number, moment);
    if moment == Running {
        drive(&http, place, journal, operations).await;
        workload::settled(&http, &journal.living()).await?;
        up.kill();
    } else {
        let limit = 1 + journal.random.below(fewest_events);
        let watch = Watch::start(&http, PODS).await?;
        let (killed, ()) =
            tokio::join!(kill_after(up, watch, limit), drive(&http, place, journal, operations));
        killed?;
    }
    no_process(place).await
}

/// Kills the node when so many things have happened to Pods.
async fn kill_after(up: Up, mut watch: Watch, events: u64) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    for _ in 0..events {
        ensure!(watch.next(deadline).await?, "too little happened to Pods");
    }
    up.kill();
    Ok(())
}

/// Starts the node, compares it with the journal, and waits until everything runs again.
async fn restart(place: &Place, journal: &mut Journal) -> Result<Up> {
    let up = place.start().await?;
    let watch = Watch::start(&up.http, PODS).await?;
    journal.compare(&watch.objects)?;
    for job in &journal.jobs {
        let reply = up.http.send(Request::new(Method::GET, format!("{}/{job}", workload::JOBS))).await?;
        ensure!(reply.is_success(), "Job {job} was acknowledged and is gone");
    }
    workload::settled(&up.http, &journal.living()).await?;
    no_stray_directory(place, &up.http).await?;
    Ok(up)
}

/// Waits until there are as many directories of Pods as Pods: they go after their Pods.
async fn no_stray_directory(place: &Place, http: &HttpClient) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let left = std::fs::read_dir(place.data().join("node/pods"))?.count();
        let pods = Watch::start(http, PODS).await?.objects.len();
        if left == pods {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{pods} Pods have {left} directories");
        tokio::time::sleep(POLL).await;
    }
}

/// Does what is asked, until it is done or nobody answers any more.
async fn drive(http: &HttpClient, place: &Place, journal: &mut Journal, operations: Vec<Operation>) {
    for operation in operations {
        if let Err(_killed) = perform(http, place, journal, operation).await {
            return;
        }
    }
}

async fn perform(
    http: &HttpClient,
    place: &Place,
    journal: &mut Journal,
    operation: Operation,
) -> Result<()> {
    match operation {
        Operation::Create(name) => {
            journal.pods.insert(name.clone(), Fate::Asked);
            let reply = workload::post(http, PODS, &manifests::pod(place, &name)).await?;
            journal.pods.insert(name, Fate::Created(reply.text("/metadata/uid")?));
            journal.created += 1;
        }
        Operation::Delete(name) => {
            let Some(Fate::Created(uid)) = journal.pods.get(&name).cloned() else { return Ok(()) };
            journal.pods.insert(name.clone(), Fate::Dismissed(uid.clone()));
            http.send(Request::new(Method::DELETE, format!("{PODS}/{name}"))).await?;
            journal.pods.insert(name, Fate::Deleted(uid));
        }
        Operation::Scale(replicas) => {
            let patch = json!({"spec": {"replicas": replicas}}).to_string();
            let path = format!("{}/web", workload::DEPLOYMENTS);
            http.send(Request::new(Method::PATCH, path).body("application/merge-patch+json", patch)).await?;
        }
        Operation::Job(name) => {
            workload::post(http, workload::JOBS, &manifests::job(place, &name)).await?;
            journal.jobs.push(name);
        }
        Operation::Replace(name) => {
            http.send(Request::new(Method::DELETE, format!("{PODS}/{name}"))).await?;
        }
    }
    Ok(())
}

impl Journal {
    /// What a round does, in an order of its own, and how many events of Pods that brings at the least.
    fn work(&mut self, number: usize, moment: Moment) -> (Vec<Operation>, u64) {
        let mut operations = Vec::new();
        let mut fewest = 0;
        if moment != Deleting {
            operations = self.creations(CREATED_IN_A_ROUND);
            operations.push(Operation::Scale(2 + self.random.below(4)));
            operations.push(Operation::Job(format!("work-{number}")));
            // Created, scheduled, running.
            fewest += 3 * CREATED_IN_A_ROUND as u64;
        }
        if moment != Starting {
            let mut living = self.living();
            self.random.shuffle(&mut living);
            living.truncate(living.len().saturating_sub(KEPT));
            // Asked to leave, gone.
            fewest += 2 * living.len() as u64;
            operations.extend(living.into_iter().map(Operation::Delete));
            operations.push(Operation::Replace("db-0".to_owned()));
        }
        self.random.shuffle(&mut operations);
        (operations, fewest)
    }

    fn creations(&mut self, count: usize) -> Vec<Operation> {
        let names = self.named..self.named + count;
        self.named += count;
        names.map(|number| Operation::Create(format!("bare-{number:03}"))).collect()
    }

    fn living(&self) -> Vec<String> {
        let lives = |(name, fate): (&String, &Fate)| matches!(fate, Fate::Created(_)).then(|| name.clone());
        self.pods.iter().filter_map(lives).collect()
    }

    /// What was acknowledged must be so; what got no answer may be either way, and is known from now on.
    fn compare(&mut self, found: &BTreeMap<String, Value>) -> Result<()> {
        let mut known = BTreeMap::new();
        for (name, fate) in std::mem::take(&mut self.pods) {
            let pod = found.get(&name);
            let uid = pod.and_then(|pod| pod["metadata"]["uid"].as_str()).map(str::to_owned);
            let leaves = pod.is_some_and(workload::leaves);
            let now = match (&fate, uid) {
                (Fate::Asked, Some(uid)) => {
                    self.created += 1;
                    Some(Fate::Created(uid))
                }
                (Fate::Created(before), Some(uid)) if !leaves && uid == *before => Some(fate),
                (Fate::Dismissed(before), Some(uid)) if !leaves && uid == *before => Some(Fate::Created(uid)),
                (Fate::Dismissed(before) | Fate::Deleted(before), Some(uid)) if leaves && uid == *before => {
                    Some(Fate::Deleted(uid))
                }
                (Fate::Asked | Fate::Dismissed(_) | Fate::Deleted(_), None) => None,
                (fate, uid) => bail!("Pod {name} was {fate:?}, and is {uid:?} (leaving: {leaves})"),
            };
            known.extend(now.map(|fate| (name, fate)));
        }
        let strange = |name: &&String| name.starts_with("bare-") && !known.contains_key(*name);
        if let Some(name) = found.keys().find(strange) {
            bail!("Pod {name} has come back");
        }
        self.pods = known;
        Ok(())
    }
}

/// xorshift64*: the same numbers everywhere and always.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
