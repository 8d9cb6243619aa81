//! Logs and exec of Pods: kube-rs and `kubectl` on one side, a pretended node on the other.

use std::process::Stdio;
use std::time::Duration;

use agentcube_apiserver::hooks::LogOptions;
use anyhow::{Context, Result, bail, ensure};
use futures_util::{AsyncBufReadExt, SinkExt, StreamExt};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, AttachedProcess, LogParams, PostParams, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixtures::pod;
use crate::hooks::ECHO_PORT;
use crate::world::{Place, World, refused};

/// Far more than any channel on the way holds.
const MUCH: usize = 3 << 20;
const KUBECTL_LIMIT: Duration = Duration::from_secs(60);

/// Pods to talk to; the key of the first, which has said ten lines.
async fn pods(world: &World) -> Result<(Api<Pod>, String)> {
    let api: Api<Pod> = world.api();
    api.create(&PostParams::default(), &pod("one", &["c"], Some("n1"))?).await?;
    api.create(&PostParams::default(), &pod("two", &["a", "b"], Some("n1"))?).await?;
    api.create(&PostParams::default(), &pod("nowhere", &["c"], None)?).await?;
    let key = format!("{}/one", world.namespace);
    if let Ok(node) = world.node() {
        for n in 0..10 {
            node.say(&key, &format!("line {n}"));
        }
    }
    Ok((api, key))
}

pub(crate) async fn logs(world: World) -> Result<()> {
    let (api, key) = pods(&world).await?;
    let node = world.node()?;
    let all = api.logs("one", &LogParams::default()).await?;
    ensure!(all.lines().count() == 10 && all.ends_with("line 9\n"), "{all:?}");
    let tail = LogParams { tail_lines: Some(2), ..LogParams::default() };
    ensure!(api.logs("one", &tail).await? == "line 8\nline 9\n");
    let container = LogParams { container: Some("b".into()), ..LogParams::default() };
    ensure!(api.logs("two", &container).await?.is_empty());

    let follow = LogParams { follow: true, ..tail };
    let mut lines = api.log_stream("one", &follow).await?.lines();
    for expected in ["line 8", "line 9"] {
        ensure!(lines.next().await.context("a line")?? == expected);
    }
    node.say(&key, "late");
    ensure!(lines.next().await.context("a line")?? == "late", "a follower hears what is said later");
    node.end(&key);
    ensure!(lines.next().await.is_none(), "the stream ends with the log");

    let params = LogParams {
        container: Some("c".into()),
        limit_bytes: Some(100),
        since_seconds: Some(60),
        timestamps: true,
        ..LogParams::default()
    };
    api.logs("one", &params).await?;
    let expected = LogOptions {
        container: Some("c".into()),
        timestamps: true,
        limit_bytes: Some(100),
        since_seconds: Some(60),
        ..LogOptions::default()
    };
    let asked = node.asked(&key).pop().context("nothing was asked")?;
    ensure!(asked == expected, "{asked:?}");
    let previous = LogParams { previous: true, ..LogParams::default() };
    let status = refused(api.logs("one", &previous).await, 400, "BadRequest")?;
    ensure!(
        status.message.contains("previous terminated container"),
        "the node's own refusal: {}",
        status.message
    );
    Ok(())
}

pub(crate) async fn log_refusals(world: World) -> Result<()> {
    let (api, _) = pods(&world).await?;
    let of = |container: &str| LogParams { container: Some(container.into()), ..LogParams::default() };
    let status = refused(api.logs("one", &of("d")).await, 400, "BadRequest")?;
    ensure!(status.message == "container d is not valid for pod one", "{}", status.message);
    let status = refused(api.logs("two", &LogParams::default()).await, 400, "BadRequest")?;
    let expected = "a container name must be specified for pod two, choose one of: [a b]";
    ensure!(status.message == expected, "{}", status.message);
    ensure!(api.logs("nowhere", &LogParams::default()).await?.is_empty());
    refused(api.logs("none", &LogParams::default()).await, 404, "NotFound")?;
    Ok(())
}

