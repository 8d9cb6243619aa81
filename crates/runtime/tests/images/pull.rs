//! Pulls from a registry on loopback: what is asked for, what credentials go where, what happens when it misbehaves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use agentcube_runtime::image::{Credentials, Error, Image, Options, Progress, Store};
use base64::Engine as _;

use crate::build::{self, Blobs, blobs, file, tar};
use crate::server::{Answer, Asked, Server, answer};
use crate::{leftovers, quiet, reference, root, tree};

const SECRET: &str = "hunter2";
const TOKEN: &str = "token-of-the-registry";

fn options() -> Options {
    Options { retry_pause: Duration::ZERO, ..Options::default() }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// Two layers, the first of several megabytes.
fn sample() -> Blobs {
    blobs(&[tar(&[file("noise", &"noise".repeat(600_000))]), tar(&[file("a", "b")])], <[u8]>::to_vec)
}

/// An honest registry that has one image as `team/app:1`, behind an index.
fn honest(image: &Blobs, asked: &Asked) -> Answer {
    let Some(rest) = asked.path.strip_prefix("/v2/team/app/") else {
        return answer(if asked.path == "/v2/" { 200 } else { 404 }, "");
    };
    let index = build::index(image);
    match rest.split_once('/') {
        Some(("manifests", "1")) => answer(200, index),
        Some((_, digest)) => match image.blobs.iter().find(|(known, _)| known.as_str() == digest) {
            Some((_, bytes)) => answer(200, bytes.clone()),
            None => answer(404, ""),
        },
        None => answer(404, ""),
    }
}

async fn pull(server: &Server, data: &Path, credentials: Option<Credentials>) -> Result<Image, Error> {
    let store = Store::open_with(data, options()).unwrap();
    let name = reference(&format!("{}/team/app:1", server.address));
    let outcome = store.pull(&name, credentials, quiet(), soon()).await;
    assert!(leftovers(data).is_empty());
    if let Err(error) = &outcome {
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(SECRET) && !shown.contains(TOKEN), "{shown}");
        assert_eq!(store.list().unwrap().len(), 1);
    }
    outcome
}

fn basic() -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("me:{SECRET}")))
}

