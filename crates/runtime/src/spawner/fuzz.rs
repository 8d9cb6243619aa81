//! Whatever arrives, in whatever order: nothing panics, nobody is told what is another's, and nothing is lost between
//! pages.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::adopt::Snapshot;
use super::channel::{self, Packet};
use super::handle::Exits;
use super::page::{self, After, ContainerSeen, Page, SandboxSeen, State};
use super::protocol::{Answer, Asked, Message, Request, Streams};
use crate::Exit;
use crate::spec::{ContainerId, File, LONGEST_TAG, Program, SandboxId, SandboxSpec};

fn container() -> impl Strategy<Value = ContainerId> {
    "[a-z][a-z0-9-]{0,4}".prop_map(|id| ContainerId::new(id).unwrap())
}

fn sandbox() -> impl Strategy<Value = SandboxSpec> {
    ("[a-z][a-z0-9-]{0,4}", any::<u32>()).prop_map(|(id, address)| SandboxSpec {
        id: SandboxId::new(id).unwrap(),
        hostname: "pod".to_owned(),
        address: Ipv4Addr::from(address),
        name_server: Ipv4Addr::LOCALHOST,
    })
}

fn exit() -> impl Strategy<Value = Exit> {
    (any::<i32>(), any::<Option<i32>>(), any::<bool>()).prop_map(|(code, signal, out_of_memory)| Exit {
        code,
        signal,
        out_of_memory,
    })
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Preparing),
        Just(State::Prepared),
        Just(State::Starting),
        any::<u32>().prop_map(|pid| State::Running { pid }),
        exit().prop_map(State::Ended),
        Just(State::Removing),
    ]
}

/// Mostly short, some as long as they may be.
fn tag() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => ".{0,20}",
        1 => Just("x".repeat(LONGEST_TAG)),
        1 => Just("\u{1}".repeat(LONGEST_TAG)),
    ]
}

fn seen() -> impl Strategy<Value = ContainerSeen> {
    (container(), sandbox(), tag(), state(), any::<bool>(), 0..5_usize, 0..20_u64).prop_map(
        |(id, sandbox, tag, state, frozen, kept, asked)| ContainerSeen {
            id,
            sandbox: sandbox.id,
            tag,
            state,
            frozen,
            kept,
            asked,
        },
    )
}

fn after() -> impl Strategy<Value = After> {
    prop_oneof![
        sandbox().prop_map(|spec| After::Sandbox(spec.id)),
        container().prop_map(After::Container),
        ".{0,5}".prop_map(After::Note),
    ]
}

