//! `agentcube app retry` and `cancel`: write the control annotations, see them taken, and say what came of it.

use std::time::Duration;

use agentcube_api::App;
use agentcube_api::labels::{MIDDLEWARE_CANCEL_CONTROL, MIDDLEWARE_CONTROL_TAKEN, MIDDLEWARE_RETRY_CONTROL};
use agentcube_api::middleware::change::{CancelControl, ChangeStatus, ChangeTask, RetryControl};
use anyhow::bail;
use clap::Args;
use http::Method;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::world::{World, apps_path, news};
use super::{latest, state_word};
use crate::client::{Connection, Server, escape, query};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome, Usage, say};
use crate::output::{self, Machine, progress};

/// Attempts to write over an App that others change as well.
const ATTEMPTS: usize = 20;
/// Events come a little later than what they are about.
const EVENT_WAIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube app retry sessions                       # all of the latest change that is not done
  agentcube app retry sessions 3-nodes-upgrade --reset-dependencies --wait

Tasks are those of the latest change; `agentcube app tasks` shows them.")]
pub(super) struct RetryArguments {
    /// Have the tasks that they depend on carried out again as well, if those are not done
    #[arg(long)]
    reset_dependencies: bool,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube app cancel sessions                      # everything that is under way or to come
  agentcube app cancel sessions 3-nodes-upgrade --wait

What is half done is undone: Pods go back to what they were. A first installation, a removal and larger volumes cannot be
undone; they stay as they are.")]
pub(super) struct CancelArguments {
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
#[group(skip)]
struct Asked {
    /// The App
    #[arg(value_name = "NAME")]
    name: String,
    /// Tasks [default: all that it can be asked of]
    #[arg(value_name = "TASK")]
    tasks: Vec<String>,
    /// Wait until the tasks are over, and say how they ended
    #[arg(long)]
    wait: bool,
    /// How long to wait for controllers to obey, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
    /// Print the tasks for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Retry { reset_dependencies: bool },
    Cancel,
}

impl What {
    fn annotation(self) -> &'static str {
        match self {
            What::Retry { .. } => MIDDLEWARE_RETRY_CONTROL,
            What::Cancel => MIDDLEWARE_CANCEL_CONTROL,
        }
    }

    fn content(self, ids: Vec<String>) -> Value {
        match self {
            What::Retry { reset_dependencies } => {
                json!(RetryControl { retry_task_ids: ids, reset_dependencies })
            }
            What::Cancel => json!(CancelControl { cancel_task_ids: ids }),
        }
    }

    /// Whether it can be asked of a task.
    fn fits(self, task: &ChangeTask) -> bool {
        match self {
            What::Retry { .. } => task.status.is_final() && task.status != ChangeStatus::Done,
            What::Cancel => !task.status.is_final(),
        }
    }

    fn verb(self) -> &'static str {
        match self {
            What::Retry { .. } => "carried out again",
            What::Cancel => "cancelled",
        }
    }

    /// Whether a task shows that it was obeyed.
    fn obeyed(self, before: &ChangeTask, now: &ChangeTask) -> bool {
        match self {
            What::Retry { .. } => {
                now.status != before.status
                    || now.started_at != before.started_at
                    || now.completed_at != before.completed_at
            }
            What::Cancel => now.cancel_requested || now.status == ChangeStatus::Cancelled,
        }
    }
}

pub(super) async fn retry(arguments: RetryArguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let what = What::Retry { reset_dependencies: arguments.reset_dependencies };
    Box::pin(run(&arguments.asked, what, environment)).await
}

pub(super) async fn cancel(arguments: CancelArguments, environment: &Environment) -> anyhow::Result<Outcome> {
    Box::pin(run(&arguments.asked, What::Cancel, environment)).await
}

