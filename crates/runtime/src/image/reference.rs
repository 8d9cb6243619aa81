//! Names of images, parsed as the kubelet parses them. Knows no registry: a name without a host stays without one until
//! the store's default registry, if any, is put in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::digest::{self, Digest};

/// The longest repository name, without its host.
const NAME_BYTES: usize = 255;

/// A name is not one, in the words that the kubelet puts after `InvalidImageName`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {name:?}: {reason}")]
pub struct Error {
    pub name: String,
    pub reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("invalid reference format")]
    Format,
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    Uppercase(String),
    #[error("repository name must be lowercase")]
    Lowercase,
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Identifier(String),
    #[error("repository name must not be more than {NAME_BYTES} characters")]
    TooLong,
    #[error(transparent)]
    Digest(#[from] digest::Error),
}

/// `[host/]path[:tag][@digest]`; the tag is `latest` when neither it nor a digest is given.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reference {
    host: Option<String>,
    path: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    pub fn parse(name: &str) -> Result<Self, Error> {
        parse(name).map_err(|reason| Error { name: name.to_owned(), reason })
    }

    /// The registry with its port, if the name says one.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The name without tag and digest.
    pub fn repository(&self) -> String {
        match &self.host {
            Some(host) => format!("{host}/{}", self.path),
            None => self.path.clone(),
        }
    }

    /// With `host` if it has none; names of one part are then in `library/`, as Docker has it.
    #[must_use]
    pub fn with_default_host(&self, host: &str) -> Self {
        if self.host.is_some() {
            return self.clone();
        }
        let path = if self.path.contains('/') { self.path.clone() } else { format!("library/{}", self.path) };
        Self { host: Some(host.to_owned()), path, ..self.clone() }
    }

    /// The short name of an official image: without the host and `library/`. Others have none.
    pub(super) fn short(&self) -> Option<Self> {
        let path = self.path.strip_prefix("library/").filter(|rest| !rest.contains('/'))?;
        self.host.as_ref().map(|_| Self { host: None, path: path.to_owned(), ..self.clone() })
    }

    #[must_use]
    pub(super) fn without_host(&self) -> Self {
        Self { host: None, ..self.clone() }
    }

    /// The same repository by digest alone: content that never changes.
    #[must_use]
    pub fn pinned(&self, digest: Digest) -> Self {
        Self { tag: None, digest: Some(digest), ..self.clone() }
    }

    /// What the store files it under: a digest decides, a tag beside it is a remark.
    pub(super) fn key(&self) -> String {
        match &self.digest {
            Some(digest) => self.pinned(digest.clone()).to_string(),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Reference {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self, Error> {
        Self::parse(name)
    }
}

impl TryFrom<String> for Reference {
    type Error = Error;
    fn try_from(name: String) -> Result<Self, Error> {
        Self::parse(&name)
    }
}

impl From<Reference> for String {
    fn from(reference: Reference) -> String {
        reference.to_string()
    }
}

fn parse(name: &str) -> Result<Reference, Reason> {
    if name.len() == 64 && name.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c)) {
        return Err(Reason::Identifier(name.to_owned()));
    }
    let (host, rest) = split_host(name);
    let remote = rest.split_once(':').map_or(rest, |(remote, _)| remote);
    if remote.chars().any(char::is_uppercase) {
        let shown = if host.is_none() && !remote.contains('/') { "library/" } else { "" };
        return Err(Reason::Uppercase(format!("{shown}{remote}")));
    }
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (rest, None),
    };
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    let well_formed = path.split('/').all(is_path_component)
        && host.is_none_or(is_host)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest_shaped);
    if !well_formed {
        let lower = name.to_lowercase();
        let only_case = lower != name && parse(&lower).is_ok();
        return Err(if only_case { Reason::Lowercase } else { Reason::Format });
    }
    let implied = if host.is_none() && !path.contains('/') { "library/".len() } else { 0 };
    if implied + path.len() > NAME_BYTES {
        return Err(Reason::TooLong);
    }
    let digest = digest.map(Digest::parse).transpose()?;
    let tag = tag.or(if digest.is_none() { Some("latest") } else { None });
    Ok(Reference {
        host: host.map(str::to_owned),
        path: path.to_owned(),
        tag: tag.map(str::to_owned),
        digest,
    })
}

/// The part before the first slash is a host if it looks like one and not like a user's name. One that then is no valid
/// host (`a_b.c/d`) is refused here; the kubelet takes it, and no registry could ever be asked for it.
fn split_host(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.chars().any(char::is_uppercase) =>
        {
            (Some(first), rest)
        }
        _ => (None, name),
    }
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rfind(':') {
        Some(at) if !host.ends_with(']') => (&host[..at], Some(&host[at + 1..])),
        _ => (host, None),
    };
    let port = port.is_none_or(|port| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit()));
    let name = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => !address.is_empty() && address.bytes().all(|c| c.is_ascii_hexdigit() || c == b':'),
        None => name.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
        }),
    };
    port && name
}