/// What a command said, and how it ended.
struct Said {
    stdout: String,
    stderr: String,
    status: k8s_openapi::apimachinery::pkg::apis::meta::v1::Status,
}

async fn said(mut process: AttachedProcess) -> Result<Said> {
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let status = process.take_status().context("status")?;
    if let Some(mut reader) = process.stdout() {
        reader.read_to_string(&mut stdout).await?;
    }
    if let Some(mut reader) = process.stderr() {
        reader.read_to_string(&mut stderr).await?;
    }
    let status = status.await.context("a command ends with a status")?;
    process.join().await?;
    Ok(Said { stdout, stderr, status })
}

pub(crate) async fn exec(world: World) -> Result<()> {
    let (api, _) = pods(&world).await?;
    let plain = AttachParams::default;
    let heard = said(api.exec("one", ["say", "hello", "world"], &plain()).await?).await?;
    ensure!(heard.stdout == "hello world in c\n" && heard.stderr.is_empty());
    ensure!(heard.status.status.as_deref() == Some("Success"));
    let heard = said(api.exec("two", ["say", "hello"], &plain().container("b")).await?).await?;
    ensure!(heard.stdout == "hello in b\n", "{}", heard.stdout);

    let heard = said(api.exec("one", ["nonsense"], &plain()).await?).await?;
    ensure!(heard.stderr == "no such command\n" && heard.stdout.is_empty());
    ensure!(heard.status.reason.as_deref() == Some("NonZeroExitCode"), "{:?}", heard.status);
    let causes = heard.status.details.and_then(|details| details.causes).unwrap_or_default();
    ensure!(causes.iter().any(|cause| cause.message.as_deref() == Some("3")), "{causes:?}");
    let heard = said(api.attach("one", &plain()).await?).await?;
    ensure!(heard.stdout == "attached to c\n", "{}", heard.stdout);

    let mut process = api.exec("one", ["echo"], &AttachParams::default().stdin(true)).await?;
    let mut stdin = process.stdin().context("stdin")?;
    let much = "0123456789abcdef".repeat(MUCH / 16);
    let sent = much.clone();
    let sending = tokio::spawn(async move {
        stdin.write_all(sent.as_bytes()).await?;
        stdin.shutdown().await
    });
    let heard = said(process).await?;
    sending.await??;
    ensure!(heard.stdout == much, "{} of {} bytes came back", heard.stdout.len(), much.len());
    ensure!(heard.stderr == "the end\n", "{}", heard.stderr);

    let mut process = api.exec("one", ["size"], &AttachParams::interactive_tty()).await?;
    let mut size = process.terminal_size().context("a terminal has a size")?;
    size.send(TerminalSize { width: 100, height: 40 }).await?;
    let heard = said(process).await?;
    ensure!(heard.stdout == "100x40\n", "{}", heard.stdout);
    Ok(())
}

/// Nothing runs on for a client that is gone. Alone, as it counts all commands of the server.
pub(crate) async fn leaving_ends_commands(_: World) -> Result<()> {
    let place = std::sync::Arc::new(Place::socket(None).await?);
    let world = place.world("leaving").await?;
    let (api, _) = pods(&world).await?;
    let mut running = world.node()?.running();
    let process = api.exec("one", ["echo"], &AttachParams::default().stdin(true)).await?;
    running.wait_for(|commands| *commands == 1).await?;
    process.abort();
    drop(process);
    running.wait_for(|commands| *commands == 0).await?;

    // The same for one that follows a log.
    let follow = LogParams { follow: true, ..LogParams::default() };
    let mut lines = api.log_stream("one", &follow).await?.lines();
    ensure!(lines.next().await.context("a line")?? == "line 0");
    drop(lines);
    world.node()?.abandoned(&format!("{}/one", world.namespace)).await;
    Ok(())
}

pub(crate) async fn exec_refusals(world: World) -> Result<()> {
    let (api, _) = pods(&world).await?;
    let plain = AttachParams::default;
    let cases = [
        ("one", plain().container("d"), 400),
        ("two", plain(), 400),
        ("nowhere", plain(), 400),
        ("none", plain(), 404),
    ];
    for (pod, params, code) in cases {
        let Err(error) = api.exec(pod, ["say"], &params).await else {
            bail!("exec in {pod} must be refused")
        };
        let kube::Error::UpgradeConnection(kube::client::UpgradeConnectionError::ProtocolSwitch(status)) =
            error
        else {
            bail!("{pod}: {error:?}");
        };
        ensure!(status.as_u16() == code, "{pod}: {status}");
    }
    Ok(())
}

