//! The users and groups that an image knows, read from its `/etc/passwd` and `/etc/group`.

use std::io::Read;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::spec::Root;

/// More of `/etc/passwd` or `/etc/group` is not read.
const MOST_BYTES: u64 = 1 << 20;

/// A name that an image uses and does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("the image runs as user {0:?}, whom its /etc/passwd does not know")]
    User(String),
    #[error("the image runs as group {0:?}, which its /etc/group does not know")]
    Group(String),
}

/// One line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: String,
}

/// What the two files say. What cannot be read says nothing.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    accounts: Vec<Account>,
    groups: String,
}

impl Accounts {
    /// Blocks on the disk.
    pub fn read(root: &Root) -> Self {
        Self { accounts: accounts(&read(root, "etc/passwd")), groups: read(root, "etc/group") }
    }

    /// The same of what the two files hold.
    pub fn parse(passwd: &str, group: &str) -> Self {
        Self { accounts: accounts(passwd), groups: group.to_owned() }
    }

    /// A number needs no line.
    pub fn by_number(&self, uid: u32) -> Account {
        let known = self.accounts.iter().find(|account| account.uid == uid).cloned();
        known.unwrap_or(Account { name: String::new(), uid, gid: 0, home: String::new() })
    }

    /// The image's user, and its group if it names one.
    pub fn of_image(&self, user: &str) -> Result<(Account, Option<String>), Unknown> {
        let (name, group) = user.split_once(':').map_or((user, None), |(name, group)| (name, Some(group)));
        let group = group.filter(|group| !group.is_empty()).map(str::to_owned);
        let account = match name.parse::<u32>() {
            _ if name.is_empty() => self.by_number(0),
            Ok(uid) => self.by_number(uid),
            Err(_) => {
                let known = self.accounts.iter().find(|account| account.name == name).cloned();
                known.ok_or_else(|| Unknown::User(name.to_owned()))?
            }
        };
        Ok((account, group))
    }

    pub fn group_number(&self, group: &str) -> Result<u32, Unknown> {
        if let Ok(gid) = group.parse() {
            return Ok(gid);
        }
        let known = groups(&self.groups).find(|(name, ..)| *name == group).map(|(_, gid, _)| gid);
        known.ok_or_else(|| Unknown::Group(group.to_owned()))
    }

    /// The groups that list a user.
    pub fn memberships(&self, user: &str) -> Vec<u32> {
        let member = |members: &str| !user.is_empty() && members.split(',').any(|member| member == user);
        groups(&self.groups).filter(|(_, _, members)| member(members)).map(|(_, gid, _)| gid).collect()
    }
}

fn accounts(passwd: &str) -> Vec<Account> {
    let account = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).unwrap_or_default().to_owned();
        Some(Account { name, uid, gid, home })
    };
    passwd.lines().filter_map(account).collect()
}

/// Name, number and members of each group.
fn groups(file: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    file.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some((name, gid, fields.next().unwrap_or_default()))
    })
}

/// A file of the image, resolved within it: a link cannot lead to a file of the host. What cannot be read is empty.
fn read(root: &Root, path: &str) -> String {
    let base = match root {
        Root::Directory(path) => path.as_path(),
        Root::Host { .. } => std::path::Path::new("/"),
        // Only its runtime can look into it.
        Root::Snapshot(_) => return String::new(),
    };
    read_within(base, path, MOST_BYTES)
}

/// The beginning of a file below a directory, resolved within it: a link cannot lead out. What cannot be read is empty.
pub fn read_within(base: &std::path::Path, path: &str, most: u64) -> String {
    let open = || -> Option<std::fs::File> {
        let base =
            rustix::fs::open(base, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat2(base, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        let file = std::fs::File::from(file);
        file.metadata().is_ok_and(|meta| meta.is_file()).then_some(file)
    };
    let mut bytes = Vec::new();
    let read = open().map(|file| file.take(most).read_to_end(&mut bytes));
    match read {
        Some(Ok(_)) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_an_image_do_not_lead_out_of_it() {
        let (outside, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for image in [&outside, &inside] {
            std::fs::create_dir(image.path().join("etc")).unwrap();
        }
        std::fs::write(outside.path().join("etc/passwd"), "web:x:33:34::/srv:/bin/sh\n").unwrap();
        let link = inside.path().join("etc/passwd");
        std::os::unix::fs::symlink(outside.path().join("etc/passwd"), link).unwrap();
        let of = |image: &tempfile::TempDir| Accounts::read(&Root::Directory(image.path().into()));
        assert_eq!(of(&inside).of_image("web"), Err(Unknown::User("web".into())));
        assert_eq!(of(&outside).of_image("web").unwrap().0.uid, 33);
    }
}
