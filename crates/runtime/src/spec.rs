//! What to run, in words that every runtime understands. Data only: nothing here touches the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Error;

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Lower-case letters, digits, `-`, `_` and `.`, not beginning with a dot, at most 128: safe as a file name.
            pub fn new(id: impl Into<String>) -> Result<Self, Error> {
                let id = id.into();
                let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_.".contains(&c);
                if id.is_empty() || id.len() > 128 || id.starts_with('.') || !id.bytes().all(allowed) {
                    return Err(Error::Invalid(format!(
                        "{id:?} cannot be an id: use at most 128 lower-case letters, digits, '-', '_' and '.'"
                    )));
                }
                Ok(Self(id))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(id: String) -> Result<Self, Error> {
                Self::new(id)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

identifier! {
    /// Names a sandbox on this node.
    SandboxId
}
identifier! {
    /// Names a container on this node, over all sandboxes.
    ContainerId
}

/// The namespaces that the containers of a Pod share: network, host name, System V IPC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub id: SandboxId,
    pub hostname: String,
    pub address: Ipv4Addr,
    /// Where the sandbox sends its DNS queries.
    pub name_server: Ipv4Addr,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub root: Root,
    /// The container may not write to its root file system.
    pub read_only_root: bool,
    /// A directory of this container alone, for what it writes to its root. Made where it is needed; `remove` deletes it.
    pub scratch: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub user: User,
    pub mounts: Vec<Mount>,
    pub resources: Resources,
    pub capabilities: BTreeSet<Capability>,
    pub no_new_privileges: bool,
    /// The default seccomp filter is on.
    pub seccomp: bool,
    /// Give it a terminal instead of the three streams.
    pub terminal: bool,
    /// Written before the program runs. Only the native runtime does this.
    pub files: Vec<File>,
    /// Kept with the container for whoever adopts it, and read by nobody else. At most [`LONGEST_TAG`] bytes.
    pub tag: String,
    /// Written down with the container by runtimes that keep labels, which is where others find out whose it is.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// The most bytes of a tag.
pub const LONGEST_TAG: usize = 512 * 1024;

pub(crate) fn check_tag(tag: &str) -> Result<(), String> {
    if tag.len() > LONGEST_TAG {
        return Err(format!("a tag of {} bytes is too long: at most {LONGEST_TAG}", tag.len()));
    }
    Ok(())
}

/// A file that is written into a container's root, by the container's own user, before its program runs. Directories
/// that are missing are made; a file that is there is overwritten, if that user may.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Absolute, as the container sees it.
    pub path: PathBuf,
    /// The permissions, such as `0o600`.
    pub mode: u32,
    #[serde(with = "encoded")]
    pub content: Vec<u8>,
}

impl fmt::Debug for File {
    /// Without the content, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({} {:o}, {} bytes)", self.path.display(), self.mode, self.content.len())
    }
}

/// The most files of one container.
pub const MOST_FILES: usize = 64;
/// The most bytes of all files of one container together.
pub const MOST_FILE_BYTES: usize = 256 * 1024;

/// Says what is wrong with a container's files, as far as that can be said without the container.
pub(crate) fn check_files(files: &[File]) -> Result<(), String> {
    if files.len() > MOST_FILES {
        return Err(format!("{} files are too many: at most {MOST_FILES}", files.len()));
    }
    let bytes: usize = files.iter().map(|file| file.content.len()).sum();
    if bytes > MOST_FILE_BYTES {
        return Err(format!("the files have {bytes} bytes together: at most {MOST_FILE_BYTES}"));
    }
    for file in files {
        let path = file.path.display();
        if !file.path.is_absolute() || file.path.file_name().is_none() {
            return Err(format!("the file {path} is not named by an absolute path"));
        }
        if file.mode > 0o777 {
            return Err(format!("the file {path} cannot have the mode {:o}: at most 777", file.mode));
        }
    }
    Ok(())
}

/// Bytes as base64: a list of numbers would be four times as long.
mod encoded {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

/// The file system that a container sees as its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Root {
    /// An unpacked image, shared by its containers and never written.
    Directory(PathBuf),
    /// This machine's own programs and libraries, read-only, and these directories besides.
    Host { also: Vec<PathBuf> },
    /// An image that the runtime itself has unpacked, by the name that it has for that.
    Snapshot(String),
}

/// Who runs. Numbers only: names are looked up in the image by whoever makes the spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Something mounted into a container, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// An absolute path in the container; parts that are missing are made.
    pub target: PathBuf,
    pub source: Source,
    pub read_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// A file or directory of the host.
    Bind(PathBuf),
    /// Memory, bounded.
    Tmpfs { bytes: u64 },
}

/// Limits; what is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub memory_bytes: Option<u64>,
    /// Thousandths of a core that it may use.
    pub cpu_millis: Option<u64>,
    /// Thousandths of a core that it gets when the machine is busy.
    pub cpu_request_millis: Option<u64>,
    pub processes: Option<u64>,
}

/// A Linux capability by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Capability(pub u8);

/// What a container that was prepared is to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub args: Vec<String>,
    /// Besides what the container was prepared with; of the same name, these win.
    pub env: Vec<(String, String)>,
    /// Instead of the one it was prepared with.
    pub cwd: Option<PathBuf>,
    /// Besides those that it was prepared with.
    pub files: Vec<File>,
    /// Instead of the sandbox's own; for all containers of the sandbox.
    pub hostname: Option<String>,
    /// Instead of the one it was prepared with.
    pub tag: Option<String>,
}

/// One more program in a running container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    pub args: Vec<String>,
    /// Besides the container's own; of the same name, these win.
    pub env: Vec<(String, String)>,
    pub cwd: Option<PathBuf>,
    /// Instead of the container's own.
    pub user: Option<User>,
    pub terminal: bool,
}
