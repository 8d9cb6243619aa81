//! What a user does with kubectl, on Pods that really run: the same steps with root and without.

use std::collections::BTreeSet;

use agentcube_testkit::cluster::up::Place;
use agentcube_testkit::suite::Report;
use anyhow::{Context, Result, ensure};

use crate::kubectl::Kubectl;
use crate::traces::Traces;

const MANIFEST: &[u8] = include_bytes!("session.yaml");
const TIMEOUT: &str = "--timeout=150s";
/// Connections to a Service with three Pods behind it: that one of them got none is less likely than 1 in 10^17.
const CONNECTIONS: usize = 100;
/// More than any buffer on the way holds.
const MEGABYTES: usize = 4;

/// Runs the session in a place, and notes each step.
pub(crate) async fn run(place: &Place, kubectl: &std::path::Path, who: &str, report: &mut Report) {
    let kubectl = Kubectl {
        program: kubectl.to_owned(),
        kubeconfig: place.kubeconfig(),
        home: place.path().to_owned(),
    };
    let before = match baseline(place).await {
        Ok(before) => before,
        Err(error) => return report.note(&format!("{who}: agentcube up"), Err(error)),
    };
    let up = match place.start().await {
        Ok(up) => up,
        Err(error) => return report.note(&format!("{who}: agentcube up with data"), Err(error)),
    };
    let mut note = |step: &str, outcome: Result<()>| report.note(&format!("{who}: {step}"), outcome);
    note("rollout status waits for Pods that run", rolled_out(&kubectl).await);
    note("logs -f goes on", logs(&kubectl).await);
    note("exec has the exit code", exec(&kubectl).await);
    note("exec pipes megabytes both ways", pipe(&kubectl).await);
    note("a Secret is in the environment", secret(&kubectl).await);
    note("a ConfigMap's change arrives in its volume", config_map(&kubectl).await);
    note("a Service is reached by name, and balances", service(&kubectl).await);
    note("a Pod of a StatefulSet is reached by its own name", stateful_name(&kubectl).await);
    note("a Job completes", job(&kubectl).await);
    note("a StatefulSet's Pod keeps its data", stateful_data(&kubectl).await);
    note("a rollout replaces every Pod", rollout(&kubectl).await);
    note("delete waits", delete(&kubectl).await);
    let left = up.down(place).and_then(|()| Traces::of(place)?.ensure_same(&before));
    note("nothing is left over", left);
}

async fn baseline(place: &Place) -> Result<Traces> {
    place.start().await?.down(place)?;
    Traces::of(place)
}

async fn rolled_out(kubectl: &Kubectl) -> Result<()> {
    kubectl.piped(&["apply", "-f", "-"], MANIFEST).await?;
    for (kind, said) in
        [("deployment/web", "successfully rolled out"), ("statefulset/db", "roll out complete")]
    {
        let text = kubectl.run(&["rollout", "status", kind, TIMEOUT]).await?;
        ensure!(text.contains(said), "{text}");
    }
    kubectl.run(&["wait", "--for=condition=Ready", "pod/client", TIMEOUT]).await?;
    Ok(())
}

async fn logs(kubectl: &Kubectl) -> Result<()> {
    let mut following = kubectl.follow(&["logs", "-f", "client"])?;
    ensure!(following.line().await?.as_deref() == Some("the first line"));
    kubectl.run(&["exec", "client", "--", "sh", "-c", "echo now >/tmp/wake"]).await?;
    ensure!(following.line().await?.as_deref() == Some("woken"));
    Ok(())
}

