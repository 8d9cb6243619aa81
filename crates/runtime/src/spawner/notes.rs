//! Words that the spawner keeps for whoever adopts it. It never reads them.

use std::collections::BTreeMap;

use super::protocol::Failure;

const LONGEST_KEY: usize = 256;
const LONGEST_VALUE: usize = 4 * 1024;
const MOST: usize = 200_000;
const MOST_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: BTreeMap<String, String>,
    bytes: usize,
}

impl Notes {
    /// `None` takes a note away; one that is not there is no error.
    pub(super) fn set(&mut self, key: String, value: Option<String>) -> Result<(), Failure> {
        let old = self.notes.get(&key).map_or(0, |old| key.len() + old.len());
        let Some(value) = value else {
            self.notes.remove(&key);
            self.bytes -= old;
            return Ok(());
        };
        if key.is_empty() || key.len() > LONGEST_KEY || value.len() > LONGEST_VALUE {
            return Err(Failure::Invalid(format!(
                "a note has a key of 1 to {LONGEST_KEY} bytes and a value of at most {LONGEST_VALUE}"
            )));
        }
        let bytes = self.bytes - old + key.len() + value.len();
        if bytes > MOST_BYTES || old == 0 && self.notes.len() >= MOST {
            return Err(Failure::Invalid("there are too many notes: take some away first".to_owned()));
        }
        self.bytes = bytes;
        self.notes.insert(key, value);
        Ok(())
    }

    pub(super) fn all(&self) -> &BTreeMap<String, String> {
        &self.notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_count() {
        let mut notes = Notes::default();
        let mut set = |key: &str, value: Option<&str>| notes.set(key.to_owned(), value.map(str::to_owned));
        set("a", Some("1")).unwrap();
        set("a", Some("234")).unwrap();
        set("b", Some("")).unwrap();
        set("b", None).unwrap();
        set("c", None).unwrap();
        set("", Some("x")).unwrap_err();
        set(&"k".repeat(LONGEST_KEY + 1), Some("x")).unwrap_err();
        set("x", Some(&"v".repeat(LONGEST_VALUE + 1))).unwrap_err();
        assert_eq!((notes.bytes, notes.notes.len()), (4, 1));
    }

    #[test]
    fn is_bounded() {
        let mut notes = Notes { bytes: MOST_BYTES - 2, ..Notes::default() };
        notes.set("a".into(), Some("12".into())).unwrap_err();
        notes.set("a".into(), Some("1".into())).unwrap();
        notes.set("a".into(), Some("2".into())).unwrap();
        notes.set("b".into(), Some(String::new())).unwrap_err();
        notes.set("a".into(), None).unwrap();
        notes.set("b".into(), Some(String::new())).unwrap();
    }
}
