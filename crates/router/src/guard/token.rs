//! JSON Web Tokens: read, and held against what a provider demands. Pure. What is read from a token is nothing but a
//! claim until [`super::jwk::KeySet::verify`] has agreed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

/// A token that is longer is not looked at, in bytes.
pub(crate) const LONGEST: usize = 16 << 10;
/// How far the clocks of issuers and this one may be apart, in seconds.
const SKEW: f64 = 60.0;

/// How tokens may be signed. There is none without a key pair: `none` needs no key, and with HMAC whoever can verify can
/// sign, so a public key would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// Why a token is refused. A client may read all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Bad {
    #[error("the token is longer than {LONGEST} bytes")]
    TooLong,
    #[error("the token is not a signed JSON Web Token")]
    Malformed,
    #[error("the token is not signed by an algorithm that is accepted (RS, PS, ES256, ES384, EdDSA)")]
    Algorithm,
    #[error("the token has critical extensions, which are not known here")]
    Critical,
    #[error("the token is of an issuer that is not accepted")]
    Issuer,
    #[error("the token is not meant for this audience")]
    Audience,
    #[error("the token has expired, or says not when it does")]
    Expired,
    #[error("the token is not valid yet")]
    Early,
    #[error("the token names no subject")]
    Subject,
    #[error("the token is signed with a key that its issuer does not list")]
    Key,
    #[error("the signature of the token is wrong")]
    Signature,
}

pub(crate) type Claims = serde_json::Map<String, Value>;

/// A token, unverified.
#[derive(Debug)]
pub(crate) struct Token<'a> {
    /// The text that is signed.
    pub(crate) signed: &'a str,
    pub(crate) signature: Vec<u8>,
    pub(crate) algorithm: Algorithm,
    pub(crate) key_id: Option<String>,
    pub(crate) claims: Claims,
}

#[derive(Deserialize)]
struct Header {
    alg: Value,
    kid: Option<String>,
    crit: Option<Value>,
}

impl Token<'_> {
    pub(crate) fn read(text: &str) -> Result<Token<'_>, Bad> {
        if text.len() > LONGEST {
            return Err(Bad::TooLong);
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(Bad::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(Bad::Malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| Bad::Malformed);
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| Bad::Malformed)?;
        if header.crit.is_some() {
            return Err(Bad::Critical);
        }
        Ok(Token {
            signed,
            signature: decode(signature)?,
            algorithm: serde_json::from_value(header.alg).map_err(|_| Bad::Algorithm)?,
            key_id: header.kid,
            claims: serde_json::from_slice(&decode(claims)?).map_err(|_| Bad::Malformed)?,
        })
    }

    pub(crate) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    pub(crate) fn subject(&self) -> Option<&str> {
        self.claims.get("sub")?.as_str().filter(|subject| !subject.is_empty())
    }

    /// Whether the claims are in order, at this time in seconds since 1970, for one of these audiences.
    pub(crate) fn check(&self, audiences: &[String], now: f64) -> Result<(), Bad> {
        let time = |name: &str| self.claims.get(name).map(Value::as_f64);
        let meant = match self.claims.get("aud") {
            Some(Value::String(one)) => audiences.contains(one),
            Some(Value::Array(several)) => {
                several.iter().filter_map(Value::as_str).any(|one| audiences.iter().any(|it| it == one))
            }
            _ => false,
        };
        if !meant {
            return Err(Bad::Audience);
        }
        match time("exp") {
            Some(Some(expires)) if now < expires + SKEW => {}
            _ => return Err(Bad::Expired),
        }
        match time("nbf") {
            None => {}
            Some(Some(begins)) if now >= begins - SKEW => {}
            Some(_) => return Err(Bad::Early),
        }
        self.subject().map(drop).ok_or(Bad::Subject)
    }
}

