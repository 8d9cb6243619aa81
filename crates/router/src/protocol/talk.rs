//! One exchange of a conversation: settles which session it is of, and takes from the answer by which ids the session is
//! to be found again. That is written down before the client hears of it. Asks whoever gives instances; knows no sockets.

use std::time::Duration;

use agentcube_instance::SessionKey;
use agentcube_instance::alias::Alias;
use agentcube_instance::provider::{InstanceProvider, ReserveError, Reserved, Which};
use http::header::{ACCEPT_ENCODING, HeaderValue};
use http::{HeaderMap, StatusCode};

use super::a2a::{self, About, Reply};
use super::answer::Learner;
use super::json::Found;
use super::{Ask, Spoken, card, mcp, seal};
use crate::decide::{Decision, Plan};
use crate::owner;
use crate::refusal::Refusal;

const MCP_SESSION: &str = "mcp-session";
const MCP_TASK: &str = "mcp-task";
const A2A_TASK: &str = "a2a-task";
const A2A_CONTEXT: &str = "a2a-context";

/// How long the answer to a call that may make a task is held back.
const PATIENCE: Duration = Duration::from_secs(2);

/// How an exchange goes on.
#[derive(Debug, Default)]
pub struct Talk {
    /// The id as the instance knows it.
    id: Option<HeaderValue>,
    learns: Learns,
    ends: Ends,
    /// What is said if there is no such session.
    missing: Option<Refusal>,
    /// What is wanted then, before that is said.
    otherwise: Option<(SessionKey, Which)>,
    /// The session has, or has got, a name by which it is found again.
    named: bool,
}

/// What is taken from the answer.
#[derive(Debug, Default)]
enum Learns {
    #[default]
    Nothing,
    /// The id in its header.
    Session,
    /// Nothing; but the minted id in its header is shown to the client as the client knows it.
    Shown { minted: String, sealed: HeaderValue },
    /// The task that it makes.
    Task,
    /// Task and context, but for the context that is the session's key.
    Ids { reply: Reply, context: Option<String> },
}

/// When the session is over with this exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ends {
    #[default]
    Never,
    Always,
    /// If nobody can find it again.
    Unnamed,
    /// If the instance agrees.
    Granted,
}

/// What to do with an answer, given its head.
#[derive(Debug)]
pub enum Head {
    Pass,
    /// These have to be written down first.
    Name(Vec<Alias>),
    /// It has to be read first.
    Read(Box<Learner>),
}

/// Settles which session a request is of: sets what is wanted in the plan. `found` is what its body says, if that was to
/// be read.
pub async fn settle(
    provider: &dyn InstanceProvider,
    plan: &mut Plan,
    found: &Found,
) -> Result<Talk, Refusal> {
    match std::mem::replace(&mut plan.ask, Ask::Plain) {
        Ask::Plain => Ok(Talk::default()),
        Ask::Card(which) => Err(agent_card(plan, which)),
        Ask::Mcp(ask) => of_mcp(provider, plan, ask, found).await,
        Ask::A2a(ask) => of_a2a(provider, plan, a2a::call(ask, found)?).await,
    }
}

/// An instance for the request.
pub async fn reserve(
    provider: &dyn InstanceProvider,
    plan: &mut Plan,
    talk: &mut Talk,
) -> Result<Reserved, Refusal> {
    loop {
        match provider.reserve_instance(plan.wanted.clone()).await {
            Err(ReserveError::NoSuchSession) => match talk.otherwise.take() {
                Some((key, which)) => want(plan, key, which),
                None => return Err(talk.missing.clone().unwrap_or(ReserveError::NoSuchSession.into())),
            },
            other => return Ok(other?),
        }
    }
}

fn want(plan: &mut Plan, key: SessionKey, which: Which) {
    (plan.wanted.key, plan.wanted.which) = (Some(key), which);
}

fn alias(plan: &Plan, space: &'static str, text: &str) -> Alias {
    Alias { space, subject: plan.subject.clone(), text: text.into() }
}

/// A key that the client's own word is a part of: the subject's own where there is one, so that nobody else can write it.
fn key(plan: &Plan, kind: &str, text: &str) -> Result<SessionKey, Refusal> {
    let key = SessionKey::new(&format!("{kind}:{text}"))
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, "SessionKeyInvalid", error.to_string()))?;
    Ok(plan.subject.as_ref().map_or_else(|| key.clone(), |mark| owner::marked(mark, &key)))
}

