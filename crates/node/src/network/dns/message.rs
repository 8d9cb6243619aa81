//! The messages of DNS (RFC 1035, with EDNS's OPT of RFC 6891), as far as a name server for Pods needs them.
//!
//! Reads whatever a Pod or a name server outside may send: it never panics, and every step forward or back in a message
//! is bounded. Pure.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) const A: u16 = 1;
pub(super) const CNAME: u16 = 5;
pub(super) const SOA: u16 = 6;
pub(super) const PTR: u16 = 12;
pub(super) const AAAA: u16 = 28;
pub(super) const SRV: u16 = 33;
pub(super) const OPT: u16 = 41;
pub(super) const ANY: u16 = 255;
pub(super) const IN: u16 = 1;

pub(super) const HEADER: usize = 12;
const LONGEST_NAME: usize = 255;
const LONGEST_LABEL: usize = 63;
/// What a UDP answer may have without EDNS.
const CLASSIC: u16 = 512;
/// What we send and ask for by UDP at most, so that no network has to cut it up.
pub(super) const LARGEST_DATAGRAM: u16 = 1232;
/// Records of one answer that are read.
const MOST_RECORDS: usize = 256;

const RESPONSE: u8 = 0x80;
const AUTHORITATIVE: u8 = 0x04;
const TRUNCATED: u8 = 0x02;
const RECURSION_DESIRED: u8 = 0x01;
const RECURSION_AVAILABLE: u8 = 0x80;

/// The outcome in an answer's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    NoError = 0,
    Malformed = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// A name in lower case; compared as DNS does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Name(Vec<Vec<u8>>);

impl Name {
    /// A name from its text; the dot at the end may be missing. `None` if a part is empty or anything too long.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let labels: Vec<_> = text.split('.').map(|label| label.to_ascii_lowercase().into_bytes()).collect();
        let fits = labels.iter().all(|label| (1..=LONGEST_LABEL).contains(&label.len()));
        let name = Self(labels);
        (fits && name.encoded_len() <= LONGEST_NAME).then_some(name)
    }

    /// The parts as text, if all of them are.
    pub(super) fn labels(&self) -> Option<Vec<&str>> {
        self.0.iter().map(|label| std::str::from_utf8(label).ok()).collect()
    }

    fn encoded_len(&self) -> usize {
        1 + self.0.iter().map(|label| 1 + label.len()).sum::<usize>()
    }

    fn write(&self, out: &mut Vec<u8>) {
        for label in &self.0 {
            out.push(u8::try_from(label.len()).expect("labels of a name have at most 63 bytes"));
            out.extend_from_slice(label);
        }
        out.push(0);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|label| write!(f, "{}.", label.escape_ascii()))
    }
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    pub id: u16,
    pub name: Name,
    pub kind: u16,
    /// The question as it was sent, which the answer repeats with its capitals.
    pub question: Vec<u8>,
    recursion_desired: bool,
    /// How long a UDP answer may be; absent without EDNS.
    payload: Option<u16>,
}

/// A message that is no query to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejected {
    /// Not even a question that could be answered.
    Silently,
    With {
        id: u16,
        code: Code,
    },
}

impl Query {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Rejected> {
        let mut reader = Reader { bytes, at: 0 };
        let header = reader.header().ok_or(Rejected::Silently)?;
        if header.flags[0] & RESPONSE != 0 {
            return Err(Rejected::Silently);
        }
        let reject = |code| Rejected::With { id: header.id, code };
        if header.flags[0] & 0x78 != 0 {
            return Err(reject(Code::NotImplemented));
        }
        if header.questions != 1 || header.answers != 0 || header.authorities != 0 {
            return Err(reject(Code::Malformed));
        }
        let (name, kind, class) = reader.question().ok_or(reject(Code::Malformed))?;
        let question = bytes[HEADER..reader.at].to_vec();
        let mut payload = None;
        for _ in 0..header.additionals.min(4) {
            let record = reader.record().ok_or(reject(Code::Malformed))?;
            if record.kind == OPT {
                payload = Some(record.class.max(CLASSIC));
            }
        }
        if class != IN {
            return Err(reject(Code::Refused));
        }
        let recursion_desired = header.flags[0] & RECURSION_DESIRED != 0;
        Ok(Self { id: header.id, name, kind, question, recursion_desired, payload })
    }

    /// How long an answer by UDP may be.
    pub(super) fn datagram_limit(&self) -> usize {
        self.payload.unwrap_or(CLASSIC).min(LARGEST_DATAGRAM).into()
    }

