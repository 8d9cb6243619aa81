//! Finds sessions by their other names, and gives them such: one Lease for each, created by name, so that of two who
//! want the same one only the first gets it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::activity::Subject;
use super::index::{Kept, SessionId, Source};
use super::writes::{Deleted, Failure};
use super::{InUse, Shared};
use crate::alias::{self, Alias, AliasId, NameError, Named, Record};
use crate::identity::{SessionKey, TaskId};
use crate::provider::ReserveError;
use crate::record::{LeaseHash, Life, Session};

/// How many questions about unknown names may be under way at once: anybody can ask for anything.
pub(super) const READS: usize = 32;
const FIRST_REST: Duration = Duration::from_millis(20);
/// How often a write is tried whose answer was lost or which met something old.
const ATTEMPTS: u32 = 6;

/// How many names a session may have: each is an object of the server's, and is kept by every router.
const MOST_NAMES: usize = 4096;

/// How often it is looked whether requests of a session that ends are over.
const LOOKS: u32 = 50;

/// How long a name counts as nobody's without asking again. Whoever minted it since has it in memory, and nobody else
/// can have heard of it.
const ABSENCE: Duration = Duration::from_secs(1);
/// Of how many names it is known.
const MOST_ABSENT: usize = 4096;

/// Names that the server has just said it does not have: whoever guesses is not looked after each time.
#[derive(Default)]
pub(super) struct Absent(HashMap<AliasId, Duration>);

impl Absent {
    fn has(&self, id: &AliasId, now: Duration) -> bool {
        self.0.get(id).is_some_and(|at| now < *at + ABSENCE)
    }

    fn note(&mut self, id: AliasId, now: Duration) {
        if self.0.len() >= MOST_ABSENT {
            self.0.retain(|_, at| now < *at + ABSENCE);
        }
        if self.0.len() < MOST_ABSENT {
            self.0.insert(id, now);
        }
    }
}

/// A session that there was when this was made; to end it.
#[derive(Clone, Debug)]
pub struct SessionRef {
    pub(super) id: SessionId,
    pub(super) lease: Arc<str>,
}

impl Shared {
    /// The session that an alias stands for.
    pub(super) async fn resolve(
        &self,
        task: &TaskId,
        alias: &Alias,
        own: Option<&SessionKey>,
    ) -> Result<Option<Named>, ReserveError> {
        tokio::select! {
            () = self.known() => {}
            () = self.stopping.cancelled() => return Err(ReserveError::ShuttingDown),
        }
        let view = self.tasks.get(task).ok_or(ReserveError::NoSuchTask)?;
        let id = AliasId::of(task, alias);
        let of_task = |record: Record| (record.task_uid == task.uid).then_some(record.named);
        // A name of a session that is over may be another's by now, and an instance that came later may have minted it
        // again.
        let held = self.aliases.get(&id).and_then(of_task);
        if let Some(named) = held.filter(|named| self.still_stands(task, named)) {
            return Ok(Some(named));
        }
        if own.is_some_and(|own| self.session_in_memory(task, own).is_some()) {
            return Ok(None);
        }
        let begun = self.clock.now();
        if self.absent.lock().has(&id, begun) {
            return Ok(None);
        }
        let mut reason = "too many names are asked for".to_owned();
        let asking = async {
            let mut rest = FIRST_REST;
            loop {
                match self.read_alias(&id).await {
                    Ok(found) => return found.and_then(of_task),
                    Err(failure) => reason = failure.to_string(),
                }
                tokio::time::sleep(rest).await;
                rest = rest.saturating_mul(2);
            }
        };
        let found = tokio::select! {
            found = tokio::time::timeout(view.reserve_timeout, asking) => found,
            () = self.stopping.cancelled() => return Err(ReserveError::ShuttingDown),
        };
        let now = self.clock.now();
        let Ok(found) = found else { return Err(ReserveError::Timeout { waited: now - begun, reason }) };
        if found.is_none() {
            self.absent.lock().note(id, now);
        }
        Ok(found)
    }

