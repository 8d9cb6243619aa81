//! Requests of both versions, by JSON-RPC and REST, and what can be wrong with them.

use http::HeaderValue;
use proptest::prelude::*;

use super::super::json::Scan;
use super::*;

fn rest(method: Method, path: &str, query: Option<&str>) -> Result<Ask, Refusal> {
    ask(&method, path, query, &HeaderMap::new())
}

fn about(body: Json) -> Result<About, Refusal> {
    let mut scan = Scan::new(&RPC_SHAPE);
    scan.push(body.to_string().as_bytes()).unwrap();
    call(Ask::Rpc, &scan.finish().unwrap()).map(|call| call.about)
}

fn rpc_of(method: &str, params: Json) -> Result<About, Refusal> {
    about(json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }))
}

fn message(task: Option<&str>, context: Option<&str>) -> About {
    About::Message { task: task.map(Into::into), context: context.map(Into::into) }
}

#[test]
fn paths_of_rest() {
    fn of(method: Method, path: &str, query: Option<&str>) -> About {
        match rest(method, path, query).unwrap() {
            Ask::Rest(call) => call.about,
            other => panic!("{path}: {other:?}"),
        }
    }
    let task = |id: &str| About::Task(id.into());
    for prefix in ["", "/v1", "/tenant/a"] {
        let path = |rest: &str| format!("{prefix}{rest}");
        for end in ["message:send", "message:stream"] {
            assert_eq!(rest(Method::POST, &path(&format!("/{end}")), None), Ok(Ask::RestMessage));
        }
        assert_eq!(of(Method::GET, &path("/tasks/t%2F1"), None), task("t/1"));
        assert_eq!(of(Method::POST, &path("/tasks/a:b:cancel"), None), task("a:b"));
        assert_eq!(of(Method::GET, &path("/tasks/a:subscribe"), None), task("a"));
        assert_eq!(of(Method::DELETE, &path("/tasks/a/pushNotificationConfigs/p"), None), task("a"));
        let tasks = About::Tasks { context: "c 1".into() };
        assert_eq!(of(Method::GET, &path("/tasks"), Some("pageSize=3&contextId=c+1")), tasks);
        assert_eq!(of(Method::GET, &path("/extendedAgentCard"), None), About::Anything);
    }
    assert_eq!(of(Method::GET, "/v1/card", None), About::Anything);
    assert_eq!(rest(Method::POST, "/", None), Ok(Ask::Rpc));
    for (method, path, query, status) in [
        (Method::GET, "/tasks", None, 400),
        (Method::GET, "/tasks", Some("contextId=a&contextId=b"), 400),
        (Method::GET, "/tasks/%ff", None, 400),
        (Method::GET, "/", None, 404),
        (Method::GET, "/card", None, 404),
    ] {
        assert_eq!(rest(method, path, query).unwrap_err().status.as_u16(), status, "{path}");
    }
    let grpc = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"))]);
    let refused = ask(&Method::POST, "/lf.a2a.v1.A2AService/SendMessage", None, &grpc).unwrap_err();
    assert_eq!(refused.status, 501);
}

#[test]
fn messages_of_rest() {
    let about = |body: Json| {
        let mut scan = Scan::new(&MESSAGE_SHAPE);
        scan.push(body.to_string().as_bytes()).unwrap();
        call(Ask::RestMessage, &scan.finish().unwrap()).map(|call| call.about)
    };
    for name in ["message", "request"] {
        assert_eq!(
            about(json!({ name: { "taskId": "t", "contextId": "c" } })),
            Ok(message(Some("t"), Some("c")))
        );
        assert_eq!(
            about(json!({ name: { "task_id": "t", "context_id": "c" } })),
            Ok(message(Some("t"), Some("c")))
        );
        assert_eq!(about(json!({ name: {} })), Ok(message(None, None)));
    }
    let both = about(json!({ "message": { "taskId": "t" }, "request": { "taskId": "u" } }));
    assert_eq!(both.unwrap_err().status, 400);
}

#[test]
fn methods_of_json_rpc() {
    for method in ["SendMessage", "SendStreamingMessage", "message/send", "message/stream"] {
        let params =
            json!({ "message": { "parts": [{ "text": "taskId" }], "contextId": "c", "taskId": "t" } });
        assert_eq!(rpc_of(method, params), Ok(message(Some("t"), Some("c"))));
        assert_eq!(
            rpc_of(method, json!({ "message": { "taskId": "", "contextId": null } })),
            Ok(message(None, None))
        );
        assert_eq!(rpc_of(method, json!({ "message": { "context_id": "c" } })), Ok(message(None, Some("c"))));
    }
    for method in
        ["GetTask", "tasks/get", "CancelTask", "tasks/cancel", "SubscribeToTask", "tasks/resubscribe"]
    {
        assert_eq!(rpc_of(method, json!({ "id": "t" })), Ok(About::Task("t".into())));
    }
    let config = json!({ "taskId": "t", "id": "config" });
    assert_eq!(rpc_of("GetTaskPushNotificationConfig", config), Ok(About::Task("t".into())));
    let config = json!({ "id": "t", "pushNotificationConfigId": "config" });
    assert_eq!(rpc_of("tasks/pushNotificationConfig/get", config), Ok(About::Task("t".into())));
    assert_eq!(rpc_of("ListTasks", json!({ "contextId": "c" })), Ok(About::Tasks { context: "c".into() }));
    assert_eq!(rpc_of("GetExtendedAgentCard", json!({})), Ok(About::Anything));
    assert_eq!(rpc_of("x/rate", json!({ "taskId": "t" })), Ok(About::Task("t".into())));
    assert_eq!(rpc_of("x/join", json!({ "contextId": "c" })), Ok(message(None, Some("c"))));
}

