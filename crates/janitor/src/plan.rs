//! Decides what is removed. Pure: what containerd has, what the API server answered and the time in, removals out.

use std::collections::BTreeMap;
use std::time::Duration;

use agentcube_api::conditions::sandbox::{
    REASON_AGENT_POD_DISAPPEARED, REASON_SANDBOX_NOT_FOUND, REASON_UID_MISMATCH,
};
use agentcube_api::labels;

/// An object by its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub namespace: String,
    pub name: String,
}

/// A container with what its labels say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    /// The Pod of the agent that has made it.
    pub agent: Name,
    pub agent_uid: String,
    pub sandbox: Name,
    /// Of the sandbox; empty while its object was yet to be made.
    pub sandbox_uid: String,
    /// Its program has not ended. It dies with its agent, so then its agent lives and claims it.
    pub running: bool,
}

impl Container {
    /// None for what is not ours, or does not say whose it is.
    pub fn read(id: &str, labelled: &BTreeMap<String, String>, running: bool) -> Option<Self> {
        let get = |label: &str| labelled.get(label).filter(|value| !value.is_empty()).cloned();
        get(labels::RUNTIME_MANAGED).filter(|managed| managed == "true")?;
        let namespace = get(labels::RUNTIME_NAMESPACE)?;
        Some(Self {
            id: id.to_owned(),
            agent: Name { namespace: namespace.clone(), name: get(labels::RUNTIME_AGENT_NAME)? },
            agent_uid: get(labels::RUNTIME_AGENT_UID)?,
            sandbox: Name { namespace, name: get(labels::RUNTIME_SANDBOX_NAME)? },
            sandbox_uid: get(labels::RUNTIME_CLAIM_UID).unwrap_or_default(),
            running,
        })
    }
}

/// What the API server said of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Existence {
    /// Nothing, or nothing that can be relied on.
    #[default]
    Unknown,
    Absent,
    Present {
        uid: String,
    },
}

/// All that the API server said, in one scan. What is missing is unknown.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// Pods of agents.
    pub agents: BTreeMap<Name, Existence>,
    pub sandboxes: BTreeMap<Name, Existence>,
}

impl Answers {
    fn agent(&self, name: &Name) -> &Existence {
        self.agents.get(name).unwrap_or(&Existence::Unknown)
    }

    fn sandbox(&self, name: &Name) -> &Existence {
        self.sandboxes.get(name).unwrap_or(&Existence::Unknown)
    }
}

/// Why a container is nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    AgentPodDisappeared,
    SandboxNotFound,
    UidMismatch,
}

impl Reason {
    pub const ALL: [Self; 3] = [Self::AgentPodDisappeared, Self::SandboxNotFound, Self::UidMismatch];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::AgentPodDisappeared => REASON_AGENT_POD_DISAPPEARED,
            Self::SandboxNotFound => REASON_SANDBOX_NOT_FOUND,
            Self::UidMismatch => REASON_UID_MISMATCH,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Claimed,
    /// Nothing is proved, neither way.
    Unknown,
    Orphan(Reason),
}

/// What the answers prove of a container.
pub fn judge(container: &Container, answers: &Answers) -> Verdict {
    match answers.agent(&container.agent) {
        Existence::Unknown => return Verdict::Unknown,
        Existence::Present { uid } if *uid == container.agent_uid => {}
        Existence::Absent | Existence::Present { .. } => return Verdict::Orphan(Reason::AgentPodDisappeared),
    }
    // Its agent lives, and is the truth about what runs.
    if container.running {
        return Verdict::Claimed;
    }
    match answers.sandbox(&container.sandbox) {
        Existence::Unknown => Verdict::Unknown,
        Existence::Absent => Verdict::Orphan(Reason::SandboxNotFound),
        Existence::Present { uid } if container.sandbox_uid.is_empty() || *uid == container.sandbox_uid => {
            Verdict::Claimed
        }
        Existence::Present { .. } => Verdict::Orphan(Reason::UidMismatch),
    }
}

/// Whether the sandbox of a container matters, when this is said of its agent.
pub fn asks_for_sandbox(container: &Container, agent: &Existence) -> bool {
    let lives = matches!(agent, Existence::Present { uid } if *uid == container.agent_uid);
    lives && !container.running
}

/// Since when a container is known to be nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspect {
    /// By a clock that never goes back.
    pub since: Duration,
    pub reason: Reason,
}

pub type Suspects = BTreeMap<String, Suspect>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    pub container: Container,
    pub reason: Reason,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub removals: Vec<Removal>,
    /// To be remembered until the next scan: those that are to be removed are among them, in case that fails.
    pub suspects: Suspects,
    /// When the next of them is due.
    pub next: Option<Duration>,
}

/// Removes what has been proved to be nobody's for all of the grace, and is so now.
pub fn plan(
    before: &Suspects,
    containers: &[Container],
    answers: &Answers,
    now: Duration,
    grace: Duration,
) -> Plan {
    let mut plan = Plan::default();
    for container in containers {
        let known = before.get(&container.id).copied();
        let suspect = match judge(container, answers) {
            Verdict::Claimed => continue,
            // Neither proved again nor refuted: it waits.
            Verdict::Unknown => match known {
                Some(suspect) => suspect,
                None => continue,
            },
            Verdict::Orphan(reason) => {
                let suspect = Suspect { since: known.map_or(now, |known| known.since), reason };
                let left = (suspect.since + grace).saturating_sub(now);
                if left.is_zero() {
                    plan.removals.push(Removal { container: container.clone(), reason });
                } else {
                    plan.next = Some(plan.next.map_or(left, |next| next.min(left)));
                }
                suspect
            }
        };
        plan.suspects.insert(container.id.clone(), suspect);
    }
    plan
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
