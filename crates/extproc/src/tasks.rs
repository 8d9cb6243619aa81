//! Keeps the table of Tasks as the API server has them. Gateways and ports are no concern here: Envoy says which Task a
//! request is for.

use agentcube_api::Task;
use agentcube_operator::cache::{Cache, Change};
use agentcube_router::route::{Route, Table};
use kube::ResourceExt;
use parking_lot::RwLock;
use tokio::sync::watch;

/// Follows the changes; says when all that there was is in the table.
pub(crate) async fn follow(cache: &Cache<Task>, table: &RwLock<Table>, known: &watch::Sender<bool>) {
    cache.synced().await;
    let mut changes = cache.subscribe();
    loop {
        let change = match changes.try_recv() {
            Some(change) => change,
            None => {
                known.send_replace(true);
                changes.recv().await
            }
        };
        take_in(table, &change);
    }
}

fn take_in(table: &RwLock<Table>, change: &Change<Task>) {
    match change.new.as_deref().and_then(Route::read) {
        Some(route) => table.write().set_task(route),
        None => {
            let gone = change.latest();
            table.write().remove_task(&gone.namespace().unwrap_or_default(), &gone.name_any());
        }
    }
}
