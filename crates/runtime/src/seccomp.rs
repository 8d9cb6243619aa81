//! The default filter of system calls. It refuses what a container has no business with, rather than to list what it
//! may do: a call that is newer than this list does not exist for it.

use std::collections::BTreeSet;
use std::io;

use libc::sock_filter;

use crate::capabilities::{SYS_ADMIN, SYS_BOOT, SYS_PTRACE, SYS_TIME};
use crate::spec::Capability;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// `file_setattr`, of Linux 6.17: the newest call that was looked at.
const NEWEST: u32 = 469;

/// Offsets into the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// The lower half of the first argument; both architectures are little-endian.
const ARGUMENT_0: u32 = 16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const NOT_PERMITTED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const NOT_IMPLEMENTED: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
const NEW_TIME: u32 = 0x80;

/// A call by its name, for other runtimes, and by its number, for the kernel.
struct Refused {
    name: &'static str,
    number: libc::c_long,
    /// Who has this may make it.
    unless: Option<Capability>,
}

const fn refused(name: &'static str, number: libc::c_long, unless: Option<Capability>) -> Refused {
    Refused { name, number, unless }
}

/// Refused to all but those who have the capability for it; to everyone where there is none.
const REFUSED: &[Refused] = &[
    refused("mount", libc::SYS_mount, Some(SYS_ADMIN)),
    refused("umount2", libc::SYS_umount2, Some(SYS_ADMIN)),
    refused("pivot_root", libc::SYS_pivot_root, Some(SYS_ADMIN)),
    refused("open_tree", libc::SYS_open_tree, Some(SYS_ADMIN)),
    refused("open_tree_attr", OPEN_TREE_ATTR, Some(SYS_ADMIN)),
    refused("move_mount", libc::SYS_move_mount, Some(SYS_ADMIN)),
    refused("fsopen", libc::SYS_fsopen, Some(SYS_ADMIN)),
    refused("fsconfig", libc::SYS_fsconfig, Some(SYS_ADMIN)),
    refused("fsmount", libc::SYS_fsmount, Some(SYS_ADMIN)),
    refused("fspick", libc::SYS_fspick, Some(SYS_ADMIN)),
    refused("mount_setattr", libc::SYS_mount_setattr, Some(SYS_ADMIN)),
    refused("setns", libc::SYS_setns, Some(SYS_ADMIN)),
    refused("sethostname", libc::SYS_sethostname, Some(SYS_ADMIN)),
    refused("setdomainname", libc::SYS_setdomainname, Some(SYS_ADMIN)),
    refused("quotactl", libc::SYS_quotactl, Some(SYS_ADMIN)),
    refused("quotactl_fd", libc::SYS_quotactl_fd, Some(SYS_ADMIN)),
    refused("fanotify_init", libc::SYS_fanotify_init, Some(SYS_ADMIN)),
    refused("lookup_dcookie", libc::SYS_lookup_dcookie, Some(SYS_ADMIN)),
    refused("ptrace", libc::SYS_ptrace, Some(SYS_PTRACE)),
    refused("process_vm_readv", libc::SYS_process_vm_readv, Some(SYS_PTRACE)),
    refused("process_vm_writev", libc::SYS_process_vm_writev, Some(SYS_PTRACE)),
    refused("process_madvise", libc::SYS_process_madvise, Some(SYS_PTRACE)),
    refused("pidfd_getfd", libc::SYS_pidfd_getfd, Some(SYS_PTRACE)),
    refused("kcmp", libc::SYS_kcmp, Some(SYS_PTRACE)),
    refused("reboot", libc::SYS_reboot, Some(SYS_BOOT)),
    refused("kexec_load", libc::SYS_kexec_load, Some(SYS_BOOT)),
    refused("kexec_file_load", libc::SYS_kexec_file_load, Some(SYS_BOOT)),
    refused("settimeofday", libc::SYS_settimeofday, Some(SYS_TIME)),
    refused("clock_settime", libc::SYS_clock_settime, Some(SYS_TIME)),
    refused("clock_adjtime", libc::SYS_clock_adjtime, Some(SYS_TIME)),
    refused("init_module", libc::SYS_init_module, None),
    refused("finit_module", libc::SYS_finit_module, None),
    refused("delete_module", libc::SYS_delete_module, None),
    refused("bpf", libc::SYS_bpf, None),
    refused("perf_event_open", libc::SYS_perf_event_open, None),
    refused("add_key", libc::SYS_add_key, None),
    refused("request_key", libc::SYS_request_key, None),
    refused("keyctl", libc::SYS_keyctl, None),
    refused("userfaultfd", libc::SYS_userfaultfd, None),
    refused("name_to_handle_at", libc::SYS_name_to_handle_at, None),
    refused("open_by_handle_at", libc::SYS_open_by_handle_at, None),
    refused("io_uring_setup", libc::SYS_io_uring_setup, None),
    refused("io_uring_enter", libc::SYS_io_uring_enter, None),
    refused("io_uring_register", libc::SYS_io_uring_register, None),
    refused("swapon", libc::SYS_swapon, None),
    refused("swapoff", libc::SYS_swapoff, None),
    refused("acct", libc::SYS_acct, None),
    refused("syslog", libc::SYS_syslog, None),
    refused("vhangup", libc::SYS_vhangup, None),
    refused("nfsservctl", libc::SYS_nfsservctl, None),
    refused("move_pages", libc::SYS_move_pages, None),
    refused("migrate_pages", libc::SYS_migrate_pages, None),
    #[cfg(target_arch = "x86_64")]
    refused("iopl", libc::SYS_iopl, None),
    #[cfg(target_arch = "x86_64")]
    refused("ioperm", libc::SYS_ioperm, None),
    #[cfg(target_arch = "x86_64")]
    refused("modify_ldt", libc::SYS_modify_ldt, None),
    #[cfg(target_arch = "x86_64")]
    refused("uselib", libc::SYS_uselib, None),
    #[cfg(target_arch = "x86_64")]
    refused("ustat", libc::SYS_ustat, None),
    #[cfg(target_arch = "x86_64")]
    refused("sysfs", libc::SYS_sysfs, None),
    #[cfg(target_arch = "x86_64")]
    refused("_sysctl", libc::SYS__sysctl, None),
];
const OPEN_TREE_ATTR: libc::c_long = 467;

