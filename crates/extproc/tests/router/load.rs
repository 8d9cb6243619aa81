//! Many sessions at once while routers come and go: none may meet the instance of another, and whatever fails says so.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;

use crate::client::{Answer, get};
use crate::world::World;

const SESSIONS: usize = 20;
const CLIENTS: usize = 8;
/// How many requests have to succeed between two of the things that happen.
const BETWEEN: usize = 200;

/// What the clients have seen.
#[derive(Default)]
struct Book {
    instances: Mutex<HashMap<String, String>>,
    served: AtomicUsize,
    /// How often what was the reason.
    failed: Mutex<BTreeMap<String, usize>>,
    over: AtomicBool,
}

impl Book {
    fn note(&self, key: &str, answer: &Answer) -> Result<()> {
        if answer.status.is_server_error() {
            ensure!(!answer.code().is_empty(), "a failure without a reason: {answer:?}");
            let why = answer.body["error"]["detail"].as_str().unwrap_or(answer.code());
            *self.failed.lock().entry(why.to_owned()).or_default() += 1;
            return Ok(());
        }
        let instance = answer.instance()?;
        let mut instances = self.instances.lock();
        let taken = instances.iter().find(|(other, at)| *other != key && **at == instance);
        ensure!(taken.is_none(), "{key} meets {taken:?}");
        let known = instances.entry(key.to_owned()).or_insert_with(|| instance.clone());
        ensure!(*known == instance, "{key} was at {known}, and now is at {instance}");
        self.served.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

async fn client(address: std::net::SocketAddr, number: usize, book: Arc<Book>) -> Result<()> {
    for turn in 0.. {
        if book.over.load(Ordering::SeqCst) {
            break;
        }
        let key = format!("s-{}", (number * 7 + turn) % SESSIONS);
        book.note(&key, &get(address, "/default/agent", &[("x-session", &key)]).await?)?;
    }
    Ok(())
}

pub(crate) async fn restarts(world: &World) -> Result<()> {
    let book = Arc::new(Book::default());
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(world.address(), number, book.clone()));
    }
    let happening = async {
        for turn in 0..4 {
            more(&book).await;
            let number = turn % 2;
            let address = match turn {
                0 | 1 => world.stop_router(number).await?,
                _ => world.kill_router(number).context("it ran")?,
            };
            more(&book).await;
            world.start_router(number, address).await?;
            ensure!(
                turn > 1 || book.failed.lock().is_empty(),
                "a router that stops in order: {:?}",
                book.failed.lock()
            );
        }
        more(&book).await;
        anyhow::Ok(())
    };
    tokio::select! {
        happened = happening => happened?,
        Some(ended) = clients.join_next() => { ended??; bail!("a client stopped") }
    }
    book.over.store(true, Ordering::SeqCst);
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let (served, reasons) = (book.served.load(Ordering::SeqCst), book.failed.lock());
    let failed: usize = reasons.values().sum();
    println!(
        "    {served} requests of {SESSIONS} sessions were served, {failed} failed and said why: {reasons:#?}"
    );
    Ok(())
}

/// Waits until more requests have succeeded.
async fn more(book: &Book) {
    let enough = book.served.load(Ordering::SeqCst) + BETWEEN;
    while book.served.load(Ordering::SeqCst) < enough {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
