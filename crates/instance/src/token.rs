//! The token of a reservation, which the gateway shows to the instance as `X-Reserved-Token`: signed so that the
//! instance can tell it from a forgery, or random. Neither tokens nor keys are ever printed or logged.
//!
//! `docs/tokens.md` has the format, and how to verify it without this library.

mod keys;
mod seal;
mod single_use;
mod store;

use std::borrow::Cow;
use std::fmt::{self, Debug, Display, Formatter};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::identity::{BadKey, SessionKey};

pub use keys::{BadKeys, KeyId, Keys, TaskKeys, task_secret_name};
pub use seal::SealKeys;
pub use single_use::SingleUse;
pub use store::{MASTER_SECRET, StoreError, TokenError, ensure_master_keys, ensure_token};

/// The longest text that is looked at. A token with the longest key fits.
pub const LONGEST: usize = 4096;

const VERSION: &str = "v1";
const RANDOM_PREFIX: &str = "tok-";

/// A secret: never printed, never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token that proves nothing by itself, of 128 random bits: `tok-<seconds>-<hex>`.
    pub fn random() -> Token {
        let Nonce(bits) = Nonce::random();
        Token(format!("{RANDOM_PREFIX}{}-{:032x}", Timestamp::now().as_second(), u128::from_be_bytes(bits)))
    }

    /// The text for the header.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Debug for Token {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What makes each token different from all others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce([u8; 16]);

impl Nonce {
    pub fn random() -> Nonce {
        let mut bits = [0; 16];
        SystemRandom::new().fill(&mut bits).expect("the kernel always has random bits for a running process");
        Nonce(bits)
    }

    pub fn from_bits(bits: u128) -> Nonce {
        Nonce(bits.to_be_bytes())
    }
}

impl Debug for Nonce {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(..)")
    }
}

/// What a token says, besides the Task, which its key says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// UID of the instance.
    pub instance: Arc<str>,
    /// The session; none for a Oneshot.
    pub key: Option<SessionKey>,
    /// From this second on it is void.
    pub expires: Timestamp,
}

/// What a genuine token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// UID of the Task.
    pub task: Arc<str>,
    pub claims: Claims,
    pub key_id: KeyId,
    nonce: Nonce,
}

impl Verified {
    /// Refuses a token that is for another instance.
    pub fn for_instance(self, uid: &str) -> Result<Verified, Error> {
        if *self.claims.instance == *uid { Ok(self) } else { Err(Error::WrongInstance) }
    }
}

/// Why a token is refused. Never contains what it says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the token has {0} bytes; at most {LONGEST} are looked at")]
    TooLong(usize),
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    #[error(
        "the token is a random one (tokenPolicy: Random): only who made it can tell whether it is genuine"
    )]
    Random,
    #[error("the token is signed with the key {0}, which is not among the known ones")]
    UnknownKey(KeyId),
    #[error("the token is for another Task")]
    WrongTask,
    #[error("the signature of the token is wrong")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is for another instance")]
    WrongInstance,
    #[error("the token has been used before")]
    Used,
    #[error("too many tokens are in use to remember this one; it is refused for being single-use")]
    TooMany,
}

impl Error {
    /// A word for machines.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::TooLong(_) => "TooLong",
            Error::Malformed(_) => "Malformed",
            Error::Random => "Random",
            Error::UnknownKey(_) => "UnknownKey",
            Error::WrongTask => "WrongTask",
            Error::Signature => "Signature",
            Error::Expired => "Expired",
            Error::WrongInstance => "WrongInstance",
            Error::Used => "Used",
            Error::TooMany => "TooMany",
        }
    }
}

/// What is signed, as JSON.
#[derive(Serialize, Deserialize)]
struct Payload<'a> {
    #[serde(borrow)]
    task: Cow<'a, str>,
    #[serde(borrow)]
    instance: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    exp: i64,
    #[serde(borrow)]
    nonce: Cow<'a, str>,
}

/// A token taken apart; nothing of it is known to be genuine.
struct Parts<'a> {
    key_id: KeyId,
    /// What the signature is over.
    signed: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
}

