//! What runs in the containers of these tests. It says what it finds, and tests read that.

use std::io::{Read, Write};
use std::process::ExitCode;

pub(crate) fn main(words: &[&str]) -> ExitCode {
    match words {
        ["echo", text @ ..] => println!("{}", text.join(" ")),
        ["exit", code] => return ExitCode::from(code.parse::<u8>().unwrap_or(99)),
        ["wait"] => {
            println!("waiting");
            loop {
                std::thread::park();
            }
        }
        ["cat"] => {
            let mut text = String::new();
            let _ended = std::io::stdin().read_to_string(&mut text);
            print!("{text}");
        }
        ["read", path] => match std::fs::read_to_string(path) {
            Ok(text) => print!("{text}"),
            Err(error) => println!("{error}"),
        },
        ["write", path, text] => match std::fs::write(path, text) {
            Ok(()) => println!("written"),
            Err(error) => println!("{error}"),
        },
        ["status"] => status(),
        ["count"] => count(),
        ["memory", mebibytes] => memory(mebibytes.parse().unwrap_or(0)),
        ["fork"] => fork(),
        ["try", what] => return attempt(what),
        ["terminal"] => terminal(),
        other => println!("{other:?} is unknown"),
    }
    ExitCode::SUCCESS
}

/// Who we are, and what we may do.
fn status() {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let wanted =
        ["Uid:", "Gid:", "Groups:", "CapEff:", "CapPrm:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:"];
    let lines = text.lines().filter(|line| wanted.iter().any(|wanted| line.starts_with(wanted)));
    for line in lines {
        println!("{}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    println!("hostname {}", rustix::system::uname().nodename().to_string_lossy());
    println!("cwd {}", std::env::current_dir().unwrap_or_default().display());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    println!("processes {}", processes.count());
    let devices = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let devices: Vec<&str> =
        devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    println!("devices {}", devices.join(" "));
}

/// A number that grows for as long as we are not stopped.
fn count() {
    for number in 0_u64.. {
        println!("{number}");
        let _written = std::io::stdout().flush();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn memory(mebibytes: usize) {
    let mut held: Vec<Vec<u8>> = Vec::new();
    for _ in 0..mebibytes {
        held.push(vec![1; 1 << 20]);
    }
    println!(
        "got {}",
        held.iter().map(|part| part.iter().map(|byte| usize::from(*byte)).sum::<usize>()).sum::<usize>()
    );
}

/// Threads count as processes.
fn fork() {
    let mut made = 0;
    for _ in 0..500 {
        match std::thread::Builder::new().stack_size(64 << 10).spawn(std::thread::park) {
            Ok(_) => made += 1,
            Err(_) => break,
        }
    }
    println!("made {made}");
}

/// Something that must not work; 0 if it did not.
fn attempt(what: &str) -> ExitCode {
    let refused = match what {
        "unshare" => {
            let done = std::process::Command::new("/probe").arg("--list").status();
            // A program that is executed is as restricted as we.
            done.is_ok()
                && std::fs::read_to_string("/proc/self/status").is_ok_and(|text| text.contains("Seccomp:\t2"))
        }
        "kill-holder" => {
            let first = rustix::process::Pid::from_raw(1);
            let killed =
                first.map(|first| rustix::process::kill_process(first, rustix::process::Signal::KILL));
            killed.is_some_and(|killed| killed.is_err())
        }
        "touch-holder" => {
            let opened = std::fs::File::options().write(true).open("/proc/1/mem");
            let secrets = ["exe", "root", "fd/0"].map(|name| std::fs::read_link(format!("/proc/1/{name}")));
            std::fs::read("/proc/1/environ").is_err() && opened.is_err() && secrets.iter().all(Result::is_err)
        }
        "kcore" => std::fs::read("/proc/kcore").map_or(true, |bytes| bytes.is_empty()),
        "sysrq" => std::fs::write("/proc/sysrq-trigger", "h").is_err(),
        "cgroup" => std::fs::write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "-1").is_err(),
        "mount" => {
            rustix::mount::mount("none", "/tmp", "tmpfs", rustix::mount::MountFlags::empty(), None).is_err()
        }
        "set-hostname" => rustix::system::sethostname(b"other").is_err(),
        "raw-socket" => rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::RAW,
            Some(rustix::net::ipproto::ICMP),
        )
        .is_err(),
        _ => false,
    };
    println!("{what}: {}", if refused { "refused" } else { "DONE" });
    if refused { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn terminal() {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    println!("terminal {}", rustix::termios::isatty(std::io::stdin()));
    let mut before = size.map(|size| (size.ws_col, size.ws_row));
    println!("ready");
    let mut line = String::new();
    let _read = std::io::stdin().read_line(&mut line);
    println!("read {}", line.trim());
    for _ in 0..2_000 {
        let now =
            rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| (size.ws_col, size.ws_row));
        if now == Some((123, 45)) {
            before = now;
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    println!("size {before:?}");
}
