//! One exchange of a conversation: settles which session it is of, and takes from the answer by which ids the session is
//! to be found again. That is written down before the client hears of it. Asks whoever gives instances; knows no sockets.

use std::time::Duration;

use agentcube_instance::alias::{Alias, NameError, Named};
use agentcube_instance::provider::{InstanceProvider, Path, ReserveError, Reserved, Which};
use agentcube_instance::reserve::InUse;
use agentcube_instance::token::SealKeys;
use agentcube_instance::{InstanceId, SessionKey};
use http::header::{ACCEPT_ENCODING, HeaderValue};
use http::{HeaderMap, StatusCode};

use super::a2a::{self, About, Reply};
use super::answer::{LIMIT, Learner};
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
    /// A name that is to be its subject's alone before anything is passed on.
    claims: Option<Alias>,
}

/// What is taken from the answer.
#[derive(Debug, Default)]
enum Learns {
    #[default]
    Nothing,
    /// The id in its header; with keys, it is sealed for the client instead of being written down.
    Session { keys: Option<SealKeys> },
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
    let mut talk = match std::mem::replace(&mut plan.ask, Ask::Plain) {
        Ask::Plain => Talk::default(),
        Ask::Card(which) => return Err(agent_card(plan, which)),
        Ask::Mcp(ask) => of_mcp(provider, plan, ask, found).await?,
        Ask::A2a(ask) => of_a2a(provider, plan, a2a::call(ask, found)?).await?,
    };
    if let Some(claim) = &plan.claim {
        match provider.resolve(&plan.wanted.task, claim, None).await? {
            Some(named) if Some(&named.key) == plan.wanted.key.as_ref() => {}
            Some(_) => return Err(Refusal::not_yours()),
            None => talk.claims = Some(claim.clone()),
        }
    }
    Ok(talk)
}

/// The instance of a request that is no part of a conversation and whose session has one, without waiting for anybody.
pub fn at_hand(provider: &dyn InstanceProvider, plan: &Plan) -> Option<(Talk, Reserved)> {
    let plain = matches!(plan.ask, Ask::Plain) && plan.claim.is_none();
    let reserved = plain.then(|| provider.instance_at_hand(&plan.wanted)).flatten()?;
    Some((Talk::default(), reserved))
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
            other => return claim(provider, talk, other?).await,
        }
    }
}

/// Has the name that a subject wants for itself written down. Of two who want it at once, one gets it.
async fn claim(
    provider: &dyn InstanceProvider,
    talk: &mut Talk,
    reserved: Reserved,
) -> Result<Reserved, Refusal> {
    let Some(name) = talk.claims.take() else { return Ok(reserved) };
    let refusal = match provider.name_session(&reserved.in_use, vec![name]).await {
        Ok(()) => return Ok(reserved),
        Err(NameError::Taken(_)) => Refusal::not_yours(),
        Err(error) => Refusal::unnamed(&reserved.instance.name, &error.to_string()),
    };
    // It was begun for nothing, or else it goes when it is idle.
    let session = reserved.in_use.session().filter(|_| reserved.path != Path::Reused);
    drop(reserved);
    if let Some(session) = session {
        provider.end_session(session, Duration::ZERO).await;
    }
    Err(refusal)
}

/// Has names written down. When this comes back well, whoever hears them is understood by every router.
pub async fn name(
    provider: &dyn InstanceProvider,
    talk: &mut Talk,
    in_use: &InUse,
    instance: &InstanceId,
    names: Vec<Alias>,
) -> Result<(), Refusal> {
    if names.is_empty() {
        return Ok(());
    }
    talk.named(provider.name_session(in_use, names).await, instance)
}

fn want(plan: &mut Plan, key: SessionKey, which: Which) {
    (plan.wanted.key, plan.wanted.which) = (Some(key), which);
}