/// The C library reads its flags from memory, where a filter cannot look, and does without it when it is not there.
const CLONE3: libc::c_long = libc::SYS_clone3;

/// Calls refused for some arguments only.
pub(crate) enum Argument {
    /// Any of these bits.
    Bits(u32),
    /// One of these values.
    Values(&'static [u32]),
}

/// Sockets to the hypervisor and to the kernel's ciphers.
const FAMILIES: &[u32] = &[libc::AF_VSOCK as u32, libc::AF_ALG as u32];
/// Typing into somebody's terminal.
const CONTROLS: &[u32] = &[libc::TIOCSTI as u32, libc::TIOCLINUX as u32];

pub(crate) struct RefusedArgument {
    pub(crate) name: &'static str,
    number: libc::c_long,
    /// Which argument, from 0.
    pub(crate) index: u32,
    pub(crate) argument: Argument,
}

pub(crate) fn refused_arguments(capabilities: &BTreeSet<Capability>) -> Vec<RefusedArgument> {
    let call = |name, number, index, argument| RefusedArgument { name, number, index, argument };
    let mut refused = vec![
        call("socket", libc::SYS_socket, 0, Argument::Values(FAMILIES)),
        call("ioctl", libc::SYS_ioctl, 1, Argument::Values(CONTROLS)),
    ];
    if !capabilities.contains(&SYS_ADMIN) {
        refused.push(call("clone", libc::SYS_clone, 0, Argument::Bits(NAMESPACES)));
        refused.push(call("unshare", libc::SYS_unshare, 0, Argument::Bits(NAMESPACES | NEW_TIME)));
    }
    refused
}

fn refused_calls(capabilities: &BTreeSet<Capability>) -> impl Iterator<Item = &'static Refused> {
    REFUSED.iter().filter(|call| call.unless.is_none_or(|needed| !capabilities.contains(&needed)))
}

/// The names of the calls that are refused to a container with these capabilities, whatever their arguments.
pub(crate) fn refused_names(capabilities: &BTreeSet<Capability>) -> Vec<&'static str> {
    refused_calls(capabilities).map(|call| call.name).collect()
}

