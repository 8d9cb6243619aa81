//! `agentcube sessions`: which session is bound to which instance, from the Leases that say so.

use agentcube_api::labels;
use agentcube_instance::record::Session;
use agentcube_instance::revision::label_value;
use clap::Args;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

use crate::client::{Connection, Server, query};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome, say};
use crate::output::{self, Machine, Table, age};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sessions                # of all Tasks of the namespace
  agentcube sessions hello
  agentcube sessions -A -o json
  agentcube delete lease NAME       # ends the session: NAME is in the JSON")]
pub(crate) struct Arguments {
    /// Only those of this Task
    #[arg(value_name = "TASK")]
    task: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

/// A session as it is shown.
struct Shown {
    task: String,
    lease: String,
    session: Session,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    let of_sessions = format!("{}={}", labels::LEASE, labels::LEASE_OF_SESSION);
    let selector = match &arguments.task {
        Some(task) => format!("{of_sessions},{}={}", labels::TASK, label_value(task)),
        None => of_sessions,
    };
    let place = match arguments.all_namespaces {
        true => String::new(),
        false => format!("namespaces/{}/", server.namespace),
    };
    let path =
        format!("/apis/coordination.k8s.io/v1/{place}leases{}", query(&[("labelSelector", Some(&selector))]));
    let mut list = server.get(&path).await?;
    let Value::Array(items) = list["items"].take() else { anyhow::bail!("the server sent no list") };
    let mut sessions: Vec<Shown> = items.into_iter().filter_map(read).collect();
    sessions.sort_by(|a, b| {
        (&a.session.namespace, &a.task, &a.session.key).cmp(&(&b.session.namespace, &b.task, &b.session.key))
    });
    if let (Some(task), true) = (&arguments.task, sessions.is_empty()) {
        expect_task(&server, task, arguments.all_namespaces).await?;
    }
    match arguments.output {
        Some(machine) => machine.print(&json!(sessions.iter().map(machine_form).collect::<Vec<_>>()))?,
        None if sessions.is_empty() => say("no sessions"),
        None => output::write(table(&sessions, arguments.all_namespaces).as_bytes())?,
    }
    Ok(Outcome::Done)
}

/// No sessions are one thing, no such Task another.
async fn expect_task(server: &Server, task: &str, all_namespaces: bool) -> anyhow::Result<()> {
    const TASKS: &str = "/apis/agentcube.io/v1alpha1";
    if !all_namespaces {
        server.get(&format!("{TASKS}/namespaces/{}/tasks/{task}", server.namespace)).await?;
        return Ok(());
    }
    let named = query(&[("fieldSelector", Some(&format!("metadata.name={task}")))]);
    let list = server.get(&format!("{TASKS}/tasks{named}")).await?;
    match list["items"].as_array().is_some_and(|tasks| !tasks.is_empty()) {
        true => Ok(()),
        false => Err(Absent(format!("there is no Task {task} in any namespace")).into()),
    }
}

fn read(item: Value) -> Option<Shown> {
    let lease: Lease = serde_json::from_value(item).ok()?;
    let session = Session::read(&lease)?;
    // The label may be cut; the owner has the whole name.
    let owner = lease.metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Task");
    let task = owner.map(|owner| owner.name.clone()).unwrap_or_default();
    Some(Shown { task, lease: lease.metadata.name?, session })
}

fn state(session: &Session) -> &'static str {
    match session {
        Session { ending: true, .. } => "ending",
        Session { holder: None, .. } => "waiting",
        Session { releasing: true, .. } => "releasing",
        Session { rests: Some(_), .. } => "paused",
        _ => "bound",
    }
}

fn machine_form(shown: &Shown) -> Value {
    let session = &shown.session;
    json!({
        "namespace": &*session.namespace,
        "task": shown.task,
        "key": session.key.as_str(),
        "state": state(session),
        "instance": session.holder.as_ref().map(|holder| &*holder.name),
        "instanceUID": session.holder.as_ref().map(|holder| &*holder.uid),
        "lastActive": session.renewed.to_string(),
        "created": session.created.to_string(),
        "lease": shown.lease,
    })
}

fn table(sessions: &[Shown], namespaces: bool) -> String {
    let place = |text: &str| namespaces.then(|| text.to_owned());
    let header = ["TASK", "SESSION", "INSTANCE", "STATE", "LAST ACTIVE", "AGE"].map(str::to_owned);
    let mut table = Table::with_header(place("NAMESPACE").into_iter().chain(header));
    for Shown { task, session, .. } in sessions {
        let instance = session.holder.as_ref().map_or("<none>", |holder| &holder.name);
        let cells = [
            task.clone(),
            session.key.to_string(),
            instance.to_owned(),
            state(session).to_owned(),
            age::since(session.renewed),
            age::since(session.created),
        ];
        table.row(place(&session.namespace).into_iter().chain(cells));
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use agentcube_instance::SessionKey;
    use agentcube_instance::record::lease_name;

    use super::*;

    fn lease(key: &str, holder: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut lease = json!({
            "metadata": {
                "name": lease_name("t1", &SessionKey::new(key).unwrap()), "namespace": "prod", "uid": "l1",
                "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { labels::LEASE: labels::LEASE_OF_SESSION, labels::TASK_UID: "t1" },
                "annotations": { labels::RESERVE_KEY: key },
                "ownerReferences": [{ "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "name": "chat",
                    "uid": "t1", "controller": true }],
            },
            "spec": { "holderIdentity": holder, "renewTime": "2026-01-01T00:01:00.000000Z" },
        });
        change(&mut lease);
        lease
    }

    #[test]
    fn states_are_told_apart() {
        let shown = |lease: Value| machine_form(&read(lease).unwrap());
        let bound = shown(lease("u1", "chat-0/p1", |_| ()));
        assert_eq!((&bound["state"], &bound["instance"]), (&json!("bound"), &json!("chat-0")));
        assert_eq!((&bound["task"], &bound["key"]), (&json!("chat"), &json!("u1")));
        assert_eq!(bound["lastActive"], "2026-01-01T00:01:00Z");
        assert_eq!(shown(lease("u1", "", |_| ()))["state"], "waiting");
        let releasing =
            |lease: &mut Value| lease["metadata"]["annotations"][labels::RELEASING] = json!("idle");
        assert_eq!(shown(lease("u1", "chat-0/p1", releasing))["state"], "releasing");
        let rests = |lease: &mut Value| lease["metadata"]["annotations"][labels::RESTS] = json!("7");
        assert_eq!(shown(lease("u1", "sandbox/chat-0/p1", rests))["state"], "paused");
        let ending =
            |lease: &mut Value| lease["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:02:00Z");
        assert_eq!(shown(lease("u1", "chat-0/p1", ending))["state"], "ending");
        assert!(read(json!({ "metadata": { "name": "router-a" } })).is_none());
    }

    #[test]
    fn a_table_for_people() {
        let sessions = [read(lease("u1", "chat-0/p1", |_| ())).unwrap()];
        let text = table(&sessions, true);
        assert!(
            text.starts_with("NAMESPACE   TASK   SESSION   INSTANCE   STATE   LAST ACTIVE   AGE\n"),
            "{text}"
        );
        assert!(text.contains("prod        chat   u1        chat-0     bound"), "{text}");
    }
}
