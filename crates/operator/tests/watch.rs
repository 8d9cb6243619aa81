//! The driver of lists and watches over the embedded API server, seen by a sink that keeps little.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Plan;
use agentcube_apiserver::store::Retention;
use agentcube_operator::cache::Cache;
use agentcube_operator::watch::{self, Error, Sink};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch::Sender;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What a sink has heard.
#[derive(Clone, Debug, Default, PartialEq)]
struct Heard {
    names: BTreeMap<String, u64>,
    reached: u64,
    lists: usize,
    contacts: usize,
    broken: usize,
}

/// Runs at each contact, with their number.
type Hook = Box<dyn FnMut(usize) + Send>;

/// Keeps names and revisions.
struct Names {
    heard: Sender<Heard>,
    hook: Mutex<Option<Hook>>,
}

impl Names {
    fn new() -> Arc<Names> {
        Arc::new(Names { heard: Sender::new(Heard::default()), hook: Mutex::new(None) })
    }

    async fn until(&self, wanted: impl FnMut(&Heard) -> bool) -> Heard {
        let mut heard = self.heard.subscribe();
        let waiting = heard.wait_for(wanted);
        tokio::time::timeout(std::time::Duration::from_secs(200), waiting)
            .await
            .expect("it comes in time")
            .expect("the sender lives")
            .clone()
    }
}

impl Sink<ConfigMap> for Names {
    type Item = (String, u64);

    fn read(&self, object: ConfigMap) -> (String, u64) {
        (object.name_any(), object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0))
    }

    fn listed(&self, items: Vec<(String, u64)>, revision: u64) {
        self.heard.send_modify(|heard| {
            assert!(revision >= heard.reached, "a list goes back");
            (heard.names, heard.reached) = (items.into_iter().collect(), revision);
            heard.lists += 1;
        });
    }

    fn applied(&self, item: (String, u64), revision: u64) {
        self.heard.send_modify(|heard| {
            assert!(revision > heard.reached && item.1 == revision, "{item:?} after {}", heard.reached);
            heard.names.insert(item.0, item.1);
            heard.reached = revision;
        });
    }

    fn deleted(&self, meta: &ObjectMeta, revision: u64) {
        self.heard.send_modify(|heard| {
            assert!(revision > heard.reached);
            heard.names.remove(meta.name.as_deref().unwrap_or_default());
            heard.reached = revision;
        });
    }

    fn bookmark(&self, revision: u64) {
        self.heard.send_modify(|heard| heard.reached = revision);
    }

    fn contact(&self) {
        self.heard.send_modify(|heard| heard.contacts += 1);
        let contacts = self.heard.borrow().contacts;
        if let Some(hook) = self.hook.lock().as_mut() {
            hook(contacts);
        }
    }

    fn broken(&self, _: &Error) {
        self.heard.send_modify(|heard| heard.broken += 1);
    }
}

async fn create(api: &Api<ConfigMap>, name: &str) -> u64 {
    let object = json!({ "metadata": { "name": name } });
    let object = serde_json::from_value(object).expect("this is a ConfigMap");
    let created = api.create(&PostParams::default(), &object).await.expect("it can be created");
    created.resource_version().and_then(|version| version.parse().ok()).expect("a number")
}

fn follow(client: Client, page_size: u32, sink: &Arc<Names>) -> DropGuard {
    let shutdown = CancellationToken::new();
    let config = watcher::Config::default().page_size(page_size);
    tokio::spawn(watch::follow::<ConfigMap, _>(client, config, sink.clone(), shutdown.clone()));
    shutdown.drop_guard()
}

/// One object that cannot be read, which anybody may write, hides none of the others: neither in a list nor in a watch.
#[tokio::test]
async fn what_cannot_be_read_concerns_only_itself() {
    let server = Server::builder().memory().embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    let write = async |name: &str, time: &str| {
        let lease = json!({ "metadata": { "name": name }, "spec": { "renewTime": time } }).to_string();
        let uri = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        let request = http::Request::post(uri).header("content-type", "application/json");
        let request = request.body(lease.into_bytes()).expect("a request");
        client.request_text(request).await.expect("it can be written");
    };
    const BEYOND: &str = "9999-12-31T23:59:59.000000Z";
    write("spoilt-before", BEYOND).await;
    write("before", "2026-01-01T00:00:00.000000Z").await;
    let cache: Cache<Lease> = Cache::new(client.clone(), watcher::Config::default());
    let (shutdown, mut changes) = (CancellationToken::new(), cache.subscribe());
    let _running = shutdown.clone().drop_guard();
    tokio::spawn(cache.clone().run(shutdown));
    tokio::time::timeout(std::time::Duration::from_secs(60), cache.synced()).await.expect("the list is read");
    write("spoilt-after", BEYOND).await;
    write("after", "2026-01-01T00:00:00.000000Z").await;
    let heard = async { while changes.recv().await.latest().name_any() != "after" {} };
    tokio::time::timeout(std::time::Duration::from_secs(60), heard).await.expect("the watch is read");
    let has_spec = |name: &str| cache.get("default", name).map(|lease| lease.spec.is_some());
    assert_eq!(["before", "after"].map(has_spec), [Some(true); 2]);
    assert_eq!(["spoilt-before", "spoilt-after"].map(has_spec), [Some(false); 2], "only their metadata");
}