    /// The same question in our own words, to be sent on.
    pub(super) fn relay(&self, id: u16) -> Vec<u8> {
        let mut out = id.to_be_bytes().to_vec();
        out.extend([RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, self.payload.is_some().into()]);
        out.extend_from_slice(&self.question);
        self.write_options(&mut out);
        out
    }

    /// The question for another name.
    pub(super) fn about(&self, name: &Name) -> Self {
        let mut question = Vec::new();
        name.write(&mut question);
        question.extend(self.kind.to_be_bytes());
        question.extend(IN.to_be_bytes());
        Self { name: name.clone(), question, ..self.clone() }
    }

    fn write_options(&self, out: &mut Vec<u8>) {
        if self.payload.is_some() {
            out.push(0);
            out.extend(OPT.to_be_bytes());
            out.extend(LARGEST_DATAGRAM.to_be_bytes());
            out.extend([0; 6]);
        }
    }
}

/// One record, always of the class IN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub name: Name,
    pub ttl: u32,
    pub data: Data,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Cname(Name),
    Ptr(Name),
    Srv {
        weight: u16,
        port: u16,
        target: Name,
    },
    /// Of which only the time for which an absence may be remembered matters.
    Soa {
        server: Name,
        mailbox: Name,
        minimum: u32,
    },
}

impl Data {
    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::A(_) => A,
            Self::Aaaa(_) => AAAA,
            Self::Cname(_) => CNAME,
            Self::Ptr(_) => PTR,
            Self::Srv { .. } => SRV,
            Self::Soa { .. } => SOA,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::A(address) => out.extend(address.octets()),
            Self::Aaaa(address) => out.extend(address.octets()),
            Self::Cname(name) | Self::Ptr(name) => name.write(out),
            Self::Srv { weight, port, target } => {
                out.extend([0, 0]);
                out.extend(weight.to_be_bytes());
                out.extend(port.to_be_bytes());
                target.write(out);
            }
            Self::Soa { server, mailbox, minimum } => {
                server.write(out);
                mailbox.write(out);
                for number in [1, 7200, 1800, 86400, *minimum] {
                    out.extend(number.to_be_bytes());
                }
            }
        }
    }
}

/// An answer of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Response {
    pub code: Code,
    pub authoritative: bool,
    pub answers: Vec<Record>,
    pub authority: Vec<Record>,
    pub additional: Vec<Record>,
}

impl Response {
    pub(super) fn failure(code: Code) -> Self {
        Self {
            code,
            authoritative: false,
            answers: Vec::new(),
            authority: Vec::new(),
            additional: Vec::new(),
        }
    }

    /// The answer in at most `limit` bytes. What does not fit is left out, and the asker told to come back by TCP;
    /// additional records are left out without a word.
    pub(super) fn encode(&self, query: &Query, limit: usize) -> Vec<u8> {
        let whole = self.write(query, [&self.answers, &self.authority, &self.additional], 0);
        if whole.len() <= limit {
            return whole;
        }
        let necessary = self.write(query, [&self.answers, &self.authority, &[]], 0);
        if necessary.len() <= limit {
            return necessary;
        }
        self.write(query, [&[]; 3], TRUNCATED)
    }

    fn write(&self, query: &Query, sections: [&[Record]; 3], flags: u8) -> Vec<u8> {
        let mut out = query.id.to_be_bytes().to_vec();
        let authoritative = if self.authoritative { AUTHORITATIVE } else { 0 };
        let desired = if query.recursion_desired { RECURSION_DESIRED } else { 0 };
        out.push(RESPONSE | authoritative | flags | desired);
        out.push(RECURSION_AVAILABLE | self.code as u8);
        let counts = sections.map(|section| u16::try_from(section.len()).unwrap_or(u16::MAX));
        let options = u16::from(query.payload.is_some());
        for count in [1, counts[0], counts[1], counts[2].saturating_add(options)] {
            out.extend(count.to_be_bytes());
        }
        out.extend_from_slice(&query.question);
        for record in sections.into_iter().flat_map(|section| section.iter().take(usize::from(u16::MAX) - 1))
        {
            record.write(query, &mut out);
        }
        query.write_options(&mut out);
        out
    }
}

