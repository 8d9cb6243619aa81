//! Conversations of MCP through two gateways: each request goes to the instance that has its session, and to no other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use agentcube_api::labels;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::issuer::{Issuer, Pair};
use crate::replicas::{Agent, Answer, Got, World, events, json_answer, post, until};

/// Messages that reached an instance which does not know their session.
static STRAY: AtomicUsize = AtomicUsize::new(0);

#[derive(Default)]
struct Server {
    name: String,
    /// How many calls each session has made.
    sessions: Mutex<HashMap<String, usize>>,
    /// Sessions that their clients ended here.
    ended: Mutex<Vec<String>>,
    tasks: Mutex<Vec<String>>,
    minted: AtomicUsize,
}

fn server(name: &str) -> Agent {
    let server = Arc::new(Server { name: name.to_owned(), ..Server::default() });
    Arc::new(move |request| {
        let server = server.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            server.answer(&head, &serde_json::from_slice(&body).unwrap_or_default())
        })
    })
}

impl Server {
    fn answer(&self, head: &http::request::Parts, message: &Value) -> Answer {
        let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let result = |value: Value| {
            json_answer(200, &json!({ "jsonrpc": "2.0", "id": message["id"], "result": value }))
        };
        if header("mcp-protocol-version").is_some_and(|version| version == "2026-07-28") {
            return self.modern(message, result);
        }
        if message["method"] == "initialize" {
            let number = self.minted.fetch_add(1, Ordering::SeqCst);
            let id = format!("{}-{number}-{:p}", self.name, self);
            let refused = message["params"]["refuse"] == true;
            let mut answer =
                if refused { json_answer(400, &json!({})) } else { result(json!({ "at": self.name })) };
            answer.headers_mut().insert("mcp-session-id", id.parse().unwrap());
            if !refused {
                self.sessions.lock().insert(id, 0);
            }
            return answer;
        }
        let id = header("mcp-session-id").unwrap_or_default();
        let mut sessions = self.sessions.lock();
        let Some(count) = sessions.get_mut(&id) else {
            if self.ended.lock().contains(&id) {
                return json_answer(404, &json!({ "ended": id }));
            }
            STRAY.fetch_add(1, Ordering::SeqCst);
            return json_answer(404, &json!({ "stray": id }));
        };
        *count += 1;
        let said = json!({ "at": self.name, "count": *count });
        match (&head.method, &message["params"]["name"]) {
            (&Method::DELETE, _) => {
                sessions.remove(&id);
                self.ended.lock().push(id);
                json_answer(200, &json!({}))
            }
            (&Method::GET, _) => {
                let from: usize =
                    header("last-event-id").map_or(0, |last| last.parse::<usize>().unwrap() + 1);
                events((from..from + 3).map(|n| format!("id: {n}\ndata: {said}\n\n")).collect(), true)
            }
            (_, name) if name == "progress" => {
                let event = |n: i32| format!("data: {}\n\n", json!({ "progress": n, "at": self.name }));
                let mut all: Vec<String> = (0..5).map(event).collect();
                all.push(format!("data: {}\n\n", json!({ "id": message["id"], "result": said })));
                events(all, false)
            }
            _ => {
                let mut answer = result(said);
                answer.headers_mut().insert("mcp-session-id", id.parse().unwrap());
                answer
            }
        }
    }

    fn modern(&self, message: &Value, result: impl Fn(Value) -> Answer) -> Answer {
        match message["method"].as_str().unwrap() {
            "tasks/get" => {
                if !self.tasks.lock().iter().any(|task| message["params"]["taskId"] == task.as_str()) {
                    STRAY.fetch_add(1, Ordering::SeqCst);
                }
                result(json!({ "at": self.name }))
            }
            // Silent for long: only a ping says that it lives.
            "tools/call" if message["params"]["silent"] == true => events(vec![": ping\n\n".into()], true),
            "tools/call" if message["params"]["task"] == true => {
                let id = format!("task-{:p}-{}", self, self.minted.fetch_add(1, Ordering::SeqCst));
                self.tasks.lock().push(id.clone());
                result(json!({ "at": self.name, "taskId": id }))
            }
            _ => result(json!({ "at": self.name, "count": self.minted.fetch_add(1, Ordering::SeqCst) })),
        }
    }
}

const PATH: &str = "/default/tools/mcp";

fn call(name: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": { "name": name } }).to_string()
}

async fn begin(world: &World, replica: usize) -> (String, String) {
    let message = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} }).to_string();
    let got = world.send(replica, post(PATH), &message).await;
    assert_eq!(got.status, 200, "{}", got.text);
    let at = got.json()["result"]["at"].as_str().unwrap().to_owned();
    (got.header("mcp-session-id").unwrap().to_owned(), at)
}

