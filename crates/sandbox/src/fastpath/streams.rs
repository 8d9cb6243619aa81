//! WatchSandbox, Logs and Exec. What an agent sends is passed on as it comes; dropping a stream ends it there.

use std::sync::Arc;

use agentcube_protos::agent::{ExecRequest as AgentExec, LogsRequest as AgentLogs, State};
use agentcube_protos::fastpath::{ExecRequest, Sandbox};
use agentcube_protos::link::Answers;
use agentcube_protos::session::{ExecOutput, LogChunk, LogOptions};
use futures_util::{Stream, StreamExt, stream};
use tonic::{Status, Streaming};

use super::limit::Place;
use super::read;
use crate::agents::Agent;
use crate::core::Core;
use crate::names::Name;

/// Where a sandbox runs, and as what.
fn place_of(core: &Core, name: &Name) -> Result<(Arc<Agent>, String), Status> {
    if let Some(create) = core.pending.get(name) {
        return Ok((create.agent, create.run.to_string()));
    }
    let object = core.sandboxes.get(&name.namespace, &name.name);
    let object = object.ok_or_else(|| Status::not_found(format!("there is no sandbox {}", name.name)))?;
    let status = object.status.clone().unwrap_or_default();
    let run = status.sandbox_id.filter(|run| !run.is_empty());
    let agent = status.assigned_pod_uid.and_then(|uid| core.agents.get(&uid));
    let phase = status.phase.unwrap_or_default();
    let place = match (agent, run) {
        (Some(agent), Some(run)) => Some((agent, run)),
        (_, Some(_)) => None,
        // It was just made, and its status is still to be written. Agents say whose a run is; annotations only claim.
        (_, None) => running(core, name),
    };
    place.ok_or_else(|| {
        let message = format!("sandbox {} does not run: it is {phase:?}", name.name);
        Status::failed_precondition(message)
    })
}

/// The one run of this name that an agent has, if there is one.
fn running(core: &Core, name: &Name) -> Option<(Arc<Agent>, String)> {
    let runs = core.agents.runs_of(name);
    let mut running = runs.into_iter().filter(|run| run.entry.state() == State::Running);
    let first = running.next().filter(|_| running.next().is_none())?;
    Some((first.agent, first.entry.run_id))
}

/// A stream that holds its place until it ends.
fn held<T: Send + 'static>(
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
    place: Place,
) -> Answers<T> {
    answers
        .map(move |answer| {
            let _held = &place;
            answer
        })
        .boxed()
}

pub(super) async fn logs(
    core: &Core,
    name: &Name,
    options: Option<LogOptions>,
    place: Place,
) -> Result<Answers<LogChunk>, Status> {
    let (agent, run_id) = place_of(core, name)?;
    let chunks = agent.place.link.logs(AgentLogs { run_id, options }).await?;
    Ok(held(chunks, place))
}

pub(super) async fn exec(
    core: &Core,
    name: &Name,
    first: ExecRequest,
    input: Streaming<ExecRequest>,
    place: Place,
) -> Result<Answers<ExecOutput>, Status> {
    if first.start.is_none() {
        return Err(Status::invalid_argument("the first message says what to run"));
    }
    let (agent, run_id) = place_of(core, name)?;
    let first = AgentExec { run_id, start: first.start, input: first.input };
    // A client whose stream breaks has ended its input, and with it the command.
    let rest = input.take_while(|one| std::future::ready(one.is_ok())).filter_map(|one| {
        let one = one.ok().map(|one| AgentExec { run_id: String::new(), start: None, input: one.input });
        std::future::ready(one)
    });
    let input = stream::iter([first]).chain(rest).boxed();
    let output = agent.place.link.exec(input).await?;
    Ok(held(output, place))
}

/// The sandbox as it is, and again whenever it changes; ends when it is gone.
pub(super) fn watch(core: &Arc<Core>, name: Name, place: Place) -> Result<Answers<Sandbox>, Status> {
    let first = read::get(core, &name)?;
    let state = Watching { core: core.clone(), name, last: None, over: false };
    let rest = stream::unfold(state, |mut watching| async move {
        let next = watching.next().await?;
        Some((Ok(next), watching))
    });
    // What is there now is what it begins with; whether it is gone by then is the first thing looked at.
    drop(first);
    Ok(held(rest, place))
}

struct Watching {
    core: Arc<Core>,
    name: Name,
    last: Option<Sandbox>,
    over: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<Sandbox> {
        loop {
            if self.over {
                return None;
            }
            let notify = self.core.hub.of(&self.name);
            let changed = notify.notified();
            let now = read::find(&self.core, &self.name);
            let another = now.as_ref().zip(self.last.as_ref());
            let another = another.is_some_and(|(now, last)| !last.uid.is_empty() && now.uid != last.uid);
            match now {
                Some(now) if !another => {
                    if self.last.as_ref() != Some(&now) {
                        self.last = Some(now.clone());
                        return Some(now);
                    }
                }
                _ => {
                    self.over = true;
                    let last = self.last.take()?;
                    return Some(Sandbox { deleted: true, ..last });
                }
            }
            changed.await;
        }
    }
}