/// The session, with the instance that it had when it got its name.
fn want_intact(plan: &mut Plan, named: Named) {
    want(plan, named.key, Which::Intact { lease: Some(named.lease), binding: named.binding });
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
            let keys = if is_sealed(plan) { provider.seal_keys(&plan.wanted.task) } else { None };
            Ok(Talk { learns: Learns::Session { keys }, ends: Ends::Unnamed, ..Talk::default() })
        }
        mcp::Ask::Modern { task: Some(task), param, .. } => {
            let missing = Some(mcp::no_task());
            if let Some(named) =
                provider.resolve(&plan.wanted.task, &alias(plan, MCP_TASK, &task), None).await?
            {
                want_intact(plan, named);
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
fn lasting(plan: &mut Plan, param: Option<String>) -> Result<Option<SessionKey>, Refusal> {
    match (param, plan.subject.is_some()) {
        (Some(param), _) => {
            plan.claim = plan.claim_of(&format!("param:{param}"));
            key(plan, "param", &param).map(Some)
        }
        (None, true) => key(plan, "subject", "").map(Some),
        (None, false) => Ok(None),
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
        want_intact(plan, named);
        return Ok(Talk { missing, named: true, ..Talk::default() });
    }
    let opened =
        provider.seal_keys(task).and_then(|keys| seal::open(&keys, task, plan.subject.as_deref(), &id));
    let (key, minted) = opened.ok_or_else(mcp::no_session)?;
    let (Ok(header), Ok(sealed)) = (HeaderValue::from_str(&minted), HeaderValue::from_str(&id)) else {
        return Err(mcp::no_session());
    };
    want(plan, key, Which::Intact { lease: None, binding: None });
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
            want_intact(plan, named);
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
                    plan.claim = plan.claim_of(&format!("context:{context}"));
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

    /// Whether the head of the answer has to be seen.
    pub fn listens(&self) -> bool {
        !matches!(self.learns, Learns::Nothing) || self.ends == Ends::Granted
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
            Learns::Session { .. } => self.session_head(plan, status, headers, minted),
            Learns::Task | Learns::Ids { .. } if !status.is_success() => Ok(Head::Pass),
            Learns::Task => self.read(headers, mcp::made_shape()),
            Learns::Ids { .. } => self.read(headers, a2a::answer_shape()),
        }
    }

    fn session_head(
        &mut self,
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
        let keys = match &self.learns {
            Learns::Session { keys } => keys.as_ref().zip(plan.wanted.key.as_ref()),
            _ => None,
        };
        let sealed = keys.map(|(keys, key)| seal::seal(keys, task, subject, key, &minted));
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
                let owned = minted.and_then(|id| plan.claim_of(&format!("context:{id}")));
                let context = minted.map(|id| alias(plan, A2A_CONTEXT, id));
                task.into_iter().chain(context).chain(owned).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What came of giving the session names.
    pub fn named(&mut self, outcome: Result<(), NameError>, instance: &InstanceId) -> Result<(), Refusal> {
        match outcome {
            Ok(()) => {
                self.named = true;
                Ok(())
            }
            // It is found by those that it has; what was asked for has been done.
            Err(NameError::TooMany) if self.named => Ok(()),
            Err(error) => Err(Refusal::unnamed(&instance.name, &error.to_string())),
        }
    }

    /// No ids came in as much of an answer as is read. What was asked for has been done, so the answer goes on where the
    /// session can be found without them; else the client would hold ids that lead nowhere.
    pub fn unread(&self, instance: &str) -> Result<(), Refusal> {
        self.can_do_without(instance, || format!("no ids came in the first {LIMIT} bytes of its answer"))
    }

    fn can_do_without(&self, instance: &str, why: impl Fn() -> String) -> Result<(), Refusal> {
        let can = self.named || matches!(self.learns, Learns::Task);
        if can { Ok(()) } else { Err(Refusal::unnamed(instance, &why())) }
    }

    fn read(&self, headers: &HeaderMap, shape: &'static super::json::Shape) -> Result<Head, Refusal> {
        match Learner::new(headers, shape) {
            Ok(Some(learner)) => Ok(Head::Read(Box::new(learner))),
            Ok(None) => Ok(Head::Pass),
            Err(_) => {
                let why = || "it compressed its answer, though asked not to".to_owned();
                self.can_do_without("of this session", why).map(|()| Head::Pass)
            }
        }
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

#[cfg(test)]
mod tests;
