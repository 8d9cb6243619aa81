//! The journal: where a write is first made durable, with one append and one sync.
//!
//! Two files of fixed size take turns. One is written while the database catches up with the other, so neither
//! ever grows and a sync never waits for the file system to find room. A record carries the epoch of its file's turn and
//! a checksum: reading stops at the first one that is torn, or left over from an earlier turn.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;

use super::Revision;

/// The usual size of each file. Small enough to be replayed in a moment after a crash.
pub(super) const CAPACITY: usize = 4 << 20;
/// Length and checksum, before what they cover.
const HEAD: usize = 12;
/// Epoch, revision, length of the path.
const FIXED: usize = 20;

/// One write: what became of the object at a path; `None` when it is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) revision: Revision,
    pub(super) path: String,
    pub(super) json: Option<Bytes>,
}

pub(super) struct Journal {
    files: [File; 2],
    capacity: usize,
    active: usize,
    at: usize,
    epoch: u64,
}

impl Journal {
    /// Opens the files, and returns what they hold in the order of revisions. What is returned must be in the
    /// database before anything is appended.
    pub(super) fn open(directory: &Path, capacity: usize) -> io::Result<(Self, Vec<Record>)> {
        let mut records = Vec::new();
        let mut epoch = 0;
        let mut open = |name: &str| -> io::Result<File> {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(directory.join(name))?;
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            if content.len() < capacity {
                // Written, not only reserved: a sync of existing blocks has no metadata to wait for.
                file.write_all_at(&vec![0; capacity - content.len()], content.len() as u64)?;
                file.sync_all()?;
            }
            epoch = epoch.max(read_turn(&content, &mut records));
            Ok(file)
        };
        let files = [open("journal-0")?, open("journal-1")?];
        records.sort_by_key(|record| record.revision);
        Ok((Self { files, capacity, active: 0, at: 0, epoch: epoch + 1 }, records))
    }

    /// Whether so many bytes fit into the file whose turn it is, and into any.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.at + bytes <= self.capacity
    }

    pub(super) fn fits_any(&self, bytes: usize) -> bool {
        bytes <= self.capacity
    }

    /// Gives the turn to the other file. All that it held must be in the database.
    pub(super) fn turn(&mut self) {
        self.active = 1 - self.active;
        self.at = 0;
        self.epoch += 1;
    }

    /// Writes encoded records and returns when they are on disk.
    pub(super) fn append(&mut self, encoded: &[u8]) -> io::Result<()> {
        let file = &self.files[self.active];
        file.write_all_at(encoded, self.at as u64)?;
        file.sync_data()?;
        self.at += encoded.len();
        Ok(())
    }

    /// Encodes a record for the turn that begins now or goes on.
    pub(super) fn encode(epoch: u64, record: &Record, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEAD]);
        out.extend_from_slice(&epoch.to_le_bytes());
        out.extend_from_slice(&record.revision.to_le_bytes());
        let length = u32::try_from(record.path.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(record.path.as_bytes());
        match &record.json {
            Some(json) => {
                out.push(1);
                out.extend_from_slice(json);
            }
            None => out.push(0),
        }
        let body = out.len() - start - HEAD;
        let sum = checksum(&out[start + HEAD..]);
        out[start..start + 4].copy_from_slice(&u32::try_from(body).unwrap_or(0).to_le_bytes());
        out[start + 4..start + HEAD].copy_from_slice(&sum);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }
}

fn checksum(body: &[u8]) -> [u8; 8] {
    let digest = ring::digest::digest(&ring::digest::SHA256, body);
    let mut sum = [0; 8];
    sum.copy_from_slice(&digest.as_ref()[..8]);
    sum
}

/// Reads the records of one turn; returns its epoch, 0 if there was none.
fn read_turn(mut content: &[u8], records: &mut Vec<Record>) -> u64 {
    let mut turn = 0;
    while let Some((epoch, record, rest)) = read_record(content) {
        if turn != 0 && epoch != turn {
            break;
        }
        turn = epoch;
        records.push(record);
        content = rest;
    }
    turn
}

fn read_record(content: &[u8]) -> Option<(u64, Record, &[u8])> {
    let length = u32::from_le_bytes(content.get(..4)?.try_into().ok()?) as usize;
    let body = content.get(HEAD..HEAD.checked_add(length)?)?;
    if body.len() < FIXED + 1 || content.get(4..HEAD)? != checksum(body) {
        return None;
    }
    let number =
        |at: usize| -> Option<u64> { Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?)) };
    let path_length = u32::from_le_bytes(body.get(16..FIXED)?.try_into().ok()?) as usize;
    let path = str::from_utf8(body.get(FIXED..FIXED.checked_add(path_length)?)?).ok()?;
    let (kind, json) = body.get(FIXED + path_length..)?.split_first()?;
    let json = (*kind == 1).then(|| Bytes::copy_from_slice(json));
    let record = Record { revision: number(8)?, path: path.to_owned(), json };
    Some((number(0)?, record, &content[HEAD + length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(revision: Revision, json: Option<&'static str>) -> Record {
        Record {
            revision,
            path: format!("things\0ns/{revision}"),
            json: json.map(|json| Bytes::from_static(json.as_bytes())),
        }
    }

    fn append(journal: &mut Journal, records: &[Record]) {
        let mut encoded = Vec::new();
        for record in records {
            Journal::encode(journal.epoch(), record, &mut encoded);
        }
        journal.append(&encoded).expect("appends");
    }

    #[test]
    fn what_was_appended_is_read_back_in_order_over_both_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut journal, found) = Journal::open(directory.path(), CAPACITY).expect("opens");
        assert!(found.is_empty());
        append(&mut journal, &[record(2, Some("{}")), record(3, None)]);
        journal.turn();
        append(&mut journal, &[record(4, Some("{\"a\":1}"))]);
        drop(journal);
        let (_, found) = Journal::open(directory.path(), CAPACITY).expect("opens");
        assert_eq!(found, [record(2, Some("{}")), record(3, None), record(4, Some("{\"a\":1}"))]);
    }

    #[test]
    fn what_an_earlier_turn_left_behind_is_not_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut journal, _) = Journal::open(directory.path(), CAPACITY).expect("opens");
        append(&mut journal, &[record(2, Some("{}")), record(3, Some("{}")), record(4, Some("{}"))]);
        journal.turn();
        journal.turn();
        // As long as the first of the earlier turn, so that the second stands whole behind it.
        append(&mut journal, &[record(5, Some("{}"))]);
        drop(journal);
        let (_, found) = Journal::open(directory.path(), CAPACITY).expect("opens");
        assert_eq!(found, [record(5, Some("{}"))]);
    }

    #[test]
    fn a_torn_end_is_not_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut journal, _) = Journal::open(directory.path(), CAPACITY).expect("opens");
        append(&mut journal, &[record(2, Some("{}"))]);
        let mut torn = Vec::new();
        Journal::encode(journal.epoch(), &record(3, Some("{\"long\":true}")), &mut torn);
        journal.append(&torn[..torn.len() / 2]).expect("appends");
        drop(journal);
        let (_, found) = Journal::open(directory.path(), CAPACITY).expect("opens");
        assert_eq!(found, [record(2, Some("{}"))]);
    }

    #[test]
    fn noise_is_no_record() {
        let mut records = Vec::new();
        for noise in [&[][..], &[0; 64], &[255; 64], b"\x01\0\0\0aaaaaaaab"] {
            assert_eq!(read_turn(noise, &mut records), 0);
        }
        assert!(records.is_empty());
    }
}
