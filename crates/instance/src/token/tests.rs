use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use proptest::prelude::*;

use super::*;
use crate::identity::{LONGEST_KEY, TaskId};

type Entries<'a> = &'a [(&'a str, &'a [u8])];

fn secret(entries: Entries<'_>) -> Secret {
    let data = entries.iter().map(|(name, bytes)| ((*name).to_owned(), ByteString(bytes.to_vec()))).collect();
    Secret { data: Some(data), ..Secret::default() }
}

fn keys() -> Keys {
    Keys::read(&secret(&[("k1.key", &[1; 32]), ("k2.key", &[2; 32]), ("current", b"k2\n"), ("note", b"x")]))
        .unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn claims(key: &str) -> Claims {
    Claims { instance: "i1".into(), key: SessionKey::new(key).ok(), expires: at(2000) }
}

fn sign(key: &str) -> Token {
    keys().for_task("t1").sign(&claims(key), Nonce::from_bits(7))
}

#[test]
fn a_token_says_what_was_signed() {
    let keys = keys().for_task("t1");
    for key in ["", "user-1", "Grüße \"1\" \\ 🦀"] {
        let token = keys.sign(&claims(key), Nonce::random());
        let verified = keys.verify(token.reveal(), at(1999)).unwrap();
        assert_eq!((&*verified.task, &verified.claims, verified.key_id.as_str()), ("t1", &claims(key), "k2"));
        assert_eq!(verified.clone().for_instance("i1"), Ok(verified.clone()));
        assert_eq!(verified.for_instance("i2"), Err(Error::WrongInstance));
    }
}

/// Back ends verify this without us: it must not change unless its version does. Checked against the recipe of
/// docs/tokens.md when it was written.
#[test]
fn the_format_is_fixed() {
    let expected = "v1.k2.eyJ0YXNrIjoidDEiLCJpbnN0YW5jZSI6ImkxIiwia2V5IjoidSIsImV4cCI6MjAwMCwibm9uY2UiOiJBQUFBQUFBQUFBQUFBQUFBQUFBQUJ3In0.";
    let token = sign("u");
    assert!(token.reveal().starts_with(expected), "{}", token.reveal());
    assert_eq!(token.reveal().len(), expected.len() + 43);
}

#[test]
fn every_fault_has_an_error_of_its_own() {
    let mine = keys().for_task("t1");
    let good = sign("u");
    let good = good.reveal();
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let payload = signed.rsplit_once('.').unwrap().1;
    let other = keys().for_task("t2").sign(&claims("u"), Nonce::from_bits(7));
    let foreign = Keys::read(&secret(&[("k9.key", &[9; 32]), ("current", b"k9")])).unwrap();
    let unknown = foreign.for_task("t1").sign(&claims("u"), Nonce::from_bits(7));
    let forged = Keys::read(&secret(&[("k2.key", &[9; 32]), ("current", b"k2")])).unwrap();
    let forged = forged.for_task("t1").sign(&claims("u"), Nonce::from_bits(7));
    let shape = Error::Malformed("it has to be v1.<key id>.<payload>.<signature>");
    let table: Vec<(String, Error)> = vec![
        (String::new(), shape.clone()),
        ("x".into(), shape.clone()),
        (format!("v2.k2.{payload}.{signature}"), shape.clone()),
        (format!("v1.k2.{payload}.{payload}.{signature}"), shape.clone()),
        (format!("v1.k2.{signature}"), shape),
        (format!("v1.k 2.{payload}.{signature}"), Error::Malformed("its key id is none")),
        (format!("v1..{payload}.{signature}"), Error::Malformed("its key id is none")),
        (format!("v1.k2.{payload}.{signature}="), Error::Malformed("its signature is not base64url")),
        (format!("v1.k2.!.{signature}"), Error::Malformed("its payload is not base64url")),
        (
            format!("v1.k2.e30.{signature}"),
            Error::Malformed("its payload is not the JSON object that it has to be"),
        ),
        (format!("v1.k1.{payload}.{signature}"), Error::Signature),
        (forged.reveal().into(), Error::Signature),
        (format!("v1.k2.{payload}."), Error::Signature),
        (unknown.reveal().into(), Error::UnknownKey(KeyId::new("k9").unwrap())),
        (other.reveal().into(), Error::WrongTask),
        (Token::random().reveal().into(), Error::Random),
        ("x".repeat(LONGEST + 1), Error::TooLong(LONGEST + 1)),
    ];
    for (text, error) in table {
        assert_eq!(mine.verify(&text, at(0)).unwrap_err(), error, "{text}");
    }
    assert_eq!(mine.verify(good, at(2000)).unwrap_err(), Error::Expired);
    assert!(mine.verify(good, at(1999)).is_ok());
}

#[test]
fn a_rotated_key_still_verifies_until_it_is_removed() {
    let old = Keys::read(&secret(&[("k1.key", &[1; 32]), ("current", b"k1")])).unwrap();
    let new = Keys::read(&secret(&[("k2.key", &[2; 32]), ("current", b"k2")])).unwrap();
    let token = old.for_task("t1").sign(&claims("u"), Nonce::random());
    assert_eq!(keys().for_task("t1").verify(token.reveal(), at(0)).unwrap().key_id.as_str(), "k1");
    let gone = new.for_task("t1").verify(token.reveal(), at(0)).unwrap_err();
    assert_eq!(gone, Error::UnknownKey(KeyId::new("k1").unwrap()));
}

#[test]
fn the_longest_key_fits() {
    let keys = keys().for_task(&"u".repeat(64));
    let quotes = claims(&"\"".repeat(LONGEST_KEY));
    let token = keys.sign(&quotes, Nonce::random());
    assert_eq!(keys.verify(token.reveal(), at(0)).unwrap().claims, quotes);
}

#[test]
fn a_tasks_keys_travel_in_its_secret_and_are_not_those_of_another() {
    let task = TaskId { namespace: "prod".into(), name: "agent".into(), uid: "t1".into() };
    let secret = keys().for_task("t1").to_secret(&task);
    assert_eq!(secret.metadata.name.as_deref(), Some("agent-token"));
    assert_eq!(secret.metadata.owner_references.as_ref().unwrap()[0].uid, "t1");
    let carried = TaskKeys::from_secret(&secret).unwrap();
    assert_eq!(carried.task(), "t1");
    assert!(carried.verify(sign("u").reveal(), at(0)).is_ok());
    let data = secret.data.unwrap();
    assert!(!data.values().any(|ByteString(bytes)| bytes == &[1; 32] || bytes == &[2; 32]), "no master key");
    assert_ne!(data, keys().for_task("t2").to_secret(&TaskId { uid: "t2".into(), ..task }).data.unwrap());
    // Whoever has the keys of one Task cannot sign for another: the text of the UID is not what counts.
    let mut pretended = data;
    pretended.insert("task".into(), ByteString(b"t2".to_vec()));
    let forged = TaskKeys::from_entries(&pretended).unwrap().sign(&claims("u"), Nonce::random());
    assert_eq!(keys().for_task("t2").verify(forged.reveal(), at(0)).unwrap_err(), Error::Signature);
}

#[test]
fn spoilt_keys_are_told() {
    let table: [(Entries<'_>, BadKeys); 6] = [
        (&[], BadKeys::Missing("current")),
        (&[("current", b"k1")], BadKeys::NoCurrent("k1.key".into())),
        (&[("current", &[0xff]), ("k1.key", &[1; 32])], BadKeys::NotText("current")),
        (&[("current", b"k2"), ("k1.key", &[1; 32])], BadKeys::NoCurrent("k2.key".into())),
        (&[("current", b"k1"), ("k1.key", &[1; 31])], BadKeys::Length { name: "k1.key".into(), length: 31 }),
        (&[("current", b"a.b"), ("a.b.key", &[1; 32])], BadKeys::Name("a.b.key".into())),
    ];
    for (entries, error) in table {
        assert_eq!(Keys::read(&secret(entries)).unwrap_err(), error, "{entries:?}");
    }
    let without_task = secret(&[("current", b"k1"), ("k1.key", &[1; 32])]);
    assert_eq!(TaskKeys::from_secret(&without_task).unwrap_err(), BadKeys::Missing("task"));
    assert_eq!(Keys::read(&Secret::default()).unwrap_err(), BadKeys::Missing("current"));
}

#[test]
fn nothing_secret_is_printed() {
    let keys =
        Keys::read(&secret(&[("k1.key", b"0123456789abcdef0123456789abcdef"), ("current", b"k1")])).unwrap();
    let task = keys.for_task("t1");
    let token = task.sign(&claims("u"), Nonce::random());
    let verified = task.verify(token.reveal(), at(0)).unwrap();
    let printed = format!("{keys:?} {task:?} {token:?} {verified:?} {:?}", Token::random());
    let key = format!("{:?}", b"0123456789abcdef");
    assert!(!printed.contains("0123456789abcdef") && !printed.contains(&key[1..key.len() - 1]), "{printed}");
    assert!(!printed.contains("v1.") && !printed.contains("tok-"), "{printed}");
    assert!(printed.contains("k1") && printed.contains("Token(..)"), "{printed}");
}

#[test]
fn random_tokens_have_their_form_and_differ() {
    let token = Token::random();
    let (seconds, random) = token.reveal().strip_prefix("tok-").unwrap().split_once('-').unwrap();
    assert!(seconds.parse::<i64>().unwrap() > 1_700_000_000);
    assert!(random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit()), "{random}");
    assert_ne!(token, Token::random());
}

#[test]
fn a_token_is_used_once_and_remembered_until_it_expires() {
    let keys = keys().for_task("t1");
    let verified = |bits, expires| {
        let claims = Claims { expires: at(expires), ..claims("u") };
        keys.verify(keys.sign(&claims, Nonce::from_bits(bits)).reveal(), at(0)).unwrap()
    };
    let used = SingleUse::new(2);
    assert_eq!(used.take(&verified(1, 100), at(10)), Ok(()));
    assert_eq!(used.take(&verified(1, 100), at(99)), Err(Error::Used));
    assert_eq!(used.take(&verified(2, 200), at(99)), Ok(()));
    assert_eq!(used.take(&verified(3, 300), at(99)), Err(Error::TooMany));
    // The first expires, which makes room; and stays expired when the clock is set back.
    assert_eq!(used.take(&verified(3, 300), at(100)), Ok(()));
    assert_eq!(used.take(&verified(1, 100), at(50)), Err(Error::Expired));
    assert_eq!(used.take(&verified(2, 200), at(50)), Err(Error::Used));
}

proptest! {
    #[test]
    fn a_changed_token_is_refused(position in 0..300_usize, replacement in "[A-Za-z0-9_.=-]") {
        let token = sign("a session of somebody");
        let mut text = token.reveal().to_owned();
        let position = position % text.len();
        text.replace_range(position..=position, &replacement);
        let outcome = keys().for_task("t1").verify(&text, at(0));
        prop_assert_eq!(outcome.is_ok(), text == token.reveal());
    }

    #[test]
    fn anything_at_all_is_read_without_a_panic(text in "\\PC*", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let keys = keys().for_task("t1");
        prop_assert!(keys.verify(&text, at(0)).is_err());
        // A payload of any kind under a good signature: only the keys' owner can make that, and it must not hurt.
        let signed = format!("v1.k2.{}", URL_SAFE_NO_PAD.encode(&bytes));
        let signature = ring::hmac::sign(keys.current().1, signed.as_bytes());
        let text = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        prop_assert!(keys.verify(&text, at(0)).is_err());
        let entries = BTreeMap::from([("current".to_owned(), ByteString(bytes))]);
        prop_assert!(TaskKeys::from_entries(&entries).is_err());
    }
}
