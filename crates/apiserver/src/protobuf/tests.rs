//! The table against the schemas, decoding against what Go makes of the same objects, and arbitrary bytes.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use serde_json::{Value, json};

use super::*;

const UNTYPED: TypeName<'_> = TypeName { api_version: "", kind: "" };
const BEYOND_KINDS: [&str; 4] =
    ["meta.DeleteOptions", "autoscaling.Scale", "policy.Eviction", "core.Binding"];

struct Capture {
    name: String,
    proto: Vec<u8>,
    json: Value,
}

/// Objects as protobuf and as JSON, both written by Go. Every field of every message is set in one of them.
fn captures() -> Vec<Capture> {
    let all: Vec<Value> = serde_json::from_str(include_str!("testdata/captures.json")).unwrap();
    let capture = |value: &Value| Capture {
        name: value["name"].as_str().unwrap().to_owned(),
        proto: STANDARD.decode(value["proto"].as_str().unwrap()).unwrap(),
        json: value["json"].clone(),
    };
    all.iter().map(capture).collect()
}

/// Go writes an absent list or time as `null` where it may not leave it out.
fn without_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(without_nulls);
    }
    if let Value::Array(list) = value {
        list.iter_mut().for_each(without_nulls);
    }
}

#[test]
fn objects_are_what_go_writes_as_json() {
    for Capture { name, proto, mut json } in captures() {
        let mut object = decode(&proto, UNTYPED).unwrap();
        without_nulls(&mut object);
        without_nulls(&mut json);
        assert_eq!(object, json, "{name}");
    }
}

// The table as text: message, then JSON name, then type. Inlined messages are resolved.

type Fields = BTreeMap<String, String>;

fn lines() -> BTreeMap<String, String> {
    serde_json::from_str(include_str!("messages.json")).unwrap()
}

fn fields(lines: &BTreeMap<String, String>, message: &str) -> Fields {
    let mut all = Fields::new();
    let mut numbers = BTreeSet::new();
    for field in lines[message].split(", ").filter(|field| !field.is_empty()) {
        let [number, name, kind] = field.split(' ').collect::<Vec<_>>().try_into().unwrap();
        assert!(numbers.insert(number.parse::<i32>().unwrap()), "{message}: {number} is there twice");
        let found = match name {
            "." => fields(lines, kind),
            name => Fields::from([(name.to_owned(), kind.to_owned())]),
        };
        for (name, kind) in found {
            assert!(all.insert(name.clone(), kind).is_none(), "{message}.{name} is there twice");
        }
    }
    all
}

fn roots() -> impl Iterator<Item = &'static str> {
    builtin::KINDS.iter().map(|kind| kind.shape).chain(BEYOND_KINDS)
}

fn definition(message: &str) -> String {
    match message.split_once('.').unwrap() {
        ("meta", name) => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"),
        ("apiextensions", name) => format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.{name}"),
        (group, name) => format!("io.k8s.api.{group}.v1.{name}"),
    }
}

