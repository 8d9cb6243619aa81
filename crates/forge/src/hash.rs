//! The two hashes: that of the spec, by which the controller decides, and that of the manifest, which a build is of. Both are over
//! raw JSON, so a controller and a runner of different versions agree.

use ring::digest::{SHA256, digest};
use serde_json::Value;

use crate::canonical::canonical;

const PREFIX: &str = "sha256:";

/// `sha256:<hex>` of a value.
pub fn of(value: &Value) -> String {
    of_text(&canonical(value))
}

/// That of a text, such as canonical JSON.
pub fn of_text(text: &str) -> String {
    format!("{PREFIX}{}", hex(text.as_bytes()))
}

/// That of a spec: switching off and on changes nothing that is built.
pub fn of_spec(spec: &Value) -> String {
    match spec {
        Value::Object(members) if members.contains_key("enabled") => {
            let mut members = members.clone();
            members.remove("enabled");
            of(&Value::Object(members))
        }
        other => of(other),
    }
}

/// SHA-256 in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether it is a hash as [`of`] gives.
pub fn is_hash(text: &str) -> bool {
    let hex = text.strip_prefix(PREFIX).unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_hash_of_a_spec_is_that_of_what_is_built() {
        let spec = json!({ "displayName": "A", "routing": { "path": "a" }, "enabled": true });
        let hash = of_spec(&spec);
        assert!(is_hash(&hash), "{hash}");
        assert_eq!(
            hash,
            of_spec(&json!({ "routing": { "path": "a" }, "enabled": false, "displayName": "A" }))
        );
        assert_eq!(hash, of_spec(&json!({ "routing": { "path": "a" }, "displayName": "A" })));
        // A field that this version does not know is a part of it.
        assert_ne!(hash, of_spec(&json!({ "routing": { "path": "a" }, "displayName": "A", "later": 1 })));
        assert_ne!(
            hash,
            of_spec(&json!({ "routing": { "path": "a", "enabled": true }, "displayName": "A" }))
        );
    }

    #[test]
    fn a_hash_is_known() {
        assert_eq!(of(&json!({})), "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        for wrong in [
            "",
            "sha256:",
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            "sha256:../../x",
        ] {
            assert!(!is_hash(wrong), "{wrong}");
        }
    }
}
