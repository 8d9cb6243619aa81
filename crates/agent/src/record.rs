//! What is written down of a run for whoever comes after this process: all that cannot be asked of the kernel. As text,
//! because tags and notes are.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use agentcube_protos::agent::{Claim, Tombstone};
use agentcube_protos::session::Egress;
use agentcube_runtime::Exit;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;

use crate::describe::{Shape, Wanted};
use crate::machine::{Ending, Life};
use crate::network::Identity;
use crate::table::Run;

/// How a run was made; stays as it is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Made {
    /// Of its directory, sandbox and container.
    #[prost(string, tag = "1")]
    pub(crate) place: String,
    #[prost(string, tag = "2")]
    pub(crate) image: String,
    #[prost(uint32, repeated, tag = "3")]
    pub(crate) ports: Vec<u32>,
    /// `NAME=value`.
    #[prost(string, repeated, tag = "4")]
    pub(crate) env: Vec<String>,
    #[prost(int32, tag = "5")]
    pub(crate) stop_signal: i32,
    #[prost(bool, tag = "6")]
    pub(crate) prepared: bool,
    #[prost(fixed32, tag = "7")]
    pub(crate) address: u32,
    #[prost(string, repeated, tag = "8")]
    pub(crate) endpoints: Vec<String>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(enumeration = "Egress", tag = "10")]
    pub(crate) egress: i32,
    #[prost(string, tag = "11")]
    pub(crate) resolv_conf: String,
}

impl Made {
    pub(crate) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address)
    }

    pub(crate) fn endpoints(&self) -> Vec<SocketAddr> {
        self.endpoints.iter().filter_map(|one| one.parse().ok()).collect()
    }

    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let split = |one: &String| one.split_once('=').map(|(name, value)| (name.into(), value.into()));
        self.env.iter().filter_map(split).collect()
    }

    /// As much of what was wanted as matters once it runs.
    pub(crate) fn wanted(&self, claim: &Claim) -> Wanted {
        let shape = Shape {
            image: self.image.clone(),
            memory_bytes: None,
            cpu_millis: None,
            read_only_root: false,
            egress: self.egress(),
            user: None,
        };
        let who = Identity {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            labels: self.labels.clone(),
            egress: self.egress(),
        };
        Wanted {
            shape,
            who,
            uid: claim.uid.clone(),
            ports: self.ports.iter().filter_map(|port| u16::try_from(*port).ok()).collect(),
            command: Vec::new(),
            args: Vec::new(),
            envs: Vec::new(),
            working_dir: None,
            files: Vec::new(),
        }
    }
}

/// A run, as the table has it and as it was made.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    #[prost(string, tag = "1")]
    pub(crate) run: String,
    #[prost(message, required, tag = "2")]
    pub(crate) claim: Claim,
    #[prost(message, required, tag = "3")]
    pub(crate) made: Made,
    #[prost(int64, tag = "4")]
    pub(crate) expire_unix_ms: i64,
    #[prost(uint64, tag = "5")]
    pub(crate) recovery_ms: u64,
    #[prost(int64, tag = "6")]
    pub(crate) started_unix_ms: i64,
    #[prost(int64, tag = "7")]
    pub(crate) ended_unix_ms: i64,
    #[prost(bool, tag = "8")]
    pub(crate) paused: bool,
    #[prost(bool, tag = "9")]
    pub(crate) fenced: bool,
    /// 0: nobody ends it.
    #[prost(uint32, tag = "10")]
    pub(crate) ending: u32,
    #[prost(message, optional, tag = "11")]
    pub(crate) exit: Option<Ended>,
    /// Beside the rest, as it is: it may be long.
    #[prost(bytes = "vec", tag = "12")]
    pub(crate) object: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Ended {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(int32, optional, tag = "2")]
    signal: Option<i32>,
    #[prost(bool, tag = "3")]
    out_of_memory: bool,
}

impl Record {
    pub(crate) fn new(id: &str, run: &Run, made: &Made) -> Record {
        let exit = run.life.exit().map(|(exit, _)| exit);
        Record {
            run: id.to_owned(),
            claim: run.claim.clone(),
            made: made.clone(),
            expire_unix_ms: run.expire_unix_ms,
            recovery_ms: u64::try_from(run.recovery.as_millis()).unwrap_or(u64::MAX),
            started_unix_ms: run.started_unix_ms,
            ended_unix_ms: run.ended_unix_ms,
            paused: run.paused,
            fenced: run.fenced,
            ending: run.life.ending().map_or(0, number),
            exit: exit.map(|Exit { code, signal, out_of_memory }| Ended { code, signal, out_of_memory }),
            object: run.object.clone(),
        }
    }