/// Runs `kubectl` with something on its standard input; what it printed, and its exit code.
async fn kubectl(world: &World, args: &[&str], input: &[u8]) -> Result<(String, String, Option<i32>)> {
    let kubectl = world.kubectl()?;
    run(kubectl.command(args), input).await
}

async fn run(mut command: tokio::process::Command, input: &[u8]) -> Result<(String, String, Option<i32>)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().context("stdin")?;
    let input = input.to_vec();
    let sending = tokio::spawn(async move { stdin.write_all(&input).await });
    let output =
        tokio::time::timeout(KUBECTL_LIMIT, child.wait_with_output()).await.context("kubectl hangs")??;
    // A command that does not read its input leaves the pipe broken, which is its right.
    let _unread = sending.await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((text(output.stdout), text(output.stderr), output.status.code()))
}

pub(crate) async fn kubectl_logs(world: World) -> Result<()> {
    let (_, key) = pods(&world).await?;
    let (stdout, stderr, code) = kubectl(&world, &["logs", "one"], b"").await?;
    ensure!(code == Some(0) && stdout.lines().count() == 10, "{stdout}{stderr}");
    let (stdout, ..) = kubectl(&world, &["logs", "one", "--tail", "3", "-c", "c"], b"").await?;
    ensure!(stdout == "line 7\nline 8\nline 9\n", "{stdout}");
    let (_, stderr, code) = kubectl(&world, &["logs", "one", "-c", "d"], b"").await?;
    ensure!(code == Some(1) && stderr.contains("container d is not valid for pod one"), "{stderr}");

    let program = world.kubectl()?;
    let mut following = program.command(&["logs", "-f", "--tail", "1", "one"]);
    let mut child = following.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
    let mut lines =
        tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stdout.take().context("stdout")?));
    ensure!(lines.next_line().await?.as_deref() == Some("line 9"));
    let node = world.node()?;
    node.say(&key, "late");
    ensure!(lines.next_line().await?.as_deref() == Some("late"));
    node.end(&key);
    ensure!(lines.next_line().await?.is_none());
    ensure!(child.wait().await?.success());
    Ok(())
}

pub(crate) async fn kubectl_exec(world: World) -> Result<()> {
    pods(&world).await?;
    let (stdout, stderr, code) =
        kubectl(&world, &["exec", "two", "-c", "a", "--", "say", "hello"], b"").await?;
    ensure!(code == Some(0) && stdout == "hello in a\n", "{stdout}{stderr}");
    let much = "0123456789abcdef".repeat(MUCH / 16);
    let (stdout, stderr, code) =
        kubectl(&world, &["exec", "-i", "one", "--", "echo"], much.as_bytes()).await?;
    ensure!(code == Some(0) && stdout == much, "{} of {} bytes: {stderr}", stdout.len(), much.len());
    ensure!(stderr == "the end\n", "{stderr}");
    let (_, stderr, code) = kubectl(&world, &["exec", "one", "--", "nonsense"], b"").await?;
    ensure!(code == Some(3), "{code:?}: {stderr}");
    ensure!(stderr.contains("no such command") && stderr.contains("exit code 3"), "{stderr}");
    let (_, stderr, code) = kubectl(&world, &["exec", "nowhere", "--", "say"], b"").await?;
    ensure!(code == Some(1) && stderr.contains("pod nowhere does not have a host assigned"), "{stderr}");
    let (stdout, stderr, code) = kubectl(&world, &["attach", "one"], b"").await?;
    ensure!(code == Some(0) && stdout.contains("attached to c"), "{stdout}{stderr}");

    // A terminal of a known size around kubectl.
    let program = world.kubectl()?;
    let inner = program.command(&["exec", "-it", "one", "--", "size"]);
    let inner = inner.as_std();
    let words: Vec<_> = std::iter::once(inner.get_program()).chain(inner.get_args()).collect();
    let words: Vec<_> = words.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let mut terminal = tokio::process::Command::new("script");
    terminal.args(["-qec", &format!("stty cols 100 rows 40; exec {}", words.join(" ")), "/dev/null"]);
    terminal.kill_on_drop(true);
    let (stdout, stderr, code) = run(terminal, b"").await?;
    ensure!(code == Some(0) && stdout.contains("100x40"), "{code:?}: {stdout}{stderr}");
    Ok(())
}

