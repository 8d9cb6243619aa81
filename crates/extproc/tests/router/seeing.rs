//! What operators see of requests: counts, lines of the access log, traces.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cases::listening;
use crate::client::get;
use crate::world::World;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const STATE: &str = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";
const OF_TASK: &str = r#"namespace="default",task="agent""#;

fn requests(task: &str, outcome: &str, reason: &str, status: &str) -> String {
    format!(
        "agentcube_requests_total{{{task},outcome=\"{outcome}\",reason=\"{reason}\",status=\"{status}\"}}"
    )
}

/// Exactly what was asked is counted, once each.
pub(crate) async fn counted(world: &World) -> Result<()> {
    let reserve = |path: &str| format!("agentcube_reserve_seconds_count{{{OF_TASK},path=\"{path}\"}}");
    let nobody = r#"namespace="",task="""#;
    let expected = [
        (requests(OF_TASK, "passed", "", "2xx"), 4),
        (requests(OF_TASK, "refused", "SessionKeyMissing", "4xx"), 2),
        (requests(nobody, "refused", "NoRoute", "4xx"), 1),
        (format!("agentcube_request_seconds_count{{{OF_TASK}}}"), 4),
        (format!("agentcube_request_first_byte_seconds_count{{{OF_TASK}}}"), 4),
        (reserve("waited"), 2),
        (reserve("reused"), 2),
        (reserve("refused"), 0),
        (format!("agentcube_sessions{{{OF_TASK}}}"), 2),
        (format!("agentcube_requests_in_flight{{{OF_TASK}}}"), 0),
        (format!("agentcube_reserve_waiting{{{OF_TASK}}}"), 0),
        ("agentcube_access_log_dropped_total{reason=\"full\"}".to_owned(), 0),
    ];
    // What was asked until it was ready is counted too, and a little later than it was answered.
    let earlier = async || Ok(sum(&world.seen.metrics(), "agentcube_requests_total{") == world.answered());
    world.until("what was asked before is counted", earlier).await?;
    let before = world.seen.metrics();
    for key in ["secret-one", "secret-two", "secret-one", "secret-one"] {
        get(world.address(), "/default/agent/say", &[("x-session", key)]).await?.instance()?;
    }
    for path in ["/default/agent", "/default/agent", "/default/gone"] {
        get(world.address(), path, &[]).await?;
    }
    let off = || {
        let now = world.seen.metrics();
        expected.iter().find(|(name, more)| value(&now, name) - value(&before, name) != *more)
    };
    let all = world.until("all is counted", async || Ok(off().is_none())).await;
    all.with_context(|| format!("{:?} in\n{}", off(), world.seen.metrics()))
}

/// Lines say what there is to say, and no secret.
pub(crate) async fn logged(world: &World) -> Result<()> {
    let given = [
        ("x-session", "secret-one"),
        ("traceparent", PARENT),
        ("tracestate", STATE),
        ("authorization", "Bearer very-secret"),
    ];
    let path = "/default/agent/say%0Ahello?token=very-secret";
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let answer = get(world.address(), path, &given).await?;
        let headers = &answer.body["headers"];
        ensure!(headers["traceparent"] == PARENT && headers["tracestate"] == STATE, "{headers}");
        tokens.push(headers["x-reserved-token"].as_str().context("a token")?.to_owned());
    }
    get(world.address(), "/default/agent", &[("x-session", "secret-two")]).await?.instance()?;
    get(world.address(), "/default/agent/refused", &[("traceparent", PARENT)]).await?;
    let ours = |line: &Value| line["status"] == 200 || line["path"] == "/default/agent/refused";
    let lines = || -> Vec<Value> { world.seen.lines().into_iter().filter(ours).collect() };
    world.until("there is a line for each", async || Ok(lines().len() == 4)).await?;
    let text = world.seen.text();
    for secret in ["secret-one", "secret-two", "very-secret"].into_iter().chain(tokens.iter().map(|it| &**it))
    {
        ensure!(!text.contains(secret), "{secret} is in\n{text}");
    }
    let lines = lines();
    let [first, again] = ["waited", "reused"].map(|path| {
        let found = lines.iter().find(|line| line["reserve"] == path && line["traceId"] == TRACE);
        found.cloned().unwrap_or_default()
    });
    for line in [&first, &again] {
        ensure!(line["path"] == "/default/agent/say%0Ahello", "{line}");
        ensure!(line["traceId"] == TRACE && line["method"] == "GET", "{line}");
        ensure!(line["namespace"] == "default" && line["task"] == "agent", "{line}");
        ensure!(line["gateway"] == "default/default" && line["outcome"] == "passed", "{line}");
        ensure!(line["instance"] == "agent-0" && line["requestId"].is_string(), "{line}");
        ensure!(line["bytesOut"].as_u64() > Some(100) && line["bytesIn"] == 0, "{line}");
        for time in ["durationMs", "firstByteMs", "reserveMs"] {
            ensure!(line[time].as_f64().is_some_and(|time| time >= 0.0), "{time} of {line}");
        }
    }
    let second = lines.iter().find(|line| line["instance"] == "agent-1").context("another session")?;
    ensure!(first["session"].as_str().map(str::len) == Some(16), "{first}");
    ensure!(first["session"] == again["session"] && first["session"] != second["session"], "{lines:?}");
    let refused = lines.iter().find(|line| line["status"] == 400).context("a refusal")?;
    ensure!(refused["outcome"] == "refused" && refused["reason"] == "SessionKeyMissing", "{refused}");
    ensure!(refused["traceId"] == TRACE && refused["task"] == "agent", "{refused}");
    Ok(())
}

/// A request is on its way until it has ended.
pub(crate) async fn in_flight(world: &World) -> Result<()> {
    let gauge = format!("agentcube_requests_in_flight{{{OF_TASK}}}");
    let passed = requests(OF_TASK, "passed", "", "2xx");
    let at = |name: &str| value(&world.seen.metrics(), name);
    let (mut body, _connection) = listening(world, "secret-one").await?;
    world.until("it is on its way", async || Ok(at(&gauge) == 1)).await?;
    ensure!(at(&passed) == 0, "it is not over");
    world.backends.say.send("stop")?;
    while http_body_util::BodyExt::frame(&mut body).await.transpose()?.is_some() {}
    world.until("it is over", async || Ok(at(&gauge) == 0 && at(&passed) == 1)).await
}

/// What metrics of a name have come to together.
fn sum(text: &str, name: &str) -> i64 {
    let values = text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit_once(' '));
    values.filter_map(|(_, number)| number.parse::<i64>().ok()).sum()
}

/// What a metric has come to; nothing is zero.
fn value(text: &str, name: &str) -> i64 {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.and_then(|number| number.parse().ok()).unwrap_or(0)
}