fn arbitrary_page() -> impl Strategy<Value = Page> {
    let sandboxes = prop::collection::vec(
        (sandbox(), any::<bool>()).prop_map(|(spec, removing)| SandboxSeen { spec, removing }),
        0..4,
    );
    let notes = prop::collection::vec((".{0,5}", ".{0,5}"), 0..4);
    (any::<u64>(), sandboxes, prop::collection::vec(seen(), 0..4), notes, prop::option::of(after())).prop_map(
        |(last, sandboxes, containers, notes, next)| Page { last, sandboxes, containers, notes, next },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let file = (".{0,20}", any::<u32>(), any::<Vec<u8>>()).prop_map(|(path, mode, content)| File {
        path: path.into(),
        mode,
        content,
    });
    let program = (prop::collection::vec(file, 0..3), prop::option::of(".{0,9}"), prop::option::of(tag()))
        .prop_map(|(files, hostname, tag)| Program { files, hostname, tag, ..Program::default() });
    prop_oneof![
        prop::option::of(after()).prop_map(|after| Request::Adopt { after }),
        (container(), tag()).prop_map(|(container, tag)| Request::Retag { container, tag }),
        (container(), any::<Option<u32>>()).prop_map(|(container, seconds)| Request::Patience {
            container,
            patience: seconds.map(|seconds| std::time::Duration::from_secs(seconds.into())),
        }),
        any::<u32>().prop_map(|seconds| Request::Heard(std::time::Duration::from_secs(seconds.into()))),
        (".{0,9}", prop::option::of(".{0,9}")).prop_map(|(key, value)| Request::Note { key, value }),
        container().prop_map(Request::Kept),
        sandbox().prop_map(|spec| Request::Sockets(spec.id)),
        ("[ab]", 0_usize..6, any::<bool>()).prop_map(|(who, count, embryos)| Request::Spare {
            who,
            count,
            embryos
        }),
        (container(), any::<bool>()).prop_map(|(container, frozen)| Request::Freeze { container, frozen }),
        (container(), program, any::<[bool; 3]>()).prop_map(|(container, program, streams)| Request::Claim {
            container,
            program,
            streams: Streams(streams)
        }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let answer = prop_oneof![
        Just(()).prop_map(|()| Answer::Done),
        any::<u32>().prop_map(|pid| Answer::Started { pid }),
        arbitrary_page().prop_map(|page| Answer::Page(Box::new(page))),
    ];
    prop_oneof![
        (0..20_u64, answer).prop_map(|(id, answer)| Message::Answer { id, answer }),
        (0..20_u64, exit()).prop_map(|(id, exit)| Message::Exited { id, exit }),
    ]
}

/// Through a real socket, and back.
fn through<T: serde::Serialize + serde::de::DeserializeOwned>(message: &T) -> T {
    let (left, right) = channel::pair().unwrap();
    Packet::new(message, Vec::new()).unwrap().send(&left).unwrap();
    channel::receive(&right).unwrap().unwrap().read().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn requests_and_answers_arrive_as_they_were_sent(id: u64, request in request(), message in message()) {
        let asked = Asked { id, request };
        prop_assert_eq!(format!("{:?}", through(&asked)), format!("{asked:?}"));
        prop_assert_eq!(format!("{:?}", through(&message)), format!("{message:?}"));
    }

    #[test]
    fn bytes_that_are_no_packet_are_refused(bytes in prop::collection::vec(any::<u8>(), 1..300)) {
        let (left, right) = channel::pair().unwrap();
        rustix::net::send(&left, &bytes, rustix::net::SendFlags::empty()).unwrap();
        if let Ok(Some(packet)) = channel::receive(&right) {
            let _ = (packet.read::<Asked>(), packet.read::<Message>());
        }
    }

    #[test]
    fn a_request_that_was_tampered_with_is_another_or_none(
        request in request(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
    ) {
        let mut packet = Packet::new(&Asked { id: 1, request }, Vec::new()).unwrap();
        let at = at.index(packet.payload.len());
        packet.payload[at] = byte;
        let _ = packet.read::<Asked>();
        packet.payload.truncate(cut.index(packet.payload.len()));
        prop_assert!(packet.read::<Asked>().is_err(), "cut short");
    }

    #[test]
    fn pages_hold_all_and_each_fits(
        sandboxes in prop::collection::btree_map("[a-z]{1,3}", sandbox(), 0..8),
        containers in prop::collection::vec(seen(), 0..12),
        notes in prop::collection::btree_map(".{1,5}", prop_oneof![".{0,5}", Just("v".repeat(4096))], 0..40),
    ) {
        let sandboxes: BTreeMap<_, _> = sandboxes.into_values().map(|spec| (spec.id.clone(), spec)).collect();
        let containers: BTreeMap<_, _> = containers.into_iter().map(|seen| (seen.id.clone(), seen)).collect();
        let (mut after, mut snapshot, mut pages) = (None, Snapshot::default(), 0);
        loop {
            let page = page_of(&sandboxes, &containers, &notes, after.as_ref());
            let message = Message::Answer { id: 1, answer: Answer::Page(Box::new(page.clone())) };
            prop_assert!(Packet::new(&message, Vec::new()).is_ok());
            pages += 1;
            prop_assert!(pages < 100, "there is no end");
            after = snapshot.add(page, &mut Exits::new());
            if after.is_none() {
                break;
            }
        }
        prop_assert_eq!(snapshot.sandboxes.into_iter().map(|seen| seen.spec).collect::<Vec<_>>(), sandboxes.into_values().collect::<Vec<_>>());
        let got: Vec<_> = snapshot.containers.into_iter().map(|found| (found.id, found.tag, found.state)).collect();
        let expected: Vec<_> = containers.into_values().map(|seen| (seen.id, seen.tag, seen.state)).collect();
        prop_assert_eq!(got, expected);
        prop_assert_eq!(snapshot.notes, notes);
    }

    #[test]
    fn whoever_waits_is_told_its_own(messages in prop::collection::vec(message(), 0..30), mine in 0..20_u64) {
        let mut state = super::handle::State::default();
        let mut answered = state.wait_for(mine);
        let mut expected = None;
        for message in messages {
            if let Message::Answer { id, answer } = &message
                && *id == mine
                && expected.is_none()
            {
                expected = Some(format!("{answer:?}"));
            }
            state.received(message, Vec::new());
        }
        prop_assert_eq!(answered.try_recv().ok().map(|received| format!("{:?}", received.reply)), expected);
    }
}

fn page_of(
    sandboxes: &BTreeMap<SandboxId, SandboxSpec>,
    containers: &BTreeMap<ContainerId, ContainerSeen>,
    notes: &BTreeMap<String, String>,
    after: Option<&After>,
) -> Page {
    use std::ops::Bound::Unbounded;
    let from = page::from(after);
    let sandboxes = from.sandboxes.map(|from| sandboxes.range::<SandboxId, _>((from, Unbounded)));
    let containers = from.containers.map(|from| containers.range::<ContainerId, _>((from, Unbounded)));
    let seen = |(_, spec): (&SandboxId, &SandboxSpec)| SandboxSeen { spec: spec.clone(), removing: false };
    let notes = notes.range::<String, _>((from.notes, Unbounded));
    page::fill(
        1,
        sandboxes.into_iter().flatten().map(seen),
        containers.into_iter().flatten().map(|(_, seen)| seen.clone()),
        notes.map(|(key, value)| (key.clone(), value.clone())),
    )
}
