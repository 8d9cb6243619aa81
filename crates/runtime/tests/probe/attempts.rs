//! Attempts to get out of a container, by system calls. Each says how it was refused, or that it was not.

use std::ffi::CString;
use std::fmt::Write;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitCode;

/// Success is an escape: `Ok` names what was gained.
type Outcome = io::Result<String>;

/// Ends with 0 when the attempt was refused.
pub(crate) fn attempt(name: &str, arguments: &[&str]) -> ExitCode {
    let outcome = match (name, arguments) {
        ("processes", []) => processes(),
        ("kill", [pid]) => kill(pid),
        ("ptrace", [pid]) => ptrace(pid),
        ("mount", []) => mount(),
        ("remount", []) => remount(),
        ("unmount", []) => unmount(),
        ("mknod", [directory]) => mknod(directory),
        ("create", [path]) => std::fs::write(path, "x").map(|()| format!("made {path}")),
        ("overwrite", [path]) => overwrite(path),
        ("read", [path]) => read(path),
        ("see", [path]) => std::fs::symlink_metadata(path).map(|_| format!("saw {path}")),
        ("unshare", []) => call("unshare", unsafe_call(|| unsafe { libc::unshare(libc::CLONE_NEWUSER) })),
        ("setns", [path]) => setns(path),
        ("chroot", [marker]) => chroot(marker),
        ("capset", []) => capset(),
        ("setuid", [program]) => setuid(program),
        ("become-root", []) => call("setuid", unsafe_call(|| unsafe { libc::setuid(0) })),
        ("connect", [address]) => connect(address),
        ("fork-bomb", [most]) => fork_bomb(most.parse().unwrap_or(1000)),
        ("memory", [mebibytes]) => memory(mebibytes.parse().unwrap_or(1)),
        ("descriptors", []) => descriptors(),
        ("bpf", []) => call("bpf", unsafe_call(|| unsafe { libc::syscall(libc::SYS_bpf, 0, 0, 0) as i32 })),
        ("keyctl", []) => {
            call("keyctl", unsafe_call(|| unsafe { libc::syscall(libc::SYS_keyctl, 0, -3, 0) as i32 }))
        }
        ("io-uring", []) => call(
            "io_uring_setup",
            unsafe_call(|| unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) as i32 }),
        ),
        ("raw-socket", []) => call(
            "socket",
            unsafe_call(|| unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP) }),
        ),
        _ => Ok(format!("there is no attempt {name:?} with {arguments:?}")),
    };
    match outcome {
        Ok(gained) => {
            println!("ESCAPED: {gained}");
            ExitCode::FAILURE
        }
        Err(refused) => {
            println!("refused: {refused}");
            ExitCode::SUCCESS
        }
    }
}

/// One place for the calls: none of them touches memory of ours but what is given.
fn unsafe_call(make: impl FnOnce() -> i32) -> i32 {
    make()
}

fn call(what: &str, result: i32) -> Outcome {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(format!("{what} gave {result}")) }
}

fn refused(why: &str) -> Outcome {
    Err(io::Error::other(why.to_owned()))
}

fn processes() -> Outcome {
    let own = std::process::id();
    let others: Vec<_> = std::fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| pid != own)
        .collect();
    if own == 1 && others.is_empty() { refused("alone") } else { Ok(format!("{own} sees {others:?}")) }
}

fn kill(pid: &str) -> Outcome {
    let pid: i32 = pid.parse().map_err(io::Error::other)?;
    // Everything that it may kill: only itself is spared.
    call("kill all", unsafe_call(|| unsafe { libc::kill(-1, libc::SIGKILL) })).ok();
    call("kill", unsafe_call(|| unsafe { libc::kill(pid, 0) }))
}

fn ptrace(pid: &str) -> Outcome {
    let pid: i32 = pid.parse().map_err(io::Error::other)?;
    let seize = unsafe_call(|| unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) as i32 });
    call("seize", seize)
        .or_else(|_| call("traceme", unsafe_call(|| unsafe { libc::ptrace(libc::PTRACE_TRACEME) as i32 })))
}

fn mount() -> Outcome {
    let (kind, target) = (c"tmpfs", c"/tmp");
    let classic = unsafe_call(|| unsafe {
        libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null())
    });
    call("mount", classic).or_else(|_| {
        call("fsopen", unsafe_call(|| unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 0) as i32 }))
    })
}

fn remount() -> Outcome {
    let flags = libc::MS_REMOUNT | libc::MS_BIND;
    call(
        "remount",
        unsafe_call(|| unsafe {
            libc::mount(c"none".as_ptr(), c"/usr".as_ptr(), std::ptr::null(), flags, std::ptr::null())
        }),
    )
}

fn unmount() -> Outcome {
    call("umount", unsafe_call(|| unsafe { libc::umount2(c"/proc/sys".as_ptr(), libc::MNT_DETACH) }))
}

fn mknod(directory: &str) -> Outcome {
    let path = CString::new(format!("{directory}/memory"))?;
    call(
        "mknod",
        unsafe_call(|| unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 1)) }),
    )
}

fn overwrite(path: &str) -> Outcome {
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, b"1").map(|()| format!("wrote {path}"))
}