    /// The session of this key, unless it ends.
    fn session_in_memory(&self, task: &TaskId, key: &SessionKey) -> Option<Session> {
        match self.index.session(&SessionId::of(task, key))?.kept {
            Kept::Session(session) if !session.ending => Some(session),
            _ => None,
        }
    }

    /// Whether memory has the session that a name stands for, as it was when it got the name, with an instance that lives.
    fn still_stands(&self, task: &TaskId, named: &Named) -> bool {
        let Some(session) = self.session_in_memory(task, &named.key) else { return false };
        let holder = session.holder.as_ref().and_then(|holder| self.index.instance(&holder.uid));
        session.uid == named.lease
            && named.binding.is_none_or(|binding| binding == session.binding)
            && holder.is_some_and(|holder| holder.life != Life::Dead)
    }

    /// What the server says of an alias; nothing if there is none, or it is spoilt.
    async fn read_alias(&self, id: &AliasId) -> Result<Option<Record>, Failure> {
        // Never closed.
        let _turn = self.alias_reads.acquire().await;
        let Some(lease) = self.writes.read_alias(&id.namespace, &id.hash).await? else { return Ok(None) };
        let record = Record::read(&lease);
        self.aliases.put(id.clone(), record.clone(), None);
        Ok(record)
    }

    /// Gives the session of a request further names.
    pub(super) async fn name_session(&self, in_use: &InUse, aliases: Vec<Alias>) -> Result<(), NameError> {
        let session = self.session_of(in_use).ok_or(NameError::SessionGone)?;
        let view = self.tasks.by_uid(&session.task_uid).ok_or(NameError::SessionGone)?;
        let naming = aliases.iter().map(|alias| self.name(&view.id, &session, alias));
        futures_util::future::try_join_all(naming).await?;
        Ok(())
    }

    fn session_of(&self, in_use: &InUse) -> Option<Session> {
        let usage = in_use.usage()?;
        let Subject::Session(id) = &usage.subject else { return None };
        self.index.session_of_use(id, usage).filter(|session| !session.ending)
    }

