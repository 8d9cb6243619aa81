//! Tokens of all kinds: what was signed is what is read, by its own Task and instance and before its time is over, and
//! nothing else is believed.

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used)]

use agentcube_instance::SessionKey;
use agentcube_instance::token::{Claims, Error, KeyId, Keys, LONGEST, Nonce};
use jiff::Timestamp;
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn any_key() -> impl Strategy<Value = Option<SessionKey>> {
    prop::option::of(
        any::<String>().prop_filter_map("it has to be a key", |text| SessionKey::new(&text).ok()),
    )
}

proptest! {
    #[test]
    fn what_was_signed_is_read(
        instance in "\\PC{1,60}", key in any_key(), second in 1..4_000_000_000_i64, bits: u128,
        task in "\\PC{1,40}", other in "\\PC{1,40}",
    ) {
        let keys = Keys::generate(KeyId::new("k1").unwrap());
        let of_task = keys.for_task(&task);
        let claims = Claims { instance: instance.as_str().into(), key, expires: at(second) };
        let token = of_task.sign(&claims, Nonce::from_bits(bits));
        let verified = of_task.verify(token.reveal(), at(second - 1)).unwrap();
        prop_assert_eq!(&verified.claims, &claims);
        prop_assert_eq!(&*verified.task, task.as_str());
        prop_assert!(verified.clone().for_instance(&instance).is_ok());
        prop_assert_eq!(verified.for_instance(&format!("{instance}x")), Err(Error::WrongInstance));
        prop_assert_eq!(of_task.verify(token.reveal(), at(second)), Err(Error::Expired));
        if other != task {
            prop_assert!(keys.for_task(&other).verify(token.reveal(), at(0)).is_err());
        }
        let others = Keys::generate(KeyId::new("k1").unwrap());
        prop_assert!(others.for_task(&task).verify(token.reveal(), at(0)).is_err());
    }

    #[test]
    fn what_was_not_signed_is_not_believed(
        bytes in prop::collection::vec(any::<u8>(), 0..400), at_byte in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(),
    ) {
        let keys = Keys::generate(KeyId::new("k1").unwrap()).for_task("t1");
        let claims = Claims { instance: "i1".into(), key: SessionKey::new("u1").ok(), expires: at(2000) };
        let token = keys.sign(&claims, Nonce::from_bits(7));
        let good = token.reveal();
        let strange = String::from_utf8_lossy(&bytes).into_owned();
        let (begin, end) = (at_byte.index(good.len()), cut.index(good.len() + 1));
        let spliced = format!("{}{strange}{}", &good[..begin], &good[begin..]);
        let like = format!("v1.k1.{strange}.{}", &good[begin..]);
        for text in [strange.as_str(), spliced.as_str(), like.as_str(), &good[..end]] {
            prop_assert_eq!(keys.verify(text, at(0)).is_ok(), text == good, "{}", text.len());
        }
        let long = format!("{good}{}", "A".repeat(LONGEST));
        prop_assert!(matches!(keys.verify(&long, at(0)), Err(Error::TooLong(_))));
    }
}
