//! Authentication by tokens, against issuers with servers of their own; and what attackers try.

use base64::Engine;
use bytes::Bytes;
use http::header::WWW_AUTHENTICATE;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use serde_json::{Value, json};

use crate::issuer::{Issuer, Pair, encode, now};
use crate::world::{World, condition, echo, gateway_object};

/// A gateway that lets in tokens of these issuers, and a Task `echo` behind it.
async fn guarded(jwt: Value, routing: Value) -> World {
    let world = World::guarded(json!({ "authentication": { "jwt": jwt } })).await;
    world.task("echo", json!({ "routing": routing }), &[echo("one").await, echo("two").await]).await;
    world
}

fn oneshot() -> Value {
    json!({ "gatewayRefs": ["default"], "routePolicy": "Oneshot" })
}

fn by_session() -> Value {
    json!({ "gatewayRefs": ["default"], "routePolicy": "BySession", "sessionIdentifier": {
        "extractors": [{ "type": "httpHeader", "name": "X-Session-ID" }] } })
}

async fn with_token(world: &World, token: &str, headers: &[(&str, &str)]) -> (StatusCode, Value) {
    let authorization = format!("Bearer {token}");
    let headers: Vec<_> =
        [("authorization", authorization.as_str())].iter().chain(headers).copied().collect();
    world.get("/default/echo", &headers).await
}

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn tokens_of_several_issuers_come_in_with_their_claims() {
    let rsa = Issuer::new("https://one.example.com/", Pair::rsa()).await;
    let ec = Issuer::new("https://two.example.com/", Pair::ec()).await;
    let world = guarded(json!({ "providers": [rsa.provider(), ec.provider()] }), oneshot()).await;
    for issuer in [&rsa, &ec] {
        let mut claims = issuer.claims("ada");
        claims["org"] = json!({ "team": "Grüße" });
        let token = issuer.pair.sign("key-1", &claims);
        let forged = [
            ("x-user-id", "root"),
            ("X_User_ID", "root"),
            ("x-team", "root"),
            ("x-reserved-token", "root"),
            ("x_reserved_token", "root"),
            ("connection", "x-user-id"),
        ];
        let (status, answer) = with_token(&world, &token, &forged).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let seen = &answer["headers"];
        assert_eq!((&seen["x-user-id"], &seen["x-team"]), (&json!("ada"), &json!("Grüße")));
        assert_eq!(seen["authorization"], format!("Bearer {token}"), "it is passed on");
        assert!(!answer.to_string().contains("root"), "{answer}");
        assert_eq!(issuer.fetched(), 1);
    }
    // A claim that the token does not have is no header, whoever sends one.
    let (_, answer) = with_token(&world, &rsa.token("ada"), &[("x-team", "root")]).await;
    assert_eq!(answer["headers"]["x-team"], Value::Null);
    let gateway = gateway_object("default", json!([]));
    let gateway = world.until(&gateway, |it| it["status"]["conditions"].is_array()).await;
    let said = condition(&gateway["status"], "agentcube.io/SecurityInForce").unwrap();
    assert_eq!((&said["status"], &said["observedGeneration"]), (&json!("True"), &json!(1)));
}

#[tokio::test]
async fn who_has_no_token_is_told_to_bring_one() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world = guarded(json!({ "providers": [issuer.provider()] }), oneshot()).await;
    let request = Request::get("/default/echo").header("host", "localhost");
    let response = world.send(request.body(Empty::<Bytes>::new()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer realm=\"agentcube\"");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(code(&body), "TokenMissing");
    for other in ["Basic YTpi", "Bearer", "Bearer ", ""] {
        let (status, answer) = world.get("/default/echo", &[("authorization", other)]).await;
        assert_eq!((status, code(&answer)), (StatusCode::UNAUTHORIZED, "TokenMissing"), "{other:?}");
    }
    assert_eq!(issuer.fetched(), 0, "keys are fetched for those who show something");
    assert!(world.instances.asked.lock().is_empty(), "no instance is woken");
}

