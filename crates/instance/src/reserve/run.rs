//! The long-running part of a router: keeps memory current, writes what has to be written, and at the end stops in
//! order.

use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::Sandbox;
use agentcube_operator::watch::{self, Sink};
use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::feed::{self, InstanceFeed, Leases};
use super::tasks::TaskView;
use super::waiting::PoolKey;
use crate::bearer::Bearer;
use crate::identity::Kind;
use crate::token::{Keys, MASTER_SECRET};

/// How many objects a page of a list has.
const PAGE: u32 = 500;
/// How long bindings, requests in flight and writes of activity may take to come to an end, each.
const STOP: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

pub(super) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let objections = shared.written_objections.lock().take();
    let Some(objections) = objections else {
        tracing::error!("a Reserver is run once; this second run does nothing");
        return;
    };
    let caches = CancellationToken::new();
    let _caches = caches.clone().drop_guard();
    tokio::spawn(shared.tasks.tasks.clone().run(caches.clone()));
    tokio::spawn(shared.tasks.revisions.clone().run(caches.clone()));
    let working = async {
        tokio::join!(
            shared.keep_beating(),
            shared.watch_contact(),
            shared.keep_flushing(),
            shared.look_after_pools(),
            shared.write_objections(objections),
            shared.follow_keys(),
            shared.follow_tasks(),
            shared.follow_revisions(),
            shared.follow_leases(),
            shared.follow_instances::<Pod>(),
            shared.follow_sandboxes(),
        )
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        _ = working => {}
    }
    shared.stop().await;
}

impl Shared {
    /// Serves nothing any more, and takes the router's Lease away when that is so.
    async fn stop(self: &Arc<Self>) {
        self.stopping.cancel();
        let bindings_end = async {
            while !self.bindings.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = tokio::time::timeout(STOP, bindings_end).await;
        let over = self.requests_end().await;
        let _ = tokio::time::timeout(STOP, self.flush_all()).await;
        match over {
            true => self.sign_off().await,
            false => tracing::warn!("requests are still in flight, so this router's Lease stays"),
        }
    }

    /// Waits for the requests in flight, and has them end if they take long. Whether all are over.
    async fn requests_end(&self) -> bool {
        let end = || async {
            while !self.activity.is_idle() {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(STOP, end()).await.is_err() {
            self.activity.revoke();
        }
        tokio::time::timeout(STOP, end()).await.is_ok()
    }

    /// Ends what is in flight when the router has been out of touch for too long.
    async fn watch_contact(&self) {
        let mut epochs = self.contact.epoch.subscribe();
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.clock.instant(self.contact.good_until())) => {
                    if !self.contact.lost() {
                        continue;
                    }
                    tracing::warn!("this router's Lease was not renewed for too long; serving nothing until it is");
                }
                // It was too long, and noticed only when it was over: this process stood still.
                _ = epochs.changed() => {}
            }
            self.activity.revoke();
            self.contact.regained().await;
            epochs.mark_unchanged();
        }
    }

    /// Waits until everything that exists is known.
    pub(super) async fn ready(&self) {
        self.known().await;
        // Ours for as long as this borrows it, so there is no error.
        let _ = self.announced.subscribe().wait_for(|announced| *announced).await;
    }

    /// Whether everything was read once.
    pub(super) fn is_known(&self) -> bool {
        *self.known_tasks.borrow() && *self.contact.begun.borrow()
    }

    pub(super) async fn known(&self) {
        let _ = self.known_tasks.subscribe().wait_for(|known| *known).await;
        let _ = self.contact.begun.subscribe().wait_for(|begun| *begun).await;
    }