/// The whole answer to a request that kube-rs would call an error, too.
async fn ask(world: &World, method: &str, path: &str, body: Vec<u8>) -> Result<(u16, serde_json::Value)> {
    let path = format!("/api/v1/namespaces/{}/{path}", world.namespace);
    let request = http::Request::builder().method(method).uri(path).body(kube::client::Body::from(body))?;
    let response = world.client.send(request).await?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok((code, serde_json::from_slice(&bytes).with_context(|| format!("{bytes:?}"))?))
}

pub(crate) async fn proxy(world: World) -> Result<()> {
    let (_, _) = pods(&world).await?;
    let (code, told) = ask(&world, "GET", "pods/one:80/proxy/a/b?c=d", Vec::new()).await?;
    ensure!(code == 418 && told["path"] == "/a/b?c=d" && told["method"] == "GET", "{code} {told}");
    ensure!(told["secret"] == false, "the client's token went to a Pod");
    let (_, told) = ask(&world, "POST", "pods/one/proxy", vec![b'x'; MUCH * 2]).await?;
    ensure!(told["body"] == MUCH * 2 && told["path"] == "/", "more than an object may have: {told}");
    let (code, _) = ask(&world, "GET", "pods/none:80/proxy/", Vec::new()).await?;
    ensure!(code == 404, "{code}");
    let service = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "s"},
        "spec": {"ports": [{"name": "web", "port": 8000, "targetPort": 80}]},
    }))?;
    world.api::<k8s_openapi::api::core::v1::Service>().create(&PostParams::default(), &service).await?;
    for id in ["s", "s:web", "s:8000", "http:s:web"] {
        let (code, told) = ask(&world, "PUT", &format!("services/{id}/proxy/x"), Vec::new()).await?;
        ensure!(code == 418 && told["path"] == "/x", "{id}: {code} {told}");
    }
    Ok(())
}

/// Alone, in process: a client of a socket tries again for minutes when it is told 503.
pub(crate) async fn unreachable_pods(_: World) -> Result<()> {
    let place = std::sync::Arc::new(Place::in_process().await?);
    let world = place.world("unreachable").await?;
    let (_, _) = pods(&world).await?;
    let (code, told) = ask(&world, "GET", "pods/one:81/proxy/", Vec::new()).await?;
    ensure!(code == 503 && told["reason"] == "ServiceUnavailable", "{code} {told}");
    let service = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "s"}, "spec": {"ports": [{"port": 8000, "targetPort": 80}]},
    }))?;
    world.api::<k8s_openapi::api::core::v1::Service>().create(&PostParams::default(), &service).await?;
    let (code, told) = ask(&world, "GET", "services/s:8001/proxy/", Vec::new()).await?;
    ensure!(code == 503, "{code} {told}");
    Ok(())
}

pub(crate) async fn portforward(world: World) -> Result<()> {
    let (api, _) = pods(&world).await?;
    let mut forward = api.portforward("one", &[ECHO_PORT, 81]).await?;
    let refused = forward.take_error(81).context("an error channel")?;
    ensure!(refused.await.is_some_and(|error| error.contains("refused")), "the second port refuses");
    let stream = forward.take_stream(ECHO_PORT).context("a stream")?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let much = vec![7_u8; MUCH];
    let mut heard = vec![0_u8; MUCH];
    let (sent, received) = tokio::join!(writer.write_all(&much), reader.read_exact(&mut heard));
    sent?;
    received?;
    ensure!(heard == much, "what came back is what was sent");
    ensure!(api.portforward("none", &[1]).await.is_err());
    Ok(())
}
