//! The manager dies between any two writes, or the server fails it: whoever leads next goes on from there.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use agentcube_api::labels;
use agentcube_apiserver::faults::Plan;
use http::{Method, Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::json;
use tower::Service;

use super::world::{Behaviour, Made, World, annotation, options, run};

/// The server as a process sees it that dies after so many writes: whatever it sends then is never answered, and
/// does not happen.
#[derive(Clone)]
struct Mortal<S> {
    server: S,
    left: Arc<AtomicU32>,
    died: Arc<tokio::sync::Notify>,
}

type Answer<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

impl<S, B> Service<Request<Body>> for Mortal<S>
where
    S: Service<
            Request<Body>,
            Response = Response<B>,
            Error = Infallible,
            Future = Answer<Response<B>, Infallible>,
        >,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Answer<Response<B>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.server.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Events tell of what happens and are no part of it.
        let event = request.uri().path().contains("/events");
        if request.method() != Method::GET && !event {
            let took = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if took.is_err() {
                self.died.notify_one();
                return Box::pin(std::future::pending());
            }
        }
        self.server.call(request)
    }
}

/// Something of everything that takes more than one write. Gives the sessions that are to end.
async fn a_lot_to_do(world: &World, task: &Made) -> Vec<Lease> {
    let mut sessions = Vec::new();
    for slot in 0..5 {
        world.instance(task, 1, slot).await;
    }
    let pod = async |slot: u32| world.api::<Pod>().get(&format!("agent-{slot}")).await.unwrap();
    // Idle, and deleted by hand.
    sessions.push(world.session(task, "user-0", &pod(0).await, 3600).await);
    sessions.push(world.session(task, "user-1", &pod(1).await, 0).await);
    let leases: Api<Lease> = world.api();
    leases.delete(&sessions[1].name_any(), &DeleteParams::default()).await.unwrap();
    // Left over, and abandoned half way.
    let held = json!({ labels::RESERVE_KEY: "user-2", labels::RESERVATION: "no-such-lease.0" });
    world.annotate("agent-2", held).await;
    let holder = format!("agent-3/{}", pod(3).await.uid().unwrap());
    sessions.push(world.lease(task, "user-3", &holder, 0).await);
    // Of a revision that is no longer current.
    world.revision(task, 2, "slots").await;
    sessions
}

fn scaling() -> serde_json::Value {
    let lifecycle = json!({ "reusePolicy": "Always", "idleTimeout": "300s" });
    json!({ "scalingMode": "OnDemand", "minInstances": 2, "maxInstances": 8, "instanceLifecycle": lifecycle })
}

/// Everything is as it should be: all of the old revision is gone, and two instances of the new one wait for use.
fn is_settled(world: &World, sessions: &[Lease]) -> bool {
    let pods = world.pods.list(Some(&world.namespace));
    let new = |pod: &Pod| {
        pod.labels()[labels::SPEC_ID] == "agent-2" && annotation(pod, labels::RESERVATION).is_empty()
    };
    sessions.iter().all(|lease| world.now(lease).is_none())
        && pods.len() == 2
        && pods.iter().all(|pod| new(pod))
}

#[tokio::test]
async fn whoever_comes_next_goes_on_after_a_death_between_any_two_writes() {
    let first_world = World::new().await;
    let _router = first_world.router("a", Behaviour::Agrees).await;
    for writes in 0.. {
        // What was done in other namespaces stays done.
        let world = first_world.elsewhere(&format!("death-{writes}")).await;
        let task = world.task("agent", scaling()).await;
        let sessions = a_lot_to_do(&world, &task).await;
        let (left, died) = (Arc::new(AtomicU32::new(writes)), Arc::new(tokio::sync::Notify::new()));
        let mortal = Mortal { server: world.front(), left: left.clone(), died: died.clone() };
        let first = run(Client::new(mortal, "default"), options());
        let settled = world.until("all to be done", |world| is_settled(world, &sessions));
        tokio::select! {
            () = died.notified() => {}
            () = settled => {
                // It had more writes than it needed: every place to die was tried.
                assert!(writes > 15, "only {writes} writes, so little was done");
                return;
            }
        }
        first.abort();
        let second = run(world.client.clone(), options());
        world.until("all to be done", |world| is_settled(world, &sessions)).await;
        second.stop().await;
    }
}

#[tokio::test]
async fn faults_of_the_server_do_no_harm() {
    let world = World::new().await;
    let task = world.task("agent", scaling()).await;
    let sessions = a_lot_to_do(&world, &task).await;
    let kept = world.instance(&task, 2, 7).await;
    let active = world.session(&task, "user-7", &kept, 0).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let tenth = 0.1;
    world.faults().set(Plan {
        seed: 11,
        conflict: tenth,
        throttle: tenth,
        internal: tenth,
        lost_reply: tenth,
        drop_watch: tenth,
        ..Plan::default()
    });
    let running = run(world.client.clone(), options());
    let ended = |world: &World| sessions.iter().all(|lease| world.now(lease).is_none());
    world.until("the sessions to end", ended).await;
    let new = |world: &World| {
        let pods = world.pods.list(Some(&world.namespace));
        pods.iter().all(|pod| pod.labels()[labels::SPEC_ID] == "agent-2") && pods.len() == 2
    };
    world.until("the new revision", new).await;
    world.faults().clear();
    assert!(world.now(&active).is_some());
    assert_eq!(world.pod("agent-7").unwrap().uid(), kept.uid());
    running.stop().await;
}