/// The filter as a program for the kernel.
pub(crate) struct Filter {
    capabilities: BTreeSet<Capability>,
    program: Vec<sock_filter>,
}

impl Filter {
    pub(crate) fn new(capabilities: &BTreeSet<Capability>) -> Self {
        let mut program = vec![
            load(ARCH),
            jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
            answer(KILL),
            load(NUMBER),
            // Also all calls of the x32 interface, which have a high bit set.
            jump(libc::BPF_JGT, NEWEST, 0, 1),
            answer(NOT_IMPLEMENTED),
        ];
        for RefusedArgument { number, index, argument, .. } in refused_arguments(capabilities) {
            let tests = match argument {
                Argument::Bits(bits) => vec![jump(libc::BPF_JSET, bits, 0, 1), answer(NOT_PERMITTED)],
                Argument::Values(values) => values
                    .iter()
                    .flat_map(|&value| [jump(libc::BPF_JEQ, value, 0, 1), answer(NOT_PERMITTED)])
                    .collect(),
            };
            // Over the load, the tests, and the final permission.
            let over = u8::try_from(tests.len() + 2).expect("a handful of values");
            program.push(jump(libc::BPF_JEQ, number as u32, 0, over));
            program.push(load(ARGUMENT_0 + 8 * index));
            program.extend(tests);
            program.push(answer(ALLOW));
        }
        program.extend([jump(libc::BPF_JEQ, CLONE3 as u32, 0, 1), answer(NOT_IMPLEMENTED)]);
        let mut refused: Vec<u32> = refused_calls(capabilities).map(|call| call.number as u32).collect();
        refused.sort_unstable();
        search(&mut program, &refused);
        Self { capabilities: capabilities.clone(), program }
    }

    /// Whether it is the one for a container with these capabilities.
    pub(crate) fn is_for(&self, capabilities: &BTreeSet<Capability>) -> bool {
        &self.capabilities == capabilities
    }

    /// Puts this thread and all that it executes under the filter, for good.
    pub(crate) fn load(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(self.program.len()).map_err(io::Error::other)?,
            filter: self.program.as_ptr().cast_mut(),
        };
        // SAFETY: the program and what it points to are valid for the call; the kernel copies and verifies them.
        let done = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, std::ptr::from_ref(&program))
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Refuses this thread and all that it executes every new socket, of whatever family, for good.
pub(crate) fn refuse_sockets() -> io::Result<()> {
    let program = vec![
        load(ARCH),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        answer(KILL),
        load(NUMBER),
        jump(libc::BPF_JEQ, libc::SYS_socket as u32, 0, 1),
        answer(NOT_PERMITTED),
        answer(ALLOW),
    ];
    Filter { capabilities: BTreeSet::new(), program }.load()
}

/// Refuses these numbers, in ascending order, and allows all others: by halves, because the kernel tries a new filter
/// on every number.
fn search(program: &mut Vec<sock_filter>, numbers: &[u32]) {
    if numbers.len() <= 8 {
        // All of them share one answer, behind that of the others: the kernel translates each instruction at every start.
        for (&number, over) in numbers.iter().zip((1..=numbers.len() as u8).rev()) {
            program.push(jump(libc::BPF_JEQ, number, over, 0));
        }
        program.extend([answer(ALLOW), answer(NOT_PERMITTED)]);
        return;
    }
    let (low, high) = numbers.split_at(numbers.len() / 2);
    let mut lower = Vec::new();
    search(&mut lower, low);
    let over = u8::try_from(lower.len()).expect("a hundred numbers at most");
    program.push(jump(libc::BPF_JGE, high[0], over, 0));
    program.extend(lower);
    search(program, high);
}

fn load(offset: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

fn jump(comparison: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | comparison | libc::BPF_K) as u16, jt: yes, jf: no, k: value }
}

