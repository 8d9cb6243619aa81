use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name {
    Name::from_text(text).expect("a name")
}

/// A query as resolvers send it.
fn query(text: &str, kind: u16, payload: Option<u16>) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, payload.is_some().into()];
    for label in text.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(IN.to_be_bytes());
    if let Some(payload) = payload {
        bytes.push(0);
        bytes.extend(OPT.to_be_bytes());
        bytes.extend(payload.to_be_bytes());
        bytes.extend([0; 6]);
    }
    bytes
}

fn response(answers: Vec<Record>) -> Response {
    Response { authoritative: true, answers, ..Response::failure(Code::NoError) }
}

fn addresses(count: u8) -> Vec<Record> {
    let data = |last| Data::A(Ipv4Addr::new(10, 0, 0, last));
    (0..count).map(|last| Record { name: name("a.b"), ttl: 5, data: data(last) }).collect()
}

#[test]
fn queries_are_read() {
    let read = Query::decode(&query("Web.Shop", A, Some(4096))).unwrap();
    assert_eq!((read.id, &read.name, read.kind), (0x1234, &name("web.shop"), A));
    assert_eq!(read.datagram_limit(), usize::from(LARGEST_DATAGRAM));
    assert!(read.question.starts_with(b"\x03Web\x04Shop\0"));
    assert_eq!(Query::decode(&query("a", A, None)).unwrap().datagram_limit(), 512);
}

#[test]
fn what_is_no_query_is_rejected() {
    let changed = |at: usize, to: u8| {
        let mut bytes = query("a.b", A, None);
        bytes[at] = to;
        Query::decode(&bytes)
    };
    let with = |code| Err(Rejected::With { id: 0x1234, code });
    assert_eq!(Query::decode(&query("a.b", A, None)[..11]), Err(Rejected::Silently));
    assert_eq!(changed(2, RESPONSE), Err(Rejected::Silently));
    assert_eq!(changed(2, 0x28), with(Code::NotImplemented));
    assert_eq!(changed(5, 2), with(Code::Malformed));
    assert_eq!(changed(7, 1), with(Code::Malformed));
    assert_eq!(changed(HEADER, 64), with(Code::Malformed));
    // A question that points to itself, to what follows, and beyond the end.
    for target in [HEADER as u8, HEADER as u8 + 2, 255] {
        let mut bytes = query("a.b", A, None);
        bytes[HEADER..HEADER + 2].copy_from_slice(&[0xc0, target]);
        assert_eq!(Query::decode(&bytes), with(Code::Malformed));
    }
    let mut chaos = query("a.b", A, None);
    *chaos.last_mut().unwrap() = 3;
    assert_eq!(Query::decode(&chaos), with(Code::Refused));
}

#[test]
fn answers_are_what_resolvers_read() {
    let query = Query::decode(&query("A.b", A, None)).unwrap();
    let bytes = response(addresses(1)).encode(&query, 512);
    let expected = b"\x12\x34\x85\x80\0\x01\0\x01\0\0\0\0\x01A\x01b\0\0\x01\0\x01\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0\0";
    assert_eq!(bytes, expected);
    assert_eq!(read_answers(&bytes).unwrap(), addresses(1));
    assert!(answers(&bytes, 0x1234, &query));
    assert!(!answers(&bytes, 0x1235, &query));
    assert!(!answers(&bytes, 0x1234, &query.about(&name("a.c"))));
}

#[test]
fn what_does_not_fit_comes_by_tcp() {
    let query = Query::decode(&query("a.b", A, None)).unwrap();
    let mut response = response(addresses(40));
    let short = response.encode(&query, 512);
    assert!(short.len() <= 512 && is_truncated(&short));
    assert_eq!(read_answers(&short), Some(Vec::new()));
    assert_eq!(read_answers(&response.encode(&query, 65535)).unwrap().len(), 40);
    // Additional records are only a kindness.
    response.additional = response.answers.split_off(5);
    let short = response.encode(&query, 512);
    assert!(!is_truncated(&short));
    assert_eq!(read_answers(&short).unwrap().len(), 5);
}

#[test]
fn names_have_limits() {
    let label = "a".repeat(63);
    assert!(Name::from_text(&label).is_some());
    assert_eq!(Name::from_text(&format!("a{label}")), None);
    assert_eq!(Name::from_text("a..b"), None);
    assert_eq!(Name::from_text(""), None);
    let longest = [&*label, &*label, &*label, &"a".repeat(61)].join(".");
    assert!(Name::from_text(&longest).is_some());
    assert_eq!(Name::from_text(&format!("{longest}a")), None);
    assert!(Query::decode(&query(&longest, A, None)).is_ok());
    assert!(Query::decode(&query(&format!("{longest}a"), A, None)).is_err());
}

#[test]
fn chains_of_pointers_end() {
    // Each two bytes point to the two before them; the first to the question's name.
    let mut bytes = query("a.b", A, None);
    bytes[2] = RESPONSE;
    bytes[7] = 1;
    let mut target = HEADER as u16;
    let start = bytes.len();
    for _ in 0..2000 {
        let at = bytes.len() as u16;
        bytes.extend((0xc000 | target).to_be_bytes());
        target = at;
    }
    let mut reader = Reader { bytes: &bytes, at: bytes.len() - 2 };
    assert_eq!(reader.name(), Some(name("a.b")));
    assert_eq!(reader.at, bytes.len());
    // Two that point to each other.
    bytes[start..start + 2].copy_from_slice(&(0xc000 | (start as u16 + 2)).to_be_bytes());
    assert_eq!(Reader { bytes: &bytes, at: start + 2 }.name(), None);
}

fn any_name() -> impl Strategy<Value = Name> {
    proptest::collection::vec("[a-z0-9_-]{1,20}", 1..8)
        .prop_map(|labels| Name::from_text(&labels.join(".")).expect("short enough"))
}

fn any_data() -> impl Strategy<Value = Data> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(|octets| Data::A(octets.into())),
        any::<[u8; 16]>().prop_map(|octets| Data::Aaaa(octets.into())),
        any_name().prop_map(Data::Cname),
    ]
}

fn any_record() -> impl Strategy<Value = Record> {
    (any_name(), any::<u32>(), any_data()).prop_map(|(name, ttl, data)| Record { name, ttl, data })
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Query::decode(&bytes);
        let _ = read_answers(&bytes);
        let _ = Reader { bytes: &bytes, at: 0 }.name();
    }

    #[test]
    fn nor_does_a_message_that_is_almost_right(
        at in 0usize..60, to in any::<u8>(), cut in 0usize..60, records in proptest::collection::vec(any_record(), 0..4),
    ) {
        let asked = query("web.shop.svc.cluster.local", A, Some(1232));
        let mut bytes = asked.clone();
        bytes[at % asked.len()] = to;
        let _ = Query::decode(&bytes);
        let mut answer = response(records).encode(&Query::decode(&asked).unwrap(), 4096);
        let length = answer.len();
        answer[at % length] = to;
        let _ = read_answers(&answer[..length - cut.min(length)]);
    }

    #[test]
    fn what_is_written_can_be_read(records in proptest::collection::vec(any_record(), 0..10)) {
        let query = Query::decode(&query("a.b", A, Some(1232))).unwrap();
        let bytes = response(records.clone()).encode(&query, 65535);
        prop_assert_eq!(read_answers(&bytes), Some(records));
        prop_assert_eq!(Query::decode(&query.relay(7)).unwrap().name, query.name);
    }
}
