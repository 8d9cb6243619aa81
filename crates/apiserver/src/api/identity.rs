//! Names, ids and timestamps that the server gives out.

use jiff::Timestamp;
use ring::rand::{SecureRandom, SystemRandom};

/// Letters and digits that cannot spell a word or be confused, as Kubernetes uses for suffixes.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
const LONGEST_BASE: usize = 63 - SUFFIX;

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// RFC 3339 in whole seconds.
pub fn now() -> String {
    let seconds = Timestamp::now().as_second();
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// RFC 3339, so many seconds ahead.
pub(crate) fn seconds_from_now(seconds: i64) -> String {
    let at = Timestamp::now().as_second().saturating_add(seconds);
    Timestamp::from_second(at).unwrap_or_default().to_string()
}

/// A random UUID, version 4.
pub(crate) fn new_uid() -> String {
    let mut b: [u8; 16] = random();
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let hex = |range: std::ops::Range<usize>| b[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

/// `base` with a random suffix, short enough to stay a DNS label.
pub(crate) fn generated_name(base: &str) -> String {
    let mut end = base.len().min(LONGEST_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = base[..end].to_owned();
    name.extend(random::<SUFFIX>().iter().map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()])));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        assert_eq!(now().len(), "2026-01-01T00:00:00Z".len());
        assert_eq!(new_uid().len(), 36);
        assert_ne!(new_uid(), new_uid());
        assert_eq!(generated_name("web-").len(), 9);
        assert_eq!(generated_name(&"x".repeat(100)).len(), 63);
    }
}
