//! Makes the token of every reservation, with the keys of its Task. Keys may be exchanged while it works.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;

use super::tasks::TaskView;
use crate::identity::SessionKey;
use crate::record::Instance;
use crate::token::{Claims, Keys, Nonce, SealKeys, TaskKeys, Token};

/// How long a token is good for: it is shown at the beginning of a request, and may be passed on in the course of it.
const LIFE: Duration = Duration::from_secs(3600);

/// The keys of the operator, and those of Tasks that were needed.
pub(super) struct Signer {
    keys: RwLock<Keys>,
    tasks: RwLock<HashMap<Arc<str>, Arc<TaskKeys>>>,
}

impl Signer {
    pub(super) fn new(keys: Keys) -> Signer {
        Signer { keys: RwLock::new(keys), tasks: RwLock::default() }
    }

    pub(super) fn set(&self, keys: Keys) {
        let mut held = self.keys.write();
        *held = keys;
        // Under the lock above, so that no keys of the former ones come in.
        self.tasks.write().clear();
    }

    pub(super) fn forget(&self, task: &str) {
        self.tasks.write().remove(task);
    }

    fn of_task(&self, uid: &Arc<str>) -> Arc<TaskKeys> {
        if let Some(keys) = self.tasks.read().get(uid) {
            return keys.clone();
        }
        let keys = self.keys.read();
        let mut tasks = self.tasks.write();
        tasks.entry(uid.clone()).or_insert_with(|| Arc::new(keys.for_task(uid))).clone()
    }

    /// What texts for clients are sealed with. Derived each time: it is needed where a session begins, and where one
    /// is found by its id alone.
    pub(super) fn seal_keys(&self, uid: &str) -> SealKeys {
        self.keys.read().seal_keys(uid)
    }

    /// A token for one request.
    pub(super) fn token(&self, view: &TaskView, instance: &Instance, key: Option<&SessionKey>) -> Token {
        if view.random_tokens {
            return Token::random();
        }
        let now = Timestamp::now();
        let expires = now.checked_add(LIFE).unwrap_or(now);
        let claims = Claims { instance: instance.id.uid.clone(), key: key.cloned(), expires };
        self.of_task(&view.id.uid).sign(&claims, Nonce::random())
    }
}
