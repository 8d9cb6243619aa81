//! What the members of an earlier process have left. They ended with it, so all of it is nobody's: it is removed, and counted
//! and told of as the janitor does, by what objects said before this process changed them. Never touches what is ours.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use agentcube_agent::left::{self, Left as Run};
use agentcube_api::Sandbox;
use agentcube_api::sandbox::AllocationInfo;
use agentcube_janitor::Removals;
use agentcube_janitor::plan::{Container, Name, Reason, Removal};
use agentcube_operator::events::Recorder;
use agentcube_sandbox::Log;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

/// Where the member of this UID has its data. The namespace of its sandboxes has no dot.
pub(super) fn directory(data: &Path, namespace: &str, uid: &str) -> PathBuf {
    data.join(format!("{namespace}.{uid}"))
}

/// All that was found.
#[derive(Default)]
pub(super) struct Left {
    members: Vec<PathBuf>,
    runs: Vec<Orphan>,
}

struct Orphan {
    removal: Removal,
    /// Its Sandbox says itself that it had this run. What else is known its program may have made up.
    named: bool,
    directory: PathBuf,
}

/// Looks, before the first member is made and before the controllers begin.
pub(super) async fn find(data: &Path, client: &Client, log: Option<&Log>) -> Left {
    let mut found = Left::default();
    let mut runs = Vec::new();
    let entries = std::fs::read_dir(data).into_iter().flatten().flatten();
    for (name, path) in entries.map(|entry| (entry.file_name(), entry.path())) {
        match left::runs(&path) {
            Ok(left) => runs.extend(left.into_iter().map(|run| (name.to_string_lossy().into_owned(), run))),
            Err(error) => tracing::warn!("cannot see what is left in {}: {error}", path.display()),
        }
        found.members.push(path);
    }
    if !runs.is_empty() {
        let said = Said::ask(client, log).await;
        found.runs = runs.into_iter().map(|(member, run)| said.orphan(&member, run)).collect();
    }
    found
}

impl Left {
    /// Removes it. Blocks on the disk.
    pub(super) fn remove(self, removals: &Removals, events: &Recorder) {
        for Orphan { removal, named, directory } in self.runs {
            match left::remove(&directory) {
                Ok(()) => {
                    removals.removed(&removal);
                    if named {
                        removal.tell(events);
                    }
                }
                Err(error) => removals.failed(&removal, &error, "start"),
            }
        }
        for member in self.members {
            if let Err(error) = left::remove(&member) {
                tracing::warn!("{} stays until the next start: {error}", member.display());
            }
        }
    }
}

/// What objects, and promises of objects, say.
#[derive(Default)]
struct Said {
    runs: HashMap<String, Whose>,
    /// None: nobody has said which there are.
    names: Option<BTreeSet<Name>>,
}

#[derive(Clone)]
struct Whose {
    sandbox: Name,
    /// Empty while the object is promised only.
    uid: String,
    agent: Option<String>,
}

impl Said {
    async fn ask(client: &Client, log: Option<&Log>) -> Said {
        let mut said = Said::default();
        for (run, name) in log.iter().flat_map(|log| log.promised()) {
            let sandbox = Name { namespace: name.namespace, name: name.name };
            said.runs.insert(run.to_string(), Whose { sandbox, uid: String::new(), agent: None });
        }
        match Api::<Sandbox>::all(client.clone()).list(&ListParams::default()).await {
            Ok(list) => said.take_in(&list.items),
            Err(error) => tracing::warn!("whose the sandboxes of the last run were is not known: {error}"),
        }
        said
    }

