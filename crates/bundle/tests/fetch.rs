//! Fetches from a server on this machine: good ones, and all the ways in which they go wrong.
// The whole file is a test; clippy sees that of functions marked so only.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agentcube_bundle::download::{Error as DownloadError, Patience};
use agentcube_bundle::{Error, Limits, Order, Origin};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// What the server does with the n-th connection, given the path asked for.
type Answer = dyn Fn(usize, &str) -> Reply + Send + Sync;

enum Reply {
    Bytes(Vec<u8>),
    /// Says nothing until the client leaves.
    Silence,
}

struct Site {
    address: String,
    asked: Arc<AtomicUsize>,
}

impl Site {
    async fn start(answer: impl Fn(usize, &str) -> Reply + Send + Sync + 'static) -> Site {
        let answer: Arc<Answer> = Arc::new(answer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (answer, number) = (answer.clone(), counted.fetch_add(1, Ordering::SeqCst));
                tokio::spawn(async move {
                    let mut head = vec![0; 4096];
                    let length = stream.read(&mut head).await.unwrap_or(0);
                    let head = String::from_utf8_lossy(&head[..length]).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or("/").to_string();
                    match answer(number, &path) {
                        Reply::Bytes(bytes) => {
                            let _ = stream.write_all(&bytes).await;
                            let _ = stream.shutdown().await;
                        }
                        Reply::Silence => {
                            let _ = stream.read_to_end(&mut Vec::new()).await;
                        }
                    }
                });
            }
        });
        Site { address, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn http(status: &str, headers: &str, body: &[u8]) -> Reply {
    let mut bytes = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    Reply::Bytes(bytes)
}

fn whole(body: &[u8]) -> Reply {
    http("200 OK", &format!("Content-Length: {}\r\n", body.len()), body)
}

fn archive(content: &[u8]) -> Vec<u8> {
    let mut writer = ZipWriter::new(tempfile::tempfile().unwrap());
    writer.start_file("main.py", SimpleFileOptions::default()).unwrap();
    writer.write_all(content).unwrap();
    writer.start_file("package.json", SimpleFileOptions::default()).unwrap();
    let mut file = writer.finish().unwrap();
    file.rewind().unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

const IMPATIENT: Patience = Patience {
    connect: Duration::from_secs(5),
    silence: Duration::from_secs(20),
    whole: Duration::from_secs(60),
    attempts: 3,
    pause: Duration::from_millis(1),
};

fn order(address: String, into: &Path) -> Order {
    Order {
        origin: Origin::Url { address, sha256: None, cache: None },
        into: into.into(),
        limits: Limits::of(1 << 20),
        required: vec!["main.py".parse().unwrap()],
        lifted: Vec::new(),
        patience: IMPATIENT,
    }
}

fn expecting(address: String, into: &Path, digest: &str, cache: Option<PathBuf>) -> Order {
    let sha256 = Some(digest.parse().unwrap());
    Order { origin: Origin::Url { address, sha256, cache }, ..order(address_of_nothing(), into) }
}

fn address_of_nothing() -> String {
    String::new()
}

async fn carry_out(order: Order) -> Result<(), Error> {
    order.carry_out(&|_| ()).await
}

/// What is left in a directory.
fn names(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_good_bundle_arrives_after_redirects_and_failures() {
    let zip = archive(b"print(1)");
    let digest = sha256(&zip);
    let body = zip.clone();
    let site = Site::start(move |number, path| match (number, path) {
        (0, _) => http("503 Busy", "", b""),
        // Breaks off in the middle.
        (1, _) => http("200 OK", &format!("Content-Length: {}\r\n", body.len()), &body[..20]),
        (_, "/code.zip") => http("302 Found", "Location: /moved.zip\r\n", b""),
        _ => whole(&body),
    })
    .await;
    let into = tempfile::tempdir().unwrap();
    // What an earlier try has left does not stay.
    std::fs::create_dir_all(into.path().join("code/old")).unwrap();
    let mut order = expecting(format!("{}/code.zip", site.address), into.path(), &digest, None);
    order.lifted = vec!["package.json".parse().unwrap(), "package-lock.json".parse().unwrap()];
    carry_out(order).await.unwrap();
    assert_eq!(names(into.path()), ["code", "package.json"]);
    assert_eq!(names(&into.path().join("code")), ["main.py", "package.json"]);
    assert_eq!(site.asked(), 4);
}

#[tokio::test]
async fn what_is_wrong_is_told_and_leaves_nothing() {
    type Check = fn(&Error) -> bool;
    fn download(error: &Error) -> Option<&DownloadError> {
        match error {
            Error::Download(error) => Some(error),
            _ => None,
        }
    }
    let zip = archive(b"print(1)");
    let good = zip.clone();
    let site = Site::start(move |_, path| match path {
        "/good" => whole(&good),
        "/said-to-be-large" => http("200 OK", "Content-Length: 9999999\r\n", b""),
        "/is-large" => http("200 OK", "", &vec![0; (1 << 20) + 1]),
        "/truncated" => http("200 OK", &format!("Content-Length: {}\r\n", good.len()), &good[..30]),
        "/circle" => http("301 Moved", "Location: /circle\r\n", b""),
        "/nowhere" => http("301 Moved", "", b""),
        "/elsewhere" => http("301 Moved", "Location: ftp://127.0.0.1/x\r\n", b""),
        "/page" => whole(b"<html>"),
        _ => http("404 Not Found", "", b""),
    })
    .await;
    let cases: Vec<(&str, usize, Check)> = vec![
        ("/said-to-be-large", 1, |e| matches!(download(e), Some(DownloadError::TooLarge(_)))),
        ("/is-large", 1, |e| matches!(download(e), Some(DownloadError::TooLarge(_)))),
        ("/truncated", 3, |e| matches!(download(e), Some(DownloadError::Interrupted(30)))),
        ("/circle", 6, |e| matches!(download(e), Some(DownloadError::Redirects))),
        ("/nowhere", 1, |e| matches!(download(e), Some(DownloadError::Redirects))),
        ("/elsewhere", 1, |e| matches!(download(e), Some(DownloadError::Address(_)))),
        ("/missing", 1, |e| e.to_string().contains("404")),
        ("/page", 1, |e| e.to_string().contains("no zip archive")),
    ];
    for (path, requests, expected) in cases {
        let (into, before) = (tempfile::tempdir().unwrap(), site.asked());
        let error = carry_out(order(format!("{}{path}", site.address), into.path())).await.unwrap_err();
        assert!(expected(&error), "{path}: {error:?}");
        assert_eq!(site.asked() - before, requests, "{path}");
        assert_eq!(names(into.path()), Vec::<String>::new(), "{path}");
    }
    let into = tempfile::tempdir().unwrap();
    let wrong = sha256(b"something else");
    let address = format!("{}/good", site.address);
    let error = carry_out(expecting(address.clone(), into.path(), &wrong, None)).await.unwrap_err();
    let message = error.to_string();
    assert!(message.contains(&sha256(&zip)) && message.contains(&wrong), "{message}");
    let mut missing = order(address, into.path());
    missing.required = vec!["app.py".parse().unwrap()];
    let error = carry_out(missing).await.unwrap_err().to_string();
    assert_eq!(error, "the code has no file app.py; it has main.py, package.json");
}

#[tokio::test]
async fn silence_and_refusal_end_the_wait() {
    let site = Site::start(|_, path| match path {
        "/head" => Reply::Silence,
        _ => http("200 OK", "Content-Length: 100\r\n", b"begun"),
    })
    .await;
    let into = tempfile::tempdir().unwrap();
    let silence = Duration::from_millis(30);
    let patience = Patience { silence, attempts: 2, ..IMPATIENT };
    let silent = Order { patience, ..order(format!("{}/head", site.address), into.path()) };
    let error = carry_out(silent).await.unwrap_err();
    assert!(matches!(error, Error::Download(DownloadError::Silent { .. })), "{error:?}");
    assert_eq!(site.asked(), 2);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}/x", listener.local_addr().unwrap());
    drop(listener);
    let error = carry_out(order(nobody, into.path())).await.unwrap_err();
    assert!(error.to_string().contains("cannot reach"), "{error}");
    let error = carry_out(order("file:///etc/passwd".into(), into.path())).await.unwrap_err();
    assert!(error.to_string().contains("no http or https address"), "{error}");
}

#[tokio::test]
async fn a_digest_is_downloaded_once_however_many_want_it() {
    let zip = archive(b"print(1)");
    let digest = sha256(&zip);
    let body = zip.clone();
    let site = Site::start(move |_, _| whole(&body)).await;
    let cache = tempfile::tempdir().unwrap();
    let fetch = || async {
        let into = tempfile::tempdir().unwrap();
        let address = format!("{}/code.zip", site.address);
        carry_out(expecting(address, into.path(), &digest, Some(cache.path().into()))).await.unwrap();
        assert_eq!(std::fs::read(into.path().join("code/main.py")).unwrap(), b"print(1)");
    };
    // At once: each may download, none does harm.
    tokio::join!(fetch(), fetch(), fetch(), fetch());
    assert_eq!(names(cache.path()), [digest.as_str()]);
    let before = site.asked();
    fetch().await;
    assert_eq!(site.asked(), before);
    // A failure leaves nothing that would be taken for the archive.
    let into = tempfile::tempdir().unwrap();
    let wrong = sha256(b"other");
    let address = format!("{}/code.zip", site.address);
    carry_out(expecting(address, into.path(), &wrong, Some(cache.path().into()))).await.unwrap_err();
    assert_eq!(names(cache.path()), [digest.as_str()]);
}

#[tokio::test]
async fn links_survive_the_cache_and_a_cache_that_fails_is_done_without() {
    let mut writer = ZipWriter::new(tempfile::tempfile().unwrap());
    writer.start_file("main.py", SimpleFileOptions::default()).unwrap();
    writer.write_all(b"print(1)").unwrap();
    writer.add_symlink("bin/run", "../main.py", SimpleFileOptions::default()).unwrap();
    let mut file = writer.finish().unwrap();
    file.rewind().unwrap();
    let mut zip = Vec::new();
    file.read_to_end(&mut zip).unwrap();
    let digest = sha256(&zip);
    let site = Site::start(move |_, _| whole(&zip)).await;
    let fetch = |cache: PathBuf| {
        let (address, digest) = (format!("{}/code.zip", site.address), digest.clone());
        async move {
            let into = tempfile::tempdir().unwrap();
            let told = std::sync::Mutex::new(Vec::new());
            let order = expecting(address, into.path(), &digest, Some(cache));
            order.carry_out(&|line| told.lock().unwrap().push(line)).await.unwrap();
            let link = into.path().join("code/bin/run");
            assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("../main.py"));
            assert_eq!(std::fs::read(link).unwrap(), b"print(1)");
            told.into_inner().unwrap().join("\n")
        }
    };
    let cache = tempfile::tempdir().unwrap();
    let first = fetch(cache.path().into()).await;
    assert!(!first.contains("in the cache"), "{first}");
    let second = fetch(cache.path().into()).await;
    assert!(second.contains("in the cache"), "{second}");

    // It is not there; its entry is spoilt; it cannot take the entry.
    let told = fetch(cache.path().join("missing")).await;
    assert!(told.contains("the cache cannot be used"), "{told}");
    let entry = cache.path().join(&digest);
    std::fs::remove_dir_all(entry.join("bin")).unwrap();
    std::os::unix::fs::symlink("/etc", entry.join("bin")).unwrap();
    let told = fetch(cache.path().into()).await;
    assert!(told.contains("the cache cannot be used"), "{told}");
    std::fs::remove_dir_all(&entry).unwrap();
    std::fs::write(&entry, "in the way").unwrap();
    let told = fetch(cache.path().into()).await;
    assert!(told.contains("the cache cannot keep"), "{told}");
}

#[tokio::test]
async fn code_comes_from_a_directory_too() {
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("file-0"), "print(1)").unwrap();
    let into = tempfile::tempdir().unwrap();
    let renamed = BTreeMap::from([("file-0".to_string(), "main.py".parse().unwrap())]);
    let origin = Origin::Directory { path: source.path().into(), renamed };
    // Nobody has made it.
    let into = into.path().join("bundle");
    carry_out(Order { origin, ..order(address_of_nothing(), &into) }).await.unwrap();
    assert_eq!(names(&into.join("code")), ["main.py"]);
}
