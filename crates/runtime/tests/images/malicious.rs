//! Archives that try to write, read or remove outside their root, and archives that are damaged.

use std::path::Path;

use agentcube_runtime::image::Store;
use proptest::prelude::*;

use crate::build::{
    Entry, blobs, directory, docker_archive, entry, file, gzip, hard_link, symlink, tar, write_layout,
};
use crate::{import, leftovers, quiet, root, tree};

/// Unpacks it in a store beside a directory that must not be touched, and says whether that was refused.
fn attempt(layers: &[Vec<Entry>]) -> Result<Vec<(String, String)>, String> {
    let area = tempfile::tempdir().unwrap();
    let outside = area.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("victim"), "precious").unwrap();
    let aim = |text: &str| text.replace("OUTSIDE", outside.to_str().unwrap());
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| {
            let aimed: Vec<_> = layer
                .iter()
                .map(|entry| Entry { path: aim(&entry.path), link: aim(&entry.link), ..entry.clone() })
                .collect();
            tar(&aimed)
        })
        .collect();
    let data = area.path().join("data");
    let store = Store::open(&data).unwrap();
    let before = tree_but(area.path(), &data);
    let outcome = import(&store, &docker_archive("evil", &layers));
    assert_eq!(tree_but(area.path(), &data), before, "something outside was touched");
    assert!(leftovers(&data).is_empty());
    match outcome {
        Ok(images) => {
            let found = tree(root(&images[0])).into_iter();
            // What is inside may not have come from outside.
            Ok(found.inspect(|(path, kind)| assert!(!kind.contains("precious"), "{path} has it")).collect())
        }
        Err(error) => {
            assert_eq!(store.list().unwrap().len(), 1, "only the host is left");
            Err(error.to_string())
        }
    }
}

fn tree_but(path: &Path, except: &Path) -> Vec<(String, String)> {
    let skipped = except.strip_prefix(path).unwrap().display().to_string();
    tree(path).into_iter().filter(|(path, _)| !path.starts_with(&skipped)).collect()
}

#[test]
fn what_would_leave_the_root_is_refused() {
    let up = "../".repeat(12);
    let table: Vec<(&str, Vec<Vec<Entry>>)> = vec![
        ("a file above", vec![vec![file(&format!("{up}tmp/x"), "evil")]]),
        ("a file above, hidden", vec![vec![file("a/../../../outside/victim", "evil")]]),
        ("a directory above", vec![vec![directory("../outside")]]),
        ("a hard link above", vec![vec![hard_link("a", "../../../../../outside/victim")]]),
        ("a hard link to an absolute path", vec![vec![hard_link("a", "OUTSIDE/victim"), file("a", "evil")]]),
        ("a hard link through a link", vec![vec![symlink("d", "OUTSIDE"), hard_link("a", "d/victim")]]),
        ("a hard link to the root", vec![vec![hard_link("a", "/")]]),
        ("a hard link to a directory", vec![vec![directory("d"), hard_link("a", "d")]]),
        ("a whiteout of nothing", vec![vec![entry(b'0', ".wh.", "")]]),
        ("a whiteout of this directory", vec![vec![entry(b'0', "d/.wh..", "")]]),
        ("a whiteout of the directory above", vec![vec![entry(b'0', ".wh...", "")]]),
        ("a whiteout above", vec![vec![entry(b'0', "../outside/.wh.victim", "")]]),
        ("an opaque directory above", vec![vec![entry(b'0', "../outside/.wh..wh..opq", "")]]),
        ("a path with a zero", vec![vec![file("x", "y").record("path", b"a\0b")]]),
        ("an empty path", vec![vec![file("x", "y").record("path", b"")]]),
        ("a path that is too long", vec![vec![file(&"a/".repeat(3000), "y")]]),
        ("a link that is too long", vec![vec![symlink("a", &"b".repeat(5000))]]),
        ("a name that is too long", vec![vec![file(&"a".repeat(300), "y")]]),
        ("too deep", vec![vec![file(&format!("{}x", "a/".repeat(300)), "y")]]),
        ("a huge attribute", vec![vec![file("x", "y").record("comment", &vec![b'x'; 2 << 20])]]),
        ("a sparse file", vec![vec![file("x", "y").record("GNU.sparse.major", b"1")]]),
        ("an unknown type", vec![vec![entry(b'S', "x", "")]]),
        ("a loop of links", vec![vec![symlink("a", "b"), symlink("b", "a"), file("a/x", "y")]]),
        ("a file as a directory", vec![vec![file("a", ""), file("a/x", "y")]]),
    ];
    for (what, layers) in table {
        let outcome = attempt(&layers);
        assert!(outcome.is_err(), "{what}: {outcome:?}");
    }
}