impl Record {
    fn write(&self, query: &Query, out: &mut Vec<u8>) {
        if self.name == query.name {
            // A pointer to the question.
            out.extend([0xc0, HEADER as u8]);
        } else {
            self.name.write(out);
        }
        out.extend(self.data.kind().to_be_bytes());
        out.extend(IN.to_be_bytes());
        out.extend(self.ttl.to_be_bytes());
        let length = out.len();
        out.extend([0, 0]);
        self.data.write(out);
        let written = u16::try_from(out.len() - length - 2).expect("records of ours are short");
        out[length..length + 2].copy_from_slice(&written.to_be_bytes());
    }
}

/// The answer to a message that is no query.
pub(super) fn rejection(id: u16, code: Code) -> Vec<u8> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend([RESPONSE, code as u8, 0, 0, 0, 0, 0, 0, 0, 0]);
    out
}

/// Whether these bytes answer a question that was sent on with this id.
pub(super) fn answers(bytes: &[u8], id: u16, query: &Query) -> bool {
    let mut reader = Reader { bytes, at: 0 };
    let Some(header) = reader.header() else { return false };
    let is_answer = header.id == id && header.flags[0] & RESPONSE != 0 && header.questions == 1;
    is_answer
        && reader
            .question()
            .is_some_and(|(name, kind, class)| (name, kind, class) == (query.name.clone(), query.kind, IN))
}

pub(super) fn is_truncated(bytes: &[u8]) -> bool {
    bytes.get(2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// The addresses and aliases in the answer of another name server. `None` if it says that there are none by an error,
/// or cannot be read.
pub(super) fn read_answers(bytes: &[u8]) -> Option<Vec<Record>> {
    let mut reader = Reader { bytes, at: 0 };
    let header = reader.header()?;
    if header.flags[1] & 0x0f != Code::NoError as u8 || header.questions != 1 {
        return None;
    }
    reader.question()?;
    let mut records = Vec::new();
    for _ in 0..usize::from(header.answers).min(MOST_RECORDS) {
        let raw = reader.record()?;
        let data = match (raw.kind, raw.class) {
            (A, IN) => Data::A(<[u8; 4]>::try_from(raw.data).ok()?.into()),
            (AAAA, IN) => Data::Aaaa(<[u8; 16]>::try_from(raw.data).ok()?.into()),
            (CNAME, IN) => Data::Cname(Reader { bytes, at: raw.start }.name()?),
            _ => continue,
        };
        records.push(Record { name: raw.name, ttl: raw.ttl, data });
    }
    Some(records)
}

struct Header {
    id: u16,
    flags: [u8; 2],
    questions: u16,
    answers: u16,
    authorities: u16,
    additionals: u16,
}

struct Raw<'a> {
    name: Name,
    kind: u16,
    class: u16,
    ttl: u32,
    data: &'a [u8],
    start: usize,
}

/// Reads forward through a message; every method is `None` at its end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn header(&mut self) -> Option<Header> {
        Some(Header {
            id: self.number()?,
            flags: self.take(2)?.try_into().ok()?,
            questions: self.number()?,
            answers: self.number()?,
            authorities: self.number()?,
            additionals: self.number()?,
        })
    }

    fn question(&mut self) -> Option<(Name, u16, u16)> {
        Some((self.name()?, self.number()?, self.number()?))
    }

    fn record(&mut self) -> Option<Raw<'a>> {
        let name = self.name()?;
        let (kind, class) = (self.number()?, self.number()?);
        let ttl = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
        let length = self.number()?;
        let start = self.at;
        Some(Raw { name, kind, class, ttl, data: self.take(length.into())?, start })
    }

    /// A name, which may end in a pointer to an earlier one. Each pointer leads to before the place that was read last,
    /// so that none can be followed twice.
    fn name(&mut self) -> Option<Name> {
        let (mut name, mut length) = (Name::default(), 1);
        let (mut at, mut earliest) = (self.at, self.at);
        let mut end = None;
        loop {
            let first = *self.bytes.get(at)?;
            match first >> 6 {
                0 if first == 0 => {
                    self.at = end.unwrap_or(at + 1);
                    return Some(name);
                }
                0 => {
                    let label = self.bytes.get(at + 1..at + 1 + usize::from(first))?;
                    length += 1 + label.len();
                    if length > LONGEST_NAME {
                        return None;
                    }
                    name.0.push(label.to_ascii_lowercase());
                    at += 1 + label.len();
                }
                3 => {
                    let target = usize::from(first & 0x3f) << 8 | usize::from(*self.bytes.get(at + 1)?);
                    end.get_or_insert(at + 2);
                    if target >= earliest {
                        return None;
                    }
                    (at, earliest) = (target, target);
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests;
