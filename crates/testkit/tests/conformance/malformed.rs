//! Requests that are wrong as such: bodies, types, paths, methods.

use agentcube_testkit::tape::{APPLY_PATCH, MERGE_PATCH};
use agentcube_testkit::{Request, Tape};
use http::Method;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{CM, WIDGETS, config_map, widget_crd};

cases!("malformed":
    bad_json, bad_yaml, empty_body, not_an_object, wrong_content_type, body_too_large, patch_too_large, deep_json,
    deep_yaml, deep_patch, invalid_utf8, invalid_utf8_yaml, unknown_paths, unknown_methods, not_acceptable,
    unauthorized, double_slash, no_content_type, null_in_text, custom_bad_json, custom_wrong_kind, long_path,
    trailing_data, wrong_list_kind, bad_encoding, yaml_many_documents, yaml_anchors, head_request, options_request,
    numbers, unknown_subresource, almost_too_large, collection_methods,
);

fn post(content_type: &str, body: impl Into<bytes::Bytes>) -> Request {
    Request::new(Method::POST, CM).body(content_type, body)
}

async fn bad_json(t: &mut Tape) -> Result {
    for body in
        ["{", "{\"apiVersion\": \"v1\",}", "nonsense", "{\"kind\": \"ConfigMap\" \"x\"}", "[]", "\u{1}"]
    {
        t.send(post("application/json", body)).await?;
    }
    Ok(())
}

async fn bad_yaml(t: &mut Tape) -> Result {
    for body in ["a: b: c", "\tx: 1", "- [", "{", "key: 'open"] {
        t.send(post("application/yaml", body)).await?;
    }
    Ok(())
}

async fn empty_body(t: &mut Tape) -> Result {
    t.send(post("application/json", "")).await?;
    t.send(Request::new(Method::PUT, format!("{CM}/a")).body("application/json", "")).await?;
    t.send(post("application/yaml", "")).await?;
    t.send(post("application/json", "{}")).await?;
    Ok(())
}

async fn not_an_object(t: &mut Tape) -> Result {
    for body in ["1", "\"x\"", "null", "true", "[1]"] {
        t.send(post("application/json", body)).await?;
    }
    Ok(())
}

async fn wrong_content_type(t: &mut Tape) -> Result {
    for kind in ["text/plain", "application/xml", "application/json; charset=utf-8", "nonsense"] {
        t.send(post(kind, config_map("a").to_string())).await?;
    }
    Ok(())
}

async fn no_content_type(t: &mut Tape) -> Result {
    t.send(post("", config_map("a").to_string())).await?;
    Ok(())
}

fn big(bytes: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "x".repeat(bytes)}})
}

async fn body_too_large(t: &mut Tape) -> Result {
    t.send(post("application/json", big(3 * 1024 * 1024 + 1).to_string())).await?;
    Ok(())
}

async fn almost_too_large(t: &mut Tape) -> Result {
    t.send(post("application/json", big(2 * 1024 * 1024).to_string())).await?;
    let short = |mut value: Value| {
        if let Some(Value::String(text)) = value.pointer_mut("/data/k") {
            *text = format!("{} bytes", text.len());
        }
        value
    };
    t.send_viewed(post("application/json", big(1_000_000).to_string()), short).await?;
    Ok(())
}

async fn patch_too_large(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let body = big(3 * 1024 * 1024 + 1).to_string();
    t.send(Request::new(Method::PATCH, format!("{CM}/a")).body(MERGE_PATCH, body.clone())).await?;
    t.send(Request::new(Method::PATCH, format!("{CM}/a?fieldManager=x")).body(APPLY_PATCH, body)).await?;
    Ok(())
}

fn deep(levels: usize) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{}1{}}}"#,
        r#"{"a":"#.repeat(levels),
        "}".repeat(levels)
    )
}

async fn deep_json(t: &mut Tape) -> Result {
    t.send(post("application/json", deep(200))).await?;
    t.send(post("application/json", deep(20_000))).await?;
    t.send(post("application/json", "[".repeat(100_000))).await?;
    Ok(())
}

