//! A worker dies instead of each of its effects in turn, in the middle of one story. The next one adopts, the client asks
//! again for what was not answered, and in the end the answers, the table and the kernel say the same.

use std::path::Path;

use agentcube_protos::agent::start_response::Outcome;
use agentcube_protos::agent::{
    Confirmed, Entry, Fence, PauseRequest, Reason, Refusal, State, StatsRequest, StopRequest, SyncRequest,
    Tombstone, Why,
};
use agentcube_protos::link::{AgentApi, Answer};
use anyhow::{Context, Result, anyhow, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::agents::worker_of;
use crate::alone::{Alone, SERVES, ask};
use crate::ways::Way;
use crate::world::{LONG, LOOK};

/// Stories that go on beside each other, each on an agent of its own.
const AT_ONCE: usize = 3;
/// Answers until one is said to have come, of each of two workers.
const CONTACTS: usize = 4;
/// Mounts that the spawner may have made for whatever comes next.
const AHEAD: usize = 1;
const SLEEPS: [&str; 2] = ["/bin/sleep", "100000"];

/// What became of the workers of one story.
#[derive(Debug)]
struct Ended {
    died: usize,
    /// How many came to serve.
    ready: usize,
}

pub(crate) async fn after_each_effect(program: &Path) -> Result<()> {
    let dies = |effects: u64| story(program, vec![effects]);
    let lives = |ended: &Ended| std::future::ready(Ok(ended.died > 0));
    let effects = stream::iter(1..).map(dies).buffered(AT_ONCE).try_take_while(lives).try_fold(1, count);
    let effects = effects.await?;
    println!("a worker that died after each of {} effects", effects - 1);
    // The next one dies as well, for as long as it only adopts what there is in the middle of the story.
    let dies = |next: u64| story(program, vec![effects * 2 / 3, next]);
    let adopts = |ended: &Ended| std::future::ready(Ok(ended.died == 2 && ended.ready < 3));
    let again =
        stream::iter(1..).map(dies).buffered(AT_ONCE).try_take_while(adopts).try_fold(1, count).await?;
    println!("another that died after each of {} effects, before it served", again - 1);
    ensure!(effects > 40 && again > 5, "the deaths are no longer where they were: {effects}, {again}");
    Ok(())
}

async fn count(before: u64, _: Ended) -> Result<u64> {
    Ok(before + 1)
}

async fn story(program: &Path, after: Vec<u64>) -> Result<Ended> {
    let after: Vec<String> = after.iter().map(u64::to_string).collect();
    let words = vec!["--die-after".to_owned(), after.join(",")];
    let alone = Alone::start(program, &Way { words, ..Way::native() }).await?;
    let client = Client { alone: &alone };
    let told = client.story().await;
    told.with_context(|| format!("after {} effects:\n{}", after.join(", "), alone.process.log()))?;
    let worker = worker_of(alone.process.pid()).context("a worker")?;
    let words = std::fs::read_to_string(format!("/proc/{worker}/cmdline"))?;
    // The keeper says how many there were before.
    let died = words.split('\0').skip_while(|word| *word != "--worker").nth(1);
    let died = died.and_then(|word| word.split(',').next()?.parse().ok()).context("a number")?;
    let ready = alone.process.log().lines().filter(|line| line.starts_with("ready at ")).count();
    alone.end().await?;
    Ok(Ended { died, ready })
}

/// Asks again for what was not answered.
struct Client<'a> {
    alone: &'a Alone,
}

impl<'a> Client<'a> {
    async fn story(&self) -> Result<()> {
        let before = self.alone.kernel()?;
        let stays = self.start("stays", &SLEEPS, &[]).await?.0;
        let ((main, endpoints), ..) = tokio::try_join!(self.main(), self.goes(), self.ends())?;
        self.agree(&[&main, &stays]).await?;
        self.serves(&endpoints).await?;
        self.stop(&main).await?;
        self.agree(&[&stays]).await?;
        self.stop(&stays).await?;
        self.agree(&[]).await?;
        let after = self.alone.kernel()?;
        ensure!(after.mounts <= before.mounts + AHEAD, "{after:?} instead of {before:?}");
        Ok(())
    }

