//! Tokens for runners: each is good for one integration, and made from a key that the controllers, the build service and, on one
//! machine, the gate share. Nothing is stored to verify one.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::hmac;

const VERSION: &str = "fi1";
/// The shortest text that a key may be made of.
pub const SHORTEST_KEY: usize = 16;

/// What tokens are made and verified by; never printed.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// An integration, as tokens name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub namespace: String,
    pub name: String,
}

impl Key {
    /// A key of a text that is long enough.
    pub fn new(text: &str) -> Option<Key> {
        let text = text.trim();
        (text.len() >= SHORTEST_KEY).then(|| Key(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes())))
    }

    /// The token of an integration's runners.
    pub fn token(&self, namespace: &str, name: &str) -> String {
        let holder = BASE64.encode(format!("{namespace}/{name}"));
        let tag = hmac::sign(&self.0, format!("{VERSION}.{holder}").as_bytes());
        format!("{VERSION}.{holder}.{}", BASE64.encode(tag))
    }

    /// Whose token it is, if it is one.
    pub fn verify(&self, token: &str) -> Option<Holder> {
        let (signed, tag) = token.rsplit_once('.')?;
        let tag = BASE64.decode(tag).ok()?;
        hmac::verify(&self.0, signed.as_bytes(), &tag).ok()?;
        let holder = BASE64.decode(signed.strip_prefix(VERSION)?.strip_prefix('.')?).ok()?;
        let holder = String::from_utf8(holder).ok()?;
        let (namespace, name) = holder.split_once('/')?;
        Some(Holder { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Whose token a request carries.
    pub fn of_request(&self, headers: &http::HeaderMap) -> Option<Holder> {
        let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
        self.verify(value.strip_prefix("Bearer ")?.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_one_integration() {
        let (key, other) = (Key::new("0123456789abcdef").unwrap(), Key::new("fedcba9876543210").unwrap());
        let token = key.token("team", "tasks");
        let holder = Holder { namespace: "team".into(), name: "tasks".into() };
        assert_eq!(key.verify(&token), Some(holder));
        assert_eq!(other.verify(&token), None);
        let (signed, tag) = token.rsplit_once('.').unwrap();
        let another = BASE64.encode("team/others");
        for wrong in ["", "..", "fi1..", signed, &format!("fi1.{another}.{tag}"), &format!("{token}x")] {
            assert_eq!(key.verify(wrong), None, "{wrong}");
        }
        assert!(Key::new("short").is_none());
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
