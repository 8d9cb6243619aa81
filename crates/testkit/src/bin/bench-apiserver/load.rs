//! The load: the same for every server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agentcube_testkit::http_client::Line;
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Result, ensure};
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;

/// How long each rate is measured, after a warm-up.
const MEASURED: Duration = Duration::from_secs(4);
const WARM_UP: Duration = Duration::from_millis(500);
const CLIENTS: usize = 16;
const WATCHERS: usize = 100;
const WATCHED_WRITES: u64 = 200;
const LISTED: u64 = 10_000;
const LISTS: usize = 5;
/// The payload of an object, so that it is about one kilobyte.
const PAYLOAD: usize = 800;

/// What was measured of one server.
pub(crate) struct Measured {
    pub(crate) start: Duration,
    pub(crate) resident_idle: u64,
    pub(crate) writes_one: f64,
    pub(crate) writes_many: f64,
    /// Events delivered per second over all watchers.
    pub(crate) fan_out: f64,
    pub(crate) list: Duration,
    /// With the 10,000 objects, before the writes that are timed: the same number on every server.
    pub(crate) resident_loaded: u64,
}

/// Runs the whole load against one server.
pub(crate) async fn measure(
    http: &HttpClient,
    start: Duration,
    resident: impl Fn() -> Result<u64>,
) -> Result<Measured> {
    let resident_idle = resident()?;
    eprintln!("    list of {LISTED}");
    let list = list(http).await?;
    let resident_loaded = resident()?;
    eprintln!("    writes, 1 client");
    let writes_one = writes(http, "one", 1).await?;
    eprintln!("    writes, {CLIENTS} clients");
    let writes_many = writes(http, "many", CLIENTS).await?;
    eprintln!("    fan-out to {WATCHERS} watchers");
    let fan_out = fan_out(http).await?;
    Ok(Measured { start, resident_idle, writes_one, writes_many, fan_out, list, resident_loaded })
}

async fn namespace(http: &HttpClient, name: &str) -> Result<String> {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let reply = http.send(Request::new(Method::POST, "/api/v1/namespaces").json(&body)).await?;
    ensure!(reply.is_success(), "{}", reply.value());
    Ok(format!("/api/v1/namespaces/{name}/configmaps"))
}

fn create(path: &str, name: &str) -> Request {
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"k":"{}"}}}}"#,
        "x".repeat(PAYLOAD)
    );
    Request::new(Method::POST, path).body("application/json", body)
}

/// Creates objects for a while; acknowledged creations per second after the warm-up.
async fn writes(http: &HttpClient, name: &str, clients: usize) -> Result<f64> {
    let path = namespace(http, &format!("bench-{name}")).await?;
    let counted = Arc::new(AtomicU64::new(0));
    let begin = Instant::now() + WARM_UP;
    let end = begin + MEASURED;
    let mut running = JoinSet::new();
    for client in 0..clients {
        let (http, path, counted) = (http.clone(), path.clone(), counted.clone());
        running.spawn(async move {
            for number in 0_u64.. {
                let reply = http.send(create(&path, &format!("c{client}-{number}"))).await?;
                ensure!(reply.status == 201, "{}", reply.value());
                let now = Instant::now();
                if now > end {
                    break;
                }
                if now > begin {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(counted.load(Ordering::Relaxed) as f64 / MEASURED.as_secs_f64())
}

/// Events per second that reach all watchers together while four clients write.
async fn fan_out(http: &HttpClient) -> Result<f64> {
    let path = namespace(http, "bench-watched").await?;
    let version =
        http.send(Request::new(Method::GET, path.as_str())).await?.text("/metadata/resourceVersion")?;
    let mut watchers = JoinSet::new();
    let mut streams = Vec::new();
    for _ in 0..WATCHERS {
        let request = Request::new(Method::GET, format!("{path}?watch=true&resourceVersion={version}"));
        streams.push(http.stream(request).await?);
    }
    let begun = Instant::now();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    for mut stream in streams {
        watchers.spawn(async move {
            for _ in 0..WATCHED_WRITES {
                ensure!(matches!(stream.next(deadline).await?, Line::Text(_)), "a watcher got too little");
            }
            Ok(())
        });
    }
    fill(http, &path, WATCHED_WRITES, 4).await?;
    while let Some(ended) = watchers.join_next().await {
        ended??;
    }
    Ok((WATCHERS as u64 * WATCHED_WRITES) as f64 / begun.elapsed().as_secs_f64())
}

/// Creates this many objects with several clients.
async fn fill(http: &HttpClient, path: &str, count: u64, clients: u64) -> Result<()> {
    let mut running = JoinSet::new();
    for client in 0..clients {
        let (http, path) = (http.clone(), path.to_owned());
        running.spawn(async move {
            for number in (client..count).step_by(clients as usize) {
                let reply = http.send(create(&path, &format!("o{number}"))).await?;
                ensure!(reply.status == 201, "{}", reply.value());
            }
            Ok(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// The median time of a whole list.
async fn list(http: &HttpClient) -> Result<Duration> {
    let path = namespace(http, "bench-listed").await?;
    fill(http, &path, LISTED, CLIENTS as u64).await?;
    let mut times = Vec::new();
    for _ in 0..LISTS {
        let begun = Instant::now();
        let reply = http.send(Request::new(Method::GET, path.as_str())).await?;
        times.push(begun.elapsed());
        ensure!(reply.is_success() && reply.bytes.len() as u64 > LISTED * PAYLOAD as u64, "not a whole list");
    }
    times.sort();
    Ok(times[LISTS / 2])
}