impl<'a> Parts<'a> {
    fn read(text: &'a str) -> Result<Parts<'a>, Error> {
        if text.len() > LONGEST {
            return Err(Error::TooLong(text.len()));
        }
        if text.starts_with(RANDOM_PREFIX) {
            return Err(Error::Random);
        }
        let shape = Error::Malformed("it has to be v1.<key id>.<payload>.<signature>");
        let (signed, signature) = text.rsplit_once('.').ok_or_else(|| shape.clone())?;
        let mut parts = signed.split('.');
        let (version, key_id, payload) = (parts.next(), parts.next(), parts.next());
        let (Some(VERSION), Some(key_id), Some(payload), None) = (version, key_id, payload, parts.next())
        else {
            return Err(shape);
        };
        let key_id = KeyId::new(key_id).ok_or(Error::Malformed("its key id is none"))?;
        let signature = URL_SAFE_NO_PAD.decode(signature);
        let signature = signature.map_err(|_| Error::Malformed("its signature is not base64url"))?;
        Ok(Parts { key_id, signed, payload, signature })
    }
}

impl TaskKeys {
    /// A token with the current key: one HMAC. The nonce has to be a fresh one.
    pub fn sign(&self, claims: &Claims, nonce: Nonce) -> Token {
        let mut text_of_nonce = [0; 22];
        let length = URL_SAFE_NO_PAD
            .encode_slice(nonce.0, &mut text_of_nonce)
            .expect("16 bytes are 22 characters of base64");
        let payload = Payload {
            task: Cow::Borrowed(self.task()),
            instance: Cow::Borrowed(&claims.instance),
            key: claims.key.as_ref().map(|key| Cow::Borrowed(key.as_str())),
            exp: claims.expires.as_second(),
            nonce: String::from_utf8_lossy(&text_of_nonce[..length]),
        };
        let payload = serde_json::to_vec(&payload).expect("texts and numbers are always JSON");
        let (key_id, key) = self.current();
        let mut text = String::with_capacity(payload.len() * 4 / 3 + 72);
        text.push_str(VERSION);
        text.push('.');
        text.push_str(key_id.as_str());
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(&payload, &mut text);
        let signature = ring::hmac::sign(key, text.as_bytes());
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut text);
        Token(text)
    }

    /// What a token says, if it was signed with a key of this Task and has not expired. The signature is compared in
    /// constant time, and before anything that the token says is believed.
    pub fn verify(&self, text: &str, now: Timestamp) -> Result<Verified, Error> {
        let parts = Parts::read(text)?;
        let key = self.key(&parts.key_id);
        let genuine =
            key.is_some_and(|key| ring::hmac::verify(key, parts.signed.as_bytes(), &parts.signature).is_ok());
        let payload = URL_SAFE_NO_PAD.decode(parts.payload);
        let payload = payload.map_err(|_| Error::Malformed("its payload is not base64url"))?;
        let payload: Payload<'_> = serde_json::from_slice(&payload)
            .map_err(|_| Error::Malformed("its payload is not the JSON object that it has to be"))?;
        if !genuine {
            // Only to tell what is likely wrong.
            return Err(match key {
                None => Error::UnknownKey(parts.key_id),
                Some(_) if payload.task != *self.task() => Error::WrongTask,
                Some(_) => Error::Signature,
            });
        }
        let verified = self.believe(&payload, parts.key_id)?;
        if verified.claims.expires <= now {
            return Err(Error::Expired);
        }
        Ok(verified)
    }

    fn believe(&self, payload: &Payload<'_>, key_id: KeyId) -> Result<Verified, Error> {
        if payload.task != *self.task() {
            return Err(Error::WrongTask);
        }
        let key = payload.key.as_deref().map(SessionKey::new).transpose();
        let key = key.map_err(|_: BadKey| Error::Malformed("its session key cannot be one"))?;
        let expires = Timestamp::from_second(payload.exp);
        let expires = expires.map_err(|_| Error::Malformed("its expiry is out of all bounds"))?;
        let nonce = URL_SAFE_NO_PAD.decode(payload.nonce.as_bytes()).ok();
        let nonce = nonce.and_then(|bytes| bytes.try_into().ok()).map(Nonce);
        let nonce = nonce.ok_or(Error::Malformed("its nonce is not 128 bits in base64url"))?;
        let claims = Claims { instance: payload.instance.as_ref().into(), key, expires };
        Ok(Verified { task: self.task().into(), claims, key_id, nonce })
    }
}

impl Display for KeyId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