async fn run(asked: &Asked, what: What, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = asked.connection.open(environment).await?;
    let world = World::read(&server, &asked.name).await?;
    let chosen = choose(&world.app, &asked.tasks, what)?;
    if chosen.is_empty() {
        let message = match what {
            What::Retry { .. } => "no task of the latest change has failed, or was skipped or cancelled",
            What::Cancel => "nothing is under way",
        };
        if asked.output.is_none() {
            say(message);
        }
        return finish(asked, Vec::new());
    }
    let deadline = Instant::now() + Duration::from_secs(asked.timeout);
    let ids: Vec<String> = chosen.iter().map(|task| task.task_id.clone()).collect();
    let before = events(&server, &world.app).await;
    write(&server, asked, what, &ids, deadline).await?;
    let taken = |app: &App| is_taken(app, what).then(|| app.clone());
    let obeying = Box::pin(follow(&server, &asked.name, deadline, taken));
    let Some(app) = progress::during(environment, "waiting for the controllers", obeying).await? else {
        bail!(
            "nobody has taken the request within {} s: do the controllers run? It stays, and is obeyed when they do; \
             to withdraw it: kubectl annotate app {} {}-",
            asked.timeout,
            asked.name,
            what.annotation()
        );
    };
    let mut obeyed: Vec<&ChangeTask> = Vec::new();
    let mut failed = false;
    for task in &chosen {
        let id = &task.task_id;
        match answer(&server, &asked.name, what, task, &before, deadline).await? {
            Some(Answer::Obeyed) => {
                tell(asked, &format!("{id}: is {}", what.verb()))?;
                obeyed.push(task);
            }
            Some(Answer::Refused(reason)) => {
                say(&format!("error: {id}: {reason}"));
                failed = true;
            }
            None => {
                say(&format!(
                    "error: {id}: the request was taken, and nothing shows that it was obeyed: see `agentcube app tasks {}`, \
                     and ask again if need be",
                    asked.name
                ));
                failed = true;
            }
        }
    }
    let mut app = app;
    if asked.wait && !obeyed.is_empty() {
        let ids: Vec<String> = obeyed.iter().map(|task| task.task_id.clone()).collect();
        let over = |app: &App| {
            let all = ids.iter().all(|id| find(app, id).is_none_or(|task| task.status.is_final()));
            all.then(|| app.clone())
        };
        let far = Instant::now() + Duration::from_secs(7 * 86_400);
        let waiting = Box::pin(follow(&server, &asked.name, far, over));
        if let Some(last) = progress::during(environment, "waiting for the tasks", waiting).await? {
            app = last;
        }
        for id in &ids {
            let Some(task) = find(&app, id) else { continue };
            let why = task.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
            tell(asked, &format!("{id}: {}{why}", state_word(task)))?;
            let wanted = if what == What::Cancel { ChangeStatus::Cancelled } else { ChangeStatus::Done };
            failed |= task.status != wanted;
        }
    }
    let shown = ids.iter().filter_map(|id| find(&app, id).cloned()).collect();
    finish(asked, shown)?;
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

fn tell(asked: &Asked, line: &str) -> anyhow::Result<()> {
    match asked.output {
        Some(_) => say(line),
        None => output::write(format!("{line}\n").as_bytes())?,
    }
    Ok(())
}

fn finish(asked: &Asked, tasks: Vec<ChangeTask>) -> anyhow::Result<Outcome> {
    if let Some(machine) = asked.output {
        machine.print(&json!(tasks))?;
    }
    Ok(Outcome::Done)
}

fn find<'a>(app: &'a App, id: &str) -> Option<&'a ChangeTask> {
    app.status.as_ref()?.tasks.iter().find(|task| task.task_id == id)
}

/// The tasks that are meant: those that are named, or all that it can be asked of.
fn choose(app: &App, named: &[String], what: What) -> anyhow::Result<Vec<ChangeTask>> {
    let tasks = app.status.as_ref().map(|status| status.tasks.as_slice()).unwrap_or_default();
    if named.is_empty() {
        let all: Vec<&ChangeTask> = match what {
            What::Retry { .. } => latest(tasks).collect(),
            What::Cancel => tasks.iter().collect(),
        };
        // What was skipped comes with what it was skipped for.
        return Ok(all.into_iter().filter(|task| what.fits(task)).cloned().collect());
    }
    let mut chosen: Vec<ChangeTask> = Vec::new();
    for id in named {
        let Some(task) = tasks.iter().find(|task| task.task_id == *id) else {
            let known: Vec<&str> = tasks.iter().map(|task| task.task_id.as_str()).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            return Err(Absent(format!("{} has no task {id}; there are: {known}", app.name_any())).into());
        };
        if !what.fits(task) {
            let message = format!("task {id} is {}: it cannot be {}", state_word(task), what.verb());
            return Err(Usage(message).into());
        }
        if !chosen.iter().any(|one| one.task_id == *id) {
            chosen.push(task.clone());
        }
    }
    Ok(chosen)
}

