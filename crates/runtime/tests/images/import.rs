//! Archives as tools make them: what is unpacked, how it is named, what survives a crash or a second process.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use agentcube_runtime::image::{Error, Limits, Options, Store};
use agentcube_runtime::spec::Root;

use crate::build::{self, blobs, directory, docker_archive, file, gzip, hard_link, symlink, tar, zstd};
use crate::{import, inode, leftovers, quiet, reference, root, tree};

const LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);

/// Looks until there is something. A child that another test has just forked keeps our locks until it executes a program.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "waited in vain: {what}");
        std::thread::sleep(POLL);
    }
}

fn layers() -> Vec<Vec<u8>> {
    let long = format!("etc/{}/deep", "long-name".repeat(20));
    vec![
        tar(&[
            directory("./"),
            directory("etc/").mode(0o750),
            file("etc/hosts", "lower").mode(0o4755),
            hard_link("etc/hosts.link", "etc/hosts"),
            file("etc/gone", "x"),
            directory("opaque"),
            file("opaque/lower", "x"),
            directory("opaque/both"),
            file("opaque/both/lower", "x"),
            directory("usr/lib"),
            symlink("lib", "usr/lib"),
            file("lib/through-link", "y"),
            file(&long, "z"),
            symlink("absolute", "/etc/hosts"),
            build::entry(b'6', "fifo", ""),
            build::entry(b'3', "null", ""),
        ]),
        tar(&[
            // Both orders: a whiteout hides what is below it and nothing of its own layer.
            file("opaque/both/upper", "u"),
            build::entry(b'0', "opaque/.wh..wh..opq", ""),
            file("opaque/upper", "u"),
            build::entry(b'0', "etc/.wh.gone", ""),
            file("etc/back", "b"),
            build::entry(b'0', "etc/.wh.back", ""),
            build::entry(b'0', "etc/.wh.never-was", ""),
            file("etc/hosts", "upper"),
            build::entry(b'0', ".wh..wh.plnk", ""),
        ]),
    ]
}

fn expected() -> Vec<(String, String)> {
    let long = "long-name".repeat(20);
    let mut expected: Vec<_> = [
        ("absolute", "l:/etc/hosts"),
        ("etc", "d"),
        ("etc/back", "f:b"),
        ("etc/hosts", "f:upper"),
        ("etc/hosts.link", "f:lower"),
        ("fifo", "p"),
        ("lib", "l:usr/lib"),
        ("opaque", "d"),
        ("opaque/both", "d"),
        ("opaque/both/upper", "f:u"),
        ("opaque/upper", "f:u"),
        ("usr", "d"),
        ("usr/lib", "d"),
        ("usr/lib/through-link", "f:y"),
    ]
    .map(|(path, kind)| (path.to_owned(), kind.to_owned()))
    .into();
    expected.push((format!("etc/{long}"), "d".into()));
    expected.push((format!("etc/{long}/deep"), "f:z".into()));
    expected.sort();
    expected
}