/// Lower-case words joined by `.`, `_`, `__` or dashes.
fn is_path_component(component: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let inside = component.starts_with(word) && component.ends_with(word);
    inside
        && component
            .split(word)
            .filter(|separator| !separator.is_empty())
            .all(|separator| matches!(separator, "." | "_" | "__") || separator.bytes().all(|c| c == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    (1..=128).contains(&tag.len())
        && tag.bytes().all(|c| word(c) || c == b'.' || c == b'-')
        && tag.bytes().next().is_some_and(word)
}

/// Enough of a digest that what is wrong with it can be said better than "invalid reference format".
fn is_digest_shaped(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        let words = algorithm.split(['-', '_', '+', '.']);
        hex.len() >= 32
            && hex.bytes().all(|c| c.is_ascii_hexdigit())
            && words.into_iter().all(|word| {
                word.starts_with(|c: char| c.is_ascii_alphabetic())
                    && word.bytes().all(|c| c.is_ascii_alphanumeric())
            })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "917f96d0c05f4a84eb621d1cab1ff1a702e24f6f68a338ad2fd99fb1f3daf060";

    #[test]
    fn names_are_read_as_the_kubelet_reads_them() {
        let digest = format!("sha256:{HEX}");
        for (name, host, path, tag, digested) in [
            ("busybox", None, "busybox", Some("latest"), false),
            ("busybox:1.36", None, "busybox", Some("1.36"), false),
            ("localhost:5000", None, "localhost", Some("5000"), false),
            ("team/app", None, "team/app", Some("latest"), false),
            ("localhost/app", Some("localhost"), "app", Some("latest"), false),
            ("localhost:5000/app:v1", Some("localhost:5000"), "app", Some("v1"), false),
            ("Host/app", Some("Host"), "app", Some("latest"), false),
            ("[::1]:5000/a/b", Some("[::1]:5000"), "a/b", Some("latest"), false),
            ("registry.example/a__b/c-d.e", Some("registry.example"), "a__b/c-d.e", Some("latest"), false),
            (&format!("registry.example/app@{digest}"), Some("registry.example"), "app", None, true),
            (&format!("app:v1@{digest}"), None, "app", Some("v1"), true),
        ] {
            let parsed = Reference::parse(name).unwrap();
            assert_eq!((parsed.host(), parsed.path(), parsed.tag()), (host, path, tag), "{name}");
            assert_eq!(parsed.digest().is_some(), digested, "{name}");
        }
    }

    #[test]
    fn invalid_names_get_the_kubelets_words() {
        for (name, why) in [
            ("", "invalid reference format"),
            ("a b", "invalid reference format"),
            ("/app", "invalid reference format"),
            ("app/", "invalid reference format"),
            ("app:", "invalid reference format"),
            ("app:-x", "invalid reference format"),
            ("app:a:b", "invalid reference format"),
            ("a..b", "invalid reference format"),
            ("a___b", "invalid reference format"),
            ("../etc", "invalid reference format"),
            ("registry.example/", "invalid reference format"),
            ("app@sha256:abc", "invalid reference format"),
            ("app@", "invalid reference format"),
            ("Busybox", "invalid reference format: repository name (library/Busybox) must be lowercase"),
            ("Not_A_Host/app", "repository name must be lowercase"),
            ("team/App:V1", "invalid reference format: repository name (team/App) must be lowercase"),
            (&format!("app@sha256:{}", "a".repeat(40)), "invalid checksum digest length"),
            (&format!("app:1@SHA256:{HEX}"), "invalid checksum digest format"),
            (&format!("app@md5:{}", "a".repeat(32)), "unsupported digest algorithm"),
            (&"a".repeat(256), "repository name must not be more than 255 characters"),
            (HEX, &format!("invalid repository name ({HEX}), cannot specify 64-byte hexadecimal strings")),
        ] {
            let error = Reference::parse(name).unwrap_err().to_string();
            assert_eq!(error, format!("couldn't parse image name {name:?}: {why}"));
        }
    }

    #[test]
    fn a_default_host_is_put_in_once() {
        let short = Reference::parse("busybox").unwrap();
        let full = short.with_default_host("registry.example");
        assert_eq!(full.to_string(), "registry.example/library/busybox:latest");
        assert_eq!(full.with_default_host("other.example"), full);
        assert_eq!(full.short(), Some(short));
        let team = Reference::parse("team/app").unwrap().with_default_host("registry.example");
        assert_eq!(team.to_string(), "registry.example/team/app:latest");
        assert_eq!(team.short(), None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(name in ".{0,80}") {
            if let Ok(parsed) = Reference::parse(&name) {
                prop_assert!(!parsed.path().contains(".."));
                prop_assert_eq!(Reference::parse(&parsed.to_string()).unwrap(), parsed);
            }
        }

        #[test]
        fn what_is_well_formed_round_trips(
            host in proptest::option::of("[a-z]{1,8}\\.[a-z]{2,5}(:[0-9]{1,5})?"),
            // No dot in the first part: it would be a host.
            path in "[a-z0-9]{1,8}(/[a-z0-9]{1,8}((\\.|_|__|-{1,3})[a-z0-9]{1,5}){0,2}){0,3}",
            tag in proptest::option::of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}"),
            digest in proptest::option::of("sha256:[0-9a-f]{64}"),
        ) {
            let mut name = host.as_ref().map_or(path.clone(), |host| format!("{host}/{path}"));
            if let Some(tag) = &tag { name = format!("{name}:{tag}"); }
            if let Some(digest) = &digest { name = format!("{name}@{digest}"); }
            let parsed = Reference::parse(&name).unwrap();
            prop_assert_eq!(parsed.host(), host.as_deref());
            prop_assert_eq!(parsed.path(), path);
            prop_assert_eq!(parsed.digest().map(Digest::as_str), digest.as_deref());
            let expected = tag.as_deref().or(if digest.is_none() { Some("latest") } else { None });
            prop_assert_eq!(parsed.tag(), expected);
            prop_assert_eq!(Reference::parse(&parsed.to_string()).unwrap(), parsed);
        }
    }
}
