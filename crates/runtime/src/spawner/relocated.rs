//! What the loader has filled in of the program and then made read-only: megabytes of a large program, which every clone of
//! this process would have page by page in tables of its own, and take apart again when it executes something else. From
//! shared memory, a clone has only those pages that it looks at.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create, openat};

/// Puts it into shared memory that nobody can write. To be called while there are no other threads; if it cannot be done,
/// everything stays as it was.
pub(super) fn share() -> io::Result<()> {
    let Some((start, length)) = region() else { return Ok(()) };
    let mut memory = File::from(memfd_create("relocated", MemfdFlags::CLOEXEC)?);
    // SAFETY: the loader has mapped it for as long as this process lives, and nobody writes it any more.
    memory.write_all(unsafe { std::slice::from_raw_parts(start as *const u8, length) })?;
    // From what is open for reading only, nobody can make a mapping that is written.
    let name = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let memory = openat(CWD, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: the kernel replaces the pages in one step by those of the same content and with the same rights.
    let mapped = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            length,
            libc::PROT_READ,
            libc::MAP_SHARED | libc::MAP_FIXED,
            memory.as_fd().as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Where it is in the program itself, as whole pages: its beginning and its length.
fn region() -> Option<(usize, usize)> {
    unsafe extern "C" fn first(
        program: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        found: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the loader calls with what it knows of one object, which is valid for the call, and with our own place.
        let (program, found) = unsafe { (&*program, &mut *found.cast::<Option<(usize, usize)>>()) };
        // SAFETY: as many headers as it says are there.
        let headers =
            unsafe { std::slice::from_raw_parts(program.dlpi_phdr, usize::from(program.dlpi_phnum)) };
        if let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO) {
            // SAFETY: reads a number; there is always one.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            let start = program.dlpi_addr as usize + header.p_vaddr as usize;
            // As the loader protects them.
            let (from, to) = (start & !(page - 1), (start + header.p_memsz as usize) & !(page - 1));
            *found = (to > from).then_some((from, to - from));
        }
        // The first object is the program; the others are small.
        1
    }
    let mut found: Option<(usize, usize)> = None;
    // SAFETY: the callback is only called during the call, with the place that is given here.
    unsafe { libc::dl_iterate_phdr(Some(first), std::ptr::from_mut(&mut found).cast()) };
    found
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::spawner::clone::{Ended, clone, wait};

    /// What a mapping of this process is, by an address in it.
    fn mapping(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &&str| {
            let (from, rest) = line.split_once('-').unwrap();
            let to = rest.split(' ').next().unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(from)..number(to)).contains(&address)
        };
        maps.lines().find(holds).unwrap_or_default().to_owned()
    }

    /// In a copy: this process has other threads.
    #[test]
    fn is_the_same_as_before_and_cannot_be_written() {
        let (start, length) = region().expect("programs are linked so");
        let copy = clone(0, None, || {
            // SAFETY: mapped by the loader.
            let content = || unsafe { std::slice::from_raw_parts(start as *const u8, length) };
            let before = content().to_vec();
            share().unwrap();
            let shared = mapping(start).contains("r--s") && mapping(start).contains("relocated");
            // SAFETY: asks for a right that is refused; if it is given, nothing is written.
            let refused = unsafe {
                libc::mprotect(start as *mut libc::c_void, length, libc::PROT_READ | libc::PROT_WRITE)
            } == -1;
            // Calls by tables that are there go on.
            let printed = format!("{:?}", Some(1));
            let same = content() == before && printed == "Some(1)";
            // SAFETY: ends the copy at once.
            unsafe { libc::_exit(i32::from(shared) | i32::from(refused) << 1 | i32::from(same) << 2) }
        });
        assert_eq!(wait(copy.unwrap().pidfd.as_fd()).unwrap(), Ended::Code(0b111));
    }
}