/// The type of a property in the notation of the table, as far as a schema tells.
fn type_of(schema: &Value) -> String {
    let reference = schema["$ref"].as_str().or(schema["allOf"][0]["$ref"].as_str());
    if let Some(reference) = reference {
        let name = reference.rsplit('/').next().unwrap();
        let (path, last) = name.rsplit_once('.').unwrap();
        return match last {
            "Quantity" => "Q".to_owned(),
            "IntOrString" => "X".to_owned(),
            "Time" => "T".to_owned(),
            "MicroTime" => "M".to_owned(),
            "RawExtension" | "FieldsV1" | "JSON" => "R".to_owned(),
            last => {
                let group = path.strip_suffix(".v1").unwrap().rsplit('.').next().unwrap();
                let union = if last.contains("PropsOr") { "U" } else { "" };
                format!("{union}{group}.{last}")
            }
        };
    }
    match (schema["type"].as_str().unwrap(), schema["format"].as_str().unwrap_or_default()) {
        ("array", _) => format!("[{}", type_of(&schema["items"])),
        ("object", _) => format!("{{{}", type_of(&schema["additionalProperties"])),
        ("string", "byte") => "Y".to_owned(),
        ("string", _) => "S".to_owned(),
        ("integer", "int32") => "i".to_owned(),
        ("integer", "int64") => "I".to_owned(),
        ("number", "double") => "D".to_owned(),
        ("boolean", _) => "B".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Every property of every definition that the kinds can contain has one field, of its type.
#[test]
fn the_table_fits_the_schemas() {
    let schemas: Value = serde_json::from_str(include_str!("../builtin/schemas.json")).unwrap();
    let lines = lines();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut open: Vec<String> = roots().map(str::to_owned).collect();
    while let Some(message) = open.pop() {
        if !seen.insert(message.clone()) {
            continue;
        }
        let fields = fields(&lines, &message);
        let mentioned = fields.values().map(|kind| kind.trim_start_matches(['!', '0', '*', '[', '{', 'U']));
        open.extend(mentioned.filter(|kind| kind.contains('.')).map(str::to_owned));
        let Some(properties) = schemas[definition(&message)]["properties"].as_object() else {
            let unschemed = message == "core.Binding" || message.contains("PropsOr");
            assert!(unschemed || fields.is_empty(), "{message} has no schema");
            continue;
        };
        let told = properties.iter().filter(|(name, _)| {
            !matches!(name.as_str(), "apiVersion" | "kind") || !roots().any(|root| root == message)
        });
        let told: Fields = told.map(|(name, schema)| (name.clone(), type_of(schema))).collect();
        let plain = |kind: &String| kind.trim_start_matches(['!', '0', '*']).to_owned();
        let known: Fields = fields.iter().map(|(name, kind)| (name.clone(), plain(kind))).collect();
        assert_eq!(known, told, "{message}");
    }
    // Nothing else takes up room; inlined messages were seen within others.
    let inlined = |name: &str| lines.values().any(|fields| fields.contains(&format!(". {name}")));
    for name in lines.keys() {
        assert!(seen.contains(name) || inlined(name), "{name} is in no kind");
    }
}

/// Which fields are pointers, and which are written empty, is the same here and where objects are brought into form.
#[test]
fn the_table_fits_the_shapes() {
    let shapes: BTreeMap<String, Fields> =
        serde_json::from_str(include_str!("../builtin/shapes.json")).unwrap();
    let lines = lines();
    for (name, shape) in shapes {
        let mut fields = fields(&lines, &name);
        for kind in fields.values_mut() {
            if kind.ends_with('i') && !kind.contains('.') {
                *kind = kind.replace('i', "I");
            }
            // There a schema is any JSON.
            *kind = kind.replace("apiextensions.JSONSchemaProps", "R");
        }
        assert_eq!(fields, shape, "{name}");
    }
}

#[test]
fn the_captures_hold_every_field() {
    let lines = lines();
    let mut met: BTreeSet<(String, String)> = BTreeSet::new();
    for Capture { json, .. } in captures() {
        let (version, kind) = (json["apiVersion"].as_str().unwrap(), json["kind"].as_str().unwrap());
        let beyond = BEYOND_KINDS.into_iter().find(|name| name.ends_with(&format!(".{kind}")));
        let root = beyond.unwrap_or_else(|| builtin::by_kind(version, kind).unwrap().shape);
        meet(&lines, root, &json, &mut met);
    }
    for name in lines.keys().filter(|name| !name.contains("PropsOr")) {
        let inlined = lines.values().any(|fields| fields.contains(&format!(". {name}")));
        for field in fields(&lines, name).into_keys().filter(|_| !inlined) {
            assert!(met.contains(&(name.clone(), field.clone())), "{name}.{field} is in no capture");
        }
    }
}

fn meet(
    lines: &BTreeMap<String, String>,
    message: &str,
    value: &Value,
    met: &mut BTreeSet<(String, String)>,
) {
    for (name, kind) in fields(lines, message) {
        let Some(value) = value.get(&name) else { continue };
        met.insert((message.to_owned(), name));
        let kind = kind.trim_start_matches(['!', '0', '*']);
        let inner = kind.trim_start_matches(['[', '{']);
        let values: Vec<&Value> = match kind.as_bytes()[0] {
            b'[' => value.as_array().into_iter().flatten().collect(),
            b'{' => value.as_object().into_iter().flat_map(|map| map.values()).collect(),
            _ => vec![value],
        };
        if lines.contains_key(inner) {
            values.into_iter().for_each(|value| meet(lines, inner, value, met));
        }
    }
}

// Bodies by hand.

fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    assert!(length < 0x80 && number < 16, "both fit one byte");
    [&[number << 3 | 2, length], payload].concat()
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let name = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC, &field(1, &name), &field(2, raw)].concat()
}

fn named(name: &str) -> Vec<u8> {
    field(1, &field(1, name.as_bytes()))
}

#[test]
fn broken_bodies_are_told_apart() {
    let map = |raw: &[u8]| envelope("v1", "ConfigMap", raw);
    let whole = map(&named("x"));
    let cases: [(&[u8], &str, bool); 11] = [
        (b"", "empty data", false),
        (
            b"abc",
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
            false,
        ),
        (b"k8s\0", "empty body", false),
        (&whole[..whole.len() - 1], "unexpected EOF", false),
        (&map(&named("x")[..4]), "unexpected EOF", true),
        (&map(&[0x08, 0x01]), "proto: wrong wireType = 0 for field ObjectMeta", true),
        (&map(&[0x00, 0x01]), "proto: ConfigMap: illegal tag 0 (wire type 0)", true),
        (&map(&[0x0c]), "proto: ConfigMap: wiretype end group for non-group", true),
        (&map(&[0xff; 11]), "proto: integer overflow", true),
        (
            &map(&[[0x12].as_slice(), &[0xff; 9], &[1]].concat()),
            "proto: negative length found during unmarshaling",
            true,
        ),
        (&map(&[0x7e, 0x01]), "proto: illegal wireType 6", true),
    ];
    for (body, text, inside) in cases {
        let error = decode(body, UNTYPED).unwrap_err();
        assert_eq!(error.to_string(), text);
        assert_eq!(matches!(&error, Error::Message { kind, .. } if kind == "ConfigMap"), inside, "{text}");
    }
}

