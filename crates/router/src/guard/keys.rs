//! The keys of an issuer as they are remembered: fetched when they are first needed, again when they are old, and when a
//! token names one that is not among them, but then only once in a while. However many requests wait, one fetch runs.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::fetch::{Error, Fetcher};
use super::jwk::KeySet;

/// Anybody can make up key ids. Fetches for their sake are at least this far apart.
const UNKNOWN_INTERVAL: Duration = Duration::from_secs(10);
/// Waits after fetches that failed: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long keys serve on that are due to be fetched again and cannot be: the issuer may be down for a while.
const OVERTIME: Duration = Duration::from_secs(60 * 60);

/// The keys of one issuer.
pub(crate) struct Keyring {
    pub(crate) uri: Uri,
    pub(crate) keep: Duration,
    fetcher: Arc<Fetcher>,
    /// Told when keys can no longer be had, or can again.
    news: Arc<Notify>,
    state: Mutex<State>,
}

/// How an issuer fares, for those who look after the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Health {
    /// Its keys are there, or nobody has needed them yet.
    #[default]
    Well,
    /// They cannot be fetched, and those from before serve on.
    Aging(String),
    /// There are none.
    Without(String),
}

#[derive(Default)]
struct State {
    keys: Option<(Arc<KeySet>, Instant)>,
    /// When a fetch for the sake of an unknown key last began.
    forced: Option<Instant>,
    /// Fetches that failed one after the other, and when the next may be tried.
    failures: u32,
    not_before: Option<Instant>,
    /// Why the last one failed.
    trouble: Option<String>,
    /// What was last news.
    told: Health,
    /// Closed when the fetch under way is over.
    flight: Option<watch::Receiver<()>>,
}

/// What is to be done for a token.
#[derive(Debug)]
enum Step {
    Use(Arc<KeySet>),
    /// Use them, and have them fetched again.
    Renew(Arc<KeySet>),
    /// Wait for a fetch.
    Fetch,
    Unavailable,
}

impl State {
    /// The keys, unless they are too old for anything.
    fn usable(&self, keep: Duration, now: Instant) -> Option<&(Arc<KeySet>, Instant)> {
        self.keys.as_ref().filter(|(_, fetched)| now < *fetched + keep + OVERTIME)
    }

    fn step(&self, id: Option<&str>, keep: Duration, now: Instant) -> Step {
        let under_way = self.flight.as_ref().is_some_and(|flight| flight.has_changed().is_ok());
        let may = self.not_before.is_none_or(|at| now >= at);
        let Some((keys, fetched)) = self.usable(keep, now) else {
            return if may || under_way { Step::Fetch } else { Step::Unavailable };
        };
        if !keys.knows(id) {
            let rested = self.forced.is_none_or(|last| now >= last + UNKNOWN_INTERVAL);
            return if under_way || (may && rested) { Step::Fetch } else { Step::Use(keys.clone()) };
        }
        if now < *fetched + keep || !may { Step::Use(keys.clone()) } else { Step::Renew(keys.clone()) }
    }

    /// Says whether that is news.
    fn take_in(&mut self, outcome: Result<KeySet, Error>, keep: Duration, now: Instant) -> bool {
        match outcome {
            Ok(keys) => {
                self.keys = Some((Arc::new(keys), now));
                (self.failures, self.not_before, self.trouble) = (0, None, None);
            }
            Err(error) => {
                let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(10)).min(LONGEST_WAIT);
                self.failures += 1;
                self.not_before = Some(now + wait);
                self.trouble = Some(error.to_string());
            }
        }
        let health = self.health(keep, now);
        std::mem::replace(&mut self.told, health.clone()) != health
    }

    fn health(&self, keep: Duration, now: Instant) -> Health {
        match (self.usable(keep, now), &self.trouble) {
            (Some((keys, _)), _) if keys.is_empty() => {
                Health::Without("it lists no key that can be used".into())
            }
            (Some(_), Some(why)) => Health::Aging(why.clone()),
            (None, Some(why)) => Health::Without(why.clone()),
            (_, None) => Health::Well,
        }
    }
}

impl Keyring {
    pub(crate) fn new(uri: Uri, keep: Duration, fetcher: Arc<Fetcher>, news: Arc<Notify>) -> Keyring {
        Keyring { uri, keep, fetcher, news, state: Mutex::default() }
    }

    pub(crate) fn health(&self) -> Health {
        self.state.lock().health(self.keep, Instant::now())
    }

    /// The keys for a token that names this one; nothing if there are none now, and none can be had.
    pub(crate) async fn keys(self: &Arc<Self>, id: Option<&str>) -> Option<Arc<KeySet>> {
        let step = self.state.lock().step(id, self.keep, Instant::now());
        match step {
            Step::Use(keys) => return Some(keys),
            Step::Renew(keys) => {
                drop(self.flight(false));
                return Some(keys);
            }
            Step::Unavailable => return None,
            Step::Fetch => {}
        }
        let mut flight = self.flight(true);
        // It never sends; its end is what is waited for.
        while flight.changed().await.is_ok() {}
        self.state.lock().usable(self.keep, Instant::now()).map(|(keys, _)| keys.clone())
    }

