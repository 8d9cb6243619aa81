//! What is made for a FrontendIntegration is called after it. Names that had to be changed get a short hash of the name as it was,
//! so that two never become one.

use crate::hash;

/// Longest name that fits into a label, which those of Jobs become.
const LONGEST: usize = 63;
const PREFIX: &str = "fi-";
/// Characters of a hash that tell names apart.
const SHORT: usize = 8;

/// The JSBundle of an integration.
pub fn bundle(integration: &str) -> String {
    called(integration, LONGEST)
}

/// The Job of a build: with the first of the spec's hash, and the number of the build.
pub fn job(integration: &str, spec_hash: &str, number: i64) -> String {
    let end =
        format!("-{}-{number}", agentcube_api::labels::hash_label(spec_hash).get(..SHORT).unwrap_or("0"));
    format!("{}{end}", called(integration, LONGEST - end.len()))
}

/// The number of a build by the name of its Job.
pub fn number(job: &str) -> Option<i64> {
    job.rsplit_once('-')?.1.parse().ok()
}

/// What a Job needs to do its work: an account, its rights, and a token.
pub fn access(integration: &str) -> String {
    format!("{}-runner", bundle(integration))
}

/// The name of an integration as the value of a label.
pub fn label(integration: &str) -> String {
    if integration.len() <= LONGEST {
        integration.to_owned()
    } else {
        cut(integration.chars(), integration, LONGEST)
    }
}

fn called(integration: &str, longest: usize) -> String {
    let is_plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if integration.chars().all(is_plain) && PREFIX.len() + integration.len() <= longest {
        return format!("{PREFIX}{integration}");
    }
    let plain = integration.chars().map(|letter| if is_plain(letter) { letter } else { '-' });
    cut(PREFIX.chars().chain(plain), integration, longest)
}

/// The beginning of a name, and a hash of the name as it was.
fn cut(name: impl Iterator<Item = char>, whole: &str, longest: usize) -> String {
    let kept: String = name.take(longest - SHORT - 1).collect();
    format!("{}-{}", kept.trim_end_matches(['-', '.', '_']), &hash::hex(whole.as_bytes())[..SHORT])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: &str = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";

    #[test]
    fn names_are_as_documented() {
        assert_eq!(bundle("tasks"), "fi-tasks");
        assert_eq!(job("tasks", HASH, 1), "fi-tasks-2c26b46b-1");
        assert_eq!(number("fi-tasks-2c26b46b-17"), Some(17));
        assert_eq!(number("fi-tasks-2c26b46b-x"), None);
        assert_eq!(access("tasks"), "fi-tasks-runner");
        assert_eq!((label("tasks"), label(&"a".repeat(63))), ("tasks".into(), "a".repeat(63)));
    }

    #[test]
    fn what_has_to_be_changed_does_not_collide() {
        let long = "a".repeat(100);
        let names = ["a.b", "a-b", "a..b", "a.-b", &long, &format!("{long}b"), &"a".repeat(61)];
        let made: std::collections::BTreeSet<String> = names.iter().map(|name| bundle(name)).collect();
        assert_eq!(made.len(), names.len(), "{made:?}");
        assert_eq!(bundle("a-b"), "fi-a-b");
        assert_ne!(label(&long), label(&format!("{long}b")));
    }

    proptest! {
        #[test]
        fn all_fit_into_labels(name in "[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", number in 1..i64::MAX) {
            for made in [bundle(&name), job(&name, HASH, number), label(&name)] {
                prop_assert!(made.len() <= 63, "{}", made);
                prop_assert!(made.starts_with(|letter: char| letter.is_ascii_alphanumeric()));
                prop_assert!(made.ends_with(|letter: char| letter.is_ascii_alphanumeric()));
            }
            prop_assert_eq!(super::number(&job(&name, HASH, number)), Some(number));
        }
    }
}
