//! Conversations of A2A through two gateways: tasks and contexts stay with the instance that made them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use agentcube_api::labels;
use http::Request;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::issuer::{Issuer, Pair};
use crate::replicas::{Agent, Answer, Got, World, events, json_answer, post, until};

/// Messages that reached an instance which does not know their task.
static STRAY: AtomicUsize = AtomicUsize::new(0);

#[derive(Default)]
struct Server {
    name: String,
    /// The context of each task, and how many messages it has got.
    tasks: Mutex<BTreeMap<String, (String, usize)>>,
    /// How many messages each context has got.
    contexts: Mutex<BTreeMap<String, usize>>,
    minted: AtomicUsize,
}

fn server(name: &str) -> Agent {
    let server = Arc::new(Server { name: name.to_owned(), ..Server::default() });
    Arc::new(move |request| {
        let server = server.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            server.answer(&head, &body)
        })
    })
}

impl Server {
    fn task(&self, id: &str) -> Value {
        let mut tasks = self.tasks.lock();
        let Some((context, count)) = tasks.get_mut(id) else {
            STRAY.fetch_add(1, Ordering::SeqCst);
            return json!({ "stray": id });
        };
        *count += 1;
        json!({ "id": id, "contextId": context, "status": { "at": self.name, "count": *count } })
    }

    /// Takes in a message; the task that it is in.
    fn message(&self, message: &Value) -> Value {
        if let Some(task) = message["taskId"].as_str() {
            return self.task(task);
        }
        let number = self.minted.fetch_add(1, Ordering::SeqCst);
        let context =
            message["contextId"].as_str().map_or_else(|| format!("c-{}-{number}", self.name), str::to_owned);
        let count = *self.contexts.lock().entry(context.clone()).and_modify(|count| *count += 1).or_insert(1);
        let id = format!("t-{}-{number}", self.name);
        self.tasks.lock().insert(id.clone(), (context, 0));
        let mut task = self.task(&id);
        task["status"]["inContext"] = json!(count);
        task
    }

    fn answer(&self, head: &http::request::Parts, body: &[u8]) -> Answer {
        let text: Value = serde_json::from_slice(body).unwrap_or_default();
        // Where ids are to be learned, the answer must not be compressed; elsewhere that is the client's business.
        let says = text["method"].as_str().unwrap_or(head.uri.path()).to_ascii_lowercase();
        let identity = head.headers.get("accept-encoding").is_some_and(|value| value == "identity");
        assert_eq!(identity, says.contains("message"), "{head:?}");
        if text["params"]["message"]["fail"] == true {
            return json_answer(
                200,
                &json!({ "jsonrpc": "2.0", "id": text["id"], "error": { "code": -32603 } }),
            );
        }
        if let Some(method) = text["method"].as_str() {
            return self.rpc(method, &text, body.len());
        }
        let path = head.uri.path();
        match path.rsplit('/').next().unwrap() {
            "message:send" => json_answer(200, &json!({ "task": self.message(&text["message"]) })),
            "message:stream" => {
                stream(&json!({ "task": self.message(&text["message"]) }), &json!({ "statusUpdate": {} }))
            }
            "tasks" => {
                json_answer(200, &self.list(head.uri.query().unwrap().split('=').next_back().unwrap()))
            }
            id => json_answer(200, &self.task(id.split(':').next().unwrap())),
        }
    }

    fn list(&self, context: &str) -> Value {
        let tasks = self.tasks.lock();
        let of_context = tasks.iter().filter(|(_, (of, _))| of == context);
        json!({ "tasks": of_context.map(|(id, _)| id).collect::<Vec<_>>(), "at": self.name })
    }