#[test]
fn types_are_said_assumed_or_unknown() {
    let assumed = TypeName { api_version: "v1", kind: "Secret" };
    let read = |version: &str, kind: &str| decode(&envelope(version, kind, &named("x")), assumed).unwrap();
    let object =
        |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}});
    assert_eq!(read("", ""), object("v1", "Secret"));
    assert_eq!(read("v1", ""), object("v1", "Secret"));
    assert_eq!(read("apps/v1", "Deployment"), object("apps/v1", "Deployment"));
    assert_eq!(read("v1", "Deployment"), json!({"apiVersion": "v1", "kind": "Deployment"}));
    assert_eq!(read("example.com/v1", "Foo"), json!({"apiVersion": "example.com/v1", "kind": "Foo"}));
}

#[test]
fn later_fields_win_messages_join_and_strangers_are_ignored() {
    let raw = [named("x"), field(1, &field(3, b"ns")), field(1, &field(1, b"y")), field(15, b"?")].concat();
    let object = decode(&envelope("v1", "ConfigMap", &raw), UNTYPED).unwrap();
    assert_eq!(object["metadata"], json!({"name": "y", "namespace": "ns"}));
    let raw = [named("x"), field(1, &field(1, b""))].concat();
    let object = decode(&envelope("v1", "ConfigMap", &raw), UNTYPED).unwrap();
    assert_eq!(object["metadata"], json!({}));
}

#[test]
fn numbers_may_be_packed() {
    // spec.securityContext.supplementalGroups: 1 and 2 packed, 3 alone.
    let groups = [field(4, &[1, 2]), vec![0x20, 3]].concat();
    let raw = field(2, &field(14, &groups));
    let pod = decode(&envelope("v1", "Pod", &raw), UNTYPED).unwrap();
    assert_eq!(pod["spec"]["securityContext"]["supplementalGroups"], json!([1, 2, 3]));
}

fn long_field(number: u32, payload: &[u8]) -> Vec<u8> {
    let varint = |mut rest: u32| {
        let mut out = Vec::new();
        while rest >= 0x80 {
            out.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        out.push(u8::try_from(rest).unwrap());
        out
    };
    [varint(number << 3 | 2), varint(u32::try_from(payload.len()).unwrap()), payload.to_vec()].concat()
}

#[test]
fn nesting_ends() {
    let nested = |levels: usize| {
        // JSONSchemaProps.not of JSONSchemaProps.not of …
        let schema = (0..levels).fold(Vec::new(), |inner, _| long_field(28, &inner));
        // spec.versions[].schema.openAPIV3Schema
        let spec = long_field(7, &long_field(4, &long_field(1, &schema)));
        let raw = long_field(2, &spec);
        let kind = b"\x0a\x17apiextensions.k8s.io/v1\x12\x18CustomResourceDefinition";
        decode(&[MAGIC, &long_field(1, kind), &long_field(2, &raw)].concat(), UNTYPED)
    };
    let shallow = nested(50).unwrap();
    assert!(shallow["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["not"]["not"].is_object());
    assert!(nested(64).unwrap_err().to_string().contains("depth"));
    assert!(nested(20_000).unwrap_err().to_string().contains("depth"));
}

/// How many values there are.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(size).sum::<usize>(),
        Value::Object(map) => map.values().map(size).sum::<usize>(),
        _ => 0,
    }
}

/// Length of everything that came from the wire: text, and the keys of maps.
fn text_length(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(text_length).sum(),
        Value::Object(map) => map.values().map(text_length).sum(),
        _ => 0,
    }
}

/// Bytes that look like protobuf more often than chance has it.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), 0_u8..6, (1_u8..16).prop_map(|n| n << 3 | 2), Just(0x0a), Just(0x12)];
    vec(byte, 0..300)
}

proptest! {
    #[test]
    fn no_bytes_are_fatal_or_costly(raw in noise(), pick in any::<proptest::sample::Index>()) {
        let all: Vec<_> = roots().collect();
        let message = table().find(all[pick.index(all.len())]).unwrap();
        if let Ok(object) = message::read(message, &raw) {
            let object = Value::Object(object);
            // A field takes two bytes; a byte of what is not UTF-8 becomes three.
            assert!(size(&object) <= raw.len() + 1);
            assert!(text_length(&object) <= 30 * raw.len());
        }
    }

    #[test]
    fn spoilt_objects_are_not_fatal(
        pick in any::<proptest::sample::Index>(),
        place in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let all = captures();
        let mut body = all[pick.index(all.len())].proto.clone();
        let place = place.index(body.len());
        body[place] = byte;
        if cut {
            body.truncate(place + 1);
        }
        if let Ok(object) = decode(&body, UNTYPED) {
            assert!(size(&object) <= body.len());
        }
    }
}
