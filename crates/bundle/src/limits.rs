//! How much a bundle may be.

/// The most that a bundle may be; what is beyond is an error, not cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of an archive.
    pub archive: u64,
    /// Bytes of all files together, as they really are and not as a header says.
    pub unpacked: u64,
    /// Files, directories and links.
    pub entries: usize,
}

impl Limits {
    /// For code that may measure so many bytes when unpacked. An archive that is larger than what is in it is none.
    pub fn of(bytes: u64) -> Limits {
        Limits { archive: bytes, unpacked: bytes, entries: 20_000 }
    }
}

/// What is left of the limits.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    pub(crate) bytes: u64,
    pub(crate) entries: usize,
}

/// A limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    #[error("the code measures more than {0} bytes when unpacked, which is its limit (codeBundle.sizeLimit)")]
    Bytes(u64),
    #[error("the code has more than {0} files and directories")]
    Entries(usize),
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Budget {
        Budget { limits, bytes: 0, entries: 0 }
    }

    pub(crate) fn entry(&mut self) -> Result<(), TooMuch> {
        self.entries += 1;
        if self.entries > self.limits.entries { Err(TooMuch::Entries(self.limits.entries)) } else { Ok(()) }
    }

    /// How much may still come, and one byte more, by which it is seen that there is too much.
    pub(crate) fn rest(&self) -> u64 {
        (self.limits.unpacked - self.bytes).saturating_add(1)
    }

    pub(crate) fn took(&mut self, bytes: u64) -> Result<(), TooMuch> {
        if bytes > self.limits.unpacked - self.bytes {
            return Err(TooMuch::Bytes(self.limits.unpacked));
        }
        self.bytes += bytes;
        Ok(())
    }
}
