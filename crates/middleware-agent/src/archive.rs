//! Archives of a middleware's data: what is packed in the Pod of a backup, and unpacked in the first Pods of a restored App. What
//! was interrupted is begun anew; an archive under its own name is whole.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use ring::digest::{Context, SHA256};
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use tar::EntryType;

use crate::command;
use crate::words::Variables;

/// What commands call the directory of the files.
const DIRECTORY: &str = "DIRECTORY";
/// While there is this directory among the data, they are not all there.
const UNFINISHED: &str = ".restore";
/// File systems have it by themselves.
const LOST_AND_FOUND: &str = "lost+found";
/// More than any name of a file that we would not have refused.
const LONGEST_NAME: usize = 63;

/// An archive that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Archive {
    pub file: String,
    /// Of the archive, in hexadecimal.
    pub sha256: String,
    /// Of the archive, in bytes.
    pub size: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is no name of an archive: use up to {LONGEST_NAME} of a-z, 0-9 and -")]
    Name(String),
    #[error("{0}")]
    Command(#[from] command::Error),
    #[error("`{command}` failed: {said}")]
    Failed { command: String, said: String },
    #[error("the commands have left no files in $({DIRECTORY}): there is nothing to keep")]
    Nothing,
    #[error("{path}: only files and directories are kept, and this is neither")]
    Special { path: PathBuf },
    #[error("{path} is not the archive that was made: its SHA-256 is {found}, and should be {wanted}")]
    Checksum { path: PathBuf, found: String, wanted: String },
    #[error("the archive has {0:?}, which would be outside of the directory")]
    Outside(PathBuf),
    #[error("{what}: {source}")]
    File { what: String, source: io::Error },
    #[error("the work was given up: {0}")]
    Lost(#[from] tokio::task::JoinError),
}

/// Says what was done when it failed.
fn file<T>(what: &str, path: &Path, done: io::Result<T>) -> Result<T, Error> {
    done.map_err(|source| Error::File { what: format!("{what} {}", path.display()), source })
}

/// What is to be packed.
#[derive(Clone, Debug)]
pub struct Pack {
    /// Of the archive, without its ending.
    pub name: String,
    /// Where archives are kept.
    pub into: PathBuf,
    /// What to run before, and for how long at most.
    pub consistency: Option<(String, Duration)>,
    /// What to run, one after the other, to have the files in `$(DIRECTORY)`.
    pub commands: Vec<String>,
    /// The longest time for each of them.
    pub limit: Duration,
    /// How hard to compress, 0 to 9.
    pub level: u32,
}

/// Has the files made, and packs them. An archive of this name that is there already stays as it is.
pub async fn pack(wanted: &Pack) -> Result<Archive, Error> {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if wanted.name.is_empty() || wanted.name.len() > LONGEST_NAME || !wanted.name.bytes().all(is_fine) {
        return Err(Error::Name(wanted.name.clone()));
    }
    let name = format!("{}.tar.gz", wanted.name);
    let whole = wanted.into.join(&name);
    if whole.exists() {
        let (sha256, size) = tokio::task::spawn_blocking(move || digest_of(&whole)).await??;
        return Ok(Archive { file: name, sha256, size });
    }
    let partial = wanted.into.join(format!(".{}.partial", wanted.name));
    remove(&partial)?;
    let files = partial.join("files");
    file("cannot make", &files, fs::create_dir_all(&files))?;
    let variables: Variables = [(DIRECTORY.to_owned(), files.display().to_string())].into();
    if let Some((command, limit)) = &wanted.consistency {
        run(command, &variables, *limit).await?;
    }
    for command in &wanted.commands {
        run(command, &variables, wanted.limit).await?;
    }
    let (level, into) = (wanted.level.min(9), wanted.into.clone());
    let packed = move || {
        let unfinished = partial.join("archive");
        let (sha256, size) = write(&files, &unfinished, level)?;
        file("cannot name", &whole, fs::rename(&unfinished, &whole))?;
        sync(&into)?;
        remove(&partial)?;
        Ok::<_, Error>((sha256, size))
    };
    let (sha256, size) = tokio::task::spawn_blocking(packed).await??;
    Ok(Archive { file: name, sha256, size })
}

/// What is to be unpacked.
#[derive(Clone, Debug)]
pub struct Unpack {
    pub from: PathBuf,
    /// In hexadecimal.
    pub sha256: String,
    /// The directory of the data. If there are any, they stay as they are.
    pub into: PathBuf,
    /// What to run when the files are in `$(DIRECTORY)`, before anybody uses them.
    pub commands: Vec<String>,
    /// The longest time for each of them.
    pub limit: Duration,
}

/// Unpacks an archive where there are no data yet; says whether it did.
pub async fn unpack(wanted: &Unpack) -> Result<bool, Error> {
    let into = &wanted.into;
    let unfinished = into.join(UNFINISHED);
    // Nobody has used what was not finished.
    if !unfinished.exists() && has_data(into)? {
        return Ok(false);
    }
    file("cannot make", &unfinished, fs::create_dir_all(&unfinished))?;
    sync(into)?;
    let (from, sha256, directory) = (wanted.from.clone(), wanted.sha256.clone(), into.clone());
    let unpacked = move || {
        for path in data_of(&directory)? {
            remove(&path)?;
        }
        let (found, _) = digest_of(&from)?;
        if !found.eq_ignore_ascii_case(&sha256) {
            return Err(Error::Checksum { path: from, found, wanted: sha256 });
        }
        read(&from, &directory)
    };
    tokio::task::spawn_blocking(unpacked).await??;
    let variables: Variables = [(DIRECTORY.to_owned(), into.display().to_string())].into();
    for command in &wanted.commands {
        run(command, &variables, wanted.limit).await?;
    }
    remove(&unfinished)?;
    sync(into)?;
    Ok(true)
}

async fn run(command: &str, variables: &Variables, limit: Duration) -> Result<(), Error> {
    let said = command::run(command, &[], variables, limit).await?.text();
    said.map(drop).map_err(|said| Error::Failed { command: command.into(), said })
}

fn remove(path: &Path) -> Result<(), Error> {
    let removed = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    };
    file("cannot remove", path, removed)
}

