//! Frames: what is written and synced at once. Pure. A frame is written only after the one before it is on disk, so only
//! the last one can be torn: whatever is unreadable with a whole frame behind it was damaged later.

use ring::digest;

/// No frame's payload contains this: payloads are UTF-8.
const MAGIC: [u8; 8] = [0xff, 0xfe, b's', b'b', b'l', b'o', b'g', 0xff];
const DIGEST: usize = 32;
const HEAD: usize = MAGIC.len() + 8 + 4 + DIGEST;
/// The longest payload.
pub(super) const LONGEST: usize = 64 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) offset: u64,
    pub(super) payload: &'a [u8],
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read<'a> {
    pub(super) frames: Vec<Frame<'a>>,
    /// Bytes of whole frames; what follows was torn.
    pub(super) length: u64,
}

/// Something is wrong that a crash does not do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) offset: u64,
    pub(super) why: String,
}

fn sum(number: u64, payload: &[u8]) -> digest::Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&number.to_le_bytes());
    context.update(&(payload.len() as u64).to_le_bytes());
    context.update(payload);
    context.finish()
}

/// Frames are numbered from 0.
pub(super) fn write(number: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(sum(number, payload).as_ref());
    bytes.extend_from_slice(payload);
    bytes
}

/// The whole frame that these bytes begin with: its number, and its payload.
fn first(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let (magic, head) = head.split_at(MAGIC.len());
    let (number, head) = head.split_at(8);
    let (length, digest) = head.split_at(4);
    let number = u64::from_le_bytes(number.try_into().ok()?);
    let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
    let payload = rest.get(..length)?;
    (magic == MAGIC && length <= LONGEST && sum(number, payload).as_ref() == digest)
        .then_some((number, payload))
}

/// Reads all frames. The first has to be there: it was written before the file had its name.
pub(super) fn read(bytes: &[u8]) -> Result<Read<'_>, Bad> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let offset = at as u64;
        let expected = frames.len() as u64;
        match first(&bytes[at..]) {
            Some((number, payload)) if number == expected => {
                frames.push(Frame { offset, payload });
                at += HEAD + payload.len();
            }
            Some((number, _)) => {
                return Err(Bad { offset, why: format!("frame {number} stands where {expected} should") });
            }
            None => match whole_after(bytes, at + 1) {
                Some(behind) => {
                    let why = format!("its checksum is wrong, and whole frames follow at byte {behind}");
                    return Err(Bad { offset, why });
                }
                None => break,
            },
        }
    }
    if frames.is_empty() {
        return Err(Bad { offset: 0, why: "it does not begin as a log does".into() });
    }
    Ok(Read { frames, length: at as u64 })
}

/// Where the next whole frame begins.
fn whole_after(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let begins = rest.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
    begins.map(|(at, _)| from + at).find(|at| first(&bytes[*at..]).is_some())
}