    /// How it ended, if it has.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit.map(|Ended { code, signal, out_of_memory }| Exit { code, signal, out_of_memory })
    }

    pub(crate) fn run(&self) -> Run {
        let life = Life::resumed(self.exit(), ending(self.ending));
        let mut run = Run::resumed(self.claim.clone(), life);
        run.object.clone_from(&self.object);
        run.expire_unix_ms = self.expire_unix_ms;
        run.recovery = Duration::from_millis(self.recovery_ms);
        if self.exit.is_none() {
            run.endpoints.clone_from(&self.made.endpoints);
        }
        (run.paused, run.fenced) = (self.paused, self.fenced);
        (run.started_unix_ms, run.ended_unix_ms) = (self.started_unix_ms, self.ended_unix_ms);
        run
    }

    /// An object is text nearly always, and base64 makes a third more of it.
    pub(crate) fn encode_text(mut self) -> String {
        match String::from_utf8(std::mem::take(&mut self.object)) {
            Ok(object) => format!("{}\n{object}", encode(&self)),
            Err(odd) => {
                self.object = odd.into_bytes();
                encode(&self)
            }
        }
    }

    pub(crate) fn decode_text(text: &str) -> Option<Record> {
        let (head, object) = match text.split_once('\n') {
            Some((head, object)) => (head, Some(object)),
            None => (text, None),
        };
        let mut record: Record = decode(head)?;
        if let Some(object) = object {
            record.object = object.as_bytes().to_vec();
        }
        Some(record)
    }
}

fn number(ending: Ending) -> u32 {
    match ending {
        Ending::Stopped => 1,
        Ending::Expired => 2,
        Ending::Fenced => 3,
    }
}

fn ending(number: u32) -> Option<Ending> {
    match number {
        1 => Some(Ending::Stopped),
        2 => Some(Ending::Expired),
        3 => Some(Ending::Fenced),
        _ => None,
    }
}

/// A message as text.
pub(crate) fn encode(message: &impl Message) -> String {
    STANDARD.encode(message.encode_to_vec())
}

pub(crate) fn decode<M: Message + Default>(text: &str) -> Option<M> {
    M::decode(STANDARD.decode(text).ok()?.as_slice()).ok()
}

/// A tombstone as text.
pub(crate) fn tombstone(tombstone: &Tombstone) -> String {
    encode(tombstone)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(object: &[u8]) -> Record {
        let claim = Claim { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..Claim::default() };
        let made = Made { env: vec!["A=b=c".into()], address: 7, ports: vec![80], ..Made::default() };
        let mut run = Run::resumed(claim, Life::resumed(None, None));
        run.object = object.to_vec();
        run.recovery = Duration::from_secs(60);
        Record::new("r", &run, &made)
    }

    #[test]
    fn a_run_comes_back_as_it_was() {
        for object in [&b""[..], b"{}", b"{\n}\n", &[0, 255, 10]] {
            let before = record(object);
            let after = Record::decode_text(&before.clone().encode_text());
            assert_eq!(after, Some(before));
        }
        assert_eq!(record(b"").made.env(), [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(record(b"").run().recovery, Duration::from_secs(60));
    }

    #[test]
    fn how_it_ends_comes_back() {
        let exit = Exit { code: 137, signal: Some(9), out_of_memory: true };
        for ending in [None, Some(Ending::Stopped), Some(Ending::Expired), Some(Ending::Fenced)] {
            let run = Run::resumed(Claim::default(), Life::resumed(Some(exit), ending));
            let record = Record::new("r", &run, &Made::default());
            let back = Record::decode_text(&record.encode_text()).expect("a record").run();
            assert_eq!(back.life.exit(), Some((exit, ending)));
        }
    }

    proptest! {
        #[test]
        fn words_of_others_are_no_record_or_one_that_can_be_written(text in ".{0,200}") {
            if let Some(record) = Record::decode_text(&text) {
                prop_assert!(Record::decode_text(&record.encode_text()).is_some());
            }
        }
    }
}
