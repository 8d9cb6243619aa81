//! Whose a session is. With authentication on, the subject is part of the session's key: the same id of another subject
//! is another session. Pure.

use std::fmt::{self, Write};
use std::sync::Arc;

use agentcube_instance::SessionKey;
use ring::digest::{Context, SHA256, digest};

/// Around the mark of a subject, at the beginning of a key.
const MARK: char = '~';
/// Digits of a mark.
const DIGITS: usize = 32;

/// The issuer of subjects that a service has named which was asked for authorisation.
pub const BY_SERVICE: &str = "the authorisation service";

/// Who sends a request, as an issuer has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    /// Two issuers may give the same name to different people.
    pub issuer: Arc<str>,
    pub name: Arc<str>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.issuer)
    }
}

/// Why a key cannot be used without a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a session key may not begin like that of an authenticated session: {MARK}, {DIGITS} hexadecimal digits, {MARK}"
)]
pub struct Foreign;

impl Subject {
    /// A short name for it that nobody else has.
    pub(crate) fn mark(&self) -> String {
        let mut context = Context::new(&SHA256);
        // With its length in front, the issuer ends where it ends.
        context.update(&(self.issuer.len() as u64).to_le_bytes());
        context.update(self.issuer.as_bytes());
        context.update(self.name.as_bytes());
        let mut mark = hex(context.finish().as_ref());
        mark.truncate(DIGITS);
        mark
    }
}

/// The key under which a session is kept: the client's own words, and with a subject, the subject's mark before them.
pub fn session(subject: Option<&Subject>, key: SessionKey) -> Result<SessionKey, Foreign> {
    let Some(subject) = subject else {
        return if is_marked(key.as_str()) { Err(Foreign) } else { Ok(key) };
    };
    Ok(marked(&subject.mark(), &key))
}

/// The key of whoever has this mark.
pub(crate) fn marked(mark: &str, key: &SessionKey) -> SessionKey {
    let whole = SessionKey::new(&format!("{MARK}{mark}{MARK}{key}"));
    // Only a key that was near the limit before is too long now; its digest stands for it.
    let short = || {
        let digest = hex(digest(&SHA256, key.as_str().as_bytes()).as_ref());
        SessionKey::new(&format!("{MARK}{mark}{MARK}{digest}"))
    };
    whole.or_else(|_| short()).expect("a mark and a digest are short, and have no control characters")
}

fn is_marked(key: &str) -> bool {
    let marked = key.strip_prefix(MARK).and_then(|rest| rest.split_once(MARK));
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    marked.is_some_and(|(mark, _)| mark.len() == DIGITS && mark.bytes().all(digit))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subject(issuer: &str, name: &str) -> Subject {
        Subject { issuer: issuer.into(), name: name.into() }
    }

    fn key(text: &str) -> SessionKey {
        SessionKey::new(text).unwrap()
    }

    #[test]
    fn each_subject_has_sessions_of_its_own() {
        let of =
            |issuer: &str, name: &str, text: &str| session(Some(&subject(issuer, name)), key(text)).unwrap();
        assert_eq!(of("a", "ada", "1"), of("a", "ada", "1"));
        assert!(of("a", "ada", "1").as_str().ends_with("~1"));
        for (issuer, name, text) in
            [("a", "ada", "2"), ("a", "bob", "1"), ("b", "ada", "1"), ("aa", "da", "1")]
        {
            assert_ne!(of("a", "ada", "1"), of(issuer, name, text));
        }
    }

    #[test]
    fn nobody_takes_a_session_by_writing_its_key() {
        let owned = session(Some(&subject("a", "ada")), key("1")).unwrap();
        assert_eq!(session(None, owned.clone()), Err(Foreign));
        assert_ne!(session(Some(&subject("a", "bob")), owned.clone()), Ok(owned));
        for free in ["1", "~", "~~1", "~abc~1", "a~b"] {
            assert_eq!(session(None, key(free)), Ok(key(free)), "{free}");
        }
    }

    proptest! {
        #[test]
        fn long_keys_stay_different(one in "[a-z]{470,512}", other in "[a-z]{470,512}") {
            prop_assume!(one != other);
            let ada = subject("a", "ada");
            let owned = |text: &str| session(Some(&ada), key(text)).unwrap();
            prop_assert_ne!(owned(&one), owned(&other));
        }
    }
}