fn answer(with: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: with }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capabilities::default_set;

    /// What the kernel would answer: an interpreter of the few instructions that the filter has.
    fn run(filter: &Filter, architecture: u32, number: u32, arguments: [u32; 2]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let instruction = &filter.program[at];
            at += 1;
            let k = instruction.k;
            let holds = match u32::from(instruction.code) & 0xf0 {
                _ if u32::from(instruction.code) & 7 == libc::BPF_RET => return k,
                _ if u32::from(instruction.code) & 7 == libc::BPF_LD => {
                    value = match k {
                        NUMBER => number,
                        ARCH => architecture,
                        ARGUMENT_0 => arguments[0],
                        offset if offset == ARGUMENT_0 + 8 => arguments[1],
                        other => unreachable!("offset {other}"),
                    };
                    continue;
                }
                libc::BPF_JEQ => value == k,
                libc::BPF_JGT => value > k,
                libc::BPF_JGE => value >= k,
                libc::BPF_JSET => value & k != 0,
                other => unreachable!("comparison {other:#x}"),
            };
            at += usize::from(if holds { instruction.jt } else { instruction.jf });
        }
    }

    fn answer_to(number: libc::c_long, arguments: [u32; 2]) -> u32 {
        run(&Filter::new(&default_set()), ARCHITECTURE, number as u32, arguments)
    }

    #[test]
    fn answers_each_kind_of_call() {
        let table = [
            (libc::SYS_read, [0, 0], ALLOW),
            (libc::SYS_execve, [0, 0], ALLOW),
            (libc::SYS_mount, [0, 0], NOT_PERMITTED),
            (libc::SYS_ptrace, [0, 0], NOT_PERMITTED),
            (libc::SYS_bpf, [0, 0], NOT_PERMITTED),
            (libc::SYS_io_uring_setup, [0, 0], NOT_PERMITTED),
            (libc::SYS_clone3, [0, 0], NOT_IMPLEMENTED),
            (libc::SYS_clone, [libc::SIGCHLD as u32, 0], ALLOW),
            (libc::SYS_clone, [libc::CLONE_NEWUSER as u32 | libc::SIGCHLD as u32, 0], NOT_PERMITTED),
            (libc::SYS_unshare, [libc::CLONE_FILES as u32, 0], ALLOW),
            (libc::SYS_unshare, [libc::CLONE_NEWNET as u32, 0], NOT_PERMITTED),
            (libc::SYS_socket, [libc::AF_INET as u32, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_VSOCK as u32, 0], NOT_PERMITTED),
            (libc::SYS_ioctl, [1, libc::TIOCSTI as u32], NOT_PERMITTED),
            (libc::SYS_ioctl, [libc::TIOCSTI as u32, libc::TIOCGWINSZ as u32], ALLOW),
            (libc::c_long::from(NEWEST), [0, 0], ALLOW),
            (libc::c_long::from(NEWEST) + 1, [0, 0], NOT_IMPLEMENTED),
            (0x4000_0000, [0, 0], NOT_IMPLEMENTED),
        ];
        for (number, arguments, expected) in table {
            assert_eq!(answer_to(number, arguments), expected, "call {number} with {arguments:?}");
        }
    }

    #[test]
    fn kills_what_runs_under_another_architecture() {
        assert_eq!(run(&Filter::new(&default_set()), 0x4000_0003, 1, [0, 0]), KILL);
    }

    #[test]
    fn opens_with_the_capability_that_a_call_needs() {
        let filter = Filter::new(&BTreeSet::from([SYS_ADMIN]));
        let ask = |number: libc::c_long| run(&filter, ARCHITECTURE, number as u32, [NAMESPACES, 0]);
        assert_eq!(ask(libc::SYS_mount), ALLOW);
        assert_eq!(ask(libc::SYS_unshare), ALLOW);
        assert_eq!(ask(libc::SYS_ptrace), NOT_PERMITTED);
        assert_eq!(ask(libc::SYS_bpf), NOT_PERMITTED);
    }

    proptest! {
        #[test]
        fn refuses_what_is_listed_and_nothing_else(number in 0..=NEWEST) {
            let special = [libc::SYS_clone3, libc::SYS_clone, libc::SYS_unshare, libc::SYS_socket, libc::SYS_ioctl];
            prop_assume!(!special.contains(&libc::c_long::from(number)));
            let listed = REFUSED.iter().any(|call| call.number == libc::c_long::from(number));
            let expected = if listed { NOT_PERMITTED } else { ALLOW };
            prop_assert_eq!(answer_to(libc::c_long::from(number), [0, 0]), expected);
        }
    }
}