/// The value of a claim as a header has it: texts, numbers and truth as they are, lists and objects as base64url of
/// their JSON, as Envoy has them. A name with dots is first looked for as it is, as names that are addresses are.
pub(crate) fn claim(claims: &Claims, name: &str) -> Option<String> {
    let found = claims.get(name).or_else(|| {
        let mut path = name.split('.');
        let first = claims.get(path.next()?)?;
        path.try_fold(first, |value, step| value.get(step))
    })?;
    Some(match found {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        Value::Array(_) | Value::Object(_) => URL_SAFE_NO_PAD.encode(found.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn text(header: &Value, claims: &Value) -> String {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.c2ln", encode(header), encode(claims))
    }

    fn checked(claims: &Value) -> Result<(), Bad> {
        let text = text(&json!({ "alg": "RS256" }), claims);
        let token = Token::read(&text)?;
        token.check(&["us".to_owned(), "them".to_owned()], 1000.0)
    }

    #[test]
    fn only_signatures_by_key_pairs_are_read() {
        let read = |header: Value| Token::read(&text(&header, &json!({}))).map(|token| token.algorithm);
        assert_eq!(read(json!({ "alg": "RS256" })), Ok(Algorithm::Rs256));
        assert_eq!(read(json!({ "alg": "EdDSA" })), Ok(Algorithm::EdDsa));
        for bad in ["none", "None", "HS256", "HS512", "rs256", "ES512", ""] {
            assert_eq!(read(json!({ "alg": bad })), Err(Bad::Algorithm), "{bad}");
        }
        assert_eq!(read(json!({ "alg": null })), Err(Bad::Algorithm));
        assert_eq!(read(json!({})), Err(Bad::Malformed));
        assert_eq!(read(json!({ "alg": "RS256", "crit": ["b64"], "b64": false })), Err(Bad::Critical));
        assert_eq!(Token::read(&"a".repeat(LONGEST + 1)).unwrap_err(), Bad::TooLong);
        for bad in ["", ".", "..", "...", "a.b.c", "e30.e30", "e30.W10.c2ln"] {
            assert_eq!(Token::read(bad).unwrap_err(), Bad::Malformed, "{bad}");
        }
    }

    #[test]
    fn claims_are_held_against_audience_and_time() {
        let good = json!({ "aud": "us", "exp": 2000, "sub": "ada" });
        let with = |name: &str, value: Value| {
            let mut claims = good.clone();
            claims[name] = value;
            checked(&claims)
        };
        assert_eq!(checked(&good), Ok(()));
        assert_eq!(with("aud", json!(["x", "them"])), Ok(()));
        assert_eq!(with("exp", json!(941)), Ok(()), "clocks differ a little");
        assert_eq!(with("exp", json!(2000.5)), Ok(()));
        assert_eq!(with("nbf", json!(1059)), Ok(()));
        for (name, value, bad) in [
            ("aud", json!("you"), Bad::Audience),
            ("aud", json!([]), Bad::Audience),
            ("aud", json!(null), Bad::Audience),
            ("aud", json!([["us"]]), Bad::Audience),
            ("exp", json!(940), Bad::Expired),
            ("exp", json!("2000"), Bad::Expired),
            ("exp", json!(null), Bad::Expired),
            ("nbf", json!(1061), Bad::Early),
            ("nbf", json!("soon"), Bad::Early),
            ("sub", json!(""), Bad::Subject),
            ("sub", json!(7), Bad::Subject),
        ] {
            assert_eq!(with(name, value.clone()), Err(bad), "{name} {value}");
        }
        assert_eq!(checked(&json!({ "aud": "us", "sub": "ada" })), Err(Bad::Expired));
    }

    #[test]
    fn claims_become_text() {
        let claims = json!({ "sub": "ada", "n": 7, "yes": true, "none": null, "org": { "team": { "name": "x" } },
            "https://example.com/role": "r", "groups": ["a", "b"] });
        let claims = claims.as_object().unwrap();
        let of = |name: &str| claim(claims, name);
        assert_eq!(of("sub").as_deref(), Some("ada"));
        assert_eq!(of("n").as_deref(), Some("7"));
        assert_eq!(of("yes").as_deref(), Some("true"));
        assert_eq!(of("org.team.name").as_deref(), Some("x"));
        assert_eq!(of("https://example.com/role").as_deref(), Some("r"));
        assert_eq!(of("groups"), Some(URL_SAFE_NO_PAD.encode(r#"["a","b"]"#)));
        assert_eq!((of("none"), of("no"), of("sub.x"), of("")), (None, None, None, None));
    }

    proptest! {
        #[test]
        fn nothing_panics(junk in "\\PC*", parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..4)) {
            let _any = Token::read(&junk);
            let encoded: Vec<String> = parts.iter().map(|part| URL_SAFE_NO_PAD.encode(part)).collect();
            let _any = Token::read(&encoded.join("."));
        }
    }
}
