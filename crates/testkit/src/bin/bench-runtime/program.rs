//! The program in the containers: says that it runs, says that it listens, answers one request over HTTP, and ends when
//! whoever asked hangs up.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

pub(crate) const RUNNING: u8 = b'r';
pub(crate) const LISTENING: u8 = b'l';
pub(crate) const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
/// Where it listens in a network of its own.
pub(crate) const PORT: u16 = 8080;

/// On a socket of the name given, or on [`PORT`].
pub(crate) fn serve(name: &str) -> ExitCode {
    let served = match name {
        "" => answer_tcp(),
        path => answer_unix(path),
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