    fn rpc(&self, method: &str, text: &Value, size: usize) -> Answer {
        let params = &text["params"];
        let result = |value: Value| json!({ "jsonrpc": "2.0", "id": text["id"], "result": value });
        match method {
            "SendMessage" => {
                let mut task = self.message(&params["message"]);
                task["status"]["size"] = json!(size);
                json_answer(200, &result(json!({ "task": task })))
            }
            "message/send" => json_answer(200, &result(self.message(&params["message"]))),
            "SendStreamingMessage" => {
                let task = self.message(&params["message"]);
                let update =
                    json!({ "statusUpdate": { "taskId": task["id"], "contextId": task["contextId"] } });
                stream(&result(json!({ "task": task })), &result(update))
            }
            "SubscribeToTask" => {
                let task = self.task(params["id"].as_str().unwrap());
                stream(&result(json!({ "task": task })), &result(json!({ "statusUpdate": {} })))
            }
            "ListTasks" => json_answer(200, &result(self.list(params["contextId"].as_str().unwrap()))),
            "GetExtendedAgentCard" => json_answer(200, &result(json!({ "at": self.name }))),
            _ => json_answer(200, &result(self.task(params["id"].as_str().unwrap()))),
        }
    }
}

fn stream(first: &Value, then: &Value) -> Answer {
    let ping = ": ping\n\n".to_owned();
    let all = [ping, format!("data: {first}\n\n"), format!("data: {then}\n\n"), format!("data: {then}\n\n")];
    events(all.to_vec(), false)
}

const PATH: &str = "/default/agent/";

fn rpc(method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": "r-1", "method": method, "params": params }).to_string()
}

async fn say(world: &World, replica: usize, method: &str, params: Value) -> Got {
    let got = world.send(replica, post(PATH), &rpc(method, params)).await;
    assert_eq!((got.status, &got.json()["id"]), (200, &json!("r-1")), "{}", got.text);
    got
}

