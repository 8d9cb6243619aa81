//! The program in the containers of the benchmarks: says that it runs, says that it listens, answers one request over
//! HTTP, and ends when whoever asked hangs up. What starts it is to be measured, and not itself, so it has not even a C
//! library: that one asks the processor some fifty times what it is, which takes longer on a virtual machine than all the
//! rest. No package has it: `cargo xtask bench` compiles it.

#![no_std]
#![no_main]
// Or a loop that copies becomes a call of a library's function.
#![no_builtins]

mod system;
mod words;

use system::{Descriptor, Failure};
use words::{ANSWER, LISTENING, PORT, RUNNING};

/// Told so, it goes on after the first who asks.
const STAY: &[u8] = b"stay";
const STDOUT: Descriptor = Descriptor::of(1);
const STDERR: Descriptor = Descriptor::of(2);

/// On a socket of the name given, or on [`PORT`]; with `stay`, there until somebody ends it.
fn main(first_argument: Option<&[u8]>) -> i32 {
    let served = match first_argument {
        None => listen_on_tcp().and_then(serve_one),
        Some(STAY) => stay(),
        Some(path) => STDOUT.write(&[RUNNING]).and_then(|()| system::listen_unix(path)).and_then(serve_one),
    };
    match served {
        Ok(()) => 0,
        Err(Failure(what)) => {
            // Where nobody listens there is nobody to tell.
            let _ = STDERR.write(what);
            1
        }
    }
}

fn listen_on_tcp() -> Result<Descriptor, Failure> {
    STDOUT.write(&[RUNNING])?;
    system::listen_tcp(PORT)
}

fn serve_one(listener: Descriptor) -> Result<(), Failure> {
    STDOUT.write(&[LISTENING])?;
    answer(&listener.accept()?)
}

/// Whoever only looks whether it listens is not the one whom it answers.
fn stay() -> Result<(), Failure> {
    let listener = system::listen_tcp(PORT)?;
    loop {
        let stream = listener.accept()?;
        answer(&stream)?;
        stream.close();
    }
}

fn answer(stream: &Descriptor) -> Result<(), Failure> {
    const END: [u8; 4] = *b"\r\n\r\n";
    let (mut part, mut last) = ([0; 256], [0; 4]);
    while last != END {
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        for &byte in part.iter().take(read) {
            last = [last[1], last[2], last[3], byte];
        }
    }
    stream.send(ANSWER)?;
    while stream.read(&mut part)? > 0 {}
    Ok(())
}