    /// The fetch under way, or a new one. It goes on without those who wait for it.
    fn flight(self: &Arc<Self>, waited_for: bool) -> watch::Receiver<()> {
        let mut state = self.state.lock();
        if let Some(flight) = state.flight.as_ref().filter(|flight| flight.has_changed().is_ok()) {
            return flight.clone();
        }
        if waited_for && state.keys.is_some() {
            state.forced = Some(Instant::now());
        }
        let (over, flight) = watch::channel(());
        state.flight = Some(flight.clone());
        let ring = self.clone();
        tokio::spawn(async move {
            let outcome = ring.fetch().await;
            if let Err(error) = &outcome {
                tracing::warn!(%error, uri = %ring.uri, "cannot fetch the keys of an issuer");
            }
            let news = ring.state.lock().take_in(outcome, ring.keep, Instant::now());
            drop(over);
            if news {
                ring.news.notify_one();
            }
        });
        flight
    }

    async fn fetch(&self) -> Result<KeySet, Error> {
        KeySet::read(&self.fetcher.get(&self.uri).await?).ok_or(Error::NoKeys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(300);

    fn set(id: &str) -> KeySet {
        let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"AAAA"}}]}}"#);
        KeySet::read(set.as_bytes()).unwrap()
    }

    fn take_in(state: &mut State, outcome: Result<KeySet, Error>, now: Instant) -> bool {
        state.take_in(outcome, KEEP, now)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn keys_are_renewed_when_old_and_last_a_while_without() {
        let now = Instant::now();
        let mut state = State::default();
        let step = |state: &State, id: &str, after: u64| state.step(Some(id), KEEP, now + seconds(after));
        assert!(matches!(step(&state, "a", 0), Step::Fetch));
        take_in(&mut state, Ok(set("a")), now);
        assert!(matches!(step(&state, "a", 299), Step::Use(_)));
        assert!(matches!(step(&state, "a", 301), Step::Renew(_)));
        take_in(&mut state, Err(Error::Slow), now + seconds(301));
        assert!(matches!(step(&state, "a", 301), Step::Use(_)), "it was just tried");
        assert!(matches!(step(&state, "a", 303), Step::Renew(_)));
        assert!(state.usable(KEEP, now + seconds(300 + 3599)).is_some());
        assert!(state.usable(KEEP, now + seconds(300 + 3600)).is_none());
        assert!(matches!(step(&state, "a", 300 + 3600), Step::Fetch), "too old");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_too_old_are_not_used_when_no_others_can_be_had() {
        let nobody = Uri::from_static("http://127.0.0.1:1/keys");
        let ring = Arc::new(Keyring::new(nobody, KEEP, Arc::default(), Arc::default()));
        take_in(&mut ring.state.lock(), Ok(set("a")), Instant::now());
        tokio::time::advance(KEEP + OVERTIME - seconds(1)).await;
        assert!(ring.keys(Some("a")).await.is_some());
        tokio::time::advance(LONGEST_WAIT).await;
        assert!(ring.keys(Some("a")).await.is_none());
    }

    #[test]
    fn unknown_keys_are_asked_for_once_in_a_while() {
        let now = Instant::now();
        let mut state = State::default();
        let step = |state: &State, after: u64| state.step(Some("b"), KEEP, now + seconds(after));
        take_in(&mut state, Ok(set("a")), now);
        assert!(matches!(step(&state, 1), Step::Fetch), "it may be new");
        state.forced = Some(now + seconds(1));
        assert!(matches!(step(&state, 10), Step::Use(_)));
        assert!(matches!(step(&state, 11), Step::Fetch));
        let (_over, flight) = watch::channel(());
        state.flight = Some(flight);
        assert!(matches!(step(&state, 2), Step::Fetch), "what comes may have it");
    }

    #[test]
    fn an_issuer_that_fails_is_left_alone_for_longer_and_longer() {
        let now = Instant::now();
        let mut state = State::default();
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            take_in(&mut state, Err(Error::Slow), now);
            let just_before = now + seconds(wait) - Duration::from_millis(1);
            assert!(matches!(state.step(None, KEEP, just_before), Step::Unavailable), "{wait}");
            assert!(matches!(state.step(None, KEEP, now + seconds(wait)), Step::Fetch), "{wait}");
        }
        take_in(&mut state, Ok(set("a")), now);
        assert_eq!((state.failures, state.not_before), (0, None));
    }

    #[test]
    fn an_issuer_that_lists_no_keys_has_withdrawn_them() {
        let now = Instant::now();
        let mut state = State::default();
        take_in(&mut state, Ok(set("a")), now);
        take_in(&mut state, Ok(KeySet::read(br#"{"keys":[]}"#).unwrap()), now + seconds(1));
        let (keys, _) = state.usable(KEEP, now + seconds(1)).unwrap();
        assert!(!keys.knows(Some("a")) && !keys.knows(None));
        assert!(
            matches!(state.step(Some("a"), KEEP, now + seconds(2)), Step::Fetch),
            "there may be new ones"
        );
    }

    #[test]
    fn whether_keys_can_be_had_is_news_when_it_changes() {
        let now = Instant::now();
        let mut state = State::default();
        assert_eq!(state.health(KEEP, now), Health::Well, "nobody has asked");
        assert!(take_in(&mut state, Err(Error::Slow), now));
        assert!(matches!(state.health(KEEP, now), Health::Without(_)));
        assert!(!take_in(&mut state, Err(Error::Slow), now), "again");
        assert!(take_in(&mut state, Ok(set("a")), now));
        assert_eq!(state.health(KEEP, now), Health::Well);
        assert!(!take_in(&mut state, Ok(set("b")), now));
        assert!(take_in(&mut state, Err(Error::Slow), now));
        assert!(matches!(state.health(KEEP, now), Health::Aging(_)));
        assert!(matches!(state.health(KEEP, now + KEEP + OVERTIME), Health::Without(_)));
        assert!(take_in(&mut state, Ok(KeySet::default()), now));
        assert!(matches!(state.health(KEEP, now), Health::Without(_)));
    }
}
