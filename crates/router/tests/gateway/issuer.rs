//! An issuer of tokens: keys, signatures, and a server of its key set that counts who asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    RsaPublicKeyComponents,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::world::serve;

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// A key pair of an issuer.
pub(crate) enum Pair {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
}

impl Pair {
    /// The same in every run: they take long to make, and ring makes none.
    pub(crate) fn rsa() -> Pair {
        let pem = include_bytes!("issuer-rsa.pem");
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).unwrap();
        Pair::Rsa(RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap())
    }

    pub(crate) fn ec() -> Pair {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let der = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Pair::Ec(EcdsaKeyPair::from_pkcs8(algorithm, der.as_ref(), &random).unwrap())
    }

    pub(crate) fn public(&self, id: &str) -> Value {
        match self {
            Pair::Rsa(pair) => {
                let RsaPublicKeyComponents::<Vec<u8>> { n, e } = pair.public().into();
                json!({ "kty": "RSA", "kid": id, "use": "sig", "n": encode(n), "e": encode(e) })
            }
            Pair::Ec(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "kid": id, "x": encode(x), "y": encode(y) })
            }
        }
    }

    /// A token with these claims.
    pub(crate) fn sign(&self, id: &str, claims: &Value) -> String {
        let algorithm = match self {
            Pair::Rsa(_) => "RS256",
            Pair::Ec(_) => "ES256",
        };
        let header = json!({ "alg": algorithm, "kid": id });
        let text = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match self {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature).unwrap();
                signature
            }
            Pair::Ec(pair) => pair.sign(&random, text.as_bytes()).unwrap().as_ref().to_vec(),
        };
        format!("{text}.{}", encode(signature))
    }
}

/// An issuer whose keys can be fetched.
pub(crate) struct Issuer {
    pub(crate) name: String,
    pub(crate) pair: Pair,
    pub(crate) uri: String,
    /// How often its keys were fetched.
    pub(crate) fetched: Arc<AtomicUsize>,
    /// What it answers.
    pub(crate) keys: Arc<Mutex<(StatusCode, String)>>,
}

impl Issuer {
    pub(crate) async fn new(name: &str, pair: Pair) -> Issuer {
        let fetched = Arc::new(AtomicUsize::new(0));
        let set = json!({ "keys": [pair.public("key-1")] }).to_string();
        let keys = Arc::new(Mutex::new((StatusCode::OK, set)));
        let (count, answer) = (fetched.clone(), keys.clone());
        let address = serve(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            let (status, body) = answer.lock().clone();
            async move {
                let mut response = Response::new(Full::new(Bytes::from(body)));
                *response.status_mut() = status;
                response
            }
        })
        .await;
        Issuer { name: name.into(), pair, uri: format!("http://{address}/jwks.json"), fetched, keys }
    }

    pub(crate) fn fetched(&self) -> usize {
        self.fetched.load(Ordering::SeqCst)
    }

    /// Claims of a good token.
    pub(crate) fn claims(&self, subject: &str) -> Value {
        json!({ "iss": self.name, "aud": "agents", "sub": subject, "exp": now() + 600 })
    }

    /// A good token.
    pub(crate) fn token(&self, subject: &str) -> String {
        self.pair.sign("key-1", &self.claims(subject))
    }

    /// As a TaskGateway names it.
    pub(crate) fn provider(&self) -> Value {
        json!({
            "name": self.name, "issuer": self.name, "audiences": ["agents"], "remoteJWKS": { "uri": self.uri },
            "claimToHeaders": [{ "claim": "sub", "header": "X-User-ID" }, { "claim": "org.team", "header": "X-Team" }],
        })
    }
}