#[tokio::test]
async fn what_attackers_try() {
    let issuer = Issuer::new("https://one.example.com/", Pair::rsa()).await;
    let other = Issuer::new("https://two.example.com/", Pair::ec()).await;
    let world = guarded(json!({ "providers": [issuer.provider(), other.provider()] }), oneshot()).await;
    let changed = |name: &str, value: Value| {
        let mut claims = issuer.claims("ada");
        claims[name] = value;
        issuer.pair.sign("key-1", &claims)
    };
    let signed_by = |algorithm: &str, sign: &dyn Fn(&str) -> Vec<u8>| {
        let header = json!({ "alg": algorithm, "kid": "key-1" }).to_string();
        let text = format!("{}.{}", encode(header), encode(issuer.claims("root").to_string()));
        let signature = encode(sign(&text));
        format!("{text}.{signature}")
    };
    // The public key as a shared secret, in the forms that libraries have fallen for.
    let public = issuer.pair.public("key-1");
    let modulus =
        base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(public["n"].as_str().unwrap()).unwrap();
    let hmac = |secret: &[u8], text: &str| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
        ring::hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
    };
    let good = issuer.token("ada");
    let (text, signature) = good.rsplit_once('.').unwrap();
    let replaced =
        format!("{}.{}", text.split_once('.').unwrap().0, encode(issuer.claims("root").to_string()));
    let attacks = [
        ("expired", changed("exp", json!(now() - 120))),
        ("without an end", changed("exp", Value::Null)),
        ("not valid yet", changed("nbf", json!(now() + 120))),
        ("of nobody's issuer", changed("iss", json!("https://evil.example.com/"))),
        ("without issuer", changed("iss", Value::Null)),
        ("for another audience", changed("aud", json!("others"))),
        ("without subject", changed("sub", Value::Null)),
        ("signed by another's key", Pair::ec().sign("key-1", &issuer.claims("ada"))),
        ("of one issuer, signed by the other", other.pair.sign("key-1", &issuer.claims("ada"))),
        ("unsigned", signed_by("none", &|_| Vec::new())),
        ("HS256 with the public key", signed_by("HS256", &|text| hmac(public.to_string().as_bytes(), text))),
        ("HS256 with the modulus", signed_by("HS256", &|text| hmac(&modulus, text))),
        ("RS256 with an HMAC", signed_by("RS256", &|text| hmac(&modulus, text))),
        ("with other claims", format!("{replaced}.{signature}")),
        ("without signature", format!("{text}.")),
        ("cut", good[..good.len() - 8].to_owned()),
        ("garbage", "x.y.z".into()),
        ("not even that", "\u{fffd}".into()),
        ("of braces", encode("{".repeat(3000))),
        ("huge", format!("{}.{}.{}", encode("{}"), "A".repeat(30_000), encode("x"))),
    ];
    for (what, token) in &attacks {
        let (status, answer) = with_token(&world, token, &[]).await;
        assert_eq!((status, code(&answer)), (StatusCode::UNAUTHORIZED, "TokenInvalid"), "{what}: {answer}");
    }
    // A good token beside another one: which of the two others would take is anybody's guess.
    let twice = format!("Bearer {good}");
    for second in ["Bearer x", "Basic YTpi"] {
        let headers = [("authorization", twice.as_str()), ("authorization", second)];
        let (status, answer) = world.get("/default/echo", &headers).await;
        assert_eq!((status, code(&answer)), (StatusCode::UNAUTHORIZED, "TokenInvalid"), "{second}");
    }
    assert!(world.instances.asked.lock().is_empty(), "no instance is woken");
    assert_eq!(with_token(&world, &good, &[]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_flood_of_unknown_keys_does_not_reach_the_issuer() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world = guarded(json!({ "providers": [issuer.provider()] }), oneshot()).await;
    assert_eq!(with_token(&world, &issuer.token("ada"), &[]).await.0, StatusCode::OK);
    let tokens: Vec<String> =
        (0..200).map(|n| issuer.pair.sign(&format!("made-up-{n}"), &issuer.claims("ada"))).collect();
    let asking = tokens.iter().map(|token| with_token(&world, token, &[]));
    for (status, answer) in futures_util::future::join_all(asking).await {
        assert_eq!((status, code(&answer)), (StatusCode::UNAUTHORIZED, "TokenInvalid"));
    }
    assert_eq!(issuer.fetched(), 2, "once at first, and once for all that nobody knows");
    assert_eq!(with_token(&world, &issuer.token("ada"), &[]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn new_keys_are_found_and_old_ones_forgotten() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world = guarded(json!({ "providers": [issuer.provider()] }), oneshot()).await;
    let old = issuer.token("ada");
    assert_eq!(with_token(&world, &old, &[]).await.0, StatusCode::OK);
    let pair = Pair::ec();
    issuer.keys.lock().1 = json!({ "keys": [pair.public("key-2")] }).to_string();
    let new = pair.sign("key-2", &issuer.claims("ada"));
    assert_eq!(with_token(&world, &new, &[]).await.0, StatusCode::OK);
    assert_eq!(with_token(&world, &old, &[]).await.0, StatusCode::UNAUTHORIZED, "its key was withdrawn");
}

#[tokio::test]
async fn an_issuer_that_lists_no_keys_any_more_has_withdrawn_them() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world = guarded(json!({ "providers": [issuer.provider()] }), oneshot()).await;
    let old = issuer.token("ada");
    assert_eq!(with_token(&world, &old, &[]).await.0, StatusCode::OK);
    issuer.keys.lock().1 = json!({ "keys": [] }).to_string();
    // One that names an unknown key has them fetched.
    let unknown = Pair::ec().sign("key-2", &issuer.claims("ada"));
    assert_eq!(with_token(&world, &unknown, &[]).await.0, StatusCode::UNAUTHORIZED);
    let (status, answer) = with_token(&world, &old, &[]).await;
    assert_eq!((status, code(&answer)), (StatusCode::UNAUTHORIZED, "TokenInvalid"));
    assert_eq!(issuer.fetched(), 2);
}

#[tokio::test]
async fn whether_keys_can_be_fetched_is_told() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world = guarded(json!({ "providers": [issuer.provider()] }), oneshot()).await;
    let gateway = gateway_object("default", json!([]));
    let in_force = |status: &'static str| {
        move |it: &Value| {
            let said = condition(&it["status"], "agentcube.io/SecurityInForce");
            said.is_some_and(|said| said["status"] == status)
        }
    };
    world.until(&gateway, in_force("True")).await;
    issuer.keys.lock().0 = StatusCode::NOT_FOUND;
    let token = issuer.token("ada");
    assert_eq!(with_token(&world, &token, &[]).await.0, StatusCode::SERVICE_UNAVAILABLE);
    let told = world.until(&gateway, in_force("False")).await;
    let said = condition(&told["status"], "agentcube.io/SecurityInForce").unwrap();
    let message = said["message"].as_str().unwrap();
    assert!(said["reason"] == "KeysUnavailable" && message.contains(&issuer.name), "{said}");
    issuer.keys.lock().0 = StatusCode::OK;
    world
        .eventually(|| async { (with_token(&world, &token, &[]).await.0 == StatusCode::OK).then_some(()) })
        .await;
    world.until(&gateway, in_force("True")).await;
}