#[test]
fn what_points_outside_is_confined() {
    let inside = |layers: &[Vec<Entry>]| attempt(layers).unwrap();
    let has = |found: &[(String, String)], path: &str, kind: &str| {
        found.iter().any(|(name, found)| name == path && found == kind)
    };
    // An absolute path is one of the image.
    let found = inside(&[vec![file("/etc/passwd", "mine")]]);
    assert!(has(&found, "etc/passwd", "f:mine"), "{found:?}");
    // A link to the root of the host leads to the root of the image.
    let found = inside(&[vec![symlink("d", "/"), file("d/x", "y")]]);
    assert!(has(&found, "x", "f:y"), "{found:?}");
    // So do as many dots as one likes.
    let found = inside(&[vec![symlink("d", "../../../../../.."), file("d/x", "y")]]);
    assert!(has(&found, "x", "f:y"), "{found:?}");
    // A link that is in the way is replaced, not written through.
    let found = inside(&[vec![symlink("a", "OUTSIDE/victim")], vec![file("a", "evil")]]);
    assert!(has(&found, "a", "f:evil"), "{found:?}");
    let found = inside(&[vec![symlink("a", "OUTSIDE")], vec![directory("a"), file("a/victim", "evil")]]);
    assert!(has(&found, "a/victim", "f:evil"), "{found:?}");
    // Whiteouts and opaque markers through links remove nothing but what the image has.
    let found = inside(&[
        vec![directory("t"), file("t/x", "y"), symlink("d", "/t")],
        vec![entry(b'0', "d/.wh.x", "")],
    ]);
    assert!(!has(&found, "t/x", "f:y"), "{found:?}");
    // A link does not make a device or another process's files readable.
    let found = inside(&[vec![
        directory("proc/self"),
        symlink("proc/self/root", "/"),
        file("proc/self/root/x", "y"),
    ]]);
    assert!(has(&found, "x", "f:y"), "{found:?}");
    // A hard link to itself leaves the file.
    let found = inside(&[vec![file("a", "b"), hard_link("a", "a")]]);
    assert!(has(&found, "a", "f:b"), "{found:?}");
    // Devices are left out.
    let found = inside(&[vec![entry(b'4', "sda", ""), entry(b'3', "mem", "")]]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_link_to_the_outside_makes_nothing_there() {
    // The parent of the new file is a link to a directory that the image does not have.
    let outcome = attempt(&[vec![symlink("d", "OUTSIDE"), file("d/new", "evil")]]);
    assert!(outcome.is_err(), "{outcome:?}");
    let outcome = attempt(&[vec![symlink("d", "OUTSIDE")], vec![entry(b'0', "d/.wh.victim", "")]]);
    assert!(outcome.is_err(), "{outcome:?}");
}

#[test]
fn directories_made_deep_through_links_are_refused() {
    // Each link starts from the end of the last, so that no path is long.
    let mut entries = Vec::new();
    let step = "d/".repeat(40);
    let mut here = String::new();
    for at in 0..10 {
        entries.push(directory(&format!("{here}{step}")));
        entries.push(symlink(&format!("l{at}"), &format!("{here}{step}")));
        here = format!("l{at}/");
    }
    let outcome = attempt(&[entries]);
    assert!(outcome.as_ref().is_err_and(|error| error.contains("deeper")), "{outcome:?}");
}

#[test]
fn content_that_is_not_what_its_digest_says_is_refused() {
    let layers = [tar(&[file("a", "b")])];
    let honest = blobs(&layers, gzip);
    for digest in honest.blobs.keys() {
        let area = tempfile::tempdir().unwrap();
        let path = area.path().join("layout");
        write_layout(&path, "app", &honest);
        let blob = path.join("blobs/sha256").join(digest.hex());
        let mut bytes = std::fs::read(&blob).unwrap();
        // The gzip header's time stamp, or a space in the JSON: it still decodes.
        if bytes[0] == 0x1f {
            bytes[4] ^= 1
        } else {
            bytes.push(b' ')
        }
        std::fs::write(&blob, bytes).unwrap();
        let store = Store::open(&area.path().join("data")).unwrap();
        let error = store.import(&path, None, &quiet()).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        assert_eq!(store.list().unwrap().len(), 1);
        assert!(leftovers(&area.path().join("data")).is_empty());
    }
}

#[test]
fn a_forged_file_in_a_layer_is_noticed() {
    let mut archive = docker_archive("app", &[tar(&[file("a", "honest")])]);
    let at = archive.windows(6).position(|window| window == b"honest").unwrap();
    archive[at..at + 6].copy_from_slice(b"forged");
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    let error = import(&store, &archive).unwrap_err().to_string();
    assert!(error.contains("content of the layer") && error.contains("damaged"), "{error}");
    assert_eq!((store.list().unwrap().len(), leftovers(data.path()).len()), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn damaged_archives_are_refused_and_leave_nothing(
        cut in proptest::option::of(0.0..1.0_f64),
        flips in proptest::collection::vec((0.0..1.0_f64, 1..=255_u8), 0..4),
        compressed in any::<bool>(),
    ) {
        let layers = [tar(&[directory("d"), file("d/a", "b"), symlink("l", "d/a"), hard_link("h", "d/a")]), tar(&[file("d/.wh.a", "")])];
        let mut archive = docker_archive("app", &layers);
        if compressed { archive = gzip(&archive); }
        let honest = archive.clone();
        for (at, mask) in &flips {
            let at = (archive.len() as f64 * at) as usize;
            archive[at] ^= mask;
        }
        if let Some(cut) = cut { archive.truncate((archive.len() as f64 * cut) as usize); }
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).unwrap();
        let outcome = import(&store, &archive);
        prop_assert!(leftovers(data.path()).is_empty());
        match outcome {
            // Some bytes say nothing: padding, times of the outer archive, the end.
            Ok(images) => {
                let found = tree(root(&images[0]));
                prop_assert_eq!(found.into_keys().collect::<Vec<_>>(), ["d", "h", "l"]);
            }
            Err(_) => {
                prop_assert_ne!(archive, honest);
                prop_assert_eq!(store.list().unwrap().len(), 1);
            }
        }
    }
}