fn read(path: &str) -> Outcome {
    let path = Path::new(path);
    if path.is_dir() {
        let entries = std::fs::read_dir(path)?.count();
        return if entries == 0 {
            refused("empty")
        } else {
            Ok(format!("{entries} entries in {}", path.display()))
        };
    }
    let mut file = std::fs::File::open(path)?;
    let mut buffer = [0; 64];
    match io::Read::read(&mut file, &mut buffer)? {
        0 => refused("empty"),
        length => Ok(format!("read {length} bytes of {}", path.display())),
    }
}

fn setns(path: &str) -> Outcome {
    let file = std::fs::File::open(path)?;
    use std::os::fd::AsRawFd;
    call("setns", unsafe_call(|| unsafe { libc::setns(file.as_raw_fd(), 0) }))
}

/// The old way out: a root below the working directory, then up from there.
fn chroot(marker: &str) -> Outcome {
    std::fs::create_dir_all("/tmp/jail")?;
    call("chroot", unsafe_call(|| unsafe { libc::chroot(c"/tmp/jail".as_ptr()) }))?;
    for _ in 0..64 {
        unsafe_call(|| unsafe { libc::chdir(c"..".as_ptr()) });
    }
    call("chroot", unsafe_call(|| unsafe { libc::chroot(c".".as_ptr()) }))?;
    std::fs::read_to_string(marker).map(|text| format!("read {text:?} of the machine"))
}

fn capset() -> Outcome {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let all = [u32::MAX; 6];
    call(
        "capset",
        unsafe_call(|| unsafe {
            libc::syscall(libc::SYS_capset, std::ptr::from_ref(&header), all.as_ptr()) as i32
        }),
    )
}

/// Runs a program that belongs to root and has its mark.
fn setuid(program: &str) -> Outcome {
    let output = std::process::Command::new(program).arg("whoami").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("euid 0") { Ok(text) } else { refused(text.lines().next().unwrap_or("no answer")) }
}

fn connect(address: &str) -> Outcome {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let mut stream = TcpStream::connect(address)?;
    // The node accepts whatever a Pod asks for before it decides; only an answer is a success.
    let mut buffer = [0; 16];
    match io::Read::read(&mut stream, &mut buffer)? {
        0 => refused("closed"),
        length => Ok(format!("{:?} from {address}", String::from_utf8_lossy(&buffer[..length]))),
    }
}

fn fork_bomb(most: usize) -> Outcome {
    for made in 0..most {
        match unsafe_call(|| unsafe { libc::fork() }) {
            0 => loop {
                unsafe_call(|| unsafe { libc::pause() });
            },
            pid if pid < 0 => {
                let error = io::Error::last_os_error();
                return refused(&format!("after {made}: {error}"));
            }
            _ => {}
        }
    }
    Ok(format!("{most} processes"))
}

fn memory(mebibytes: usize) -> Outcome {
    let mut held: Vec<Vec<u8>> = Vec::new();
    for taken in 0..mebibytes {
        let mut more = Vec::new();
        if more.try_reserve_exact(1 << 20).is_err() {
            drop(held);
            return refused(&format!("after {taken} MiB"));
        }
        more.resize(1 << 20, 1);
        held.push(more);
    }
    Ok(format!("{mebibytes} MiB"))
}

fn descriptors() -> Outcome {
    let open: Vec<_> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let number: i32 = entry.file_name().to_str()?.parse().ok()?;
            let to = std::fs::read_link(entry.path()).ok()?;
            // Reading the directory takes one itself.
            (number > 2 && !to.ends_with("fd")).then(|| format!("{number} -> {}", to.display()))
        })
        .collect();
    if open.is_empty() { refused("none but the three") } else { Ok(open.join(", ")) }
}

pub(crate) fn identity() -> String {
    let mut text = String::new();
    // SAFETY: these only ask.
    let (uid, euid, gid) = unsafe { (libc::getuid(), libc::geteuid(), libc::getgid()) };
    let _ = writeln!(text, "uid {uid} euid {euid} gid {gid}");
    for line in std::fs::read_to_string("/proc/self/status").unwrap_or_default().lines() {
        if ["Groups:", "Cap", "NoNewPrivs:", "Seccomp:"].iter().any(|start| line.starts_with(start)) {
            let _ = writeln!(text, "{}", line.replace('\t', " "));
        }
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let _ = write!(text, "hostname {name}");
    let directory = std::env::current_dir().map(|path| path.display().to_string());
    let _ = writeln!(text, "cwd {}", directory.unwrap_or_default());
    text
}

pub(crate) fn raise(signal: i32) {
    // A pid namespace's first process is not killed by its own signals: a child is.
    match unsafe_call(|| unsafe { libc::fork() }) {
        0 => {
            unsafe_call(|| unsafe { libc::kill(libc::getpid(), signal) });
        }
        child => {
            let mut status = 0;
            unsafe_call(|| unsafe { libc::waitpid(child, &mut status, 0) });
            println!("{}", libc::WTERMSIG(status));
        }
    }
}

pub(crate) fn terminal() -> String {
    let is = (0..3).all(|number| unsafe_call(|| unsafe { libc::isatty(number) }) == 1);
    let name = std::fs::read_link("/proc/self/fd/0").map(|path| path.display().to_string());
    let controlling = std::fs::File::open("/dev/tty").is_ok();
    format!("terminal {is} {} controlling {controlling}\n", name.unwrap_or_default())
}