    /// Signs with the operator's keys as they are now. What cannot be read is no reason to stop: the last ones stay.
    async fn follow_keys(&self) {
        let secrets: Api<Secret> = Api::namespaced(self.writes.client.clone(), &self.namespace);
        let mut versions = pin!(watcher::watch_object(secrets, MASTER_SECRET).default_backoff());
        while let Some(version) = versions.next().await {
            match version.map(|secret| secret.as_ref().map(Keys::read)) {
                Ok(Some(Ok(keys))) => self.signer.set(keys),
                Ok(Some(Err(error))) => {
                    tracing::warn!(
                        "the Secret {MASTER_SECRET} is spoilt, so the last keys stay in use: {error}"
                    );
                }
                // New ones are made by whoever looks after Tasks.
                Ok(None) => {}
                Err(error) => tracing::debug!("the Secret {MASTER_SECRET} cannot be followed: {error}"),
            }
        }
    }

    async fn follow_tasks(self: &Arc<Self>) {
        let cache = &self.tasks.tasks;
        cache.synced().await;
        self.tasks.revisions.synced().await;
        let mut changes = cache.subscribe();
        loop {
            let change = match changes.try_recv() {
                Some(change) => change,
                None => {
                    self.known_tasks.send_replace(true);
                    changes.recv().await
                }
            };
            let Some(uid) = change.latest().uid() else { continue };
            match change.new.as_deref().and_then(TaskView::read) {
                Some(view) => {
                    let (key, rules) = (PoolKey::of(&view.id), view.rules(&self.timing));
                    let before = self.tasks.by_uid(&uid).is_some_and(|view| view.spec.is_some());
                    let first = view.spec.is_some() && !before;
                    if view.kind == Kind::Sandbox {
                        self.sandboxes_wanted.send_replace(true);
                    }
                    self.tasks.put(view, &self.counts);
                    self.pools.set_rules(&key, Some(rules));
                    if first {
                        self.tasks.prepared.notify_waiters();
                    }
                }
                None => {
                    if let Some(view) = self.tasks.by_uid(&uid) {
                        self.tasks.remove(&uid);
                        self.tasks.prepared.notify_waiters();
                        self.signer.forget(&uid);
                        self.pools.set_rules(&PoolKey::of(&view.id), None);
                        self.bindings.all_changed();
                    }
                }
            }
        }
    }

    /// A new revision may be what those who wait lack.
    async fn follow_revisions(self: &Arc<Self>) {
        let mut changes = self.tasks.revisions.subscribe();
        loop {
            let change = changes.recv().await;
            let Some(object) = change.new else { continue };
            let owner =
                object.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
            if let Some(view) = owner.and_then(|owner| self.tasks.by_uid(&owner.uid)) {
                self.pools.pokes.poke(&PoolKey::of(&view.id));
            }
        }
    }

    async fn follow_leases(self: &Arc<Self>) {
        self.announced_first().await;
        self.follow::<Lease, _>(feed::LEASES, |epoch| Leases { shared: self.clone(), epoch }).await;
    }

    /// Not before a Task has its instances on a pool: who has no such Task need not let routers see Sandboxes.
    async fn follow_sandboxes(self: &Arc<Self>) {
        let _ = self.sandboxes_wanted.subscribe().wait_for(|wanted| *wanted).await;
        self.follow_instances::<Sandbox>().await;
    }

    async fn follow_instances<B: Bearer>(self: &Arc<Self>) {
        self.announced_first().await;
        let feed = |epoch| InstanceFeed::<B> { shared: self.clone(), epoch, kind: PhantomData };
        self.follow::<B, _>(feed::INSTANCES, feed).await;
    }

    async fn announced_first(&self) {
        let _ = self.announced.subscribe().wait_for(|announced| *announced).await;
    }

    /// Follows a kind, from a new list in every epoch.
    async fn follow<K, S>(&self, selector: &str, sink: impl Fn(u64) -> S)
    where
        K: agentcube_operator::cache::Object,
        S: Sink<K>,
    {
        let mut epochs = self.contact.epoch.subscribe();
        loop {
            let epoch = *epochs.borrow_and_update();
            let config = watcher::Config::default().labels(selector).page_size(PAGE);
            let end = CancellationToken::new();
            tokio::select! {
                () = watch::follow::<K, S>(self.writes.client.clone(), config, sink(epoch), end.clone()) => {}
                _ = epochs.changed() => {}
            }
        }
    }
}
