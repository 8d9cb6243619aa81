//! The program in the containers of `bench-runtime`: says that it runs, says that it listens, answers one request over
//! HTTP, and ends when whoever asked hangs up. Small, so that the runtime is measured and not the program: nothing but
//! the standard library may be used here.

#[allow(unreachable_pub, reason = "the same file is a public module of the library")]
mod words;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use words::{ANSWER, LISTENING, PORT, RUNNING};

/// Told so, it goes on after the first who asks.
const STAY: &str = "stay";

/// On a socket of the name given, or on [`PORT`]; with `stay`, there until somebody ends it.
fn main() -> ExitCode {
    let served = match std::env::args().nth(1) {
        None => answer_tcp(),
        Some(stay) if stay == STAY => stay_at_tcp(),
        Some(path) => answer_unix(&path),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn say(word: u8) -> std::io::Result<()> {
    let mut output = std::io::stdout();
    output.write_all(&[word])?;
    output.flush()
}

fn answer_tcp() -> std::io::Result<()> {
    say(RUNNING)?;
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    say(LISTENING)?;
    answer(listener.accept()?.0)
}

/// Whoever only looks whether it listens is not the one whom it answers.
fn stay_at_tcp() -> std::io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    loop {
        answer(listener.accept()?.0)?;
    }
}

fn answer_unix(path: &str) -> std::io::Result<()> {
    say(RUNNING)?;
    let listener = UnixListener::bind(path)?;
    say(LISTENING)?;
    answer(listener.accept()?.0)
}

fn answer(mut stream: impl Read + Write) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 256];
    while !request.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&part[..read]);
    }
    stream.write_all(ANSWER)?;
    while stream.read(&mut part)? > 0 {}
    Ok(())
}
