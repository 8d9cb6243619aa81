//! Archives that mean no harm, and archives that do.
// The whole file is a test; clippy sees that of functions marked so only.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use agentcube_bundle::archive::{Error, unpack};
use agentcube_bundle::{Limits, copy};
use proptest::prelude::*;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const LIMITS: Limits = Limits { archive: 1 << 20, unpacked: 1 << 20, entries: 100 };

/// An archive of entries: name, mode with the type of file, content. Written by hand, because no library writes what is
/// tested here.
fn zip(entries: &[(&str, u32, &[u8])]) -> File {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, mode, content) in entries {
        let at = bytes.len() as u32;
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        common.extend(crc32(content).to_le_bytes());
        common.extend([content.len() as u32; 2].map(u32::to_le_bytes).concat());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(name.as_bytes());
        bytes.extend(*content);
        // Made by Unix, so that the upper half of the attributes is a mode.
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend((mode << 16).to_le_bytes());
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let at = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([entries.len() as u16; 2].map(u16::to_le_bytes).concat());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend([0, 0]);
    file(&bytes)
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

fn bytes(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (0u32.wrapping_sub(crc & 1))))
    })
}

const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o104_755;
const LINK: u32 = 0o120_777;
const DEVICE: u32 = 0o020_666;
const DIRECTORY: u32 = 0o040_755;

/// Everything below a directory, links as they are.
fn tree(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                left.push(path.clone());
            }
            found.push(path.strip_prefix(directory).unwrap().to_str().unwrap().to_string());
        }
    }
    found.sort();
    found
}

#[test]
fn a_good_archive_is_unpacked() {
    let directory = tempfile::tempdir().unwrap();
    let archive = zip(&[
        ("./", DIRECTORY, b""),
        ("src/", DIRECTORY, b""),
        ("src/main.py", FILE, b"print(1)"),
        ("run", PROGRAM, b"#!/bin/true"),
        ("lib/deep/er.py", 0, b""),
        ("src/link.py", LINK, b"../lib/deep/er.py"),
    ]);
    let unpacked = unpack(archive, directory.path(), LIMITS).unwrap();
    assert_eq!(unpacked.bytes, 8 + 11 + 17);
    let names = ["lib", "lib/deep", "lib/deep/er.py", "run", "src", "src/link.py", "src/main.py"];
    assert_eq!(tree(directory.path()), names);
    assert_eq!(fs::read(directory.path().join("src/main.py")).unwrap(), b"print(1)");
    let mode = |name| fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o7777;
    // Nothing is set-uid, whatever the archive says.
    assert_eq!((mode("run"), mode("src/main.py")), (0o755, 0o644));
    assert_eq!(fs::read_link(directory.path().join("src/link.py")).unwrap(), Path::new("../lib/deep/er.py"));
}

#[test]
fn malicious_archives_are_refused_and_leave_nothing_outside() {
    type Case<'a> = (&'a str, Vec<(&'a str, u32, &'a [u8])>, fn(&Error) -> bool);
    let names: Vec<String> = (0..12).map(|number| format!("d{number}/1/2/3/4/5/6/7/8/9/x")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), FILE, &b""[..])).collect();
    let cases: Vec<Case<'_>> = vec![
        ("a name that goes up", vec![("../evil", FILE, b"x")], |e| matches!(e, Error::Name { .. })),
        ("up in between", vec![("a/../../evil", FILE, b"x")], |e| matches!(e, Error::Name { .. })),
        ("an absolute name", vec![("/evil", FILE, b"x")], |e| matches!(e, Error::Name { .. })),
        ("an absolute directory", vec![("/", DIRECTORY, b"")], |e| matches!(e, Error::Name { .. })),
        ("a name for Windows", vec![("..\\evil", FILE, b"x")], |e| matches!(e, Error::Name { .. })),
        ("a link that goes up", vec![("a", LINK, b"../evil")], |e| matches!(e, Error::Escapes { .. })),
        ("an absolute link", vec![("a", LINK, b"/etc/passwd")], |e| matches!(e, Error::Escapes { .. })),
        ("down and up", vec![("a", LINK, b"."), ("b", LINK, b"a/../..")], |e| {
            matches!(e, Error::Escapes { .. })
        }),
        ("a file through a link", vec![("a", LINK, b"."), ("a/evil", FILE, b"x")], |e| {
            matches!(e, Error::Twice { .. })
        }),
        ("a link through a link", vec![("d", LINK, b"."), ("d/l", LINK, b"../evil")], |e| {
            matches!(e, Error::Twice { .. })
        }),
        ("a file, then below it", vec![("a", FILE, b"x"), ("a/b", FILE, b"x")], |e| {
            matches!(e, Error::Twice { .. })
        }),
        ("a device", vec![("null", DEVICE, b"")], |e| matches!(e, Error::Special { .. })),
        ("too many directories", many.clone(), |e| matches!(e, Error::TooMuch(_))),
    ];
    for (what, entries, expected) in cases {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("inside");
        fs::create_dir(&inside).unwrap();
        match unpack(zip(&entries), &inside, LIMITS) {
            Ok(_) => panic!("{what}: it was unpacked"),
            Err(error) => assert!(expected(&error), "{what}: {error:?}"),
        }
        let outside = tree(place.path()).into_iter().find(|name| !name.starts_with("inside"));
        assert_eq!(outside, None, "{what}");
    }
}