/// The task in an answer, and where it is.
fn task_in(got: &Got) -> (String, String, String) {
    let answer = got.json();
    let task = [&answer["result"]["task"], &answer["result"], &answer["task"], &answer]
        .into_iter()
        .find(|task| task["id"].is_string() && task["contextId"].is_string());
    let task = task.unwrap_or_else(|| panic!("no task: {answer}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&task["id"]), text(&task["contextId"]), text(&task["status"]["at"]))
}

async fn world(most: u32) -> World {
    let world = World::new(server).await;
    let card = json!({ "name": "agent", "supportedInterfaces": [
        { "url": "/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0" }] });
    world.task("agent", json!({ "protocol": "A2A", "a2a": { "agentCard": card } }), most).await;
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_contexts_are_followed_over_both_gateways() {
    let world = world(6).await;
    let (one, other) = tokio::join!(
        say(&world, 0, "SendMessage", json!({ "message": { "parts": [] } })),
        say(&world, 1, "message/send", json!({ "message": { "parts": [] } })),
    );
    let ((task, context, at), (_, _, elsewhere)) = (task_in(&one), task_in(&other));
    assert_ne!(at, elsewhere, "each conversation has an instance of its own");
    for replica in [1, 0] {
        let got = say(&world, replica, "GetTask", json!({ "id": task })).await;
        assert_eq!(task_in(&got), (task.clone(), context.clone(), at.clone()));
        let more =
            json!({ "message": { "parts": ["x".repeat(1000)], "taskId": task, "contextId": context } });
        assert_eq!(task_in(&say(&world, replica, "SendMessage", more).await).2, at);
    }
    assert_eq!(
        say(&world, 1, "tasks/get", json!({ "id": task })).await.json()["result"]["status"]["count"],
        6
    );

    // The context goes on in another task, by a stream, and by REST.
    let more = rpc("SendStreamingMessage", json!({ "message": { "contextId": context } }));
    let got = world.stream(1, post(PATH), &more, 4).await;
    let first: Value = serde_json::from_str(got[1].strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(
        (&first["result"]["task"]["status"]["at"], &first["result"]["task"]["status"]["inContext"]),
        (&json!(at), &json!(2))
    );
    let second = first["result"]["task"]["id"].as_str().unwrap();
    let got = world.stream(0, post(PATH), &rpc("SubscribeToTask", json!({ "id": second })), 4).await;
    assert!(got[1].contains(second) && got.len() == 4, "{got:?}");
    let message = json!({ "message": { "contextId": context } }).to_string();
    let got = world.send(0, post("/default/agent/v1/message:send"), &message).await;
    assert_eq!((task_in(&got).1, task_in(&got).2), (context.clone(), at.clone()));
    let third = task_in(&got).0;
    for path in [format!("/default/agent/tasks/{third}"), format!("/default/agent/tasks/{third}:subscribe")] {
        assert_eq!(task_in(&world.send(1, Request::get(path), "").await).2, at);
    }
    let listed = say(&world, 1, "ListTasks", json!({ "contextId": context })).await.json();
    assert_eq!(listed["result"]["tasks"].as_array().unwrap().len(), 3);
    let query = format!("/default/agent/tasks?contextId={context}");
    assert_eq!(world.send(0, Request::get(query), "").await.json()["at"], json!(at));
    assert_eq!(world.started(), 2);
    assert_eq!(STRAY.load(Ordering::SeqCst), 0, "no message went astray");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_of_the_clients_own_is_bound_when_it_comes() {
    let world = world(6).await;
    let message = json!({ "message": { "contextId": "mine" } });
    let all =
        futures_util::future::join_all((0..6).map(|n| say(&world, n % 2, "SendMessage", message.clone())))
            .await;
    let places: std::collections::BTreeSet<String> = all.iter().map(|got| task_in(got).2).collect();
    assert_eq!((places.len(), world.started()), (1, 1));
    for (n, got) in all.iter().enumerate() {
        let task = task_in(got).0;
        assert_eq!(task_in(&say(&world, n % 2, "GetTask", json!({ "id": task })).await).0, task);
    }
    // When its instance is gone the context lives on elsewhere, and its tasks do not.
    world.kill(places.first().unwrap()).await;
    let old = task_in(&all[0]).0;
    for replica in 0..2 {
        let got = until("the gateway knows", async || {
            let got = world.send(replica, post(PATH), &rpc("GetTask", json!({ "id": old }))).await;
            (!matches!(got.status, 502 | 503)).then_some(got)
        })
        .await;
        assert_eq!((got.status, &got.json()["error"]["code"]), (200, &json!(-32001)), "{}", got.text);
    }
    let got = say(&world, 0, "SendMessage", message).await;
    assert_eq!(got.json()["result"]["task"]["status"]["inContext"], 1);
    let task = task_in(&got).0;
    assert_eq!(task_in(&say(&world, 1, "GetTask", json!({ "id": task })).await).0, task);
    assert_eq!(world.started(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minted_context_can_be_begun_anew_when_it_is_over() {
    let world = world(6).await;
    let (task, context, _) = task_in(&say(&world, 0, "SendMessage", json!({ "message": {} })).await);
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(world.client.clone(), "default");
    let of_sessions =
        kube::api::ListParams::default().labels(&format!("{}={}", labels::LEASE, labels::LEASE_OF_SESSION));
    let session = leases.list(&of_sessions).await.unwrap().items.remove(0).metadata.name.unwrap();
    leases.delete(&session, &Default::default()).await.unwrap();
    for replica in 0..2 {
        until("the task is unknown", async || {
            let got = say(&world, replica, "GetTask", json!({ "id": task })).await;
            (got.json()["error"]["code"] == -32001).then_some(())
        })
        .await;
        let got = say(&world, replica, "SendMessage", json!({ "message": { "contextId": context } })).await;
        assert_eq!(task_in(&got).1, context);
    }
    // Both meet in one session, whichever of them began it.
    let one = task_in(&say(&world, 0, "SendMessage", json!({ "message": { "contextId": context } })).await).2;
    assert_eq!(
        task_in(&say(&world, 1, "SendMessage", json!({ "message": { "contextId": context } })).await).2,
        one
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unknown_wakes_nobody() {
    let world = world(1).await;
    for method in ["GetTask", "CancelTask", "tasks/get", "SubscribeToTask"] {
        let got = say(&world, 0, method, json!({ "id": "nobody" })).await;
        assert_eq!(got.json()["error"]["code"], -32001, "{}", got.text);
    }
    let got =
        say(&world, 1, "SendMessage", json!({ "message": { "taskId": "nobody", "contextId": "c" } })).await;
    assert_eq!(got.json()["error"]["code"], -32001);
    let got = world.send(0, Request::get("/default/agent/tasks/nobody"), "").await;
    assert_eq!((got.status, &got.json()["error"]["details"][0]["reason"]), (404, &json!("TASK_NOT_FOUND")));
    assert_eq!(
        say(&world, 0, "ListTasks", json!({ "contextId": "c" })).await.json()["result"]["tasks"],
        json!([])
    );
    assert_eq!(say(&world, 0, "Nonsense", json!({})).await.json()["error"]["code"], -32601);
    assert_eq!(world.send(0, post(PATH), "{\"method\":\"GetTask\",\"method\":\"x\"}").await.status, 400);
    assert_eq!(world.send(0, post(PATH).header("content-encoding", "gzip"), "x").await.status, 415);
    let large = rpc("SendMessage", json!({ "message": { "parts": ["x".repeat(1 << 20)] } }));
    let got = world.send(0, post(PATH), &large).await;
    assert_eq!((got.status, &got.json()["error"]["code"]), (413, &json!("BodyTooLarge")));

    // The card is the Task's, with the address that the client used.
    for (path, field) in [("agent-card.json", "/supportedInterfaces/0/url"), ("agent.json", "/url")] {
        let got = world.send(0, Request::get(format!("/default/agent/.well-known/{path}")), "").await;
        assert_eq!(got.status, 200, "{}", got.text);
        assert_eq!(
            got.json().pointer(field),
            Some(&json!("http://gw.example:80/default/agent")),
            "{}",
            got.text
        );
    }
    assert_eq!((world.started(), world.count_leases(labels::LEASE_OF_SESSION).await), (0, 0));

    // A body up to the bound passes as it came, with ids wherever they stand.
    let text = format!(
        "{{\"params\": {{ \"message\":{{\"parts\":[\"{}\"] , \"contextId\":\"c\"}}}}, \"id\":1,\"method\":\"SendMessage\"}}",
        "\\u00e9".repeat(170_000)
    );
    let got = world.send(1, post(PATH), &text).await;
    assert_eq!(got.json()["result"]["task"]["status"]["size"], json!(text.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_can_ask_for_again_is_given_back() {
    let world = world(1).await;
    // There is one instance at most, so each has to wait for the one before it to be given back.
    for n in 0..3 {
        let got = say(&world, n % 2, "SendMessage", json!({ "message": { "fail": true } })).await;
        assert_eq!(got.json()["error"]["code"], -32603);
        let got = say(&world, n % 2, "GetExtendedAgentCard", json!({})).await;
        assert_eq!(got.json()["result"]["at"], "agent-0");
    }
    until("nothing is left", async || {
        (world.count_leases(labels::LEASE_OF_SESSION).await == 0).then_some(())
    })
    .await;
    assert_eq!(world.count_leases(labels::LEASE_OF_ALIAS).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_found_by_the_subject_that_began_it_and_by_nobody_else() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world = world(6).await;
    world.guard("agent", json!([issuer.provider()])).await;
    let say = async |replica: usize, user: &str, method: &str, params: Value| {
        let request = post(PATH).header("authorization", format!("Bearer {}", issuer.token(user)));
        world.send(replica, request, &rpc(method, params)).await
    };
    let begun = say(0, "ada", "SendMessage", json!({ "message": { "parts": [] } })).await;
    let (task, context, at) = task_in(&begun);
    let got = say(1, "ada", "GetTask", json!({ "id": task })).await;
    assert_eq!(task_in(&got).2, at);
    // The same ids of somebody else are of another conversation, or of none.
    let got = say(1, "bob", "GetTask", json!({ "id": task })).await;
    assert!(got.json()["error"].is_object() && !got.text.contains(&at), "{}", got.text);
    let got = say(0, "bob", "SendMessage", json!({ "message": { "parts": [], "contextId": context } })).await;
    assert_ne!(task_in(&got).2, at, "{}", got.text);
    let got = world.send(0, post(PATH), &rpc("GetTask", json!({ "id": task }))).await;
    assert_eq!(got.status, 401, "{}", got.text);
    let got = say(0, "ada", "GetTask", json!({ "id": task })).await;
    assert_eq!(got.json()["result"]["status"]["count"], 3, "and nobody else was heard: {}", got.text);
}