fn agent_card(plan: &Plan, which: card::Which) -> Refusal {
    let Spoken::A2a(given) = &plan.route.spoken else { return Refusal::no_route(&plan.host, "") };
    let address = format!("{}://{}{}", plan.scheme, plan.host, plan.route.prefix);
    match card::render(given.as_deref(), which, &address) {
        Ok(card) => Refusal::new(StatusCode::OK, "AgentCard", "").in_words(card),
        Err(refusal) => refusal,
    }
}

async fn of_mcp(
    provider: &dyn InstanceProvider,
    plan: &mut Plan,
    ask: mcp::Ask,
    found: &Found,
) -> Result<Talk, Refusal> {
    match ask {
        mcp::Ask::Session { id, ends } => {
            let talk = of_mcp_session(provider, plan, id).await?;
            Ok(Talk { ends: if ends { Ends::Granted } else { Ends::Never }, ..talk })
        }
        mcp::Ask::First => {
            mcp::check_first(found)?;
            want(plan, SessionKey::random("mcp"), Which::OrNew);
            Ok(Talk { learns: Learns::Session, ends: Ends::Unnamed, ..Talk::default() })
        }
        mcp::Ask::Modern { task: Some(task), param, .. } => {
            let missing = Some(mcp::no_task());
            if let Some(named) =
                provider.resolve(&plan.wanted.task, &alias(plan, MCP_TASK, &task), None).await?
            {
                want(plan, named.key, Which::Intact { lease: Some(named.lease) });
                return Ok(Talk { missing, ..Talk::default() });
            }
            // Its making may not have been heard of; then the client's own session is the one to ask.
            let Some(key) = lasting(plan, param)? else { return Err(mcp::no_task()) };
            want(plan, key, Which::Existing { lease: None });
            Ok(Talk { missing, ..Talk::default() })
        }
        mcp::Ask::Modern { task: None, param, makes } => {
            let learns = if makes { Learns::Task } else { Learns::Nothing };
            if let Some(key) = lasting(plan, param)? {
                want(plan, key, Which::OrNew);
                return Ok(Talk { learns, ..Talk::default() });
            }
            // A session of one exchange: an instance serves one client at a time, and nothing says that this client
            // has been here before.
            want(plan, SessionKey::random("mcp"), Which::OrNew);
            Ok(Talk { learns, ends: if makes { Ends::Unnamed } else { Ends::Always }, ..Talk::default() })
        }
    }
}

/// The key of a client without sessions, if something lasts: what it says, or who it is.
fn lasting(plan: &Plan, param: Option<String>) -> Result<Option<SessionKey>, Refusal> {
    match (param, &plan.subject) {
        (Some(param), _) => key(plan, "param", &param).map(Some),
        (None, Some(_)) => key(plan, "subject", "").map(Some),
        (None, None) => Ok(None),
    }
}

async fn of_mcp_session(
    provider: &dyn InstanceProvider,
    plan: &mut Plan,
    id: String,
) -> Result<Talk, Refusal> {
    let missing = Some(mcp::no_session());
    let task = &plan.wanted.task;
    if !is_sealed(plan) {
        let named = provider.resolve(task, &alias(plan, MCP_SESSION, &id), None).await?;
        let named = named.ok_or_else(mcp::no_session)?;
        want(plan, named.key, Which::Intact { lease: Some(named.lease) });
        return Ok(Talk { missing, named: true, ..Talk::default() });
    }
    let opened =
        provider.seal_keys(task).and_then(|keys| seal::open(&keys, task, plan.subject.as_deref(), &id));
    let (key, minted) = opened.ok_or_else(mcp::no_session)?;
    let (Ok(header), Ok(sealed)) = (HeaderValue::from_str(&minted), HeaderValue::from_str(&id)) else {
        return Err(mcp::no_session());
    };
    want(plan, key, Which::Intact { lease: None });
    let learns = Learns::Shown { minted, sealed };
    Ok(Talk { id: Some(header), learns, missing, named: true, ..Talk::default() })
}

fn is_sealed(plan: &Plan) -> bool {
    matches!(&plan.route.spoken, Spoken::Mcp(rule) if rule.sealed)
}