#[test]
fn every_form_of_an_image_unpacks_to_the_same() {
    let data = tempfile::tempdir().unwrap();
    let layers = layers();
    let plain = docker_archive("team/app:1", &layers);
    let layout = |compress| {
        let path = tempfile::tempdir_in(&data).unwrap().keep();
        build::write_layout(&path, "team/app:1", &blobs(&layers, compress));
        path
    };
    let written = |name: &str, bytes: &[u8]| {
        let path = data.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    for (at, path) in [
        written("plain.tar", &plain),
        written("plain.tar.gz", &gzip(&plain)),
        written("plain.tar.zst", &zstd(&plain)),
        layout(<[u8]>::to_vec),
        layout(gzip),
        layout(zstd),
    ]
    .iter()
    .enumerate()
    {
        let store = Store::open(&data.path().join(format!("store-{at}"))).unwrap();
        let images = store.import(path, None, &quiet()).unwrap();
        assert_eq!(images.len(), 1);
        let image = store.resolve(&reference("team/app:1")).unwrap().unwrap();
        assert_eq!(image, images[0]);
        assert_eq!(image.config.env, ["A=b"]);
        assert_eq!(image.config.user, "1000");
        assert_eq!(tree(root(&image)).into_iter().collect::<Vec<_>>(), expected(), "{}", path.display());
    }
}

#[test]
fn modes_times_links_and_owners_are_kept() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    let layer = tar(&[
        directory("ro").mode(0o555),
        file("ro/suid", "x").mode(0o4755).record("mtime", b"1000000001.25"),
        hard_link("ro/same", "ro/suid"),
        file("owned", "x").owner(1234),
        file("tagged", "x")
            .record("SCHILY.xattr.user.colour", b"red")
            .record("SCHILY.xattr.user.overlay.opaque", b"y"),
    ]);
    let image = import(&store, &docker_archive("app", &[layer])).unwrap().remove(0);
    let at = |path: &str| root(&image).join(path);
    let stat = |path: &str| std::fs::symlink_metadata(at(path)).unwrap();
    assert_eq!(stat("ro").permissions().mode() & 0o7777, 0o555);
    assert_eq!((stat("ro").mtime(), stat("ro/suid").mtime()), (1_000_000_000, 1_000_000_001));
    assert_eq!(stat("ro/suid").mtime_nsec(), 250_000_000);
    assert_eq!(stat("ro/suid").permissions().mode() & 0o7777, 0o4755);
    assert_eq!(inode(&at("ro/suid")), inode(&at("ro/same")));
    let me = rustix::process::geteuid();
    assert_eq!(stat("owned").uid(), if me.is_root() { 1234 } else { me.as_raw() });
    let mut value = [0; 16];
    match rustix::fs::getxattr(at("tagged"), "user.colour", &mut value) {
        Ok(length) => assert_eq!(&value[..length], b"red"),
        Err(error) => assert_eq!(error, rustix::io::Errno::NOTSUP),
    }
    assert!(rustix::fs::getxattr(at("tagged"), "user.overlay.opaque", &mut value).is_err());
    // The owner may not write to `ro`, and yet it goes.
    assert_eq!(store.remove("app", &|_| false).unwrap().image.as_deref(), Some(image.id.as_str()));
    assert_eq!((leftovers(data.path()).len(), root(&image).exists()), (0, false));
}

#[test]
fn names_lead_to_images_with_and_without_a_default_registry() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    let layer = vec![tar(&[file("a", "b")])];
    import(&store, &docker_archive("registry.example/library/app:1", &layer)).unwrap();
    let here = |store: &Store, name: &str| store.resolve(&reference(name)).unwrap().is_some();
    for (name, plain, with_default) in [
        ("registry.example/library/app:1", true, true),
        ("app:1", true, true),
        ("library/app:1", false, true),
        ("app", false, false),
        ("other.example/library/app:1", false, false),
    ] {
        let options = Options { default_registry: Some("registry.example".into()), ..Options::default() };
        let defaulted = Store::open_with(data.path(), options).unwrap();
        assert_eq!((here(&store, name), here(&defaulted, name)), (plain, with_default), "{name}");
    }
    let path = data.path().join("a.tar");
    std::fs::write(&path, docker_archive("ignored", &layer)).unwrap();
    store.import(&path, Some(&reference("mine:2")), &quiet()).unwrap();
    assert!(here(&store, "mine:2") && !here(&store, "ignored"));
}

#[test]
fn the_host_is_built_in() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    for name in ["host", "host:latest", "host:anything"] {
        let image = store.resolve(&reference(name)).unwrap().unwrap();
        assert_eq!(image.root, Root::Host { also: Vec::new() });
    }
    assert!(store.resolve(&reference("registry.example/host")).unwrap().is_none());
    assert!(matches!(store.remove("host", &|_| false), Err(Error::BuiltIn)));
    let archive = docker_archive("host:1", &[tar(&[file("a", "b")])]);
    assert!(matches!(import(&store, &archive), Err(Error::BuiltIn)));
}

#[test]
fn an_image_goes_with_its_last_name_unless_it_is_used() {
    let data = tempfile::tempdir().unwrap();
    let (store, other) = (Store::open(data.path()).unwrap(), Store::open(data.path()).unwrap());
    let layers = [tar(&[file("a", "b")])];
    import(&store, &docker_archive("one:1", &layers)).unwrap();
    import(&store, &docker_archive("two:1", &layers)).unwrap();
    let image = other.resolve(&reference("two:1")).unwrap().expect("another process sees it");
    assert_eq!(image.names, ["one:1", "two:1"]);
    assert_eq!(store.remove("one:1", &|_| true).unwrap().image, None);
    assert!(matches!(store.remove("two:1", &|_| true), Err(Error::InUse(_))));
    let held = other.hold(&image).unwrap();
    assert!(matches!(store.remove("two:1", &|_| false), Err(Error::InUse(_))));
    assert!(store.resolve(&reference("two:1")).unwrap().is_some(), "it keeps its name");
    drop(held);
    let removed = until("nobody holds it", || match store.remove(&image.id[..20], &|_| false) {
        Err(Error::InUse(_)) => None,
        removed => Some(removed.unwrap()),
    });
    assert_eq!(removed.image, Some(image.id.clone()));
    assert!(other.resolve(&reference("two:1")).unwrap().is_none());
    assert!(other.hold(&image).is_err());
    assert!(matches!(store.remove("two:1", &|_| false), Err(Error::NotFound(_))));
    // What was removed can come back.
    import(&other, &docker_archive("two:1", &layers)).unwrap();
    assert_eq!(store.list().unwrap().len(), 2);
}

