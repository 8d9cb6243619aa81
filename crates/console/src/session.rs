//! Who is logged in. In memory only: when the process ends, everybody logs in again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{COOKIE, HeaderValue};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// With one more, the session that was silent for longest ends.
const MOST_SESSIONS: usize = 256;
/// Sockets of a session: one for each of its tabs.
const MOST_SOCKETS: usize = 16;
/// A session that was silent for so long has ended.
const SILENCE: Duration = Duration::from_secs(12 * 60 * 60);

/// Where pages send the proof.
pub(crate) const PROOF: &str = "x-agentcube-proof";

type Hash = [u8; 32];

/// Somebody who is logged in.
pub(crate) struct Session {
    authorization: SecretString,
    proof: Hash,
    /// Who the API server says it is, if it says so.
    pub(crate) user: Option<String>,
    pub(crate) sockets: Arc<Semaphore>,
    /// Cancelled when the session has ended.
    pub(crate) ended: CancellationToken,
    last: Mutex<Instant>,
}

impl Session {
    /// The header by which the API server knows the user.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        authorization(&self.authorization)
    }

    /// What the user logged in with, for calls that are not HTTP.
    pub(crate) fn token(&self) -> SecretString {
        self.authorization.clone()
    }

    /// Whether these are words that only a page of ours can know.
    pub(crate) fn proven_by(&self, proof: &str) -> bool {
        let differing = hash(proof).iter().zip(self.proof).fold(0, |sum, (a, b)| sum | (a ^ b));
        differing == 0
    }
}

/// The header for a token; none if it cannot stand in one.
pub(crate) fn authorization(token: &SecretString) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).ok()?;
    // Whoever prints headers does not print this one.
    value.set_sensitive(true);
    Some(value)
}

/// The secrets of a new session, for its browser.
pub(crate) struct Opened {
    pub(crate) cookie: String,
    pub(crate) proof: String,
}

/// All sessions, by the hash of their cookie: how long a search takes says nothing about any cookie.
pub(crate) struct Sessions {
    held: Mutex<BTreeMap<Hash, Arc<Session>>>,
    /// Cookies know no ports, and two consoles may run on one host.
    cookie: String,
    secure: bool,
}

impl Sessions {
    pub(crate) fn new(port: u16, secure: bool) -> Sessions {
        Sessions { held: Mutex::default(), cookie: format!("agentcube-console-{port}"), secure }
    }

    pub(crate) fn open(&self, token: SecretString, user: Option<String>) -> Opened {
        let opened = Opened { cookie: random(), proof: random() };
        let session = Session {
            authorization: token,
            proof: hash(&opened.proof),
            user,
            sockets: Arc::new(Semaphore::new(MOST_SOCKETS)),
            ended: CancellationToken::new(),
            last: Mutex::new(Instant::now()),
        };
        let mut held = self.held.lock();
        held.retain(|_, session| {
            let silent = session.last.lock().elapsed() > SILENCE;
            if silent {
                session.ended.cancel();
            }
            !silent
        });
        if held.len() >= MOST_SESSIONS {
            let oldest = held.iter().min_by_key(|(_, session)| *session.last.lock()).map(|(key, _)| *key);
            if let Some(session) = oldest.and_then(|oldest| held.remove(&oldest)) {
                session.ended.cancel();
            }
        }
        held.insert(hash(&opened.cookie), Arc::new(session));
        opened
    }

    /// The session of a request's cookie. Its proof is still to be asked for.
    pub(crate) fn unproven(&self, headers: &HeaderMap) -> Option<Arc<Session>> {
        let session = self.held.lock().get(&self.key(headers)?).cloned()?;
        let mut last = session.last.lock();
        if last.elapsed() > SILENCE {
            return None;
        }
        *last = Instant::now();
        drop(last);
        Some(session)
    }

    /// The session of a request that has both of its secrets.
    pub(crate) fn proven(&self, headers: &HeaderMap) -> Option<Arc<Session>> {
        let proof = headers.get(PROOF)?.to_str().ok()?;
        self.unproven(headers).filter(|session| session.proven_by(proof))
    }

    /// Ends the session of a request.
    pub(crate) fn end(&self, headers: &HeaderMap) {
        let Some(key) = self.key(headers) else { return };
        if let Some(session) = self.held.lock().remove(&key) {
            session.ended.cancel();
        }
    }

    pub(crate) fn end_all(&self) {
        for session in std::mem::take(&mut *self.held.lock()).into_values() {
            session.ended.cancel();
        }
    }

    fn key(&self, headers: &HeaderMap) -> Option<Hash> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.into_iter().find(|(name, _)| *name == self.cookie).map(|(_, value)| hash(value))
    }

    /// What sets the cookie in a browser; an empty one removes it.
    pub(crate) fn set_cookie(&self, value: &str) -> Option<HeaderValue> {
        let (name, secure) = (&self.cookie, if self.secure { "; Secure" } else { "" });
        let age = if value.is_empty() { "; Max-Age=0" } else { "" };
        let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{age}");
        let mut header = HeaderValue::from_str(&text).ok()?;
        header.set_sensitive(true);
        Some(header)
    }
}

fn hash(text: &str) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    hash
}

/// What nobody guesses.
pub(crate) fn random() -> String {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).expect("the operating system gives random bytes");
    URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opened: &Opened, proof: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let cookie = format!("other=1; agentcube-console-1={}", opened.cookie);
        headers.insert(COOKIE, cookie.parse().unwrap());
        headers.insert(PROOF, proof.parse().unwrap());
        headers
    }

    #[test]
    fn a_session_needs_both_of_its_secrets_and_ends() {
        let sessions = Sessions::new(1, false);
        let (ada, bob) = (sessions.open("a".into(), None), sessions.open("b".into(), None));
        let found = sessions.proven(&request(&ada, &ada.proof)).unwrap();
        assert_eq!(found.authorization().unwrap(), "Bearer a");
        assert!(!format!("{:?}", found.authorization().unwrap()).contains("Bearer"), "it is not printed");
        assert!(sessions.proven(&request(&ada, &bob.proof)).is_none());
        assert!(sessions.proven(&request(&ada, "")).is_none());
        let mut without = request(&ada, &ada.proof);
        without.remove(PROOF);
        assert!(sessions.proven(&without).is_none());
        sessions.end(&request(&ada, ""));
        assert!(found.ended.is_cancelled() && sessions.proven(&request(&ada, &ada.proof)).is_none());
        assert!(sessions.proven(&request(&bob, &bob.proof)).is_some());
    }

    #[test]
    fn there_are_only_so_many() {
        let sessions = Sessions::new(1, true);
        let first = sessions.open("a".into(), None);
        let held = sessions.proven(&request(&first, &first.proof)).unwrap();
        for _ in 0..MOST_SESSIONS {
            sessions.open("b".into(), None);
        }
        assert!(held.ended.is_cancelled(), "the oldest ended");
        assert_eq!(sessions.held.lock().len(), MOST_SESSIONS);
        let cookie = sessions.set_cookie("x").unwrap();
        let cookie = cookie.to_str().unwrap();
        for word in ["HttpOnly", "SameSite=Strict", "Secure", "Path=/"] {
            assert!(cookie.contains(word), "{cookie}");
        }
    }
}