async fn of_a2a(provider: &dyn InstanceProvider, plan: &mut Plan, call: a2a::Call) -> Result<Talk, Refusal> {
    let a2a::Call { about, reply } = call;
    let task_id = &plan.wanted.task.clone();
    let learns = |context: Option<String>| Learns::Ids { reply: reply.clone(), context };
    // What is said of a task that is known brings no new ids.
    let about_task = if matches!(about, About::Task(_)) { Learns::Nothing } else { learns(None) };
    match about {
        About::Task(task) | About::Message { task: Some(task), .. } => {
            let named = provider.resolve(task_id, &alias(plan, A2A_TASK, &task), None).await?;
            let named = named.ok_or_else(|| a2a::no_task(&reply))?;
            want(plan, named.key, Which::Intact { lease: Some(named.lease) });
            let missing = Some(a2a::no_task(&reply));
            Ok(Talk { learns: about_task, missing, named: true, ..Talk::default() })
        }
        About::Message { task: None, context: Some(context) } => {
            let own = key(plan, "context", &context)?;
            match provider.resolve(task_id, &alias(plan, A2A_CONTEXT, &context), Some(&own)).await? {
                // What was minted and is over may be begun anew by the client's word.
                Some(named) => {
                    want(plan, named.key, Which::Existing { lease: Some(named.lease) });
                    let otherwise = Some((own, Which::OrNew));
                    Ok(Talk { learns: learns(Some(context)), otherwise, named: true, ..Talk::default() })
                }
                None => {
                    want(plan, own, Which::OrNew);
                    Ok(Talk { learns: learns(Some(context)), named: true, ..Talk::default() })
                }
            }
        }
        About::Message { task: None, context: None } => {
            want(plan, SessionKey::random("a2a"), Which::OrNew);
            Ok(Talk { learns: learns(None), ends: Ends::Unnamed, ..Talk::default() })
        }
        About::Tasks { context } => {
            let own = key(plan, "context", &context)?;
            let missing = Some(a2a::no_tasks(&reply));
            match provider.resolve(task_id, &alias(plan, A2A_CONTEXT, &context), Some(&own)).await? {
                Some(named) => want(plan, named.key, Which::Existing { lease: Some(named.lease) }),
                None => want(plan, own, Which::Existing { lease: None }),
            }
            Ok(Talk { missing, named: true, ..Talk::default() })
        }
        About::Anything => {
            want(plan, SessionKey::random("a2a"), Which::OrNew);
            Ok(Talk { ends: Ends::Always, ..Talk::default() })
        }
    }
}

impl Talk {
    /// Whether the session was begun for this exchange alone, unless the answer names it.
    pub fn is_first(&self) -> bool {
        matches!(self.ends, Ends::Always | Ends::Unnamed)
    }

    /// What the instance hears differently than the client said it.
    pub fn amend(&self, decision: &mut Decision) {
        if let Some(id) = &self.id {
            decision.set.push((mcp::SESSION, id.clone()));
        }
        if matches!(self.learns, Learns::Task | Learns::Ids { .. }) {
            // Ids are not looked for in what is compressed.
            decision.set.push((ACCEPT_ENCODING, HeaderValue::from_static("identity")));
        }
    }

