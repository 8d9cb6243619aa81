//! Names for templates: a short text that changes with the template, safe as a label and in a name.
//!
//! Kubernetes hashes a dump of its own Go structs, which changes with its version and which nobody may rely on;
//! here the JSON of the template is hashed, by the same function into the same alphabet.

use k8s_openapi::api::core::v1::PodTemplateSpec;

const OFFSET: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;
/// No vowels and nothing that looks like one: no bad words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The hash of a template. The count of collisions leads to another one.
pub(super) fn of(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let text = serde_json::to_vec(template).expect("a template read from JSON can be written as JSON");
    let mut hash = fnv(OFFSET, &text);
    if let Some(collisions) = collisions {
        hash = fnv(hash, &i64::from(collisions).to_le_bytes());
    }
    let safe = |digit: u8| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()]);
    hash.to_string().bytes().map(safe).collect()
}

fn fnv(hash: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_is_fnv_1a() {
        assert_eq!(fnv(OFFSET, b""), 0x811c_9dc5);
        assert_eq!(fnv(OFFSET, b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn templates_and_collisions_lead_to_different_names() {
        let template = |image: &str| -> PodTemplateSpec {
            serde_json::from_value(serde_json::json!({ "spec": { "containers": [
                { "name": "a", "image": image }] } }))
            .unwrap()
        };
        let one = of(&template("a"), None);
        assert_eq!(one, of(&template("a"), None));
        assert_ne!(one, of(&template("b"), None));
        assert_ne!(one, of(&template("a"), Some(1)));
        assert!(one.bytes().all(|byte| ALPHABET.contains(&byte)), "{one}");
    }
}