/// Writes the annotation, unless another's request is still there: that one comes first.
async fn write(
    server: &Server,
    asked: &Asked,
    what: What,
    ids: &[String],
    deadline: Instant,
) -> anyhow::Result<()> {
    let path = apps_path(Some(&server.namespace), Some(&asked.name));
    for _ in 0..ATTEMPTS {
        let free =
            |app: &App| (!app.annotations().contains_key(what.annotation())).then(|| app.resource_version());
        let Some(version) = follow(server, &asked.name, deadline, free).await? else {
            bail!(
                "another request of {} waits for the controllers, for {} s by now: do they run?",
                what.annotation(),
                asked.timeout
            );
        };
        let annotations = json!({ what.annotation(): what.content(ids.to_vec()).to_string() });
        let patch = json!({ "metadata": { "resourceVersion": version, "annotations": annotations } });
        match server.send(Method::PATCH, &path, "application/merge-patch+json", &patch).await {
            Ok(_) => return Ok(()),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 409) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("the App changes all the time; call this again")
}

/// Whether the request was obeyed: gone, and with it what was taken.
fn is_taken(app: &App, what: What) -> bool {
    let annotations = app.annotations();
    !annotations.contains_key(what.annotation()) && !annotations.contains_key(MIDDLEWARE_CONTROL_TAKEN)
}

/// Looks at an App until it is as asked; `None` when the time is over.
async fn follow<T>(
    server: &Server,
    name: &str,
    deadline: Instant,
    judge: impl Fn(&App) -> Option<T>,
) -> anyhow::Result<Option<T>> {
    loop {
        let world = World::read(server, name).await?;
        if let Some(judgement) = judge(&world.app) {
            return Ok(Some(judgement));
        }
        if tokio::time::timeout_at(deadline, news(server, &world, name)).await.is_err() {
            return Ok(None);
        }
    }
}

/// An Event about requests: its name and how often, whether it is a refusal, what it says.
#[derive(PartialEq, Eq)]
struct Said {
    key: (String, i64),
    refusal: bool,
    message: String,
}

/// What the controllers have said about requests.
async fn events(server: &Server, app: &App) -> Vec<Said> {
    let fields = format!("involvedObject.uid={}", app.uid().unwrap_or_default());
    let place = escape(&server.namespace);
    let path = format!("/api/v1/namespaces/{place}/events{}", query(&[("fieldSelector", Some(&fields))]));
    // Whoever may not read Events is told less.
    let list = server.get(&path).await.unwrap_or_default();
    let read = |event: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let refusal = match event["reason"].as_str()? {
            "ControlRefused" => true,
            "TaskRetried" | "TaskCancelled" => false,
            _ => return None,
        };
        let count = event["series"]["count"].as_i64().or(event["count"].as_i64()).unwrap_or(1);
        Some(Said {
            key: (text(&event["metadata"]["name"]), count),
            refusal,
            message: text(&event["message"]),
        })
    };
    list["items"].as_array().into_iter().flatten().filter_map(read).collect()
}

/// What came of a request about a task.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Obeyed,
    Refused(String),
}

/// What a task shows, or else Events that were not there before: a task may have failed again within the same second.
fn judge(
    what: What,
    task: &ChangeTask,
    now: Option<&ChangeTask>,
    before: &[Said],
    events: &[Said],
) -> Option<Answer> {
    if now.is_some_and(|now| what.obeyed(task, now)) {
        return Some(Answer::Obeyed);
    }
    let names = |said: &&Said| said.message.contains(&task.task_id) || said.message.contains("switched off");
    let said = events.iter().filter(|said| !before.contains(said)).find(names)?;
    Some(if said.refusal { Answer::Refused(said.message.clone()) } else { Answer::Obeyed })
}

/// What came of a request that was taken; `None` if nothing shows until the time is over.
async fn answer(
    server: &Server,
    name: &str,
    what: What,
    task: &ChangeTask,
    before: &[Said],
    deadline: Instant,
) -> anyhow::Result<Option<Answer>> {
    let deadline = deadline.max(Instant::now() + EVENT_WAIT);
    loop {
        let app = World::read(server, name).await?.app;
        let events = events(server, &app).await;
        let answer = judge(what, task, find(&app, &task.task_id), before, &events);
        if answer.is_some() || Instant::now() > deadline {
            return Ok(answer);
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(status: &str, more: Value) -> ChangeTask {
        let mut task = json!({ "taskId": "2-nodes-config", "type": "middleware_config", "status": status });
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(task).unwrap()
    }

    fn said(name: &str, refusal: bool, message: &str) -> Said {
        Said { key: (name.into(), 1), refusal, message: message.into() }
    }

    #[test]
    fn only_what_shows_counts_as_obeyed() {
        let retry = What::Retry { reset_dependencies: false };
        let at = |second: &str| json!({ "startedAt": format!("2026-01-01T00:00:{second}Z") });
        let (failed, again) = (task("failed", at("01")), task("failed", at("02")));
        let running = task("in_progress", at("01"));
        let told = task("in_progress", json!({ "cancelRequested": true }));
        let old = [said("a", false, "2-nodes-config: again, by request")];
        let refused = [said("b", true, "task 2-nodes-config belongs to an older spec")];
        let off = [said("c", true, "retry is switched off")];
        let other = [said("d", false, "2-nodes-upgrade: again, by request")];
        let refusal = |said: &[Said]| Some(Answer::Refused(said[0].message.clone()));
        let cases = [
            (retry, &failed, Some(&again), &[][..], Some(Answer::Obeyed)),
            (retry, &failed, Some(&failed), &old[..], None),
            (retry, &failed, Some(&failed), &other[..], None),
            (retry, &failed, None, &[][..], None),
            (retry, &failed, Some(&failed), &refused[..], refusal(&refused)),
            (retry, &failed, Some(&failed), &off[..], refusal(&off)),
            (What::Cancel, &running, Some(&running), &[][..], None),
            (What::Cancel, &running, Some(&told), &[][..], Some(Answer::Obeyed)),
        ];
        for (number, (what, task, now, events, wanted)) in cases.into_iter().enumerate() {
            assert_eq!(judge(what, task, now, &old, events), wanted, "{number}");
        }
        let fresh = [said("e", false, "2-nodes-config: again, by request")];
        assert_eq!(judge(retry, &failed, Some(&failed), &old, &fresh), Some(Answer::Obeyed));
    }
}
