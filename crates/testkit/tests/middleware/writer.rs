//! Somebody who writes all the time, waits for one replica each time, and remembers what was acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::resp::{Client, Reply};
use crate::world::{LIMIT, World};

/// Not more than so many a second: what is counted is what is lost, not how much there is.
const PACE: Duration = Duration::from_millis(5);
const ANSWER: Duration = Duration::from_secs(5);
/// Keys that are read at once.
const BATCH: usize = 500;

#[derive(Default)]
struct Books {
    acknowledged: Mutex<Vec<u64>>,
    /// Why writes were not, the latest.
    refused: Mutex<Option<String>>,
    tried: AtomicU64,
}

pub(crate) struct Writer {
    books: Arc<Books>,
    stop: CancellationToken,
    running: JoinHandle<()>,
    service: String,
    password: String,
    prefix: String,
}

impl Writer {
    /// Writes to whoever is behind a Service, under keys of its own.
    pub(crate) fn start(world: &Arc<World>, service: &str, password: &str, prefix: &str) -> Writer {
        let (books, stop) = (Arc::<Books>::default(), CancellationToken::new());
        let running = tokio::spawn({
            let (world, books, stop) = (world.clone(), books.clone(), stop.clone());
            let (service, password, prefix) = (service.to_owned(), password.to_owned(), prefix.to_owned());
            async move {
                while !stop.is_cancelled() {
                    let writing = write(&world, &service, &password, &prefix, &books, &stop);
                    if let Err(error) = writing.await {
                        *books.refused.lock() = Some(format!("{error:#}"));
                    }
                    // Whoever was behind the Service may be gone: it is asked for again.
                    tokio::time::sleep(PACE * 10).await;
                }
            }
        });
        let (service, password, prefix) = (service.into(), password.into(), prefix.into());
        Writer { books, stop, running, service, password, prefix }
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.books.acknowledged.lock().len()
    }

    /// Waits until so many more writes were acknowledged.
    pub(crate) async fn goes_on(&self, more: usize) -> Result<()> {
        let wanted = self.acknowledged() + more;
        let waiting = async {
            while self.acknowledged() < wanted {
                tokio::time::sleep(PACE).await;
            }
        };
        let late = || format!("nothing is acknowledged any more: {:?}", self.books.refused.lock());
        tokio::time::timeout(LIMIT, waiting).await.ok().with_context(late)
    }

    /// Everything that was acknowledged is there.
    pub(crate) async fn nothing_is_lost(&self, world: &World) -> Result<()> {
        self.goes_on(20).await?;
        let acknowledged = self.books.acknowledged.lock().clone();
        let primary = world.behind(&self.service).await?.context("somebody leads")?;
        let mut client = world.redis(&primary, &self.password).await?;
        self.all_in(&mut client, &acknowledged).await.with_context(|| format!("at {primary}"))
    }

    /// Everything that was acknowledged is in this one.
    pub(crate) async fn all_in(&self, client: &mut Client, acknowledged: &[u64]) -> Result<()> {
        let mut lost = Vec::new();
        for batch in acknowledged.chunks(BATCH) {
            let keys: Vec<String> = batch.iter().map(|number| format!("{}:{number}", self.prefix)).collect();
            let mut words = vec!["MGET"];
            words.extend(keys.iter().map(String::as_str));
            let Reply::List(values) = client.ask(&words).await? else { bail!("no list") };
            ensure!(values.len() == batch.len(), "a list of another length");
            let wrong =
                batch.iter().zip(values).filter(|(number, value)| *value != Reply::Text(number.to_string()));
            lost.extend(wrong.map(|(number, _)| *number));
        }
        ensure!(
            lost.is_empty(),
            "{} of {} acknowledged writes are lost, {:?} and on",
            lost.len(),
            acknowledged.len(),
            &lost[..lost.len().min(5)]
        );
        Ok(())
    }

    /// Stops; what was acknowledged.
    pub(crate) async fn stop(self) -> Result<Vec<u64>> {
        self.stop.cancel();
        self.running.await?;
        Ok(self.books.acknowledged.lock().clone())
    }
}

/// Writes until something goes wrong.
async fn write(
    world: &World,
    service: &str,
    password: &str,
    prefix: &str,
    books: &Books,
    stop: &CancellationToken,
) -> Result<()> {
    let primary = world.behind(service).await?.context("nobody is behind the Service")?;
    let mut client = world.redis(&primary, password).await?;
    while !stop.is_cancelled() {
        let number = books.tried.fetch_add(1, Ordering::Relaxed);
        let (key, value) = (format!("{prefix}:{number}"), number.to_string());
        let commands: [&[&str]; 2] = [&["SET", &key, &value], &["WAIT", "1", "2000"]];
        let answers =
            tokio::time::timeout(ANSWER, client.ask_all(&commands)).await.context("no answer")??;
        match answers.as_slice() {
            [Reply::Text(_), Reply::Number(1..)] => books.acknowledged.lock().push(number),
            other => bail!("{primary}: {other:?}"),
        }
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}
