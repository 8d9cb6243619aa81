//! Session ids as operators see them: hashes with a key, so that lines of one session are found by each other, in every
//! router, but nobody who reads them can use the id, or find it by trying likely ones.

use agentcube_instance::SessionKey;
use ring::hmac;

/// Hides session ids.
#[derive(Clone, Debug)]
pub struct Hiding(hmac::Key);

impl Hiding {
    /// With a key that all routers have.
    pub fn new(key: hmac::Key) -> Hiding {
        Hiding(key)
    }

    /// The session of a Task, hidden.
    pub fn session(&self, task_uid: &str, key: &SessionKey) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(task_uid.as_bytes());
        context.update(&[0]);
        context.update(key.as_str().as_bytes());
        context.sign().as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_looks_the_same_everywhere_with_one_key_only() {
        let hiding = |key: &[u8]| Hiding::new(hmac::Key::new(hmac::HMAC_SHA256, key));
        let session = SessionKey::new("user-1").unwrap();
        let shown = hiding(b"a").session("t1", &session);
        assert_eq!(shown.len(), 16);
        assert_eq!(shown, hiding(b"a").session("t1", &session));
        assert_ne!(shown, hiding(b"b").session("t1", &session));
        assert_ne!(shown, hiding(b"a").session("t2", &session));
    }
}
