//! Writes the files of a volume so that a reader sees either all of the old ones or all of the new ones.
//!
//! The files are in a directory of their own; `..data` is a link to it, and what users see are links through `..data`.
//! Replacing that one link replaces everything. Containers get such volumes read-only, so nothing else writes here.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use super::payload::{File, Payload};

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Makes the volume hold the payload, and nothing else. Answers whether anything changed. `group` gets to read it.
pub(super) fn write(volume: &Path, payload: &Payload, group: Option<u32>) -> io::Result<bool> {
    let current = match fs::read_link(volume.join(DATA)) {
        Ok(target) => Some(target),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let changed = match &current {
        Some(target) => read(&volume.join(target))? != *payload,
        None => true,
    };
    if changed {
        let name = fresh_name(volume)?;
        fill(&volume.join(&name), payload, group)?;
        // A link that a killed predecessor left.
        remove_if_there(&volume.join(NEXT))?;
        symlink(&name, volume.join(NEXT))?;
        fs::rename(volume.join(NEXT), volume.join(DATA))?;
    }
    // Also when nothing changed: a predecessor may have been killed before it got here.
    show(volume, payload)?;
    sweep(volume)?;
    Ok(changed)
}

/// A name that no directory of the volume has.
fn fresh_name(volume: &Path) -> io::Result<String> {
    let mut highest = 0_u64;
    for entry in fs::read_dir(volume)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("..v")?.parse().ok());
        highest = highest.max(number.unwrap_or_default());
    }
    Ok(format!("..v{}", highest + 1))
}

fn fill(directory: &Path, payload: &Payload, group: Option<u32>) -> io::Result<()> {
    make_directory(directory, group)?;
    for (path, File { data, mode }) in payload {
        let mut parent = directory.to_owned();
        let (directories, _) = path.rsplit_once('/').unwrap_or(("", path));
        for part in directories.split('/').filter(|part| !part.is_empty()) {
            parent.push(part);
            if !parent.is_dir() {
                make_directory(&parent, group)?;
            }
        }
        let target = directory.join(path);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
        file.write_all(data)?;
        if let Some(group) = group {
            super::ownership::give(&file, group)?;
        }
        file.set_permissions(Permissions::from_mode(*mode))?;
    }
    Ok(())
}

fn make_directory(path: &Path, group: Option<u32>) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o755).create(path)?;
    let directory = fs::File::open(path)?;
    if let Some(group) = group {
        super::ownership::give(&directory, group)?;
    }
    // Not what the umask left of it.
    directory.set_permissions(Permissions::from_mode(if group.is_some() { 0o2755 } else { 0o755 }))
}

/// The links that users see.
fn show(volume: &Path, payload: &Payload) -> io::Result<()> {
    let wanted: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &wanted {
        match symlink(Path::new(DATA).join(name), volume.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        let shown = name.to_str().is_some_and(|name| name.starts_with("..") || wanted.contains(name));
        if !shown && entry.file_type()?.is_symlink() {
            remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes the directories that are not the current one.
fn sweep(volume: &Path) -> io::Result<()> {
    let current = fs::read_link(volume.join(DATA))?;
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with("..v"));
        if ours && Path::new(&entry.file_name()) != current {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// What a directory holds; empty when it is gone, so that it is written again.
fn read(directory: &Path) -> io::Result<Payload> {
    let mut payload = Payload::new();
    let mut open = vec![String::new()];
    while let Some(prefix) = open.pop() {
        let entries = match fs::read_dir(directory.join(&prefix)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Payload::new()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            if entry.file_type()?.is_dir() {
                open.push(path);
            } else {
                let mode = entry.metadata()?.permissions().mode() & 0o777;
                payload.insert(path, File { data: fs::read(entry.path())?, mode });
            }
        }
    }
    Ok(payload)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |data: &str| File { data: data.into(), mode: 0o640 };
        files.iter().map(|(path, data)| ((*path).to_owned(), file(data))).collect()
    }

    fn names(volume: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(volume).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_everything_at_once_and_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path();
        assert!(write(volume, &payload(&[("a", "1"), ("d/e/f", "2")]), None).unwrap());
        assert_eq!(names(volume), ["..data", "..v1", "a", "d"]);
        assert_eq!(fs::read_to_string(volume.join("d/e/f")).unwrap(), "2");
        assert_eq!(fs::metadata(volume.join("a")).unwrap().permissions().mode() & 0o777, 0o640);

        // A reader that holds the old directory keeps seeing one state.
        let old = fs::File::open(volume.join("a")).unwrap();
        assert!(write(volume, &payload(&[("a", "3"), ("b", "4")]), None).unwrap());
        assert_eq!(names(volume), ["..data", "..v2", "a", "b"]);
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "3");
        assert_eq!(io::read_to_string(old).unwrap(), "1");

        assert!(!write(volume, &payload(&[("a", "3"), ("b", "4")]), None).unwrap());
        assert_eq!(fs::read_link(volume.join("..data")).unwrap(), Path::new("..v2"));
        assert!(write(volume, &Payload::new(), None).unwrap());
        assert_eq!(names(volume), ["..data", "..v3"]);
    }

    #[test]
    fn finds_its_way_back_from_wherever_it_was_killed() {
        let new = payload(&[("a", "new"), ("c", "3")]);
        let halves: [&dyn Fn(&Path); 5] = [
            &|volume| fs::create_dir(volume.join("..v2")).unwrap(),
            &|volume| {
                fill(&volume.join("..v2"), &payload(&[("a", "new")]), None).unwrap();
                symlink("..v2", volume.join(NEXT)).unwrap();
            },
            &|volume| {
                fill(&volume.join("..v2"), &new, None).unwrap();
                symlink("..v2", volume.join(NEXT)).unwrap();
                fs::rename(volume.join(NEXT), volume.join(DATA)).unwrap();
            },
            &|volume| fs::remove_dir_all(volume.join("..v1")).unwrap(),
            &|volume| fs::remove_file(volume.join("a")).unwrap(),
        ];
        for (step, half) in halves.iter().enumerate() {
            let directory = tempfile::tempdir().unwrap();
            let volume = directory.path();
            write(volume, &payload(&[("a", "old"), ("b", "2")]), None).unwrap();
            half(volume);
            write(volume, &new, None).unwrap();
            let current = fs::read_link(volume.join(DATA)).unwrap();
            assert_eq!(names(volume), ["..data", current.to_str().unwrap(), "a", "c"], "after step {step}");
            assert_eq!(read(&volume.join(DATA)).unwrap(), new, "after step {step}");
        }
    }

    #[test]
    fn files_in_the_way_of_directories_are_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(write(directory.path(), &payload(&[("a", "1"), ("a/b", "2")]), None).is_err());
    }
}