#[tokio::test]
async fn an_image_is_pulled_and_found_by_tag_and_digest() {
    let data = tempfile::tempdir().unwrap();
    let image = sample();
    let (id, index) = (image.id.clone(), agentcube_runtime::image::Digest::of(&build::index(&image)));
    let server = Server::start(move |asked| honest(&image, asked)).await;
    let store = Store::open_with(data.path(), options()).unwrap();
    let name = reference(&format!("{}/team/app:1", server.address));
    let told = Arc::new(AtomicUsize::new(0));
    let report = {
        let told = told.clone();
        Arc::new(move |progress| {
            if let Progress::Downloading { bytes, total, .. } = progress {
                assert!(bytes <= total);
                told.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let pulled = store.pull(&name, None, report, soon()).await.unwrap();
    assert_eq!(pulled.id, id.as_str());
    assert!(told.load(Ordering::Relaxed) > 2);
    assert_eq!(tree(root(&pulled))["a"], "f:b");
    let pinned = reference(&format!("{}/team/app@{index}", server.address));
    assert_eq!(store.resolve(&pinned).unwrap().unwrap(), pulled);
    // Again: the registry is asked what it has, and no layer is sent.
    let blobs = server.count("/blobs/");
    store.pull(&name, None, quiet(), soon()).await.unwrap();
    assert_eq!(server.count("/blobs/"), blobs + 1, "the configuration only");
    assert!(leftovers(data.path()).is_empty());
    // With the tag goes the digest that came with it.
    assert_eq!(store.remove(&name.to_string(), &|_| false).unwrap().names.len(), 2);
}

#[tokio::test]
async fn pulls_of_one_image_at_once_fetch_it_once() {
    let data = tempfile::tempdir().unwrap();
    let image = sample();
    let layer = image.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap().0.to_string();
    let server = Server::start(move |asked| honest(&image, asked)).await;
    let store = Store::open_with(data.path(), options()).unwrap();
    let name = reference(&format!("{}/team/app:1", server.address));
    let pulls = (0..8).map(|_| store.pull(&name, None, quiet(), soon()));
    for outcome in futures_util::future::join_all(pulls).await {
        outcome.unwrap();
    }
    assert_eq!(server.count(&layer), 1);
}

#[tokio::test]
async fn tokens_are_asked_for_with_the_credentials_and_renewed() {
    let data = tempfile::tempdir().unwrap();
    let image = sample();
    let issued = Arc::new(AtomicUsize::new(0));
    let server = {
        let issued = issued.clone();
        Server::start(move |asked| {
            if asked.path.starts_with("/token") {
                if asked.header("authorization") != Some(&basic()) {
                    return answer(401, "");
                }
                let number = issued.fetch_add(1, Ordering::Relaxed);
                return answer(200, format!(r#"{{"access_token":"{TOKEN}{number}"}}"#));
            }
            // A token is good for manifests only if it is the first, and for blobs only if it is the second.
            let good = usize::from(asked.path.contains("/blobs/"));
            if asked.header("authorization") == Some(&format!("Bearer {TOKEN}{good}")) {
                return honest(&image, asked);
            }
            let host = asked.header("host").unwrap();
            let challenge = format!(
                r#"Bearer realm="http://{host}/token",service="a registry",scope="repository:team/app:pull""#
            );
            answer(401, "").header("WWW-Authenticate", challenge)
        })
        .await
    };
    pull(&server, data.path(), Some(Credentials::new("me", SECRET))).await.unwrap();
    assert_eq!(issued.load(Ordering::Relaxed), 2);
    let asked = server.asked();
    let token = asked.iter().find(|asked| asked.path.starts_with("/token")).unwrap();
    assert_eq!(token.path, "/token?service=a%20registry&scope=repository:team/app:pull");
    // The password goes to the token server alone.
    let password = |asked: &&Asked| asked.header("authorization") == Some(&basic());
    assert!(asked.iter().filter(password).all(|asked| asked.path.starts_with("/token")));
    for wrong in [None, Some(Credentials::new("me", "wrong"))] {
        let data = tempfile::tempdir().unwrap();
        let error = pull(&server, data.path(), wrong).await.unwrap_err();
        assert!(error.to_string().contains("refused access"), "{error}");
        assert!(!error.is_transient());
    }
}

#[tokio::test]
async fn basic_authentication_works() {
    let image = sample();
    let server = Server::start(move |asked| {
        if asked.header("authorization") == Some(&basic()) {
            return honest(&image, asked);
        }
        answer(401, "").header("www-authenticate", "Basic realm=\"x\"")
    })
    .await;
    let data = tempfile::tempdir().unwrap();
    assert!(pull(&server, data.path(), None).await.is_err());
    pull(&server, data.path(), Some(Credentials::new("me", SECRET))).await.unwrap();
}

#[tokio::test]
async fn redirects_are_followed_without_the_credentials() {
    let image = Arc::new(sample());
    let elsewhere = {
        let image = image.clone();
        Server::start(move |asked| {
            honest(&image, &Asked { path: format!("/v2/team/app{}", asked.path), ..asked.clone() })
        })
        .await
    };
    let target = elsewhere.address;
    let server = Server::start(move |asked| {
        if asked.header("authorization") != Some(&basic()) {
            return answer(401, "").header("www-authenticate", "Basic realm=\"x\"");
        }
        match asked.path.find("/blobs/") {
            Some(at) => answer(307, "").header("location", format!("http://{target}{}", &asked.path[at..])),
            None => honest(&image, asked),
        }
    })
    .await;
    let data = tempfile::tempdir().unwrap();
    pull(&server, data.path(), Some(Credentials::new("me", SECRET))).await.unwrap();
    assert!(elsewhere.asked().iter().all(|asked| asked.header("authorization").is_none()));
    assert_eq!(elsewhere.count("/blobs/"), 3);
}

#[tokio::test]
async fn where_it_may_not_lead_is_not_followed() {
    for location in [
        "http://registry.example/x",
        "//registry.example/x",
        "ftp://127.0.0.1/x",
        "nonsense",
        "/v2/team/app/manifests/1",
    ] {
        let server = Server::start(move |_| answer(302, "").header("location", location)).await;
        let data = tempfile::tempdir().unwrap();
        let error = pull(&server, data.path(), None).await.unwrap_err().to_string();
        assert!(error.contains("not followed") || error.contains("redirects"), "{location}: {error}");
    }
    // A token server that is not encrypted gets no password.
    let server = Server::start(|_| {
        answer(401, "").header("www-authenticate", "Bearer realm=\"http://token.example/t\"")
    })
    .await;
    let data = tempfile::tempdir().unwrap();
    let error = pull(&server, data.path(), Some(Credentials::new("me", SECRET))).await.unwrap_err();
    assert!(error.to_string().contains("not followed"), "{error}");
}

#[tokio::test]
async fn a_transfer_that_breaks_off_goes_on_where_it_was() {
    for ranges in [true, false] {
        let image = sample();
        let layer = image.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let (layer, size) = (layer.0.to_string(), layer.1.len());
        let breaks = AtomicUsize::new(0);
        let watched = layer.clone();
        let server = Server::start(move |asked| {
            let mut answer = honest(&image, asked);
            if !asked.path.contains(&watched) {
                return answer;
            }
            let range = asked.header("range").filter(|_| ranges);
            if let Some(from) =
                range.map(|range| range["bytes=".len()..range.len() - 1].parse::<usize>().unwrap())
            {
                answer.body.drain(..from);
                answer.status = 206;
                answer = answer.header("content-range", format!("bytes {from}-{}/{size}", size - 1));
            }
            if breaks.fetch_add(1, Ordering::Relaxed) < 3 {
                answer.cut = Some(answer.body.len() / 2);
            }
            answer
        })
        .await;
        let data = tempfile::tempdir().unwrap();
        pull(&server, data.path(), None).await.unwrap();
        let asked = server.asked();
        let transfers: Vec<_> = asked.iter().filter(|asked| asked.path.contains(&layer)).collect();
        assert_eq!(transfers.len(), 4);
        assert!(transfers[0].header("range").is_none() && transfers[1].header("range").is_some());
    }
}

#[tokio::test]
async fn errors_that_may_pass_are_tried_again_and_others_are_not() {
    for (status, attempts, transient) in
        [(500, 5, true), (503, 5, true), (429, 5, true), (404, 1, false), (403, 1, false), (418, 1, false)]
    {
        let server =
            Server::start(move |asked| answer(if asked.path == "/v2/" { 200 } else { status }, "")).await;
        let data = tempfile::tempdir().unwrap();
        let error = pull(&server, data.path(), None).await.unwrap_err();
        assert_eq!(
            (server.count("/manifests/"), error.is_transient()),
            (attempts, transient),
            "{status}: {error}"
        );
    }
    let image = sample();
    let failures = AtomicUsize::new(0);
    let server = Server::start(move |asked| match failures.fetch_add(1, Ordering::Relaxed) {
        0..4 => answer(502, ""),
        _ => honest(&image, asked),
    })
    .await;
    let data = tempfile::tempdir().unwrap();
    pull(&server, data.path(), None).await.unwrap();
}

#[tokio::test]
async fn what_is_not_what_was_asked_for_is_refused() {
    type Change = fn(&mut Vec<u8>);
    for (which, change, expected) in [
        ("/blobs/", (|body| body[4] ^= 1) as Change, "damaged"),
        ("/blobs/", |body| body.push(b' '), ""),
        ("/manifests/sha256", |body| body.push(b' '), "damaged"),
        ("/manifests/1", |body| *body = b"<html>".to_vec(), "not valid JSON"),
        ("/manifests/1", |body| *body = vec![b' '; 5 << 20], "larger than"),
        ("/manifests/1", |body| *body = br#"{"schemaVersion":1}"#.to_vec(), "schema 1"),
        ("/manifests/1", |body| *body = br#"{"manifests":[]}"#.to_vec(), "not made for"),
    ] {
        let image = sample();
        let server = Server::start(move |asked| {
            let mut answer = honest(&image, asked);
            if asked.path.contains(which) {
                change(&mut answer.body);
            }
            answer
        })
        .await;
        let data = tempfile::tempdir().unwrap();
        let error = pull(&server, data.path(), None).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{which} {error}");
    }
}

#[tokio::test]
async fn a_pull_ends_at_its_deadline_and_leaves_nothing() {
    let image = sample();
    let layer = image.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap().0.to_string();
    let reached = Arc::new(tokio::sync::Notify::new());
    let server = {
        let reached = reached.clone();
        Server::start(move |asked| {
            let mut answer = honest(&image, asked);
            if asked.path.contains(&layer) {
                answer.hang = true;
                reached.notify_one();
            }
            answer
        })
        .await
    };
    let data = tempfile::tempdir().unwrap();
    let store = Store::open_with(data.path(), options()).unwrap();
    let name = reference(&format!("{}/team/app:1", server.address));
    let error = store.pull(&name, None, quiet(), Instant::now()).await.unwrap_err();
    assert!(error.to_string().contains("longer than allowed"), "{error}");
    // Dropped in the middle of a layer.
    tokio::select! {
        _ = store.pull(&name, None, quiet(), soon()) => panic!("it cannot end"),
        () = reached.notified() => {}
    }
    // The thread that unpacks ends by itself once nobody sends to it.
    let gone = async {
        while !leftovers(data.path()).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("it is cleared away");
    assert_eq!(store.list().unwrap().len(), 1);
}

#[tokio::test]
async fn a_name_without_a_registry_needs_a_default_or_an_import() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open_with(data.path(), options()).unwrap();
    let error = store.pull(&reference("team/app:1"), None, quiet(), soon()).await.unwrap_err();
    assert!(error.to_string().contains("configure a default registry"), "{error}");
    let image = sample();
    let server = Server::start(move |asked| honest(&image, asked)).await;
    let options = Options { default_registry: Some(server.address.to_string()), ..options() };
    let store = Store::open_with(data.path(), options).unwrap();
    store.pull(&reference("team/app:1"), None, quiet(), soon()).await.unwrap();
    assert!(store.resolve(&reference("team/app:1")).unwrap().is_some());
    assert!(
        matches!(store.pull(&reference("host"), None, quiet(), soon()).await, Ok(image) if image.id == "host")
    );
}

/// A certificate for loopback, as PEM and as what a server needs.
fn certificate() -> (Vec<u8>, tokio_rustls::TlsAcceptor) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
    (made.cert.pem().into_bytes(), Arc::new(config).into())
}

#[tokio::test]
async fn a_registry_is_trusted_by_its_certificate_and_by_nothing_else() {
    let (pem, tls) = certificate();
    let (other, _) = certificate();
    let image = sample();
    let server = Server::start_tls(tls, move |asked| honest(&image, asked)).await;
    let name = reference(&format!("{}/team/app:1", server.address));
    for (registry_ca, trusted) in [(Some(pem), true), (Some(other), false), (None, false)] {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open_with(data.path(), Options { registry_ca, ..options() }).unwrap();
        let outcome = store.pull(&name, Some(Credentials::new("me", SECRET)), quiet(), soon()).await;
        assert_eq!(outcome.is_ok(), trusted, "{outcome:?}");
        if let Err(error) = outcome {
            assert!(error.to_string().contains("certificate") && !error.is_transient(), "{error}");
        }
    }
    let nonsense = Options { registry_ca: Some(b"no PEM".to_vec()), ..options() };
    let data = tempfile::tempdir().unwrap();
    let store = Store::open_with(data.path(), nonsense).unwrap();
    let error = store.pull(&name, None, quiet(), soon()).await.unwrap_err();
    assert!(error.to_string().contains("write PEM"), "{error}");
}