#[test]
fn bombs_do_not_go_off() {
    let mut writer = ZipWriter::new(tempfile::tempfile().unwrap());
    let deflated = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    writer.start_file("zeros", deflated).unwrap();
    writer.write_all(&vec![0; 4 << 20]).unwrap();
    let mut archive = bytes(writer.finish().unwrap());
    // Small as an archive, and its headers lie about what is in it.
    assert!(archive.len() < 64 << 10);
    let central = archive.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap();
    archive[central + 24..central + 28].copy_from_slice(&10u32.to_le_bytes());
    let directory = tempfile::tempdir().unwrap();
    let error = unpack(file(&archive), directory.path(), LIMITS).unwrap_err();
    let size = fs::metadata(directory.path().join("zeros")).unwrap().len();
    assert!(size <= LIMITS.unpacked + 1, "{size} bytes were written: {error}");

    let names: Vec<String> = (0..101).map(|number| number.to_string()).collect();
    let entries: Vec<(&str, u32, &[u8])> = names.iter().map(|name| (name.as_str(), FILE, &b""[..])).collect();
    let directory = tempfile::tempdir().unwrap();
    let error = unpack(zip(&entries), directory.path(), LIMITS).unwrap_err();
    assert!(error.to_string().contains("more than 100 files"), "{error}");
    assert_eq!(tree(directory.path()), Vec::<String>::new());
}

#[test]
fn damage_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let error = unpack(file(b"<html>not found</html>"), directory.path(), LIMITS).unwrap_err();
    assert!(error.to_string().contains("no zip archive"), "{error}");

    let mut damaged = bytes(zip(&[("main.py", FILE, b"print('a rather long line of code')")]));
    let at = damaged.windows(7).position(|seven| seven == b"main.py").unwrap() + 9;
    damaged[at] ^= 0xff;
    let directory = tempfile::tempdir().unwrap();
    let error = unpack(file(&damaged), directory.path(), LIMITS).unwrap_err();
    assert!(error.to_string().contains("main.py"), "{error}");
}

#[test]
fn directories_are_copied_without_links() {
    let source = tempfile::tempdir().unwrap();
    let at = |name: &str| source.path().join(name);
    // As the keys of a ConfigMap look in a Pod.
    fs::create_dir_all(at("..2026_1/sub")).unwrap();
    fs::write(at("..2026_1/server"), "server").unwrap();
    fs::write(at("..2026_1/other.py"), "other").unwrap();
    symlink("..2026_1", at("..data")).unwrap();
    symlink("..data/server", at("server")).unwrap();
    symlink("..data/other.py", at("other.py")).unwrap();
    let target = tempfile::tempdir().unwrap();
    let renamed = [("server".to_string(), "src/server.js".parse().unwrap())].into();
    copy::copy(source.path(), target.path(), &renamed, LIMITS).unwrap();
    assert_eq!(tree(target.path()), ["other.py", "src", "src/server.js"]);
    assert!(target.path().join("other.py").symlink_metadata().unwrap().is_file());

    let refused = |expected: &str| {
        let target = tempfile::tempdir().unwrap();
        let error = copy::copy(source.path(), target.path(), &renamed, LIMITS).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    symlink("/etc/passwd", at("evil")).unwrap();
    refused("leads out");
    fs::remove_file(at("evil")).unwrap();
    symlink(".", at("loop")).unwrap();
    refused("more than 100 files");
    fs::remove_file(at("loop")).unwrap();
    fs::write(at("large"), vec![0; (1 << 20) + 1]).unwrap();
    refused("more than 1048576 bytes");
    fs::remove_file(at("server")).unwrap();
    refused("no \"server\"");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever names and links an archive has, all that it writes is inside, and no link in it leads out.
    #[test]
    fn nothing_gets_out(entries in prop::collection::vec(("[ab./]{1,8}", any::<bool>(), "[ab./]{1,8}"), 1..6)) {
        let entries: Vec<(&str, u32, &[u8])> = entries
            .iter()
            .map(|(name, link, target)| (name.as_str(), if *link { LINK } else { FILE }, target.as_bytes()))
            .collect();
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("x/y/inside");
        fs::create_dir_all(&inside).unwrap();
        let _ = unpack(zip(&entries), &inside, LIMITS);
        for name in tree(place.path()) {
            prop_assert!("x/y/inside".starts_with(&name) || name.starts_with("x/y/inside/"), "{}", name);
            // A link to a link to itself leads nowhere.
            if let Ok(real) = place.path().join(&name).canonicalize() && name.starts_with("x/y/inside/") {
                prop_assert!(real.starts_with(inside.canonicalize().unwrap()), "{} leads to {:?}", name, real);
            }
        }
    }
}
