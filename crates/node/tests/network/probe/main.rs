//! The program of the network's tests: it is their spawner, and it is what runs in their Pods.

mod resolve;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::thread;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["__spawner"] => return agentcube_runtime::spawner::main(),
        ["serve", name, port] => serve(name, port),
        ["fetch", to, bytes] => fetch(to, bytes.parse().unwrap_or(0)),
        ["hold", to] => hold(to),
        ["send", to] => send(to),
        ["resolve", transport, server, name, kind] => resolve::resolve(transport, server, name, kind),
        other => Err(io::Error::other(format!("unknown: {other:?}"))),
    };
    if let Err(error) = outcome {
        println!("{:?}", error.kind());
    }
    ExitCode::SUCCESS
}

/// Tells every client who answers and whom it sees, then how much it got, once the client has sent all.
fn serve(name: &str, port: &str) -> io::Result<()> {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}"))?;
    println!("ready");
    loop {
        let (mut stream, peer) = listener.accept()?;
        let name = name.to_owned();
        thread::spawn(move || -> io::Result<()> {
            write!(stream, "{name} sees {} ", peer.ip())?;
            let (mut total, mut sum, mut buffer) = (0u64, 0u64, vec![0; 65536]);
            loop {
                let length = stream.read(&mut buffer)?;
                if length == 0 {
                    break;
                }
                total += length as u64;
                sum = buffer[..length].iter().fold(sum, |sum, byte| sum.wrapping_add((*byte).into()));
            }
            write!(stream, "got {total} sum {sum}")
        });
    }
}

/// Sends so many bytes, says that this was all, and prints what comes back.
fn fetch(to: &str, bytes: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    let mut out = stream.try_clone()?;
    let sender = thread::spawn(move || -> io::Result<()> {
        let piece: Vec<u8> = (0..=255).cycle().take(65536).collect();
        let mut left = bytes;
        while left > 0 {
            let length = left.min(piece.len());
            out.write_all(&piece[..length])?;
            left -= length;
        }
        out.shutdown(Shutdown::Write)
    });
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    sender.join().map_err(|_| io::Error::other("the sender ended badly"))??;
    println!("{text}");
    Ok(())
}

/// Opens a connection and keeps it until it ends.
fn hold(to: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    let mut first = [0];
    stream.read_exact(&mut first)?;
    println!("held");
    stream.read_to_end(&mut Vec::new())?;
    println!("ended");
    Ok(())
}

/// Sends a datagram and prints what came of it.
fn send(to: &str) -> io::Result<()> {
    let to: SocketAddr = to.parse().map_err(io::Error::other)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.send(b"x")?;
    println!("sent");
    Ok(())
}