#[test]
fn refusals_are_in_the_words_of_the_protocol() {
    let said = |refusal: Refusal| -> (u16, Json) {
        let body = refusal.body(&HeaderValue::from_static("-"));
        (refusal.status.as_u16(), serde_json::from_str(&body).unwrap())
    };
    let long = "x".repeat(1025);
    for (method, params, code) in [
        ("GetTask", json!({}), -32602),
        ("GetTask", json!({ "id": 7 }), -32602),
        ("GetTask", json!({ "id": long }), -32602),
        ("ListTasks", json!({}), -32602),
        ("SendMessage", json!({ "message": { "taskId": "a", "task_id": "b" } }), -32602),
        ("SendMessage", json!({ "message": { "contextId": {} } }), -32602),
        ("Nonsense", json!({}), -32601),
    ] {
        let (status, body) = said(rpc_of(method, params).unwrap_err());
        assert_eq!((status, &body["id"], &body["error"]["code"]), (200, &json!(7), &json!(code)), "{method}");
    }
    let (_, body) = said(no_task(&Reply::Rpc { id: json!("a") }));
    assert_eq!((&body["id"], &body["error"]["code"]), (&json!("a"), &json!(-32001)));
    assert_eq!(body["error"]["data"][0]["reason"], "TASK_NOT_FOUND");
    let (status, body) = said(no_task(&Reply::Rest));
    assert_eq!((status, &body["error"]["status"]), (404, &json!("NOT_FOUND")));
    assert_eq!(body["error"]["details"][0]["reason"], "TASK_NOT_FOUND");
    let (status, body) = said(no_tasks(&Reply::Rpc { id: json!(1) }));
    assert_eq!((status, &body["result"]["tasks"]), (200, &json!([])));
}

#[test]
fn ids_in_answers() {
    let rpc = Reply::Rpc { id: json!(1) };
    let ids_in = |reply: &Reply, body: Json| {
        let mut scan = Scan::new(answer_shape());
        scan.push(body.to_string().as_bytes()).unwrap();
        let found = scan.finish().unwrap();
        let (task, context) = ids(reply, &found);
        (task.map(str::to_owned), context.map(str::to_owned))
    };
    let both = (Some("t".to_owned()), Some("c".to_owned()));
    let task = json!({ "id": "t", "contextId": "c", "history": [{ "taskId": "no" }] });
    let event = json!({ "taskId": "t", "contextId": "c" });
    for result in [
        json!({ "task": task }),
        task.clone(),
        event.clone(),
        json!({ "statusUpdate": event }),
        json!({ "artifactUpdate": event }),
        json!({ "message": event }),
    ] {
        let answer = json!({ "jsonrpc": "2.0", "id": "request", "result": result });
        assert_eq!(ids_in(&rpc, answer), both, "{result}");
    }
    let snake = json!({ "task_id": "t", "context_id": "c" });
    for result in [
        json!({ "task": task }),
        json!({ "task": { "id": "t", "context_id": "c" } }),
        json!({ "msg": event }),
        json!({ "statusUpdate": event }),
        json!({ "status_update": snake }),
        json!({ "msg": snake }),
    ] {
        assert_eq!(ids_in(&Reply::Rest, result.clone()), both, "{result}");
    }
    let failed = json!({ "jsonrpc": "2.0", "id": "request", "error": { "code": -32001, "taskId": "x" } });
    assert_eq!(ids_in(&rpc, failed.clone()), (None, None), "the request's id is none of these");
    assert_eq!(ids_in(&Reply::Rest, failed), (None, None));
}

proptest! {
    #[test]
    fn nothing_panics(path in "[/a-z:%0-9]{0,40}|\\PC{0,20}", query in "\\PC{0,30}", n in 0usize..4,
        method in "SendMessage|GetTask|tasks/x|PushNotificationConfig|\\PC{0,8}", id in "\\PC{0,9}")
    {
        let methods = [Method::GET, Method::POST, Method::DELETE, Method::PATCH];
        let _any = ask(&methods[n], &path, Some(&query), &HeaderMap::new());
        let params = json!({ "id": id, "message": { "taskId": id, "contextId": [id] }, "contextId": id });
        let _any = rpc_of(&method, params);
    }
}