#[test]
fn a_moved_tag_leaves_the_old_image_nameless() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    let old = import(&store, &docker_archive("app", &[tar(&[file("a", "1")])])).unwrap().remove(0);
    let new = import(&store, &docker_archive("app", &[tar(&[file("a", "2")])])).unwrap().remove(0);
    assert_eq!(store.resolve(&reference("app")).unwrap().unwrap().id, new.id);
    assert!(store.find(&old.id).unwrap().names.is_empty());
}

#[test]
fn leftovers_of_crashes_are_swept_and_work_of_others_is_not() {
    let data = tempfile::tempdir().unwrap();
    let _store = Store::open(data.path()).unwrap();
    let work = data.path().join("images/work");
    let (dead, live) = (work.join("1-1"), work.join("1-2"));
    std::fs::create_dir_all(dead.join("image/root/locked/inner")).unwrap();
    std::fs::set_permissions(dead.join("image/root/locked"), PermissionsExt::from_mode(0o0)).unwrap();
    std::fs::create_dir(&live).unwrap();
    let lock = std::fs::File::open(&live).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let _again = Store::open(data.path()).unwrap();
    assert_eq!(leftovers(data.path()), [live]);
    drop(lock);
    until("it is swept", || {
        let _again = Store::open(data.path()).unwrap();
        leftovers(data.path()).is_empty().then_some(())
    });
}

#[test]
fn concurrent_imports_of_one_image_leave_one() {
    let data = tempfile::tempdir().unwrap();
    let archive = docker_archive("app", &layers());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // A store each, as processes would have.
            scope.spawn(|| import(&Store::open(data.path()).unwrap(), &archive).unwrap());
        }
    });
    let store = Store::open(data.path()).unwrap();
    assert_eq!(store.list().unwrap().len(), 2, "the host and this one");
    assert!(leftovers(data.path()).is_empty());
}

#[test]
fn limits_hold() {
    let layer = tar(&[file("a", &"x".repeat(4000)), file("b", ""), directory("c")]);
    let small = Limits::default();
    for (limits, what) in [
        (Limits { entries: 2, ..small }, "entries"),
        (Limits { unpacked_bytes: 2000, ..small }, "limit"),
        (Limits { layers: 0, ..small }, "layers"),
        (Limits { manifest_bytes: 50, ..small }, "larger"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open_with(data.path(), Options { limits, ..Options::default() }).unwrap();
        let path = data.path().join("a.tar");
        std::fs::write(&path, docker_archive("app", std::slice::from_ref(&layer))).unwrap();
        let error = store.import(&path, None, &quiet()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        assert_eq!((leftovers(data.path()).len(), store.list().unwrap().len()), (0, 1));
    }
}

#[test]
fn a_compression_bomb_stops_at_the_limit() {
    let limits = Limits { unpacked_bytes: 64 << 10, ..Limits::default() };
    let data = tempfile::tempdir().unwrap();
    let store = Store::open_with(data.path(), Options { limits, ..Options::default() }).unwrap();
    // Zeros in a file, after the archive's end, and as the archive itself.
    let inside = tar(&[file("zeros", &"\0".repeat(1 << 20))]);
    let mut after = tar(&[file("a", "b")]);
    after.resize(1 << 20, 0);
    for layer in [inside, after, vec![0; 1 << 20]] {
        let layers = [layer];
        let path = tempfile::tempdir().unwrap();
        build::write_layout(path.path(), "app", &blobs(&layers, gzip));
        let error = store.import(path.path(), None, &quiet()).unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
        assert!(leftovers(data.path()).is_empty());
        let whole = gzip(&docker_archive("app", &layers));
        assert!(import(&store, &whole).unwrap_err().to_string().contains("larger than the limit"));
    }
}