    /// Looks at the head of the answer; an id in it becomes what the client is to know.
    pub fn head(
        &mut self,
        provider: &dyn InstanceProvider,
        plan: &Plan,
        status: StatusCode,
        headers: &mut HeaderMap,
    ) -> Result<Head, Refusal> {
        if self.ends == Ends::Granted {
            let over = status.is_success() || status == StatusCode::NOT_FOUND;
            self.ends = if over { Ends::Always } else { Ends::Never };
        }
        let minted = headers.get(mcp::SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        match &self.learns {
            Learns::Nothing => Ok(Head::Pass),
            Learns::Shown { minted: known, sealed } => {
                if minted.as_ref() == Some(known) {
                    headers.insert(mcp::SESSION, sealed.clone());
                }
                Ok(Head::Pass)
            }
            Learns::Session => self.session_head(provider, plan, status, headers, minted),
            Learns::Task | Learns::Ids { .. } if !status.is_success() => Ok(Head::Pass),
            Learns::Task => read(headers, mcp::made_shape()),
            Learns::Ids { .. } => read(headers, a2a::answer_shape()),
        }
    }

    fn session_head(
        &mut self,
        provider: &dyn InstanceProvider,
        plan: &Plan,
        status: StatusCode,
        headers: &mut HeaderMap,
        minted: Option<String>,
    ) -> Result<Head, Refusal> {
        // Servers name a session also where they refuse to begin one.
        let minted = minted.filter(|id| status.is_success() && mcp::is_id(id));
        let Some(minted) = minted else {
            headers.remove(mcp::SESSION);
            return Ok(Head::Pass);
        };
        if !is_sealed(plan) {
            return Ok(Head::Name(vec![alias(plan, MCP_SESSION, &minted)]));
        }
        let (task, subject) = (&plan.wanted.task, plan.subject.as_deref());
        let keys = provider.seal_keys(task).zip(plan.wanted.key.as_ref());
        let sealed = keys.map(|(keys, key)| seal::seal(&keys, task, subject, key, &minted));
        let header = sealed.and_then(|id| HeaderValue::try_from(id).ok());
        let header = header.ok_or_else(|| Refusal::unnamed("of this session", "its id cannot be sealed"))?;
        headers.insert(mcp::SESSION, header);
        self.named = true;
        Ok(Head::Pass)
    }

    /// How long the first event of a stream is waited for; without a limit where it has to come. A call that takes its
    /// time keeps its client waiting, and makes no task as a rule.
    pub fn patience(&self) -> Option<Duration> {
        matches!(self.learns, Learns::Task).then_some(PATIENCE)
    }

    /// Whether the answer has been read far enough.
    pub fn is_enough(&self, has: &dyn Fn(usize) -> bool) -> bool {
        match self.learns {
            Learns::Ids { .. } => a2a::is_enough(has),
            _ => false,
        }
    }

    /// The names that an answer gives to the session.
    pub fn names(&self, plan: &Plan, found: &Found) -> Vec<Alias> {
        match &self.learns {
            Learns::Task => mcp::made(found).map(|id| alias(plan, MCP_TASK, id)).into_iter().collect(),
            Learns::Ids { reply, context } => {
                let (task, minted) = a2a::ids(reply, found);
                let minted = minted.filter(|minted| context.as_deref() != Some(*minted));
                let task = task.map(|id| alias(plan, A2A_TASK, id));
                task.into_iter().chain(minted.map(|id| alias(plan, A2A_CONTEXT, id))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The session has been given names.
    pub fn named(&mut self) {
        self.named = true;
    }

    /// Whether the session is over with this exchange.
    pub fn ends(&self) -> bool {
        match self.ends {
            Ends::Never | Ends::Granted => false,
            Ends::Always => true,
            Ends::Unnamed => !self.named,
        }
    }
}

fn read(headers: &HeaderMap, shape: &'static super::json::Shape) -> Result<Head, Refusal> {
    match Learner::new(headers, shape) {
        Ok(Some(learner)) => Ok(Head::Read(Box::new(learner))),
        Ok(None) => Ok(Head::Pass),
        Err(_) => Err(Refusal::unnamed("of this session", "it compressed its answer, though asked not to")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::decide::{self, Asked, At};
    use crate::owner::{self, Subject};
    use crate::route::Route;

    #[test]
    fn the_key_of_a_subject_can_be_written_by_nobody_else() {
        let task = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "name": "tools", "namespace": "prod", "uid": "t1" },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} },
                "routing": { "routePolicy": "BySession", "protocol": "A2A" } },
        });
        let route = Arc::new(Route::read(&serde_json::from_value(task).unwrap()).unwrap());
        let (at, headers) = (At::Port(80), HeaderMap::new());
        let asked =
            Asked { at, method: &Method::POST, host: Some("a"), path: "/", query: None, headers: &headers };
        let mut plan = decide::plan_on(route, &asked).unwrap();
        assert_eq!(key(&plan, "context", "c1").unwrap().as_str(), "context:c1");
        let of = |name: &str| Subject { issuer: "issuer".into(), name: name.into() };
        plan.own(Some(&of("ada"))).unwrap();
        let adas = key(&plan, "context", "c1").unwrap();
        assert!(owner::session(None, adas.clone()).is_err());
        assert_ne!(owner::session(Some(&of("bob")), adas.clone()).unwrap(), adas);
        plan.own(Some(&of("bob"))).unwrap();
        assert_ne!(key(&plan, "context", "c1").unwrap(), adas);
    }
}
