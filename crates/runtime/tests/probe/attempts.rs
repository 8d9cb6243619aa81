//! Attempts to get out of a container, by system calls. Each says how it was refused, or that it was not.

use std::ffi::{CStr, CString};
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
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
        ("device", [directory]) => device(directory),
        ("create", [path]) => std::fs::write(path, "x").map(|()| format!("made {path}")),
        ("overwrite", [path]) => overwrite(path),
        ("read", [path]) => read(path),
        ("see", [path]) => std::fs::symlink_metadata(path).map(|_| format!("saw {path}")),
        ("unshare", []) => call(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0]),
        ("setns", [path]) => setns(path),
        ("chroot", [marker]) => chroot(marker),
        ("capset", []) => capset(),
        ("setuid", [program]) => setuid(program),
        ("become-root", []) => call(libc::SYS_setuid, [0; 5]),
        ("connect", [address]) => connect(address),
        ("fork-bomb", [most]) => fork_bomb(most.parse().unwrap_or(1000)),
        ("memory", [mebibytes]) => memory(mebibytes.parse().unwrap_or(1)),
        ("descriptors", []) => descriptors(),
        ("bpf", []) => call(libc::SYS_bpf, [0; 5]),
        ("keyctl", []) => call(libc::SYS_keyctl, [0, -3_isize as usize, 0, 0, 0]),
        ("io-uring", []) => call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
        ("raw-socket", []) => {
            let arguments =
                [libc::AF_INET as usize, libc::SOCK_RAW as usize, libc::IPPROTO_ICMP as usize, 0, 0];
            call(libc::SYS_socket, arguments)
        }
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

/// A system call by its number. Whatever is a pointer among the arguments is to memory that outlives the call.
fn system_call(number: libc::c_long, [a, b, c, d, e]: [usize; 5]) -> io::Result<i32> {
    // SAFETY: the kernel checks every argument; what it may write to is valid, as said above.
    match unsafe { libc::syscall(number, a, b, c, d, e) } {
        -1 => Err(io::Error::last_os_error()),
        other => Ok(other as i32),
    }
}

fn call(number: libc::c_long, arguments: [usize; 5]) -> Outcome {
    system_call(number, arguments).map(|result| format!("call {number} gave {result}"))
}

fn pointer(text: &CStr) -> usize {
    text.as_ptr() as usize
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
    let pid: usize = pid.parse().map_err(io::Error::other)?;
    // First everything that it may kill: only itself is spared.
    let _ = call(libc::SYS_kill, [-1_isize as usize, libc::SIGKILL as usize, 0, 0, 0]);
    call(libc::SYS_kill, [pid, 0, 0, 0, 0])
}

fn ptrace(pid: &str) -> Outcome {
    let pid: usize = pid.parse().map_err(io::Error::other)?;
    call(libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, pid, 0, 0, 0])
        .or_else(|_| call(libc::SYS_ptrace, [libc::PTRACE_TRACEME as usize, 0, 0, 0, 0]))
}

fn mount() -> Outcome {
    let (kind, target) = (pointer(c"tmpfs"), pointer(c"/tmp"));
    call(libc::SYS_mount, [kind, target, kind, 0, 0]).or_else(|_| call(libc::SYS_fsopen, [kind, 0, 0, 0, 0]))
}

fn remount() -> Outcome {
    let flags = (libc::MS_REMOUNT | libc::MS_BIND) as usize;
    call(libc::SYS_mount, [pointer(c"none"), pointer(c"/usr"), 0, flags, 0])
}

fn unmount() -> Outcome {
    call(libc::SYS_umount2, [pointer(c"/proc/sys"), libc::MNT_DETACH as usize, 0, 0, 0])
}

fn mknod(directory: &str) -> Outcome {
    let path = CString::new(format!("{directory}/memory"))?;
    let (mode, device) = ((libc::S_IFCHR | 0o666) as usize, libc::makedev(1, 1) as usize);
    call(libc::SYS_mknodat, [libc::AT_FDCWD as usize, pointer(&path), mode, device, 0])
}

/// A kernel that stands between may let one make the node, and know nothing of the device.
fn device(directory: &str) -> Outcome {
    mknod(directory)?;
    let mut memory = std::fs::File::open(format!("{directory}/memory"))?;
    io::Read::read(&mut memory, &mut [0; 16]).map(|count| format!("read {count} bytes of the memory"))
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
    call(libc::SYS_setns, [file.as_raw_fd() as usize, 0, 0, 0, 0])
}

/// The old way out: a root below the working directory, then up from there.
fn chroot(marker: &str) -> Outcome {
    std::fs::create_dir_all("/tmp/jail")?;
    call(libc::SYS_chroot, [pointer(c"/tmp/jail"), 0, 0, 0, 0])?;
    for _ in 0..64 {
        let _ = call(libc::SYS_chdir, [pointer(c".."), 0, 0, 0, 0]);
    }
    call(libc::SYS_chroot, [pointer(c"."), 0, 0, 0, 0])?;
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
    call(libc::SYS_capset, [std::ptr::from_ref(&header) as usize, all.as_ptr() as usize, 0, 0, 0])
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

/// A copy of this process, which has one thread.
fn fork() -> io::Result<i32> {
    system_call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0])
}

fn fork_bomb(most: usize) -> Outcome {
    for made in 0..most {
        match fork() {
            Ok(0) => loop {
                std::thread::park();
            },
            Ok(_) => {}
            Err(error) => return refused(&format!("after {made}: {error}")),
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
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let euid = rustix::process::geteuid().as_raw();
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

pub(crate) fn raise(signal: usize) {
    // A pid namespace's first process is not killed by its own signals: a child is.
    match fork() {
        Ok(0) => {
            let _ = call(libc::SYS_kill, [std::process::id() as usize, signal, 0, 0, 0]);
        }
        _ => {
            let status = rustix::process::wait(rustix::process::WaitOptions::empty());
            let signal = status.ok().flatten().and_then(|(_, status)| status.terminating_signal());
            println!("{}", signal.unwrap_or(0));
        }
    }
}

pub(crate) fn terminal() -> String {
    let is = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    let name = std::fs::read_link("/proc/self/fd/0").map(|path| path.display().to_string());
    let controlling = std::fs::File::open("/dev/tty").is_ok();
    format!("terminal {is} {} controlling {controlling}\n", name.unwrap_or_default())
}
