//! What a confined program cannot do.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use agentcube_runtime::confine::{self, Limits};

const PROBE: &str = env!("CARGO_BIN_EXE_runtime-probe");
const LIMITS: Limits = Limits { memory: 64 << 20, cpu_seconds: 5, file_bytes: 1 << 20, open_files: 32 };

fn run(work: &Path, arguments: &[&str]) -> Output {
    let shown = [Path::new(PROBE).parent().unwrap().to_owned()];
    let mut command = confine::command(Path::new(PROBE), Path::new(PROBE), work, &shown, LIMITS, &[]);
    command.args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn it_works_in_its_directory_with_an_empty_environment() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("file");
    let written = run(work.path(), &["write", file.to_str().unwrap(), "hello"]);
    assert!(written.status.success() && text(&written).contains("written"), "{}", text(&written));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "hello");
    assert_eq!(text(&run(work.path(), &["variables"])).trim(), "");
}

#[test]
fn it_has_no_network() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            use std::io::Write;
            let _ = stream.unwrap().write_all(b"hello");
        }
    });
    let work = tempfile::tempdir().unwrap();
    let free = Command::new(PROBE).args(["try", "connect", &address]).output().unwrap();
    assert!(text(&free).contains("hello"), "{}", text(&free));
    let confined = run(work.path(), &["try", "connect", &address]);
    assert!(!text(&confined).contains("hello"), "{}", text(&confined));
    assert!(text(&confined).contains("not permitted"), "{}", text(&confined));
}

#[test]
fn it_has_little_memory_and_writes_small_files() {
    let work = tempfile::tempdir().unwrap();
    let much = run(work.path(), &["try", "memory", "256"]);
    assert!(!text(&much).contains("256 MiB"), "{}", text(&much));
    let large = "x".repeat(100_000);
    let (file, whole) = (work.path().join("file"), run(work.path(), &["write", "file", &large]));
    assert!(whole.status.success() && file.is_file());
    let limits = Limits { file_bytes: 10_000, ..LIMITS };
    let shown = [Path::new(PROBE).parent().unwrap().to_owned()];
    let mut command = confine::command(Path::new(PROBE), Path::new(PROBE), work.path(), &shown, limits, &[]);
    let cut = command.args(["write", "file", &large]).output().unwrap();
    assert!(!cut.status.success() || !text(&cut).contains("written"), "{}", text(&cut));
}

#[test]
fn it_has_little_time_on_the_processor() {
    let (work, limits) = (tempfile::tempdir().unwrap(), Limits { cpu_seconds: 1, ..LIMITS });
    let shell = Path::new("/bin/sh");
    let mut command = confine::command(Path::new(PROBE), shell, work.path(), &[], limits, &[]);
    // It would come to an end, so that nobody waits for ever where the limit does not hold.
    let busy = "n=0; while [ $n -lt 100000000 ]; do n=$((n+1)); done; echo done";
    let stopped = command.args(["-c", busy]).output().unwrap();
    let (killed, spent) = (9, 24);
    let signal = stopped.status.signal();
    assert!([Some(killed), Some(spent)].contains(&signal), "{:?} {}", stopped.status, text(&stopped));
}

#[test]
fn it_sees_no_other_files_where_the_kernel_can_hide_them() {
    if !confine::hides_files() {
        // The kernel has no Landlock; the rest holds without it.
        return;
    }
    let (work, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = other.path().join("secret");
    std::fs::write(&secret, "a secret").unwrap();
    let read = run(work.path(), &["read", secret.to_str().unwrap()]);
    assert!(!text(&read).contains("a secret"), "{}", text(&read));
    let made = other.path().join("made");
    run(work.path(), &["write", made.to_str().unwrap(), "x"]);
    assert!(!made.exists());
}

#[test]
fn what_cannot_be_run_is_said() {
    let work = tempfile::tempdir().unwrap();
    let missing = Path::new("/usr/bin/nothing-of-this-name");
    let output = confine::command(Path::new(PROBE), missing, work.path(), &[], LIMITS, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(confine::NOT_STARTED)));
    assert!(text(&output).contains("cannot be run"), "{}", text(&output));
}
