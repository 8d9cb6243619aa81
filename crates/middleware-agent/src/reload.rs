//! How a changed configuration is taken: nothing before it has arrived, then only what is not as it was. What a restart alone
//! can change is said, and stays to be said until there was one.

use std::collections::BTreeMap;
use std::path::Path;

use agentcube_protos::middleware::FileDigest;
use regex::RegexBuilder;
use ring::digest::{SHA256, digest};

use crate::command::Output;
use crate::settings::Settings;

/// A configuration file that is larger is none.
const LARGEST: u64 = 4 << 20;

/// What is set, as far as is known: the commands that set it, by what they set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken(BTreeMap<String, String>);

/// What has to be done to get to some settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// What is set, and by which command.
    pub(crate) commands: Vec<(String, String)>,
    /// Something is no longer set, and no command undoes that.
    pub(crate) restart: bool,
}

impl Taken {
    pub(crate) fn at_start(settings: &Settings) -> Taken {
        Taken(settings.reload_commands.clone())
    }

    pub(crate) fn changes(&self, settings: &Settings) -> Changes {
        let new = |(name, command): &(&String, &String)| self.0.get(*name) != Some(*command);
        let commands = settings.reload_commands.iter().filter(new);
        Changes {
            commands: commands.map(|(name, command)| (name.clone(), command.clone())).collect(),
            restart: self.0.keys().any(|name| !settings.reload_commands.contains_key(name)),
        }
    }

    pub(crate) fn took(&mut self, name: String, command: String) {
        self.0.insert(name, command);
    }
}

/// Whether what a command said means that it takes a restart.
pub(crate) fn asks_for_restart(settings: &Settings, output: &Output) -> Result<bool, String> {
    let Some(pattern) = &settings.restart_pattern else { return Ok(false) };
    let pattern = RegexBuilder::new(pattern).size_limit(1 << 20).build();
    let pattern = pattern.map_err(|error| format!("the pattern for a restart: {error}"))?;
    let says = |bytes: &[u8]| pattern.is_match(&String::from_utf8_lossy(bytes));
    Ok(output.code != 0 && (says(&output.stdout) || says(&output.stderr)))
}

/// Whether files that are mounted are those that are to be taken; the first that is not. Those of which no file is mounted are
/// not for this Pod.
pub(crate) fn arrived(directory: &Path, files: &[FileDigest]) -> Result<(), String> {
    for file in files {
        if file.name.is_empty() || file.name.starts_with('.') || file.name.contains('/') {
            return Err(format!("{:?} is no name of a file", file.name));
        }
        let path = directory.join(&file.name);
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if !metadata.is_file() || metadata.len() > LARGEST {
            return Err(format!("{} is too large, or no file", path.display()));
        }
        let content = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let is: String =
            digest(&SHA256, &content).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        // Two ConfigMaps may have files of one name.
        if !files.iter().any(|other| other.name == file.name && other.sha256 == is) {
            return Err(format!("{} has not arrived yet", file.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(commands: &[(&str, &str)]) -> Settings {
        let commands = commands.iter().map(|(name, command)| ((*name).into(), (*command).into())).collect();
        Settings { reload_commands: commands, ..Settings::default() }
    }

    #[test]
    fn only_what_changed_is_set_and_what_vanished_takes_a_restart() {
        let mut taken = Taken::at_start(&settings(&[("a", "set a 1"), ("b", "set b 1")]));
        assert_eq!(taken.changes(&settings(&[("a", "set a 1"), ("b", "set b 1")])), Changes::default());
        let next = settings(&[("a", "set a 2"), ("b", "set b 1"), ("c", "set c 1")]);
        let changes = taken.changes(&next);
        let wanted: Vec<(String, String)> =
            vec![("a".into(), "set a 2".into()), ("c".into(), "set c 1".into())];
        assert_eq!(changes, Changes { commands: wanted, restart: false });
        for (name, command) in changes.commands {
            taken.took(name, command);
        }
        assert_eq!(taken.changes(&next), Changes::default());
        // The way back knows what was set meanwhile.
        let back = taken.changes(&settings(&[("a", "set a 1"), ("b", "set b 1")]));
        assert_eq!(back, Changes { commands: vec![("a".into(), "set a 1".into())], restart: true });
    }

    #[test]
    fn nothing_is_taken_before_it_has_arrived() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, sha256: &str| FileDigest { name: name.into(), sha256: sha256.into() };
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        std::fs::write(directory.path().join("a"), "").unwrap();
        assert_eq!(arrived(directory.path(), &[file("a", empty), file("elsewhere", "00")]), Ok(()));
        assert_eq!(arrived(directory.path(), &[file("a", "00"), file("a", empty)]), Ok(()));
        let late = arrived(directory.path(), &[file("a", "00")]).unwrap_err();
        assert_eq!(late, "a has not arrived yet");
        for name in ["../a", ".a", "", "/etc/passwd"] {
            assert!(arrived(directory.path(), &[file(name, "00")]).is_err(), "{name}");
        }
    }
}