#[tokio::test]
async fn a_list_comes_in_pages_and_the_watch_goes_on_from_it() {
    let server = Server::builder().memory().embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for n in 0..10 {
        create(&api, &format!("map-{n}")).await;
    }
    let sink = Names::new();
    let _running = follow(client, 3, &sink);
    let heard = sink.until(|heard| heard.lists == 1 && heard.contacts == 4).await;
    assert_eq!(heard.names.len(), 10);
    let revision = create(&api, "later").await;
    let heard = sink.until(|heard| heard.reached == revision).await;
    assert_eq!(heard.names["later"], revision);
    api.delete("map-3", &DeleteParams::default()).await.unwrap();
    let heard = sink.until(|heard| heard.names.len() == 10).await;
    assert!(!heard.names.contains_key("map-3"));
    assert_eq!((heard.lists, heard.broken), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_whose_revision_is_forgotten_between_pages_comes_whole() {
    let retention = Retention { events: 2, bytes: 1 << 20 };
    let server = Server::builder().memory().retention(retention).embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for n in 0..10 {
        create(&api, &format!("map-{n}")).await;
    }
    let sink = Names::new();
    let (writer, runtime) = (api.clone(), tokio::runtime::Handle::current());
    *sink.hook.lock() = Some(Box::new(move |contacts| {
        if contacts == 1 {
            let burst = async {
                for n in 0..8 {
                    create(&writer, &format!("between-{n}")).await;
                }
            };
            tokio::task::block_in_place(|| runtime.block_on(burst));
        }
    }));
    let _running = follow(client, 3, &sink);
    let heard = sink.until(|heard| heard.lists == 1).await;
    assert_eq!((heard.names.len(), heard.broken), (18, 1));
    // One page before the server forgot, and then no further ones.
    assert_eq!(sink.until(|heard| heard.contacts >= 2).await.contacts, 2);
}

#[tokio::test]
async fn a_watch_that_fell_behind_lists_again_and_tells_of_it() {
    let retention = Retention { events: 2, bytes: 1 << 20 };
    let server = Server::builder().memory().retention(retention).embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let sink = Names::new();
    let _running = follow(client, 500, &sink);
    sink.until(|heard| heard.lists == 1).await;
    // Every batch is withheld, so the watch begins again from where it was, which is soon forgotten.
    server.api().faults().set(Plan { drop_watch: 1.0, ..Plan::default() });
    for n in 0..20 {
        create(&api, &format!("map-{n}")).await;
    }
    let heard = sink.until(|heard| heard.lists >= 2 && heard.names.len() == 20).await;
    assert!(heard.broken >= 1);
    server.api().faults().clear();
    let revision = create(&api, "last").await;
    sink.until(|heard| heard.reached == revision).await;
}

#[tokio::test]
async fn an_unreachable_server_is_told_and_tried_again() {
    let server = Server::builder().memory().embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    server.api().faults().set(Plan { unavailable: 1.0, ..Plan::default() });
    let sink = Names::new();
    let _running = follow(client, 500, &sink);
    let heard = sink.until(|heard| heard.broken == 2).await;
    assert_eq!((heard.contacts, heard.lists), (0, 0));
    server.api().faults().clear();
    sink.until(|heard| heard.lists == 1 && heard.contacts == 1).await;
}

#[tokio::test(start_paused = true)]
async fn bookmarks_carry_the_revision_on() {
    let server = Server::builder().memory().embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    let sink = Names::new();
    let _running = follow(client.clone(), 500, &sink);
    let before = sink.until(|heard| heard.lists == 1).await;
    // Another kind moves the revision, of which this watch hears only by a bookmark.
    let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(client, "default");
    let secret = serde_json::from_value(json!({ "metadata": { "name": "other" } })).unwrap();
    let created = api.create(&PostParams::default(), &secret).await.unwrap();
    let revision: u64 = created.resource_version().unwrap().parse().unwrap();
    assert!(revision > before.reached);
    let after = sink.until(|heard| heard.reached >= revision).await;
    assert_eq!((after.lists, after.broken), (1, 0));
}
