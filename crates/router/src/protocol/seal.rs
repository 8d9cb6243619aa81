//! Session ids that carry their session: sealed for the client, so that any router can open them and nothing is written
//! down. The session's Lease stays the truth: an id of a session that has ended opens, and leads nowhere.

use agentcube_instance::token::SealKeys;
use agentcube_instance::{SessionKey, TaskId};

const FORMAT: u8 = 1;

/// An id for the client that stands for the session of this key, and for the id that its instance minted.
pub fn seal(keys: &SealKeys, task: &TaskId, subject: Option<&str>, key: &SessionKey, minted: &str) -> String {
    let key = key.as_str().as_bytes();
    // Below 512 bytes, as every key.
    let length = u16::try_from(key.len()).unwrap_or(u16::MAX).to_be_bytes();
    let text = [&[FORMAT], &length[..], key, minted.as_bytes()].concat();
    keys.seal(&text, &about(task, subject))
}

/// The session's key and the minted id; nothing if the id is not genuine, or somebody else's.
pub fn open(keys: &SealKeys, task: &TaskId, subject: Option<&str>, id: &str) -> Option<(SessionKey, String)> {
    let text = keys.open(id, &about(task, subject))?;
    let text = text.strip_prefix(&[FORMAT])?;
    let (length, text) = text.split_at_checked(2)?;
    let length = usize::from(u16::from_be_bytes(length.try_into().ok()?));
    let (key, minted) = text.split_at_checked(length)?;
    let key = SessionKey::new(std::str::from_utf8(key).ok()?).ok()?;
    Some((key, String::from_utf8(minted.to_vec()).ok()?))
}

/// What the id is bound to beside the Task's key: the Task, and whose it is.
fn about(task: &TaskId, subject: Option<&str>) -> Vec<u8> {
    let whose = subject.map_or_else(Vec::new, |subject| [b"of ", subject.as_bytes()].concat());
    [b"mcp-session\0", task.uid.as_bytes(), b"\0", &whose].concat()
}

#[cfg(test)]
mod tests {
    use agentcube_instance::token::{KeyId, Keys};
    use proptest::prelude::*;

    use super::*;

    fn task(uid: &str) -> TaskId {
        TaskId { namespace: "prod".into(), name: "a".into(), uid: uid.into() }
    }

    #[test]
    fn an_id_is_of_one_task_and_one_subject() {
        let keys = Keys::generate(KeyId::new("k1").unwrap()).seal_keys("t1");
        let key = SessionKey::new("mcp-1").unwrap();
        let id = seal(&keys, &task("t1"), Some("ada"), &key, "minted");
        assert_eq!(open(&keys, &task("t1"), Some("ada"), &id), Some((key, "minted".to_owned())));
        assert_eq!(open(&keys, &task("t1"), None, &id), None);
        assert_eq!(open(&keys, &task("t1"), Some("eve"), &id), None);
        assert_eq!(open(&keys, &task("t2"), Some("ada"), &id), None);
        assert!(super::super::mcp::is_id(&id), "{id}");
    }

    #[test]
    fn the_longest_id_of_the_longest_key_can_be_asked_for() {
        use super::super::mcp;
        let keys = Keys::generate(KeyId::new("k1").unwrap()).seal_keys("t1");
        let (key, minted) = (SessionKey::new(&"k".repeat(512)).unwrap(), "m".repeat(1024));
        assert!(mcp::is_id(&minted));
        let id = seal(&keys, &task("t1"), Some("ada"), &key, &minted);
        let rule = mcp::Rule { param: None, sealed: true };
        let headers = http::HeaderMap::from_iter([(mcp::SESSION, id.parse().unwrap())]);
        let asked = mcp::ask(&rule, &http::Method::POST, &headers).unwrap();
        assert_eq!(asked, mcp::Ask::Session { id: id.clone(), ends: false });
        assert_eq!(open(&keys, &task("t1"), Some("ada"), &id), Some((key, minted)));
    }

    proptest! {
        #[test]
        fn anything_may_be_asked_for(text in "\\PC{0,60}", key in "[ -~]{1,40}", minted in "[ -~]{0,40}") {
            let keys = Keys::generate(KeyId::new("k1").unwrap()).seal_keys("t1");
            prop_assert_eq!(open(&keys, &task("t1"), None, &text), None);
            let key = SessionKey::new(&key).unwrap();
            let id = seal(&keys, &task("t1"), None, &key, &minted);
            prop_assert_eq!(open(&keys, &task("t1"), None, &id), Some((key, minted)));
        }
    }
}
