//! Seals texts that a client carries about and brings back: it can neither read nor change them. AES-256-GCM with keys
//! derived from the operator's, so they are exchanged with those; what was sealed with an older key that is still there
//! can be opened. Neither keys nor what is sealed are ever printed.

use std::fmt::{self, Debug, Formatter};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::KeyId;

/// The longest text that is looked at.
const LONGEST: usize = 8192;

/// Keys to seal with, those of one Task.
pub struct SealKeys {
    keys: Vec<(KeyId, LessSafeKey)>,
    current: usize,
}

impl Debug for SealKeys {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealKeys").finish_non_exhaustive()
    }
}

impl SealKeys {
    pub(super) fn new(keys: Vec<(KeyId, ring::hmac::Tag)>, current: usize) -> SealKeys {
        let key = |tag: &ring::hmac::Tag| {
            let unbound = UnboundKey::new(&AES_256_GCM, tag.as_ref());
            LessSafeKey::new(unbound.expect("a tag of HMAC-SHA256 has the 32 bytes of such a key"))
        };
        SealKeys { keys: keys.iter().map(|(id, tag)| (id.clone(), key(tag))).collect(), current }
    }

    /// Seals a text, in letters that a header may have. `about` has to be the same when it is opened. The nonces are
    /// random: 2^32 texts may be sealed with one key, and a Task has a session for each.
    pub fn seal(&self, text: &[u8], about: &[u8]) -> String {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new()
            .fill(&mut nonce)
            .expect("the kernel always has random bits for a running process");
        let (id, key) = &self.keys[self.current];
        let mut sealed = text.to_vec();
        let tag = key
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(about), &mut sealed)
            .expect("a text of some kilobytes is below the cipher's limit");
        let all = [&nonce, sealed.as_slice(), tag.as_ref()].concat();
        format!("{id}.{}", URL_SAFE_NO_PAD.encode(all))
    }

    /// What was sealed; nothing if it was not by these keys, or about something else.
    pub fn open(&self, sealed: &str, about: &[u8]) -> Option<Vec<u8>> {
        if sealed.len() > LONGEST {
            return None;
        }
        let (id, text) = sealed.split_once('.')?;
        let (_, key) = self.keys.iter().find(|(held, _)| held.as_str() == id)?;
        let mut bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, rest) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        key.open_in_place(nonce, Aad::from(about), rest).ok().map(|text| text.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::core::v1::Secret;

    use crate::token::{KeyId, Keys};

    fn keys(ids: &[&str], current: &str) -> Keys {
        let data = ids.iter().map(|id| (format!("{id}.key"), ByteString(id.repeat(32).into_bytes())));
        let current = ("current".to_owned(), ByteString(current.into()));
        Keys::read(&Secret { data: Some(data.chain([current]).collect()), ..Secret::default() }).unwrap()
    }

    #[test]
    fn what_is_sealed_is_opened_by_the_same_task_only_and_unchanged_only() {
        let keys = keys(&["k1"], "k1");
        let (one, other) = (keys.seal_keys("t1"), keys.seal_keys("t2"));
        let sealed = one.seal(b"hello", b"about");
        assert!(sealed.bytes().all(|byte| byte.is_ascii_graphic()), "{sealed}");
        assert_ne!(sealed, one.seal(b"hello", b"about"));
        assert_eq!(one.open(&sealed, b"about").as_deref(), Some(&b"hello"[..]));
        assert_eq!(one.open(&sealed, b"else"), None);
        assert_eq!(other.open(&sealed, b"about"), None);
        for n in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[n] = if changed[n] == b'A' { b'B' } else { b'A' };
            assert_eq!(one.open(std::str::from_utf8(&changed).unwrap(), b"about"), None, "{n}");
            assert_eq!(one.open(&sealed[..n], b"about"), None, "{n}");
        }
        assert_eq!(one.open(&"x".repeat(9000), b""), None);
    }

    #[test]
    fn keys_are_exchanged() {
        let before = keys(&["k1"], "k1").seal_keys("t1").seal(b"hello", b"");
        assert!(keys(&["k1", "k2"], "k2").seal_keys("t1").open(&before, b"").is_some());
        assert!(keys(&["k1", "k2"], "k2").seal_keys("t1").seal(b"hello", b"").starts_with("k2."));
        assert!(keys(&["k2"], "k2").seal_keys("t1").open(&before, b"").is_none());
        let _ = KeyId::new("k1");
    }
}
