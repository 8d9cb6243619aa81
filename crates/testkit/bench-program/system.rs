//! What the program asks the kernel for, without anything in between.

use core::arch::{asm, global_asm};

#[cfg(target_arch = "x86_64")]
mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const SOCKET: usize = 41;
    pub const SENDTO: usize = 44;
    pub const BIND: usize = 49;
    pub const LISTEN: usize = 50;
    pub const EXIT_GROUP: usize = 231;
    pub const ACCEPT4: usize = 288;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const CLOSE: usize = 57;
    pub const SOCKET: usize = 198;
    pub const SENDTO: usize = 206;
    pub const BIND: usize = 200;
    pub const LISTEN: usize = 201;
    pub const EXIT_GROUP: usize = 94;
    pub const ACCEPT4: usize = 242;
}

const UNIX: u16 = 1;
const INET: u16 = 2;
const STREAM: usize = 1;
const NO_SIGNAL: usize = 0x4000;
const BACKLOG: usize = 128;
const INTERRUPTED: isize = -4;
/// Of a socket's path, with the zero behind it.
const LONGEST_PATH: usize = 108;

#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {begin}", begin = sym begin);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "mov x0, sp", "bl {begin}", begin = sym begin);

/// What the kernel has left on the stack: how many arguments there are, and where.
extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: the kernel puts the arguments there, each ended by a zero, and nobody changes them.
    let first = unsafe {
        (*stack > 1).then(|| {
            let argument = *stack.add(2).cast::<*const u8>();
            let length = (0..).take_while(|at| *argument.add(*at) != 0).count();
            core::slice::from_raw_parts(argument, length)
        })
    };
    exit(crate::main(first))
}

/// The compiler calls this by its name wherever it fills memory.
#[unsafe(no_mangle)]
extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    for at in 0..length {
        // SAFETY: whoever calls owns that many bytes there.
        unsafe { to.add(at).write(byte as u8) };
    }
    to
}

fn exit(code: i32) -> ! {
    loop {
        call(number::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]);
    }
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

#[cfg(target_arch = "x86_64")]
fn call(number: usize, with: [usize; 6]) -> isize {
    let result;
    // SAFETY: whoever calls passes numbers, or pointers to what lives until this comes back.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") with[0], in("rsi") with[1], in("rdx") with[2],
             in("r10") with[3], in("r8") with[4], in("r9") with[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[cfg(target_arch = "aarch64")]
fn call(number: usize, with: [usize; 6]) -> isize {
    let result;
    // SAFETY: whoever calls passes numbers, or pointers to what lives until this comes back.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") with[0] => result, in("x1") with[1], in("x2") with[2],
             in("x3") with[3], in("x4") with[4], in("x5") with[5], options(nostack));
    }
    result
}

/// What could not be done.
pub struct Failure(pub &'static [u8]);

/// Repeats what a signal has interrupted.
fn ask(number: usize, with: [usize; 6], what: &'static [u8]) -> Result<usize, Failure> {
    loop {
        match call(number, with) {
            INTERRUPTED => {}
            result => return usize::try_from(result).map_err(|_| Failure(what)),
        }
    }
}

pub struct Descriptor(usize);

impl Descriptor {
    pub const fn of(number: usize) -> Self {
        Self(number)
    }

    pub fn read(&self, into: &mut [u8]) -> Result<usize, Failure> {
        ask(number::READ, [self.0, into.as_mut_ptr() as usize, into.len(), 0, 0, 0], b"cannot read\n")
    }

    /// Few bytes, which go at once.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        ask(number::WRITE, [self.0, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0], b"cannot write\n")
            .map(drop)
    }

    /// The same to a socket.
    pub fn send(&self, bytes: &[u8]) -> Result<(), Failure> {
        let with = [self.0, bytes.as_ptr() as usize, bytes.len(), NO_SIGNAL, 0, 0];
        ask(number::SENDTO, with, b"cannot send\n").map(drop)
    }

    pub fn accept(&self) -> Result<Descriptor, Failure> {
        ask(number::ACCEPT4, [self.0, 0, 0, 0, 0, 0], b"cannot accept\n").map(Self)
    }

    pub fn close(self) {
        call(number::CLOSE, [self.0, 0, 0, 0, 0, 0]);
    }
}

#[repr(C)]
struct InetAddress {
    family: u16,
    port: [u8; 2],
    address: [u8; 4],
    unused: [u8; 8],
}

#[repr(C)]
struct UnixAddress {
    family: u16,
    path: [u8; LONGEST_PATH],
}

pub fn listen_tcp(port: u16) -> Result<Descriptor, Failure> {
    listen(INET, &InetAddress { family: INET, port: port.to_be_bytes(), address: [0; 4], unused: [0; 8] })
}

pub fn listen_unix(path: &[u8]) -> Result<Descriptor, Failure> {
    if path.len() >= LONGEST_PATH {
        return Err(Failure(b"the path of the socket is too long\n"));
    }
    let mut address = UnixAddress { family: UNIX, path: [0; LONGEST_PATH] };
    address.path.iter_mut().zip(path).for_each(|(to, from)| *to = *from);
    listen(UNIX, &address)
}

fn listen<A>(family: u16, address: &A) -> Result<Descriptor, Failure> {
    let socket = ask(number::SOCKET, [family.into(), STREAM, 0, 0, 0, 0], b"cannot make a socket\n")?;
    let place = core::ptr::from_ref(address) as usize;
    ask(number::BIND, [socket, place, size_of::<A>(), 0, 0, 0], b"cannot bind\n")?;
    ask(number::LISTEN, [socket, BACKLOG, 0, 0, 0, 0], b"cannot listen\n")?;
    Ok(Descriptor(socket))
}