async fn exec(kubectl: &Kubectl) -> Result<()> {
    let output =
        kubectl.output(&["exec", "client", "--", "sh", "-c", "echo out; echo err >&2; exit 37"], b"").await?;
    ensure!(output.status.code() == Some(37), "{}", output.status);
    ensure!(output.stdout == b"out\n", "{:?}", String::from_utf8_lossy(&output.stdout));
    ensure!(output.stderr.starts_with(b"err\n"), "{:?}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn pipe(kubectl: &Kubectl) -> Result<()> {
    let input: Vec<u8> = (0..MEGABYTES << 20).map(|number| ((number * 31) >> 3) as u8).collect();
    let write = ["exec", "-i", "client", "--", "sh", "-c", "cat >/tmp/file && wc -c </tmp/file"];
    let counted = kubectl.piped(&write, &input).await?;
    ensure!(counted.trim() == input.len().to_string(), "{counted} of {} bytes arrived", input.len());
    let output = kubectl.output(&["exec", "client", "--", "cat", "/tmp/file"], b"").await?;
    ensure!(output.stdout == input, "other bytes came back: {} of {}", output.stdout.len(), input.len());
    Ok(())
}

async fn secret(kubectl: &Kubectl) -> Result<()> {
    // What exec starts has the container's environment.
    let value = kubectl.run(&["exec", "client", "--", "sh", "-c", "echo \"$PASSWORD\""]).await?;
    ensure!(value == "open sesame\n", "{value:?}");
    Ok(())
}

async fn config_map(kubectl: &Kubectl) -> Result<()> {
    let read = kubectl.run(&["exec", "client", "--", "cat", "/settings/greeting"]).await?;
    ensure!(read == "hello", "{read:?}");
    let patch = r#"{"data":{"greeting":"good evening"}}"#;
    kubectl.run(&["patch", "configmap", "settings", "--type=merge", "-p", patch]).await?;
    let wait = "until grep -q evening /settings/greeting; do sleep 0.05; done";
    kubectl.run(&["exec", "client", "--", "sh", "-c", wait]).await?;
    Ok(())
}

/// Asks over HTTP from within the Pod `client`; every answer is a line of JSON.
fn asking(host: &str, port: u16, times: usize) -> String {
    format!(
        "for i in $(seq {times}); do exec 3<>/dev/tcp/{host}/{port}; \
         printf 'GET / HTTP/1.0\\r\\nx-session-id: '$i'\\r\\n\\r\\n' >&3; tail -n 1 <&3; exec 3>&-; done"
    )
}

async fn service(kubectl: &Kubectl) -> Result<()> {
    let mut instances = BTreeSet::new();
    for host in ["web", "web.default.svc.cluster.local"] {
        let script = asking(host, 80, CONNECTIONS);
        let answers = kubectl.run(&["exec", "client", "--", "bash", "-c", &script]).await?;
        for line in answers.lines() {
            let answer: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            instances.insert(answer["instance"].as_str().context("an instance")?.to_owned());
        }
        ensure!(answers.lines().count() == CONNECTIONS, "{answers}");
    }
    let pods =
        kubectl.run(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"]).await?;
    let pods: BTreeSet<String> = pods.split_whitespace().map(str::to_owned).collect();
    ensure!(instances == pods, "{instances:?} answered, the Pods are {pods:?}");
    Ok(())
}

async fn stateful_name(kubectl: &Kubectl) -> Result<()> {
    let address = kubectl.run(&["get", "pod", "db-1", "-o", "jsonpath={.status.podIP}"]).await?;
    let resolve = ["exec", "client", "--", "getent", "hosts", "db-1.db.default.svc.cluster.local"];
    let resolved = kubectl.run(&resolve).await?;
    ensure!(resolved.starts_with(&address) && !address.is_empty(), "{resolved:?} is not {address}");
    Ok(())
}

async fn job(kubectl: &Kubectl) -> Result<()> {
    kubectl.run(&["wait", "--for=condition=complete", "job/sum", TIMEOUT]).await?;
    let said = kubectl.run(&["logs", "-l", "job-name=sum"]).await?;
    ensure!(said == "42\n42\n", "{said:?}");
    Ok(())
}

async fn stateful_data(kubectl: &Kubectl) -> Result<()> {
    let uid = ["get", "pod", "db-0", "-o", "jsonpath={.metadata.uid}"];
    let before = kubectl.run(&uid).await?;
    kubectl.piped(&["exec", "-i", "db-0", "--", "sh", "-c", "cat >/data/kept"], b"precious").await?;
    kubectl.run(&["delete", "pod", "db-0", TIMEOUT]).await?;
    kubectl.run(&["rollout", "status", "statefulset/db", TIMEOUT]).await?;
    ensure!(kubectl.run(&uid).await? != before, "it is the same Pod");
    let kept = kubectl.run(&["exec", "db-0", "--", "cat", "/data/kept"]).await?;
    ensure!(kept == "precious", "{kept:?}");
    let other = kubectl.output(&["exec", "db-1", "--", "cat", "/data/kept"], b"").await?;
    ensure!(!other.status.success(), "db-1 sees the data of db-0");
    Ok(())
}

async fn rollout(kubectl: &Kubectl) -> Result<()> {
    let names = ["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"];
    let before = kubectl.run(&names).await?;
    kubectl.run(&["rollout", "restart", "deployment/web"]).await?;
    kubectl.run(&["rollout", "status", "deployment/web", TIMEOUT]).await?;
    let answer = kubectl.run(&["exec", "client", "--", "bash", "-c", &asking("web", 80, 1)]).await?;
    let old = before.split_whitespace().any(|name| answer.contains(name));
    ensure!(answer.contains("instance") && !old, "{answer}");
    Ok(())
}

async fn delete(kubectl: &Kubectl) -> Result<()> {
    kubectl.piped(&["delete", "-f", "-", TIMEOUT], MANIFEST).await?;
    kubectl.run(&["wait", "--for=delete", "pod", "--all", TIMEOUT]).await?;
    let left = kubectl.run(&["get", "pods", "-o", "name"]).await?;
    ensure!(left.is_empty(), "{left}");
    kubectl.run(&["delete", "pvc", "--all", TIMEOUT]).await?;
    kubectl.run(&["wait", "--for=delete", "pv", "--all", TIMEOUT]).await?;
    Ok(())
}