async fn deep_yaml(t: &mut Tape) -> Result {
    t.send(post("application/yaml", "[".repeat(20_000))).await?;
    Ok(())
}

async fn deep_patch(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.send(Request::new(Method::PATCH, format!("{CM}/a")).body(MERGE_PATCH, deep(20_000))).await?;
    t.send(Request::new(Method::PATCH, format!("{CM}/a?fieldManager=x")).body(APPLY_PATCH, deep(20_000)))
        .await?;
    t.define(
        widget_crd(json!({"free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}})),
        WIDGETS,
    )
    .await?;
    let body = format!(
        r#"{{"apiVersion":"{{ns}}.example.com/v1","kind":"Widget","metadata":{{"name":"a"}},"spec":{{"free":{}1{}}}}}"#,
        r#"{"a":"#.repeat(20_000),
        "}".repeat(20_000)
    );
    t.send(Request::new(Method::POST, WIDGETS).body("application/json", body)).await?;
    Ok(())
}

async fn invalid_utf8(t: &mut Tape) -> Result {
    let mut body = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":""#.to_vec();
    body.extend_from_slice(&[0xff, 0xfe, 0xc3]);
    body.extend_from_slice(br#""}}"#);
    t.send(post("application/json", body)).await?;
    t.send(post("application/json", vec![0xff, 0xfe])).await?;
    Ok(())
}

async fn invalid_utf8_yaml(t: &mut Tape) -> Result {
    let mut body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: \"".to_vec();
    body.extend_from_slice(&[0xff, 0xc3]);
    body.extend_from_slice(b"\"}\n");
    t.send(post("application/yaml", body)).await?;
    Ok(())
}

async fn unknown_paths(t: &mut Tape) -> Result {
    for path in [
        "/nonsense",
        "/api/v2",
        "/api/v1/nonsense",
        "/apis/nonsense.example.com/v1/things",
        "/apis/apps/v9",
        "/apis/apps/v1/nonsense",
        "/api/v1/namespaces/{ns}/nonsense",
        "/api/v1/namespaces/{ns}/nonsense/a",
        "/apis/apps/v1/namespaces/{ns}/nonsense/a",
    ] {
        t.get(path).await?;
    }
    t.post("/api/v1/namespaces/{ns}/nonsense", json!({})).await?;
    t.post("/nonsense", json!({})).await?;
    Ok(())
}

async fn unknown_subresource(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.get(&format!("{CM}/a/status")).await?;
    t.get(&format!("{CM}/a/scale")).await?;
    t.get(&format!("{CM}/a/b/c")).await?;
    Ok(())
}

async fn unknown_methods(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.send(Request::new(Method::TRACE, format!("{CM}/a"))).await?;
    t.send(Request::new(Method::PUT, CM).json(&config_map("a"))).await?;
    t.send(Request::new(Method::PATCH, CM).body(MERGE_PATCH, "{}")).await?;
    t.send(Request::new(Method::POST, "/api/v1").json(&json!({}))).await?;
    t.send(Request::new(Method::DELETE, "/api/v1/namespaces/{ns}/configmaps/a/b")).await?;
    Ok(())
}

async fn collection_methods(t: &mut Tape) -> Result {
    t.send(Request::new(Method::DELETE, "/api/v1/namespaces")).await?;
    t.send(Request::new(Method::POST, "/api/v1/configmaps").json(&config_map("a"))).await?;
    t.send(Request::new(Method::PUT, "/api/v1/namespaces").json(&json!({}))).await?;
    Ok(())
}

async fn head_request(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.send(Request::new(Method::HEAD, format!("{CM}/a"))).await?;
    t.send(Request::new(Method::HEAD, format!("{CM}/none"))).await?;
    Ok(())
}

async fn options_request(t: &mut Tape) -> Result {
    t.send(Request::new(Method::OPTIONS, CM)).await?;
    Ok(())
}

async fn not_acceptable(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    for accept in
        ["text/html", "application/xml", "application/json;as=Nonsense;v=v1;g=meta.k8s.io", "image/png"]
    {
        t.get_as(&format!("{CM}/a"), accept).await?;
    }
    for accept in ["*/*", "application/*", "text/html, application/json;q=0.5"] {
        t.get_as(&format!("{CM}/a"), accept).await?;
    }
    Ok(())
}

async fn unauthorized(t: &mut Tape) -> Result {
    t.send(Request::new(Method::GET, CM).header("authorization", "Bearer wrong")).await?;
    Ok(())
}

async fn double_slash(t: &mut Tape) -> Result {
    t.get("//api/v1/namespaces/{ns}/configmaps").await?;
    t.get("/api/v1/namespaces/{ns}/configmaps/").await?;
    t.get("/api/v1/namespaces//configmaps?labelSelector=case%3D{ns}").await?;
    t.get("/api/v1/").await?;
    Ok(())
}

async fn null_in_text(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["data"]["k"] = json!("a\u{0}b");
    t.post(CM, body).await?;
    t.get(&format!("{CM}/a%00b")).await?;
    Ok(())
}

async fn long_path(t: &mut Tape) -> Result {
    t.get(&format!("{CM}/{}", "x".repeat(4000))).await?;
    Ok(())
}

async fn trailing_data(t: &mut Tape) -> Result {
    t.send(post("application/json", format!("{} trailing", config_map("a")))).await?;
    t.send(post("application/json", format!("{} {}", config_map("b"), config_map("c")))).await?;
    t.send(post("application/json", format!("\u{feff}{}", config_map("d")))).await?;
    Ok(())
}

async fn wrong_list_kind(t: &mut Tape) -> Result {
    t.post(CM, json!({"apiVersion": "v1", "kind": "ConfigMapList", "items": [config_map("a")]})).await?;
    t.post(CM, json!({"apiVersion": "v1", "kind": "List", "items": [config_map("a")]})).await?;
    Ok(())
}

async fn bad_encoding(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?labelSelector=%zz")).await?;
    t.get(&format!("{CM}?labelSelector=%ff")).await?;
    Ok(())
}

async fn yaml_many_documents(t: &mut Tape) -> Result {
    let one = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
    t.send(post("application/yaml", format!("{}---\n{}", one("a"), one("b")))).await?;
    t.send(post("application/yaml", format!("---\n{}", one("c")))).await?;
    Ok(())
}

async fn yaml_anchors(t: &mut Tape) -> Result {
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: &x text\n  y: *x\n";
    t.send(post("application/yaml", body)).await?;
    Ok(())
}

async fn numbers(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"n": {"type": "number"}, "i": {"type": "integer"}})), WIDGETS).await?;
    for (index, number) in
        ["1e3", "1.0", "9223372036854775807", "1e400", "-0", "12345678901234567890"].iter().enumerate()
    {
        let body = format!(
            r#"{{"apiVersion":"{{ns}}.example.com/v1","kind":"Widget","metadata":{{"name":"w{index}"}},"spec":{{"n":{number}}}}}"#
        );
        t.send(Request::new(Method::POST, WIDGETS).body("application/json", body)).await?;
    }
    let body =
        r#"{"apiVersion":"{ns}.example.com/v1","kind":"Widget","metadata":{"name":"i"},"spec":{"i":1.0}}"#;
    t.send(Request::new(Method::POST, WIDGETS).body("application/json", body)).await?;
    Ok(())
}

async fn custom_bad_json(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    for body in ["{", "[]", "", "null", "{}"] {
        t.send(Request::new(Method::POST, WIDGETS).body("application/json", body)).await?;
    }
    Ok(())
}

async fn custom_wrong_kind(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    t.post(
        WIDGETS,
        json!({"apiVersion": "{ns}.example.com/v1", "kind": "Gadget", "metadata": {"name": "a"}}),
    )
    .await?;
    t.post(
        WIDGETS,
        json!({"apiVersion": "other.example.com/v1", "kind": "Widget", "metadata": {"name": "a"}}),
    )
    .await?;
    t.post(WIDGETS, json!({"kind": "Widget", "metadata": {"name": "a"}})).await?;
    t.post(WIDGETS, json!({"apiVersion": "{ns}.example.com/v1", "metadata": {"name": "a"}})).await?;
    Ok(())
}