fn sync(directory: &Path) -> Result<(), Error> {
    file("cannot store", directory, File::open(directory).and_then(|directory| directory.sync_all()))
}

/// What is in a directory that is to have data, but for what file systems and we put there.
fn data_of(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for entry in file("cannot read", directory, fs::read_dir(directory))? {
        let entry = file("cannot read", directory, entry)?;
        if entry.file_name() != UNFINISHED && entry.file_name() != LOST_AND_FOUND {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn has_data(directory: &Path) -> Result<bool, Error> {
    // A directory that cannot be written would be found out later, and less clearly.
    file("cannot write", directory, access(directory, Access::WRITE_OK).map_err(io::Error::from))?;
    Ok(!data_of(directory)?.is_empty())
}

fn digest_of(path: &Path) -> Result<(String, u64), Error> {
    let mut reader = file("cannot open", path, File::open(path))?;
    let mut counted = Counted::new(io::sink());
    file("cannot read", path, io::copy(&mut reader, &mut counted))?;
    Ok(counted.ended())
}

/// Passes bytes on, and knows their digest and number.
struct Counted<W> {
    inner: W,
    digest: Context,
    size: u64,
}

impl<W> Counted<W> {
    fn new(inner: W) -> Counted<W> {
        Counted { inner, digest: Context::new(&SHA256), size: 0 }
    }

    fn ended(self) -> (String, u64) {
        let digest = self.digest.finish();
        (digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect(), self.size)
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Packs the contents of a directory, in the order of their names.
fn write(directory: &Path, archive: &Path, level: u32) -> Result<(String, u64), Error> {
    let created = file("cannot make", archive, File::create(archive))?;
    let counted = Counted::new(BufWriter::new(created));
    let mut builder = tar::Builder::new(GzEncoder::new(counted, Compression::new(level)));
    let packed = add(&mut builder, directory, Path::new(""))?;
    if packed == 0 {
        return Err(Error::Nothing);
    }
    let zipped = file("cannot write", archive, builder.into_inner())?;
    let counted = file("cannot write", archive, zipped.finish())?;
    let (inner, ended) = (counted.inner, Counted { inner: (), digest: counted.digest, size: counted.size });
    let stored = inner.into_inner().map_err(io::IntoInnerError::into_error).and_then(|done| done.sync_all());
    file("cannot store", archive, stored)?;
    Ok(ended.ended())
}

/// Adds what is below a directory, and says how many files those are.
fn add<W: Write>(builder: &mut tar::Builder<W>, root: &Path, below: &Path) -> Result<u64, Error> {
    let directory = root.join(below);
    let mut names = Vec::new();
    for entry in file("cannot read", &directory, fs::read_dir(&directory))? {
        names.push(file("cannot read", &directory, entry)?.file_name());
    }
    names.sort();
    let mut files = 0;
    for name in names {
        let (below, path) = (below.join(&name), directory.join(&name));
        let metadata = file("cannot look at", &path, fs::symlink_metadata(&path))?;
        if metadata.is_dir() {
            file("cannot pack", &path, builder.append_dir(&below, &path))?;
            files += add(builder, root, &below)?;
        } else if metadata.is_file() {
            file("cannot pack", &path, builder.append_path_with_name(&path, &below))?;
            files += 1;
        } else {
            return Err(Error::Special { path });
        }
    }
    Ok(files)
}

/// Unpacks files and directories, and nothing outside of the directory.
fn read(archive: &Path, directory: &Path) -> Result<(), Error> {
    let opened = file("cannot open", archive, File::open(archive))?;
    let mut unpacked = tar::Archive::new(GzDecoder::new(BufReader::new(opened)));
    unpacked.set_preserve_permissions(true);
    unpacked.set_preserve_mtime(false);
    for entry in file("cannot read", archive, unpacked.entries())? {
        let mut entry = file("cannot read", archive, entry)?;
        let path = file("cannot read", archive, entry.path())?.into_owned();
        let target = directory.join(&path);
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Directory => {}
            _ => return Err(Error::Special { path }),
        }
        if !path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(Error::Outside(path));
        }
        let done = file("cannot unpack", &target, entry.unpack_in(directory))?;
        if !done {
            return Err(Error::Outside(path));
        }
        if target.is_file() {
            file("cannot store", &target, File::open(&target).and_then(|stored| stored.sync_all()))?;
        }
    }
    // What follows the last entry belongs to the archive too.
    let mut rest = unpacked.into_inner();
    file("cannot read", archive, io::copy(&mut rest.by_ref().take(1 << 20), &mut io::sink()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn packing(into: &Path, commands: &[&str]) -> Pack {
        let commands = commands.iter().map(|command| (*command).to_owned()).collect();
        Pack { name: "one".into(), into: into.into(), consistency: None, commands, limit: LIMIT, level: 1 }
    }

    fn unpacking(archive: &Archive, from: &Path, into: &Path) -> Unpack {
        let (from, sha256) = (from.join(&archive.file), archive.sha256.clone());
        Unpack { from, sha256, into: into.into(), commands: Vec::new(), limit: LIMIT }
    }

    fn source() -> tempfile::TempDir {
        let source = tempfile::tempdir().unwrap();
        fs::create_dir(source.path().join("below")).unwrap();
        fs::set_permissions(source.path().join("below"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(source.path().join("below/data"), vec![7; 3_000_000]).unwrap();
        fs::write(source.path().join("empty"), "").unwrap();
        source
    }

    fn copy_of(source: &tempfile::TempDir) -> String {
        format!("cp -R {}/. $(DIRECTORY)", source.path().display())
    }

    #[tokio::test]
    async fn what_is_packed_comes_out_again_and_once() {
        let (source, archives, data) = (source(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(data.path().join(LOST_AND_FOUND)).unwrap();
        let archive = pack(&packing(archives.path(), &[&copy_of(&source)])).await.unwrap();
        let file = fs::read(archives.path().join("one.tar.gz")).unwrap();
        assert_eq!(archive.size, file.len() as u64);
        assert_eq!(fs::read_dir(archives.path()).unwrap().count(), 1, "nothing is left but the archive");
        // The same name again is the same archive, whatever the commands would do.
        assert_eq!(pack(&packing(archives.path(), &["false"])).await.unwrap(), archive);

        let wanted = unpacking(&archive, archives.path(), data.path());
        assert!(unpack(&wanted).await.unwrap());
        assert_eq!(fs::read(data.path().join("below/data")).unwrap(), vec![7; 3_000_000]);
        assert!(data.path().join("empty").is_file() && !data.path().join(UNFINISHED).exists());
        let mode = fs::metadata(data.path().join("below")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::write(data.path().join("below/data"), "changed").unwrap();
        assert!(!unpack(&wanted).await.unwrap(), "there are data already");
        assert_eq!(fs::read(data.path().join("below/data")).unwrap(), b"changed");
    }

    #[tokio::test]
    async fn what_was_interrupted_is_begun_anew() {
        let (source, archives, data) = (source(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // A Pod died while it packed.
        fs::create_dir_all(archives.path().join(".one.partial/files")).unwrap();
        fs::write(archives.path().join(".one.partial/files/old"), "old").unwrap();
        let archive = pack(&packing(archives.path(), &[&copy_of(&source)])).await.unwrap();
        // Another died while it unpacked, and a third at its last command.
        fs::create_dir(data.path().join(UNFINISHED)).unwrap();
        fs::write(data.path().join("half"), "half").unwrap();
        let mut wanted = unpacking(&archive, archives.path(), data.path());
        wanted.commands = vec!["touch $(DIRECTORY)/touched".into(), "false".into()];
        let failed = unpack(&wanted).await.unwrap_err().to_string();
        assert!(failed.starts_with("`false` failed"), "{failed}");
        assert!(!data.path().join("half").exists() && data.path().join("touched").exists());
        wanted.commands.clear();
        assert!(unpack(&wanted).await.unwrap());
        assert!(!data.path().join("touched").exists() && !data.path().join("old").exists());
        assert!(data.path().join("below/data").is_file());
    }

    #[tokio::test]
    async fn what_is_wrong_is_said_and_leaves_no_archive() {
        let (archives, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let cases: [(&[&str], &str); 4] = [
            (&[], "nothing to keep"),
            (&["sh -c 'echo no such host >&2; exit 3'"], "exit code 3: no such host"),
            (&["ln -s /etc/passwd $(DIRECTORY)/link"], "only files and directories"),
            (&["touch $(ELSEWHERE)"], "$(ELSEWHERE) stands for nothing here"),
        ];
        for (commands, wanted) in cases {
            let failed = pack(&packing(archives.path(), commands)).await.unwrap_err().to_string();
            assert!(failed.contains(wanted), "{failed}");
            assert!(!archives.path().join("one.tar.gz").exists());
        }
        let name = Pack { name: "../one".into(), ..packing(archives.path(), &["true"]) };
        assert!(matches!(pack(&name).await, Err(Error::Name(_))));

        let archive = pack(&packing(archives.path(), &["touch $(DIRECTORY)/file"])).await.unwrap();
        fs::write(archives.path().join("one.tar.gz"), "another").unwrap();
        let wanted = unpacking(&archive, archives.path(), data.path());
        assert!(matches!(unpack(&wanted).await, Err(Error::Checksum { .. })));
        assert!(data_of(data.path()).unwrap().is_empty());
    }

    #[tokio::test]
    async fn nothing_is_unpacked_outside() {
        for (path, kind) in [("../out", EntryType::Regular), ("link", EntryType::Symlink)] {
            let (archives, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let into = data.path().join("data");
            fs::create_dir(&into).unwrap();
            let archive = archives.path().join("one.tar.gz");
            let mut builder =
                tar::Builder::new(GzEncoder::new(File::create(&archive).unwrap(), Compression::fast()));
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_size(0);
            header.set_cksum();
            builder.append(&header, io::empty()).unwrap();
            builder.into_inner().unwrap().finish().unwrap();
            let (sha256, _) = digest_of(&archive).unwrap();
            let wanted =
                Unpack { from: archive, sha256, into: into.clone(), commands: Vec::new(), limit: LIMIT };
            let failed = unpack(&wanted).await.unwrap_err();
            assert!(matches!(failed, Error::Outside(_) | Error::Special { .. }), "{failed}");
            assert!(!data.path().join("out").exists());
            // It is never taken for whole.
            assert!(into.join(UNFINISHED).exists());
        }
    }
}
