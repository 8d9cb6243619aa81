//! Leader election over the embedded API server, on paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Plan;
use agentcube_operator::leader::{self, BadOptions, Elector, Handle, Options};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

async fn server() -> (Server, Client) {
    let server = Server::builder().memory().embed().await.expect("a server in memory starts");
    let client = Client::new(server.front(), "default");
    (server, client)
}

fn options(identity: &str) -> Options {
    Options::new("default", "controllers", identity)
}

fn start(client: &Client, identity: &str) -> (Handle, CancellationToken, JoinHandle<()>) {
    let (elector, handle) = Elector::new(client.clone(), options(identity)).expect("the options are good");
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(elector.run(shutdown.clone()));
    (handle, shutdown, running)
}

async fn lease(client: &Client) -> Lease {
    let api: Api<Lease> = Api::namespaced(client.clone(), "default");
    api.get("controllers").await.expect("the Lease exists")
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_leaves_is_followed_at_once() {
    let (_server, client) = server().await;
    let (mut a, leave, left) = start(&client, "a");
    a.leading().await;
    let (mut b, _stay, _) = start(&client, "b");
    // Longer than any Lease lasts: it is renewed.
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(a.is_leading() && !b.is_leading());
    leave.cancel();
    left.await.unwrap();
    let at = Instant::now();
    assert!(!a.is_leading());
    b.leading().await;
    // Not only when it would have looked anyway.
    assert!(at.elapsed() < options("b").retry_period / 10, "{:?}", at.elapsed());
    let spec = lease(&client).await.spec.unwrap();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("b"), Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_crashes_is_followed_when_its_lease_is_over() {
    let (_server, client) = server().await;
    let (mut a, _alive, running) = start(&client, "a");
    a.leading().await;
    let (mut b, _stay, _) = start(&client, "b");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let at = Instant::now();
    running.abort();
    b.leading().await;
    let Options { lease_duration, retry_period, .. } = options("b");
    let waited = at.elapsed();
    assert!(
        waited > lease_duration - retry_period * 2 && waited <= lease_duration + retry_period,
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_cut_off_stops_before_another_begins_and_may_come_again() {
    let (server, client) = server().await;
    let (mut a, _stay, _) = start(&client, "a");
    a.leading().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.api().faults().set(Plan { unavailable: 1.0, ..Plan::default() });
    let at = Instant::now();
    a.lost().await;
    let Options { renew_deadline, .. } = options("a");
    assert!(!a.is_leading() && at.elapsed() <= renew_deadline, "{:?}", at.elapsed());
    server.api().faults().clear();
    a.leading().await;
    assert_eq!(lease(&client).await.spec.unwrap().lease_transitions, Some(0));
}

/// Counts how many work at once.
#[derive(Clone, Default)]
struct Work {
    at_once: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Work {
    /// Works until told to stop, and takes a while to do so.
    async fn run(
        self,
        token: CancellationToken,
        began: mpsc::UnboundedSender<&'static str>,
        name: &'static str,
    ) {
        self.most.fetch_max(self.at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _ = began.send(name);
        token.cancelled().await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        self.at_once.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn no_two_work_at_once_whatever_befalls_their_requests() {
    let (server, client) = server().await;
    let work = Work::default();
    let (began, mut begins) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let mut running = Vec::new();
    for name in ["a", "b", "c"] {
        let (work, began) = (work.clone(), began.clone());
        let run = move |token| work.clone().run(token, began.clone(), name);
        running.push(tokio::spawn(leader::lead(client.clone(), options(name), shutdown.clone(), run)));
    }
    begins.recv().await;
    for seed in 0..6 {
        let faults = server.api().faults();
        let delay_for = Duration::from_secs(3 + seed);
        // So bad that leaders lose the Lease; then quiet for a while, so that somebody leads again.
        let (conflict, lost_reply, unavailable) = (0.2, 0.3, 0.35);
        let plan = Plan { seed, conflict, lost_reply, unavailable, delay: 0.4, delay_for, ..Plan::default() };
        faults.set(plan);
        tokio::time::sleep(Duration::from_secs(300)).await;
        faults.clear();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(work.at_once.load(Ordering::SeqCst), 1, "after the faults of seed {seed}");
    }
    assert_eq!(work.most.load(Ordering::SeqCst), 1);
    let mut changes = 0;
    while begins.try_recv().is_ok() {
        changes += 1;
    }
    assert!(changes > 5, "the faults were too mild to test anything: {changes} changes");
    shutdown.cancel();
    for candidate in running {
        candidate.await.unwrap().unwrap();
    }
    assert_eq!(work.at_once.load(Ordering::SeqCst), 0);
    assert_eq!(lease(&client).await.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn on_a_shutdown_the_lease_is_kept_until_the_work_is_over() {
    let (_server, client) = server().await;
    let shutdown = CancellationToken::new();
    let (began, mut begins) = mpsc::unbounded_channel();
    let probe = client.clone();
    let run = move |token: CancellationToken| {
        let (began, probe) = (began.clone(), probe.clone());
        async move {
            began.send(()).unwrap();
            token.cancelled().await;
            // Takes longer to stop than a Lease lasts.
            tokio::time::sleep(Duration::from_secs(40)).await;
            assert_eq!(lease(&probe).await.spec.unwrap().holder_identity.as_deref(), Some("a"));
        }
    };
    let leading = tokio::spawn(leader::lead(client.clone(), options("a"), shutdown.clone(), run));
    begins.recv().await;
    let (b, _stay, _) = start(&client, "b");
    shutdown.cancel();
    tokio::time::sleep(Duration::from_secs(39)).await;
    assert!(!b.is_leading());
    leading.await.unwrap().unwrap();
    let spec = lease(&client).await.spec.unwrap();
    assert_ne!(spec.holder_identity.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn work_that_returns_ends_it_and_gives_the_lease_back() {
    let (_server, client) = server().await;
    leader::lead(client.clone(), options("a"), CancellationToken::new(), |_| async {}).await.unwrap();
    assert_eq!(lease(&client).await.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test]
async fn options_that_cannot_be_safe_are_refused() {
    let (_server, client) = server().await;
    let s = Duration::from_secs;
    let bad = |change: fn(&mut Options)| {
        let mut options = options("a");
        change(&mut options);
        Elector::new(client.clone(), options).unwrap_err()
    };
    assert_eq!(bad(|o| o.identity.clear()), BadOptions::NoIdentity);
    assert_eq!(bad(|o| o.renew_deadline = o.lease_duration), BadOptions::Deadline(s(15), s(15)));
    assert_eq!(bad(|o| o.retry_period = o.renew_deadline), BadOptions::Retry(s(10), s(10)));
    let odd = Duration::from_millis(1500);
    assert_eq!(bad(|o| o.lease_duration = Duration::from_millis(1500)), BadOptions::NotWholeSeconds(odd));
}
