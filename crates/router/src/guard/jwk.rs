//! The keys of an issuer, as JSON Web Keys, and signatures by them. Pure. The type of a key says which algorithms it may
//! be used for, whatever a token says: a public key is never taken for a secret.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

use super::token::{Algorithm, Bad, Token};

/// Issuers have a few keys. More than this are not looked at.
const MOST_KEYS: usize = 64;
/// A token that does not name its key is tried with so many of them.
const MOST_TRIED: usize = 8;

/// The keys of an issuer.
#[derive(Debug, Default)]
pub(crate) struct KeySet(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm that it may be used for, if its issuer says so.
    algorithm: Option<Algorithm>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

/// A key as it is written. What is not one of ours is left out: sets hold keys for other purposes, too.
#[derive(Deserialize)]
struct Written {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<Value>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a set; nothing if it is none. One without a key that can be used is one: its issuer has withdrawn the
    /// others.
    pub(crate) fn read(bytes: &[u8]) -> Option<KeySet> {
        let set: Set = serde_json::from_slice(bytes).ok()?;
        let written = set.keys.into_iter().take(MOST_KEYS).filter_map(|key| serde_json::from_value(key).ok());
        Some(KeySet(written.filter_map(Key::read).collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it has a key that a token with this key id may be signed with.
    pub(crate) fn knows(&self, id: Option<&str>) -> bool {
        self.0.iter().any(|key| key.answers_to(id))
    }

    /// Whether a token was signed with one of the keys.
    pub(crate) fn verify(&self, token: &Token<'_>) -> Result<(), Bad> {
        let id = token.key_id.as_deref();
        if !self.knows(id) {
            return Err(Bad::Key);
        }
        let fitting = self.0.iter().filter(|key| key.answers_to(id) && key.serves(token.algorithm));
        let signed = |key: &Key| key.material.signed(token);
        if fitting.take(MOST_TRIED).any(signed) { Ok(()) } else { Err(Bad::Signature) }
    }
}

impl Key {
    fn read(written: Written) -> Option<Key> {
        let signs = written.purpose.as_deref().is_none_or(|purpose| purpose == "sig");
        let verifies = written.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        if !signs || !verifies {
            return None;
        }
        let bytes = |part: &Option<String>| URL_SAFE_NO_PAD.decode(part.as_deref()?).ok();
        let point = || {
            let (x, y) = (bytes(&written.x)?, bytes(&written.y)?);
            (x.len() == y.len()).then(|| [&[4][..], &x, &y].concat())
        };
        let material = match (written.kty.as_str(), written.crv.as_deref()) {
            ("RSA", _) => Material::Rsa { n: bytes(&written.n)?, e: bytes(&written.e)? },
            ("EC", Some("P-256")) => Material::P256(point()?),
            ("EC", Some("P-384")) => Material::P384(point()?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(&written.x)?),
            _ => return None,
        };
        // One that is meant for an algorithm that is not known is not used for another.
        let algorithm = written.alg.map(serde_json::from_value).transpose().ok()?;
        Some(Key { id: written.kid, algorithm, material })
    }

    fn answers_to(&self, id: Option<&str>) -> bool {
        match (&self.id, id) {
            (Some(own), Some(id)) => own == id,
            _ => true,
        }
    }

    fn serves(&self, algorithm: Algorithm) -> bool {
        self.algorithm.is_none_or(|only| only == algorithm)
    }
}

impl Material {
    fn signed(&self, token: &Token<'_>) -> bool {
        let (message, signature) = (token.signed.as_bytes(), token.signature.as_slice());
        let rsa = |parameters: &signature::RsaParameters| match self {
            Material::Rsa { n, e } => RsaPublicKeyComponents { n, e }.verify(parameters, message, signature),
            _ => Err(ring::error::Unspecified),
        };
        let plain = |algorithm: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(message, signature)
        };
        let verified = match (token.algorithm, self) {
            (Algorithm::Rs256, _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            (Algorithm::Rs384, _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            (Algorithm::Rs512, _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            (Algorithm::Ps256, _) => rsa(&signature::RSA_PSS_2048_8192_SHA256),
            (Algorithm::Ps384, _) => rsa(&signature::RSA_PSS_2048_8192_SHA384),
            (Algorithm::Ps512, _) => rsa(&signature::RSA_PSS_2048_8192_SHA512),
            (Algorithm::Es256, Material::P256(key)) => plain(&signature::ECDSA_P256_SHA256_FIXED, key),
            (Algorithm::Es384, Material::P384(key)) => plain(&signature::ECDSA_P384_SHA384_FIXED, key),
            (Algorithm::EdDsa, Material::Ed25519(key)) => plain(&signature::ED25519, key),
            _ => Err(ring::error::Unspecified),
        };
        verified.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair,
    };
    use serde_json::json;

    use super::*;

    fn encode(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn unsigned(algorithm: &str, id: Option<&str>) -> String {
        let mut header = json!({ "alg": algorithm });
        if let Some(id) = id {
            header["kid"] = json!(id);
        }
        format!("{}.{}", encode(header.to_string()), encode("{}"))
    }

    fn ec(algorithm: &'static EcdsaSigningAlgorithm, curve: &str) -> (Value, impl Fn(&str) -> String) {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap();
        let point = &pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let key = json!({ "kty": "EC", "crv": curve, "x": encode(x), "y": encode(y) });
        (key, move |text: &str| format!("{text}.{}", encode(pair.sign(&random, text.as_bytes()).unwrap())))
    }

    fn set(keys: &[&Value]) -> KeySet {
        KeySet::read(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    fn verify(set: &KeySet, token: &str) -> Result<(), Bad> {
        set.verify(&Token::read(token)?)
    }

    #[test]
    fn each_kind_of_key_serves_its_own_algorithm() {
        let (p256, sign256) = ec(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256");
        let (p384, sign384) = ec(&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384");
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let ed = json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key()) });
        let sign_ed = |text: &str| format!("{text}.{}", encode(pair.sign(text.as_bytes())));
        assert_eq!(verify(&set(&[&p256]), &sign256(&unsigned("ES256", None))), Ok(()));
        assert_eq!(verify(&set(&[&p384]), &sign384(&unsigned("ES384", None))), Ok(()));
        assert_eq!(verify(&set(&[&ed]), &sign_ed(&unsigned("EdDSA", None))), Ok(()));
        // The right signature under a wrong name; another's signature; a changed text.
        assert_eq!(verify(&set(&[&p256]), &sign256(&unsigned("ES384", None))), Err(Bad::Signature));
        assert_eq!(verify(&set(&[&p256]), &sign256(&unsigned("RS256", None))), Err(Bad::Signature));
        assert_eq!(verify(&set(&[&p384, &ed]), &sign256(&unsigned("ES256", None))), Err(Bad::Signature));
        let signed = sign256(&unsigned("ES256", None));
        let changed = signed.replacen(&encode("{}"), &encode(r#"{"sub":"eve"}"#), 1);
        assert_eq!(verify(&set(&[&p256]), &changed), Err(Bad::Signature));
    }

    #[test]
    fn keys_are_told_apart_by_id_and_purpose() {
        let (mut key, sign) = ec(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256");
        let token = |id: Option<&str>| sign(&unsigned("ES256", id));
        key["kid"] = json!("one");
        assert_eq!(verify(&set(&[&key]), &token(Some("one"))), Ok(()));
        assert_eq!(verify(&set(&[&key]), &token(None)), Ok(()));
        assert_eq!(verify(&set(&[&key]), &token(Some("two"))), Err(Bad::Key));
        let with = |name: &str, value: Value| {
            let mut key = key.clone();
            key[name] = value;
            KeySet::read(json!({ "keys": [key] }).to_string().as_bytes()).unwrap()
        };
        assert!(with("use", json!("enc")).is_empty());
        assert!(with("key_ops", json!(["sign"])).is_empty());
        assert!(with("alg", json!("HS256")).is_empty());
        assert!(with("kty", json!("oct")).is_empty(), "there are no shared secrets");
        assert!(with("x", json!("!")).is_empty());
        assert_eq!(verify(&with("alg", json!("ES384")), &token(Some("one"))), Err(Bad::Signature));
        for none in [r#"{"keys":[]}"#, r#"{"keys":[1,{"kty":"RSA"}]}"#] {
            assert_eq!(
                verify(&KeySet::read(none.as_bytes()).unwrap(), &token(None)),
                Err(Bad::Key),
                "{none}"
            );
        }
        for bad in ["", "[]", "{}", r#"{"keys":{}}"#] {
            assert!(KeySet::read(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
