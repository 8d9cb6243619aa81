//! Sessions that have to exist already, and the other names by which they are found.

use std::time::Duration;

use agentcube_api::labels;
use agentcube_instance::TaskId;
use agentcube_instance::alias::{Alias, NameError};
use agentcube_instance::provider::{InstanceProvider, Path, Request, ReserveError, Reserved, Which};
use agentcube_instance::record::lease_name;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::world::{LONG, Router, World, key, until};

fn alias(text: &str) -> Alias {
    Alias { space: "task", subject: None, text: text.into() }
}

async fn reserve(router: &Router, task: &TaskId, key: &str, which: Which) -> Result<Reserved, ReserveError> {
    let request = Request { task: task.clone(), key: Some(crate::world::key(key)), tenant: None, which };
    tokio::time::timeout(LONG, router.reserver.reserve_instance(request)).await.expect("an answer in time")
}

fn existing() -> Which {
    Which::Existing { lease: None }
}

fn intact() -> Which {
    Which::Intact { lease: None, binding: None }
}

async fn aliases(world: &World) -> Vec<Lease> {
    let selector = format!("{}={}", labels::LEASE, labels::LEASE_OF_ALIAS);
    world.leases().list(&ListParams::default().labels(&selector)).await.unwrap().items
}

/// Ends a session as the lifecycle manager does in the end.
async fn remove_session(world: &World, task: &TaskId, session: &str) {
    let name = lease_name(&task.uid, &key(session));
    world.leases().delete(&name, &DeleteParams::default()).await.unwrap();
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    world.leases().patch(&name, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_must_exist_is_never_begun() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (one, other) = (world.router("a").await, world.router("b").await);
    one.traffic.take();
    for which in [existing(), intact(), Which::Existing { lease: Some("l1".into()) }] {
        let refused = reserve(&one, &task, "user-1", which).await;
        assert_eq!(refused.unwrap_err(), ReserveError::NoSuchSession);
        // The server was asked, and nothing was written.
        assert_eq!(one.traffic.take(), ["GET leases"]);
    }
    assert!(world.all_pods().await.is_empty() && world.sessions().await.is_empty());

    let begun = other.reserve(&task, "user-1").await.unwrap();
    let found = reserve(&one, &task, "user-1", intact()).await.unwrap();
    assert_eq!(found.instance, begun.instance);
    let uid = world.session(&task, "user-1").await.unwrap().uid().unwrap();
    let exactly = |uid: &str| Which::Intact { lease: Some(uid.into()), binding: None };
    assert!(reserve(&one, &task, "user-1", exactly(&uid)).await.is_ok());
    let stranger = reserve(&one, &task, "user-1", exactly("another")).await;
    assert_eq!(stranger.unwrap_err(), ReserveError::NoSuchSession);
    assert_eq!(world.all_pods().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_instance_is_replaced_only_for_who_can_do_with_another() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (one, other) = (world.router("a").await, world.router("b").await);
    let begun = one.reserve(&task, "user-1").await.unwrap().instance;
    world.set_status(&begun.name, json!({ "phase": "Failed" })).await;
    one.misses(&task, "user-1").await;
    for router in [&one, &other] {
        until("the loss is known", async || {
            let lost = reserve(router, &task, "user-1", intact()).await;
            (lost.err() == Some(ReserveError::NoSuchSession)).then_some(())
        })
        .await;
    }
    assert_eq!(world.all_pods().await.len(), 1, "nothing was started for it");
    let again = reserve(&other, &task, "user-1", existing()).await.unwrap();
    assert_eq!(again.path, Path::Rebound);
    assert_ne!(again.instance, begun);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_a_later_instance_mints_again_is_its_own() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (one, other) = (world.router("a").await, world.router("b").await);
    let begun = one.reserve(&task, "user-1").await.unwrap();
    one.reserver.name_session(&begun.in_use, vec![alias("t-1")]).await.unwrap();
    let before = other.reserver.resolve(&task, &alias("t-1"), None).await.unwrap().unwrap();
    world.set_status(&begun.instance.name, json!({ "phase": "Failed" })).await;
    other.misses(&task, "user-1").await;
    one.misses(&task, "user-1").await;
    let again = one.reserve(&task, "user-1").await.unwrap();
    assert_ne!(again.instance, begun.instance);
    // Agents that count their tasks begin at one again.
    one.reserver.name_session(&again.in_use, vec![alias("t-1")]).await.unwrap();
    for router in [&other, &one] {
        let named = router.reserver.resolve(&task, &alias("t-1"), None).await.unwrap().unwrap();
        assert_eq!((&named.key, &named.lease), (&before.key, &before.lease));
        assert_ne!(named.binding, before.binding);
        let which = Which::Intact { lease: Some(named.lease), binding: named.binding };
        let found = reserve(router, &task, "user-1", which).await.unwrap();
        assert_eq!(found.instance, again.instance);
    }
    // What was said to the instance that is gone, the present one does not know.
    let which = Which::Intact { lease: Some(before.lease), binding: before.binding };
    let refused = reserve(&other, &task, "user-1", which).await;
    assert_eq!(refused.unwrap_err(), ReserveError::NoSuchSession);
    assert_eq!(aliases(&world).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wants_any_session_is_not_told_what_others_are() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let router = world.router("a").await;
    // They meet in one binding, whoever comes first.
    for n in 0..8 {
        let session = format!("user-{n}");
        let (strict, any) = match n % 2 {
            0 => tokio::join!(reserve(&router, &task, &session, intact()), router.reserve(&task, &session)),
            _ => {
                let (any, strict) = tokio::join!(
                    router.reserve(&task, &session),
                    reserve(&router, &task, &session, intact())
                );
                (strict, any)
            }
        };
        let any = any.unwrap();
        match strict {
            Ok(strict) => assert_eq!(strict.instance, any.instance),
            Err(error) => assert_eq!(error, ReserveError::NoSuchSession),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alias_leads_every_router_to_the_session() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (one, other) = (world.router("a").await, world.router("b").await);
    let begun = one.reserve(&task, "user-1").await.unwrap();
    one.reserver.name_session(&begun.in_use, vec![alias("t-1"), alias("t-2")]).await.unwrap();
    let session = world.session(&task, "user-1").await.unwrap();
    for router in [&other, &one] {
        let named = router.reserver.resolve(&task, &alias("t-1"), None).await.unwrap().unwrap();
        assert_eq!((named.key.as_str(), Some(&*named.lease)), ("user-1", session.uid().as_deref()));
        let which = Which::Intact { lease: Some(named.lease), binding: named.binding };
        let found = reserve(router, &task, named.key.as_str(), which).await.unwrap();
        assert_eq!(found.instance, begun.instance);
    }
    one.traffic.take();
    one.reserver.name_session(&begun.in_use, vec![alias("t-1")]).await.unwrap();
    assert!(one.reserver.resolve(&task, &alias("t-2"), None).await.unwrap().is_some());
    assert_eq!(one.traffic.take(), [""; 0], "what is known costs nothing");
    let leases = aliases(&world).await;
    assert_eq!(leases.len(), 2);
    assert!(!serde_json::to_string(&leases).unwrap().contains("t-1"), "ids are written nowhere");

    // To others, and as another kind of id, it names nothing; and the server is asked once.
    let foreign = Alias { subject: Some("eve".into()), ..alias("t-1") };
    let kind = Alias { space: "context", ..alias("t-1") };
    for unknown in [foreign, kind, alias("t-3")] {
        assert_eq!(one.reserver.resolve(&task, &unknown, None).await, Ok(None));
        assert_eq!(one.traffic.take(), ["GET leases"]);
    }
    // A session of the client's own choice that is known needs no further question.
    let own = key("user-1");
    assert_eq!(one.reserver.resolve(&task, &alias("t-3"), Some(&own)).await, Ok(None));
    assert_eq!(one.traffic.take(), [""; 0]);
    assert!(one.reserver.resolve(&task, &alias("t-2"), Some(&own)).await.unwrap().is_some());
    let twin = world.task("twin", json!({})).await;
    assert_eq!(one.reserver.resolve(&twin, &alias("t-1"), None).await.ok().flatten(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_leaves_a_session_without_names_or_with_good_ones() {
    for write in 1..=2 {
        let world = World::new().await;
        let task = world.task("agent", json!({})).await;
        let (dying, other) = (world.router("a").await, world.router("b").await);
        let begun = dying.reserve(&task, "user-1").await.unwrap();
        dying.traffic.die_in("POST leases", write);
        let naming = dying.reserver.name_session(&begun.in_use, vec![alias("t-1"), alias("t-2")]);
        let watching = until("it dies", async || dying.traffic.is_dead().then_some(()));
        tokio::select! {
            done = naming => panic!("nobody hears of it: {done:?}"),
            () = watching => {}
        }
        let mut found = 0;
        for text in ["t-1", "t-2"] {
            if let Some(named) = other.reserver.resolve(&task, &alias(text), None).await.unwrap() {
                found += 1;
                let which = Which::Intact { lease: Some(named.lease), binding: named.binding };
                let reserved = reserve(&other, &task, named.key.as_str(), which).await.unwrap();
                assert_eq!(reserved.instance, begun.instance);
            }
        }
        assert_eq!(found, write, "each write that was done counts");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_alias_of_a_dead_session_leads_nowhere_and_goes() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let router = world.router("a").await;
    let begun = router.reserve(&task, "user-1").await.unwrap();
    router.reserver.name_session(&begun.in_use, vec![alias("t-1")]).await.unwrap();
    let named = router.reserver.resolve(&task, &alias("t-1"), None).await.unwrap().unwrap();
    let name = lease_name(&task.uid, &key("user-1"));
    world.leases().delete(&name, &DeleteParams::default()).await.unwrap();
    for which in [Which::Intact { lease: Some(named.lease.clone()), binding: None }, existing()] {
        until("the end is known", async || {
            let ended = reserve(&router, &task, "user-1", which.clone()).await;
            (ended.err() == Some(ReserveError::NoSuchSession)).then_some(())
        })
        .await;
    }
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    world.leases().patch(&name, &PatchParams::default(), &patch).await.unwrap();
    // A later session of the same key is another.
    drop(begun);
    router.reserve(&task, "user-1").await.unwrap();
    let which = Which::Existing { lease: Some(named.lease) };
    let refused = reserve(&router, &task, "user-1", which).await;
    assert_eq!(refused.unwrap_err(), ReserveError::NoSuchSession);
    until("the alias is gone", async || aliases(&world).await.is_empty().then_some(())).await;
    until("the router knows", async || {
        router.reserver.resolve(&task, &alias("t-1"), None).await.unwrap().is_none().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_has_one_session() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (one, other) = (world.router("a").await, world.router("b").await);
    let (first, second) = tokio::join!(one.reserve(&task, "user-1"), other.reserve(&task, "user-2"));
    let (first, second) = (first.unwrap(), second.unwrap());
    let (a, b) = tokio::join!(
        one.reserver.name_session(&first.in_use, vec![alias("t-1")]),
        other.reserver.name_session(&second.in_use, vec![alias("t-1")]),
    );
    let (winner, loser) = match (&a, &b) {
        (Ok(()), Err(NameError::Taken(_))) => ("user-1", (&other, &second)),
        (Err(NameError::Taken(_)), Ok(())) => ("user-2", (&one, &first)),
        both => panic!("one of them has it: {both:?}"),
    };
    let named = one.reserver.resolve(&task, &alias("t-1"), None).await.unwrap().unwrap();
    assert_eq!(named.key.as_str(), winner);
    // When its session is gone the name is free, however soon.
    remove_session(&world, &task, winner).await;
    let (router, request) = loser;
    router.reserver.name_session(&request.in_use, vec![alias("t-1")]).await.unwrap();
    until("both know", async || {
        let named = one.reserver.resolve(&task, &alias("t-1"), None).await.unwrap();
        named.filter(|named| named.key.as_str() != winner)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spoilt_alias_leads_nowhere() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let router = world.router("a").await;
    let (first, second) =
        (router.reserve(&task, "user-1").await.unwrap(), router.reserve(&task, "user-2").await);
    let second = second.unwrap();
    for (n, spoil) in [
        json!({ "annotations": { labels::RESERVE_KEY: "user-2" } }),
        json!({ "labels": { labels::TASK_UID: "another" } }),
        json!({ "ownerReferences": null }),
    ]
    .into_iter()
    .enumerate()
    {
        let name = alias(&format!("t-{n}"));
        router.reserver.name_session(&first.in_use, vec![name.clone()]).await.unwrap();
        let known =
            |lease: &Lease| lease.annotations().get(labels::RESERVE_KEY).is_some_and(|key| key == "user-1");
        let lease = aliases(&world).await.into_iter().rfind(known).unwrap();
        let patch = Patch::Merge(json!({ "metadata": spoil }));
        world.leases().patch(&lease.name_any(), &PatchParams::default(), &patch).await.unwrap();
        until("it names nothing", async || {
            let named = router.reserver.resolve(&task, &name, None).await.unwrap();
            named.is_none().then_some(())
        })
        .await;
        let taken = router.reserver.name_session(&second.in_use, vec![name]).await;
        assert!(matches!(taken, Err(NameError::Taken(_))), "{taken:?}");
        world.leases().delete(&lease.name_any(), &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_ended_by_who_knows_that_it_is_over() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (one, other) = (world.router("a").await, world.router("b").await);
    let begun = one.reserve(&task, "user-1").await.unwrap();
    let session = begun.in_use.session().unwrap();
    drop(begun);
    one.reserver.end_session(session.clone(), Duration::ZERO).await;
    assert!(!one.hits(&task, "user-1"));
    let lease = world.session(&task, "user-1").await.unwrap();
    assert!(lease.metadata.deletion_timestamp.is_some());
    assert!(!lease.annotations().contains_key(labels::INTERRUPTED), "nothing was in flight");
    other.misses(&task, "user-1").await;
    // A second time, and for a later session of the key, it does nothing.
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    world.leases().patch(&lease.name_any(), &PatchParams::default(), &patch).await.unwrap();
    let next = until("the key is free", async || one.reserve(&task, "user-1").await.ok()).await;
    one.reserver.end_session(session, Duration::ZERO).await;
    assert!(world.session(&task, "user-1").await.unwrap().metadata.deletion_timestamp.is_none());
    assert!(next.in_use.session().is_some());
}