#[tokio::test]
async fn without_keys_nobody_comes_in() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let keys = issuer.keys.lock().clone();
    for bad in [
        (StatusCode::OK, "nothing".to_owned()),
        (StatusCode::NOT_FOUND, keys.1.clone()),
        (StatusCode::FOUND, keys.1.clone()),
        (StatusCode::OK, format!("{}{}", keys.1, " ".repeat(300_000))),
    ] {
        *issuer.keys.lock() = bad;
        // Each has a world of its own, since it would not ask again so soon.
        let world = guarded(json!({ "providers": [issuer.provider()] }), oneshot()).await;
        let before = issuer.fetched();
        let token = issuer.token("ada");
        let asking = (0..20).map(|_| with_token(&world, &token, &[]));
        for (status, answer) in futures_util::future::join_all(asking).await {
            assert_eq!((status, code(&answer)), (StatusCode::SERVICE_UNAVAILABLE, "KeysUnavailable"));
        }
        assert_eq!(issuer.fetched(), before + 1);
    }
}

#[tokio::test]
async fn tokens_are_found_where_the_provider_says() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let mut provider = issuer.provider();
    provider["extractFrom"] =
        json!({ "headers": [{ "name": "X-Token" }], "cookies": ["token"], "params": ["access_token"] });
    let world = guarded(json!({ "optional": true, "providers": [provider] }), oneshot()).await;
    let token = issuer.token("ada");
    let cookie = format!("a=b; token={token}");
    let query = format!("/default/echo?access_token={token}");
    let user = |answer: (StatusCode, Value)| (answer.0, answer.1["headers"]["x-user-id"].clone());
    let known = (StatusCode::OK, json!("ada"));
    assert_eq!(user(world.get("/default/echo", &[("x-token", &token)]).await), known);
    assert_eq!(user(world.get("/default/echo", &[("cookie", &cookie)]).await), known);
    assert_eq!(user(world.get(&query, &[]).await), known);
    // Nobody has to show one, but what is shown has to be good, and nobody says who they are without.
    let bearer = format!("Bearer {token}");
    let nobody = world.get("/default/echo", &[("authorization", &bearer), ("x-user-id", "ada")]).await;
    assert_eq!(user(nobody), (StatusCode::OK, Value::Null));
    assert_eq!(world.get("/default/echo", &[("x-token", "bad")]).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_session_belongs_to_its_subject() {
    let one = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let two = Issuer::new("https://two.example.com/", Pair::ec()).await;
    let jwt = json!({ "optional": true, "providers": [one.provider(), two.provider()] });
    let world = guarded(jwt, by_session()).await;
    let session = [("x-session-id", "s1"), ("x-tenant-id", "forged")];
    for token in [one.token("ada"), one.token("ada"), one.token("bob"), two.token("ada")] {
        assert_eq!(with_token(&world, &token, &session).await.0, StatusCode::OK);
    }
    assert_eq!(world.get("/default/echo", &session).await.0, StatusCode::OK);
    let asked = world.instances.asked.lock().clone();
    let keys: Vec<String> = asked.iter().map(|asked| asked.key.clone().unwrap().to_string()).collect();
    assert_eq!(keys[0], keys[1]);
    assert_eq!(keys[4], "s1", "of nobody in particular");
    for (at, other) in [(0, 2), (0, 3), (2, 3), (0, 4)] {
        assert_ne!(keys[at], keys[other]);
    }
    let tenants: Vec<Option<&str>> = asked.iter().map(|asked| asked.tenant.as_deref()).collect();
    assert_eq!(tenants[0], Some("ada of https://one.example.com/"));
    assert_eq!(tenants[4], None, "a client's word counts for nothing here");
    // Nobody gets at a session by its whole key.
    for token in ["", &one.token("bob")] {
        let key = [("x-session-id", keys[0].as_str())];
        let (status, answer) = if token.is_empty() {
            world.get("/default/echo", &key).await
        } else {
            with_token(&world, token, &key).await
        };
        let last = world.instances.asked.lock().last().unwrap().key.as_ref().unwrap().to_string();
        if token.is_empty() {
            assert_eq!((status, code(&answer)), (StatusCode::BAD_REQUEST, "SessionKeyInvalid"));
            assert_eq!(world.instances.asked.lock().len(), 5, "nobody is asked for it");
        } else {
            assert_eq!((status, world.instances.asked.lock().len()), (StatusCode::OK, 6));
            assert!(last.ends_with(&keys[0]) && last != keys[0], "a session of bob's own: {last}");
        }
    }
}

#[tokio::test]
async fn a_gateway_whose_policy_is_not_known_lets_nobody_in() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world = guarded(json!({ "providers": [issuer.provider()] }), oneshot()).await;
    let token = issuer.token("ada");
    assert_eq!(with_token(&world, &token, &[]).await.0, StatusCode::OK);
    let policy = json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "TaskGateway", "metadata": { "name": "default" } });
    world.orphan(&policy).await;
    let closed = || async {
        let (status, answer) = with_token(&world, &token, &[]).await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then(|| code(&answer).to_owned())
    };
    assert_eq!(world.eventually(closed).await, "GatewayNotReady");
    let (status, answer) = world.get("/default/echo", &[]).await;
    assert_eq!((status, code(&answer)), (StatusCode::SERVICE_UNAVAILABLE, "GatewayNotReady"));
    // And the Gateway says so.
    let lost = |it: &Value| {
        let said = condition(&it["status"], "agentcube.io/SecurityInForce");
        said.is_some_and(|said| said["status"] == "False" && said["reason"] == "PolicyUnknown")
    };
    let gateway = world.until(&gateway_object("default", json!([])), lost).await;
    let programmed = condition(&gateway["status"], "Programmed").unwrap();
    assert_eq!(programmed["status"], "False", "{programmed}");
}

#[tokio::test]
async fn a_policy_that_cannot_be_kept_closes_the_gateway_and_says_so() {
    let backend = json!({ "name": "opa", "port": 9191 });
    let world =
        World::guarded(json!({ "authentication": { "extAuth": { "grpc": { "backendRef": backend } } } }))
            .await;
    world.task("echo", json!({ "routing": oneshot() }), &[echo("one").await]).await;
    let (status, answer) = world.get("/default/echo", &[]).await;
    assert_eq!((status, code(&answer)), (StatusCode::SERVICE_UNAVAILABLE, "GatewayNotReady"));
    let gateway = gateway_object("default", json!([]));
    let said = |it: &Value| condition(&it["status"], "agentcube.io/SecurityInForce").is_some();
    let gateway = world.until(&gateway, said).await;
    let said = condition(&gateway["status"], "agentcube.io/SecurityInForce").unwrap();
    assert_eq!((&said["status"], &said["reason"]), (&json!("False"), &json!("Unsupported")));
}
