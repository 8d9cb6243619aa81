//! Paths inside a bundle. One that was parsed leads nowhere else, whatever it is joined to.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path, and the most directories in one.
const LONGEST: usize = 1024;
const DEEPEST: usize = 32;
/// What file systems allow for one name.
const LONGEST_NAME: usize = 255;

/// A path below the root of a bundle: names joined by `/`, none of them `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Relative(String);

/// Why a text is no such path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    #[error("the path is empty")]
    Empty,
    #[error("the path is absolute; write it relative to the root of the bundle")]
    Absolute,
    #[error("the path leads out of the bundle or has a part that is empty or `.`")]
    Parts,
    #[error("the path has a backslash or a control character")]
    Characters,
    #[error("the path is too long or too deep")]
    TooLong,
}

impl Relative {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path below a directory.
    pub fn below(&self, directory: &Path) -> PathBuf {
        directory.join(&self.0)
    }

    /// The names, from the root.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/')
    }

    /// The path of another file in the same directory.
    pub fn beside(&self, name: &str) -> String {
        match self.0.rsplit_once('/') {
            Some((directory, _)) => format!("{directory}/{name}"),
            None => name.into(),
        }
    }
}

impl FromStr for Relative {
    type Err = BadPath;

    fn from_str(text: &str) -> Result<Relative, BadPath> {
        let bare = text.strip_prefix("./").unwrap_or(text);
        if bare.is_empty() {
            return Err(BadPath::Empty);
        }
        if bare.starts_with('/') {
            return Err(BadPath::Absolute);
        }
        if bare.chars().any(|c| c == '\\' || c.is_control()) {
            return Err(BadPath::Characters);
        }
        if bare.split('/').any(|name| matches!(name, "" | "." | "..")) {
            return Err(BadPath::Parts);
        }
        let deep = bare.split('/').count() > DEEPEST;
        if deep || bare.len() > LONGEST || bare.split('/').any(|name| name.len() > LONGEST_NAME) {
            return Err(BadPath::TooLong);
        }
        Ok(Relative(bare.into()))
    }
}

impl Display for Relative {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a symbolic link at `link`, all of whose directories are real, can only lead to something inside: it goes up
/// no further than the root, and never up again once it has gone down, since what it goes down through may be a link
/// itself.
pub fn link_stays_inside(link: &Relative, target: &str) -> bool {
    let whole = !target.is_empty() && !target.starts_with('/') && !target.chars().any(char::is_control);
    let mut depth = link.names().count() - 1;
    let mut went_down = false;
    whole
        && target.split('/').all(|name| match name {
            "" | "." => true,
            ".." if went_down || depth == 0 => false,
            ".." => {
                depth -= 1;
                true
            }
            _ => {
                went_down = true;
                true
            }
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_paths_that_stay_inside_are_paths() {
        for good in ["main.py", "./main.py", "src/a b/ü.js", ".env", "..data/x", "a/..b"] {
            assert!(good.parse::<Relative>().is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", BadPath::Empty),
            ("./", BadPath::Empty),
            ("/etc/passwd", BadPath::Absolute),
            (".//etc/passwd", BadPath::Absolute),
            ("..", BadPath::Parts),
            ("a/../../b", BadPath::Parts),
            ("a//b", BadPath::Parts),
            ("a/./b", BadPath::Parts),
            ("a/", BadPath::Parts),
            ("..\\b", BadPath::Characters),
            ("a\0b", BadPath::Characters),
        ] {
            assert_eq!(bad.parse::<Relative>(), Err(why), "{bad:?}");
        }
        assert_eq!("a/".repeat(40).trim_end_matches('/').parse::<Relative>(), Err(BadPath::TooLong));
        assert_eq!("a".repeat(256).parse::<Relative>(), Err(BadPath::TooLong));
    }

    #[test]
    fn links_that_leave_are_known() {
        let link = |at: &str, to| link_stays_inside(&at.parse().unwrap(), to);
        for (at, to) in [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d/e"), ("a", "b/c"), ("a", "./b")] {
            assert!(link(at, to), "{at} -> {to}");
        }
        for (at, to) in
            [("a", "../b"), ("a", "/b"), ("a/b", "../../c"), ("a", "b/.."), ("a", ""), ("a", "b/../../c")]
        {
            assert!(!link(at, to), "{at} -> {to}");
        }
    }

    proptest! {
        #[test]
        fn a_path_that_was_parsed_stays_below(text in "[a.b/\\\\\u{0}]{0,24}") {
            let Ok(path) = text.parse::<Relative>() else { return Ok(()) };
            let joined = path.below(Path::new("/root"));
            let plain = |part| matches!(part, std::path::Component::Normal(_));
            prop_assert!(joined.starts_with("/root"));
            prop_assert!(joined.strip_prefix("/root").unwrap().components().all(plain), "{joined:?}");
        }
    }
}