    async fn name(&self, task: &TaskId, session: &Session, alias: &Alias) -> Result<(), NameError> {
        let id = AliasId::of(task, alias);
        let ours = |record: &Record| {
            is_of(record, session) && record.named.binding.is_none_or(|binding| binding == session.binding)
        };
        if self.aliases.get(&id).as_ref().is_some_and(ours) {
            return Ok(());
        }
        if self.aliases.count(&session.uid) >= MOST_NAMES {
            return Err(NameError::TooMany);
        }
        let lease = alias::lease(task, &id.hash, session);
        let mut rest = FIRST_REST;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            match self.writes.create_alias(&lease).await {
                Ok(written) => {
                    self.aliases.put(id, Record::read(&written), None);
                    return Ok(());
                }
                Err(Failure::Conflict) => match self.read_alias(&id).await {
                    Ok(Some(record)) if ours(&record) => return Ok(()),
                    // Another router has given the session a later instance.
                    Ok(Some(record))
                        if is_of(&record, session) && record.named.binding > Some(session.binding) =>
                    {
                        return Err(NameError::SessionGone);
                    }
                    Ok(Some(record)) if is_of(&record, session) => {
                        match self.name_again(&id, &record, session).await {
                            Ok(()) => return Ok(()),
                            Err(failure) => last = failure.to_string(),
                        }
                    }
                    Ok(found) => self.make_way(&id, found, session).await?,
                    Err(failure) => last = failure.to_string(),
                },
                Err(failure) => last = failure.to_string(),
            }
            tokio::time::sleep(rest).await;
            rest = rest.saturating_mul(2);
        }
        Err(NameError::Unwritten(last))
    }

    /// The instance that the session has since has minted an id that an earlier one had minted. The name stays where it is
    /// and stands for the present binding: were it taken away first, whoever asks meanwhile would begin another session.
    async fn name_again(&self, id: &AliasId, record: &Record, session: &Session) -> Result<(), Failure> {
        let binding = session.binding;
        let written = self.writes.rebind_alias(&id.namespace, &id.hash, record, binding).await?;
        self.aliases.put(id.clone(), Record::read(&written), None);
        Ok(())
    }

    /// The name is another's. If that session is gone, what is left of it is removed; one that lives keeps its name.
    async fn make_way(&self, id: &AliasId, found: Option<Record>, by: &Session) -> Result<(), NameError> {
        let taken = || NameError::Taken(id.hash.lease_name());
        let unwritten = |failure: Failure| NameError::Unwritten(failure.to_string());
        let Some(record) = found else {
            // Gone by now, or spoilt: then it stays in the way, for people to look at.
            let there = self.writes.read_alias(&id.namespace, &id.hash).await.map_err(unwritten)?;
            return if there.is_none() { Ok(()) } else { Err(taken()) };
        };
        let hash = LeaseHash::of(&by.task_uid, &record.named.key);
        let lease = self.writes.read_lease(&id.namespace, &hash).await.map_err(unwritten)?;
        let lives = lease.is_some_and(|lease| {
            lease.metadata.uid.as_deref() == Some(&*record.named.lease)
                && lease.metadata.deletion_timestamp.is_none()
        });
        if lives {
            return Err(taken());
        }
        match self.writes.delete_alias(&id.namespace, &id.hash, &record).await {
            Ok(()) | Err(Failure::Gone | Failure::Conflict) => Ok(()),
            Err(failure) => Err(unwritten(failure)),
        }
    }

    /// Ends a session: its Lease goes, and whoever looks after instances takes the rest from there.
    pub(super) async fn end_session(&self, session: SessionRef, rest: Duration) {
        let SessionRef { id, lease } = session;
        tokio::time::sleep(rest).await;
        let in_flight = || {
            let entry = self.index.session(&id).filter(|entry| *entry.kept.uid() == lease);
            entry.and_then(|entry| entry.usage).is_some_and(|usage| usage.is_in_flight())
        };
        for _ in 0..LOOKS {
            if !in_flight() {
                break;
            }
            tokio::time::sleep(FIRST_REST).await;
        }
        let mut rest = FIRST_REST;
        for _ in 0..ATTEMPTS {
            match self.writes.end_session(&id.namespace, &id.hash, &lease).await {
                Ok(Deleted::Waits(lease)) => {
                    return self.learn_lease(lease, Source::Write(self.clock.now()));
                }
                Ok(Deleted::Gone) | Err(Failure::Gone | Failure::Conflict) => return,
                Err(failure) => tracing::debug!("ending a session: {failure}"),
            }
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = self.stopping.cancelled() => return,
            }
            rest = rest.saturating_mul(2);
        }
    }
}

/// Whether a name stands for this session, at whichever of its bindings.
fn is_of(record: &Record, session: &Session) -> bool {
    record.named.lease == session.uid && record.named.key == session.key
}

impl InUse {
    /// The session that is used, to be ended later; none for a Oneshot.
    pub fn session(&self) -> Option<SessionRef> {
        let usage = self.usage()?;
        let Subject::Session(id) = &usage.subject else { return None };
        Some(SessionRef { id: id.clone(), lease: self.lease()?.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nobodys_is_remembered_for_a_moment_and_within_bounds() {
        let id = |n: usize| {
            let alias = Alias { space: "test", subject: None, text: n.to_string().into() };
            let task = TaskId { namespace: "prod".into(), name: "a".into(), uid: "t".into() };
            AliasId::of(&task, &alias)
        };
        let (mut absent, now) = (Absent::default(), Duration::from_secs(100));
        absent.note(id(0), now);
        assert!(absent.has(&id(0), now) && !absent.has(&id(1), now));
        assert!(!absent.has(&id(0), now + ABSENCE));
        (0..2 * MOST_ABSENT).for_each(|n| absent.note(id(n), now));
        assert_eq!(absent.0.len(), MOST_ABSENT);
        let later = now + ABSENCE;
        absent.note(id(3 * MOST_ABSENT), later);
        assert!(absent.0.len() == 1 && absent.has(&id(3 * MOST_ABSENT), later));
    }
}