async fn say(world: &World, replica: usize, id: &str, name: &str) -> Got {
    world.send(replica, post(PATH).header("mcp-session-id", id), &call(name)).await
}

async fn world(session_ids: &str, most: u32) -> World {
    let world = World::new(server).await;
    let mcp = json!({ "sessionIds": session_ids, "sessionParam": "room" });
    world.task("tools", json!({ "protocol": "MCP", "mcp": mcp }), most).await;
    world
}

async fn all_given_back(world: &World) {
    until("every session is over and its instance free", async || {
        let sessions = world.count_leases(labels::LEASE_OF_SESSION).await;
        let pods = world.pods().list(&Default::default()).await.unwrap().items;
        let held = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.annotations().get(labels::RESERVE_KEY).is_some_and(|key| !key.is_empty())
        };
        (sessions == 0 && !pods.iter().any(held)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_followed_over_both_gateways() {
    for session_ids in ["Shared", "Sealed"] {
        let world = world(session_ids, 4).await;
        let ((one, at), (other, elsewhere)) = tokio::join!(begin(&world, 0), begin(&world, 1));
        assert_ne!(at, elsewhere, "each session has an instance of its own");
        for n in 0..6 {
            let got = say(&world, n % 2, &one, "count").await;
            assert_eq!(
                (&got.json()["result"]["at"], &got.json()["result"]["count"]),
                (&json!(at), &json!(n + 1))
            );
            assert_eq!(got.header("mcp-session-id"), Some(&*one), "the id is the one that the client knows");
        }
        // Progress comes event by event, and the stream is resumed elsewhere.
        for replica in 0..2 {
            let request = post(PATH).header("mcp-session-id", &*other);
            let got = world.stream(replica, request, &call("progress"), 6).await;
            assert!(got.iter().all(|event| event.contains(&elsewhere)), "{got:?}");
            let get = Request::get(PATH).header("mcp-session-id", &*other).header("last-event-id", "41");
            let got = world.stream(replica, get, "", 3).await;
            assert!(got[0].starts_with("id: 42\n") && got[2].contains(&elsewhere), "{got:?}");
        }
        let aliases = if session_ids == "Shared" { 2 } else { 0 };
        assert_eq!(world.count_leases(labels::LEASE_OF_ALIAS).await, aliases);

        let delete = |id: &str| Request::delete(PATH).header("mcp-session-id", id);
        assert_eq!(world.send(1, delete(&one), "").await.status, 200);
        for replica in 0..2 {
            until("the session is over", async || {
                let got = say(&world, replica, &one, "count").await;
                (got.status == 404 && got.json()["error"]["code"] == -32001).then_some(())
            })
            .await;
        }
        assert_eq!(say(&world, 0, &other, "count").await.status, 200);
        assert_eq!(world.send(0, delete(&other), "").await.status, 200);
        all_given_back(&world).await;
        until("its names go with it", async || {
            (world.count_leases(labels::LEASE_OF_ALIAS).await == 0).then_some(())
        })
        .await;
        assert_eq!(world.started(), 2);
    }
    assert_eq!(STRAY.load(Ordering::SeqCst), 0, "no message went astray");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_instance_is_gone_clients_begin_anew() {
    for session_ids in ["Shared", "Sealed"] {
        let world = world(session_ids, 4).await;
        let (id, at) = begin(&world, 0).await;
        world.kill(&at).await;
        for replica in 0..2 {
            let got = until("the gateway knows", async || {
                let got = say(&world, replica, &id, "count").await;
                (!matches!(got.status, 502 | 503)).then_some(got)
            })
            .await;
            assert_eq!((got.status, &got.json()["error"]["code"]), (404, &json!(-32001)), "{}", got.text);
        }
        assert_eq!(world.started(), 1, "nothing was started for a session that is lost");
        let (again, _) = begin(&world, 1).await;
        assert_eq!(say(&world, 0, &again, "count").await.json()["result"]["count"], 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_session_wakes_nobody() {
    for session_ids in ["Shared", "Sealed"] {
        let world = world(session_ids, 1).await;
        for id in ["nobody", "k1.AAAA", &"x".repeat(1000)] {
            for method in [Method::POST, Method::GET, Method::DELETE] {
                let request = post(PATH).method(method).header("mcp-session-id", id);
                assert_eq!(world.send(0, request, &call("count")).await.status, 404);
            }
        }
        let bad = [
            (post(PATH), call("count")),
            (post(PATH), "nonsense".to_owned()),
            (post(PATH), "[]".to_owned()),
            (Request::get(PATH).header("accept", "text/event-stream"), String::new()),
            (Request::delete(PATH), String::new()),
            (post(PATH).header("mcp-protocol-version", "2024-11-05"), call("count")),
        ];
        for (request, text) in bad {
            let got = world.send(1, request, &text).await;
            assert_eq!((got.status, &got.json()["jsonrpc"]), (400, &json!("2.0")), "{}", got.text);
        }
        assert_eq!(world.send(1, Request::put(PATH), "").await.status, 405);
        let large = json!({ "method": "initialize", "x": "x".repeat(1 << 20) }).to_string();
        assert_eq!(world.send(1, post(PATH), &large).await.status, 413);
        assert_eq!((world.started(), world.count_leases(labels::LEASE_OF_SESSION).await), (0, 0));

        // One that the server refuses to begin is given back at once, and its id is not shown.
        let refused = json!({ "id": 0, "method": "initialize", "params": { "refuse": true } }).to_string();
        let got = world.send(0, post(PATH), &refused).await;
        assert_eq!((got.status, got.header("mcp-session-id")), (400, None));
        all_given_back(&world).await;
        // There is one instance at most: it serves the next.
        let (id, at) = begin(&world, 0).await;
        if session_ids == "Sealed" {
            assert!(!id.contains(&at), "the minted id is not shown");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sessions_requests_go_by_what_they_are_about() {
    let world = world("Shared", 3).await;
    let modern = |method: &str| {
        let request = post(PATH).header("mcp-protocol-version", "2026-07-28").header("mcp-method", method);
        // A stray id of the other generation means nothing.
        request.header("mcp-session-id", "nobody")
    };
    let message = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
    };
    let at = |got: Got| got.json()["result"]["at"].as_str().unwrap().to_owned();

    let got = world.send(0, modern("tools/list"), &message("tools/list", json!({}))).await;
    assert_eq!(got.status, 200, "{}", got.text);
    all_given_back(&world).await;

    // The same room is the same instance, however it is written.
    let list = message("tools/list", json!({}));
    let room = at(world.send(0, modern("tools/list").header("mcp-param-room", "r1"), &list).await);
    let again = modern("tools/list").header("mcp-param-room", "=?base64?cjE=?=");
    assert_eq!(at(world.send(1, again, &list).await), room);
    assert_ne!(at(world.send(1, modern("tools/list").header("mcp-param-room", "r2"), &list).await), room);

    // A task is found where it was made.
    let make = message("tools/call", json!({ "task": true }));
    let made = world.send(0, modern("tools/call").header("mcp-name", "long"), &make).await;
    let task = made.json()["result"]["taskId"].as_str().unwrap().to_owned();
    let get = message("tasks/get", json!({ "taskId": task }));
    for replica in 0..2 {
        let got = world.send(replica, modern("tasks/get").header("mcp-name", &*task), &get).await;
        assert_eq!(got.json()["result"]["at"], made.json()["result"]["at"]);
    }
    // Who is silent for long is not held back for a task that may never come.
    let silent = message("tools/call", json!({ "silent": true }));
    let silent = world.stream(1, modern("tools/call").header("mcp-param-room", "r2"), &silent, 1).await;
    assert_eq!(silent, [": ping"]);
    let unknown = world.send(1, modern("tasks/get").header("mcp-name", "nobody"), &get).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (400, &json!(-32602)));
    assert_eq!(world.send(1, modern("x").method(Method::GET), "").await.status, 405);
    assert_eq!(STRAY.load(Ordering::SeqCst), 0, "no message went astray");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_followed_for_the_subject_that_began_it_and_for_nobody_else() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    for session_ids in ["Shared", "Sealed"] {
        let world = world(session_ids, 4).await;
        world.guard("tools", json!([issuer.provider()])).await;
        let of = |user: &str| post(PATH).header("authorization", format!("Bearer {}", issuer.token(user)));
        let message = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} }).to_string();
        assert_eq!(world.send(0, post(PATH), &message).await.status, 401);
        let got = world.send(0, of("ada"), &message).await;
        assert_eq!(got.status, 200, "{}", got.text);
        let id = got.header("mcp-session-id").unwrap().to_owned();
        for replica in [1, 0] {
            let got = world.send(replica, of("ada").header("mcp-session-id", &id), &call("count")).await;
            assert_eq!(got.status, 200, "{}", got.text);
            // Who knows the id, and not the subject, finds no session.
            let got = world.send(replica, of("bob").header("mcp-session-id", &id), &call("count")).await;
            assert_eq!((got.status, &got.json()["error"]["code"]), (404, &json!(-32001)), "{}", got.text);
            let got = world.send(replica, post(PATH).header("mcp-session-id", &id), &call("count")).await;
            assert_eq!(got.status, 401, "{}", got.text);
        }
        let got = world.send(1, of("ada").header("mcp-session-id", &id), &call("count")).await;
        assert_eq!(got.json()["result"]["count"], 3, "and nobody else was heard");
        assert_eq!(world.started(), 1);
    }
}
