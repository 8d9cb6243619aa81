//! Digests: how blobs are named, and the check that a blob is what its name says.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

/// Why a string is no digest, in the words that users of container tools know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("invalid checksum digest format")]
    Format,
    #[error("invalid checksum digest length")]
    Length,
    #[error("unsupported digest algorithm")]
    Algorithm,
}

/// `sha256:` or `sha512:` and lower-case hexadecimal: safe as part of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (algorithm, hex) = text.split_once(':').ok_or(Error::Format)?;
        let length = match algorithm {
            "sha256" => 64,
            "sha512" => 128,
            other if other.bytes().any(|c| c.is_ascii_uppercase()) => return Err(Error::Format),
            _ => return Err(Error::Algorithm),
        };
        if hex.len() != length {
            return Err(Error::Length);
        }
        if !hex.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c)) {
            return Err(Error::Format);
        }
        Ok(Self(text.to_owned()))
    }

    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::sha256();
        hasher.update(bytes);
        hasher.finish()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn algorithm(&self) -> &str {
        self.0.split_once(':').map_or("", |(algorithm, _)| algorithm)
    }

    pub fn hex(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, hex)| hex)
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Computes a digest piece by piece.
#[derive(Clone)]
pub(super) struct Hasher {
    algorithm: &'static str,
    context: ring::digest::Context,
}

impl Hasher {
    pub(super) fn sha256() -> Self {
        Self { algorithm: "sha256", context: ring::digest::Context::new(&ring::digest::SHA256) }
    }

    /// With the algorithm that `digest` was made with.
    pub(super) fn like(digest: &Digest) -> Self {
        match digest.algorithm() {
            "sha512" => {
                Self { algorithm: "sha512", context: ring::digest::Context::new(&ring::digest::SHA512) }
            }
            _ => Self::sha256(),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    pub(super) fn finish(self) -> Digest {
        use fmt::Write;
        let mut text = format!("{}:", self.algorithm);
        for byte in self.context.finish().as_ref() {
            let _never_fails = write!(text, "{byte:02x}");
        }
        Digest(text)
    }
}

/// Passes bytes on and computes their digest.
pub(super) struct Hashing<R> {
    input: R,
    hasher: Hasher,
}

impl<R> Hashing<R> {
    pub(super) fn new(input: R, hasher: Hasher) -> Self {
        Self { input, hasher }
    }

    pub(super) fn finish(self) -> Digest {
        self.hasher.finish()
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_computed_and_parsed() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(Digest::parse(empty).unwrap().hex(), &empty[7..]);
        let long = Digest::parse(&format!("sha512:{}", "0".repeat(128))).unwrap();
        let mut hasher = Hasher::like(&long);
        hasher.update(b"");
        assert!(hasher.finish().as_str().starts_with("sha512:cf83e1357eefb8bd"));
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        for (text, why) in [
            ("", Error::Format),
            ("sha256", Error::Format),
            ("sha256:", Error::Length),
            ("sha256:../../etc", Error::Length),
            ("md5:d41d8cd98f00b204e9800998ecf8427e", Error::Algorithm),
            (&format!("sha256:{}", "A".repeat(64)), Error::Format),
            (&format!("sha256:{}/", "a".repeat(63)), Error::Format),
        ] {
            assert_eq!(Digest::parse(text), Err(why), "{text}");
        }
    }
}