    fn take_in(&mut self, objects: &[Sandbox]) {
        let names = self.names.get_or_insert_default();
        for object in objects {
            let sandbox = Name { namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
            names.insert(sandbox.clone());
            let status = object.status.clone().unwrap_or_default();
            let info = AllocationInfo::from_annotations(object.metadata.annotations.as_ref()).ok().flatten();
            let annotated = info.map(|info| (info.sandbox_id, Some(info.assigned_pod)));
            for (run, agent) in
                status.sandbox_id.map(|run| (run, status.assigned_pod)).into_iter().chain(annotated)
            {
                let uid = object.uid().unwrap_or_default();
                self.runs.insert(run, Whose { sandbox: sandbox.clone(), uid, agent });
            }
        }
    }

    /// Every agent of that time is gone; whether the Sandbox is there says more.
    fn orphan(&self, member: &str, run: Run) -> Orphan {
        let (namespace, uid) = member.split_once('.').unwrap_or(("", member));
        let called = Name { namespace: namespace.to_owned(), name: run.name.clone().unwrap_or_default() };
        let whose = self.runs.get(&run.run);
        let reason = match (whose, &self.names) {
            (Some(_), _) | (None, None) => Reason::AgentPodDisappeared,
            (None, Some(names)) if names.contains(&called) => Reason::UidMismatch,
            (None, Some(_)) => Reason::SandboxNotFound,
        };
        let named = whose.is_some();
        let unknown = || Whose { sandbox: called, uid: String::new(), agent: None };
        let Whose { sandbox, uid: sandbox_uid, agent } = whose.cloned().unwrap_or_else(unknown);
        let agent = Name { namespace: namespace.to_owned(), name: agent.unwrap_or_else(|| uid.to_owned()) };
        let container = Container {
            id: run.container,
            agent,
            agent_uid: uid.to_owned(),
            sandbox,
            sandbox_uid,
            running: false,
        };
        Orphan { removal: Removal { container, reason }, named, directory: run.directory }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sandbox(name: &str, run: Option<&str>, annotated: Option<&str>) -> Sandbox {
        let allocation = annotated.map(|run| {
            json!({ "assignedPod": "fast-agent-1", "assignedNode": "n", "allocatedAt": "", "sandboxID": run })
        });
        let annotations = allocation.map(|text| json!({ "sandbox.fast.io/allocation": text.to_string() }));
        serde_json::from_value(json!({
            "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox",
            "metadata": { "namespace": "team", "name": name, "uid": format!("uid-of-{name}"),
                "annotations": annotations },
            "spec": { "image": "host", "poolRef": "fast" },
            "status": { "sandboxID": run, "assignedPod": run.map(|_| "fast-agent-0") },
        }))
        .unwrap()
    }

    fn orphan(said: &Said, member: &str, run: &str, name: Option<&str>) -> (Reason, bool, String) {
        let run = Run {
            run: run.to_owned(),
            container: format!("sb-{run}"),
            name: name.map(str::to_owned),
            directory: PathBuf::new(),
        };
        let Orphan { removal, named, .. } = said.orphan(member, run);
        let Container { agent, sandbox, sandbox_uid, .. } = removal.container;
        (removal.reason, named, format!("{} {} {sandbox_uid}", agent.name, sandbox.name))
    }

    #[test]
    fn why_it_is_nobodys() {
        use Reason::{AgentPodDisappeared, SandboxNotFound, UidMismatch};
        let mut said = Said::default();
        let promised = Name { namespace: "team".into(), name: "late".into() };
        said.runs.insert("r4".into(), Whose { sandbox: promised.clone(), uid: String::new(), agent: None });
        assert_eq!(orphan(&said, "team.m", "r9", Some("box")).0, AgentPodDisappeared, "nobody has answered");
        said.take_in(&[sandbox("box", Some("r1"), None), sandbox("new", None, Some("r2"))]);
        for (member, run, name, expected) in [
            ("team.m", "r1", Some("box"), (AgentPodDisappeared, true, "fast-agent-0 box uid-of-box")),
            // One that was prepared has no name.
            ("team.m", "r1", None, (AgentPodDisappeared, true, "fast-agent-0 box uid-of-box")),
            ("team.m", "r2", Some("new"), (AgentPodDisappeared, true, "fast-agent-1 new uid-of-new")),
            ("team.m", "r4", None, (AgentPodDisappeared, true, "m late ")),
            ("team.m", "r3", Some("box"), (UidMismatch, false, "m box ")),
            ("other.m", "r3", Some("box"), (SandboxNotFound, false, "m box ")),
            ("team.m", "r3", Some("gone"), (SandboxNotFound, false, "m gone ")),
            ("team.m", "r3", None, (SandboxNotFound, false, "m  ")),
            // As it was called before there were namespaces in it.
            ("member-1", "r1", Some("box"), (AgentPodDisappeared, true, "fast-agent-0 box uid-of-box")),
        ] {
            let (reason, named, text) = expected;
            assert_eq!(orphan(&said, member, run, name), (reason, named, text.to_owned()), "{member} {run}");
        }
    }
}