    /// One that serves, stands still and goes on.
    async fn main(&self) -> Result<(String, Vec<String>)> {
        let (run, endpoints) = self.start("main", &SERVES, &[8080]).await?;
        self.serves(&endpoints).await?;
        self.is(&run, |entry| entry.endpoints == endpoints && !entry.object.is_empty()).await?;
        self.pause(&run, true).await?;
        self.is(&run, |entry| entry.paused && !entry.fenced).await?;
        let confirmed = vec![Confirmed { run_id: run.clone(), uid: "uid".into() }];
        self.alone.sync(SyncRequest { confirmed, ..self.request() }).await?;
        self.pause(&run, false).await?;
        let confirmed = |entry: &Entry| entry.claim.as_ref().is_some_and(|claim| claim.uid == "uid");
        self.is(&run, |entry| confirmed(entry) && entry.object.is_empty() && !entry.paused).await?;
        self.serves(&endpoints).await?;
        Ok((run, endpoints))
    }

    /// One that comes and goes beside it.
    async fn goes(&self) -> Result<()> {
        let run = self.start("goes", &SLEEPS, &[]).await?.0;
        self.stop(&run).await
    }

    /// One that ends by itself; the agent tells of that when it comes.
    async fn ends(&self) -> Result<()> {
        let run = self.start("ends", &["/bin/sh", "-c", "exit 7"], &[]).await?.0;
        let mut known_version = 0;
        let waiting = async {
            loop {
                let request = SyncRequest { known_version, wait_ms: 10_000, ..self.request() };
                let told = self.alone.sync(request).await?;
                known_version = told.version;
                let entry = told.entries.into_iter().find(|entry| entry.run_id == run);
                if let Some(entry) = entry.filter(|entry| entry.state() == State::Ended) {
                    return anyhow::Ok(entry.exit.unwrap_or_default());
                }
            }
        };
        let exit = tokio::time::timeout(LONG, waiting).await.context("it never ends")??;
        ensure!(exit.code == 7, "{exit:?}");
        self.stop(&run).await
    }

    fn request(&self) -> SyncRequest {
        SyncRequest { fence: self.fence(), ..SyncRequest::default() }
    }

    fn fence(&self) -> Option<Fence> {
        Some(self.alone.fence.clone())
    }

    async fn again<T>(&self, question: impl Fn() -> Answer<'a, T>) -> Result<T> {
        let asking = async {
            loop {
                match question().await {
                    Ok(answer) => return answer,
                    Err(_) => tokio::time::sleep(LOOK).await,
                }
            }
        };
        tokio::time::timeout(LONG, asking).await.context("it is never answered")
    }

    /// Tries again after the worker has heard of us: the last may have died before that was written down.
    async fn in_contact<T>(
        &self,
        order: impl AsyncFn() -> Result<Result<T, Refusal>>,
    ) -> Result<Result<T, Refusal>> {
        let mut done = order().await?;
        for _ in 0..CONTACTS {
            if done.as_ref().err().is_none_or(|refusal| refusal.reason() != Reason::Unknown) {
                break;
            }
            self.alone.whole().await?;
            done = order().await?;
        }
        Ok(done)
    }

    /// Under another id, if the worker died with the first before anybody could be told of it.
    async fn start(&self, name: &str, command: &[&str], ports: &[u32]) -> Result<(String, Vec<String>)> {
        for attempt in 0..3 {
            let run = format!("{name}-{attempt}");
            let mut order = self.alone.order(&run, command);
            order.claim.get_or_insert_default().name = name.into();
            order.spec.get_or_insert_default().ports = ports.to_vec();
            let start = async || match self.again(|| self.alone.agent.start(order.clone())).await?.outcome {
                Some(Outcome::Started(started)) => Ok(Ok(started.endpoints)),
                Some(Outcome::Refusal(refusal)) => Ok(Err(refusal)),
                None => bail!("{run}: neither started nor refused"),
            };
            match self.in_contact(start).await? {
                Ok(endpoints) => return Ok((run, endpoints)),
                Err(refusal) => ensure!(refusal.reason() == Reason::Tombstoned, "{run}: {refusal:?}"),
            }
            ensure!(self.buried(&run).await?.is_some_and(|one| one.why() == Why::Abandoned), "{run}");
        }
        bail!("{name} is begun again and again")
    }

    /// As a controller does it: what stands still for a reason that died with the worker may go on for its part.
    async fn pause(&self, run: &str, paused: bool) -> Result<()> {
        self.freeze(run, PauseRequest { paused: Some(paused), ..PauseRequest::default() }).await?;
        if self.alone.entry(run).await?.is_some_and(|entry| entry.fenced) {
            self.freeze(run, PauseRequest { fenced: Some(false), ..PauseRequest::default() }).await?;
        }
        Ok(())
    }

    async fn freeze(&self, run: &str, wanted: PauseRequest) -> Result<()> {
        let request = PauseRequest { run_id: run.to_owned(), fence: self.fence(), ..wanted };
        let freeze = async || {
            let answer = self.again(|| self.alone.agent.pause(request.clone())).await?;
            Ok(answer.refusal.map_or(Ok(()), Err))
        };
        let done = self.in_contact(freeze).await?;
        done.map_err(|refusal| anyhow!("{run}: {refusal:?}"))
    }

    async fn stop(&self, run: &str) -> Result<()> {
        let (run_id, fence, why) = (run.to_owned(), self.fence(), Why::Deleted.into());
        let request = StopRequest { fence, run_id, why, ..StopRequest::default() };
        let refusal = self.again(|| self.alone.agent.stop(request.clone())).await?.refusal;
        ensure!(refusal.is_none(), "{run}: {refusal:?}");
        ensure!(self.alone.entry(run).await?.is_none(), "{run} was stopped");
        ensure!(self.buried(run).await?.is_some_and(|one| one.why() == Why::Deleted), "{run}");
        Ok(())
    }

    async fn buried(&self, run: &str) -> Result<Option<Tombstone>> {
        Ok(self.alone.whole().await?.tombstones.into_iter().find(|one| one.run_id == run))
    }

    /// What was answered is so, whoever is asked.
    async fn is(&self, run: &str, so: impl Fn(&Entry) -> bool) -> Result<()> {
        let entry = self.alone.entry(run).await?.with_context(|| format!("{run} was started"))?;
        ensure!(entry.state() == State::Running && so(&entry), "{entry:?}");
        Ok(())
    }

    /// A server answers where it was said to be, unless its worker has died a moment ago.
    async fn serves(&self, endpoints: &[String]) -> Result<()> {
        let endpoint = endpoints.first().context("an endpoint")?;
        let asking = async {
            while !ask(endpoint).await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LONG, asking).await.with_context(|| format!("nobody answers at {endpoint}"))
    }

    /// Waits until the table has these runs and no others, and so has the kernel.
    async fn agree(&self, runs: &[&str]) -> Result<()> {
        let mut last = None;
        let agreeing = async {
            loop {
                let (told, kernel) = (self.alone.whole().await?, self.alone.kernel()?);
                let stats = self.again(|| self.alone.agent.stats(StatsRequest::default())).await?;
                let mut known: Vec<&str> = told.entries.iter().map(|entry| &*entry.run_id).collect();
                known.sort_unstable();
                let counts = [told.used as usize, stats.runs.len(), kernel.processes, kernel.cgroups];
                if known == runs && counts.iter().all(|count| *count == runs.len()) {
                    return anyhow::Ok(());
                }
                last = Some(format!("{known:?}, counted {counts:?}, instead of {runs:?}"));
                tokio::time::sleep(LOOK).await;
            }
        };
        let agreed = tokio::time::timeout(LONG, agreeing).await;
        agreed.unwrap_or_else(|_| bail!("they never agree: {last:?}"))
    }
}
