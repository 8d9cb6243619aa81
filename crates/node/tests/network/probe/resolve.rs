//! A resolver of its own, so that the name server is not tested with its own idea of DNS.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};

pub(crate) fn resolve(transport: &str, server: &str, name: &str, kind: &str) -> io::Result<()> {
    let kind: u16 = match kind {
        "A" => 1,
        "PTR" => 12,
        "AAAA" => 28,
        _ => 33,
    };
    let mut query = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    write_name(&mut query, name);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    let answer = if transport == "tcp" { by_tcp(server, &query)? } else { by_udp(server, &query)? };
    println!("{}", read(&answer).ok_or(io::ErrorKind::InvalidData)?);
    Ok(())
}

fn by_udp(server: &str, query: &[u8]) -> io::Result<Vec<u8>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((server, 53))?;
    socket.send(query)?;
    let mut buffer = vec![0; 4096];
    let length = socket.recv(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

fn by_tcp(server: &str, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((server, 53))?;
    stream.write_all(&(query.len() as u16).to_be_bytes())?;
    stream.write_all(query)?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn write_name(out: &mut Vec<u8>, name: &str) {
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
}

/// The code of the answer if it is none, else its records, sorted.
fn read(answer: &[u8]) -> Option<String> {
    let number = |at: usize| Some(u16::from_be_bytes([*answer.get(at)?, *answer.get(at + 1)?]));
    let flags = number(2)?;
    if (number(0)?, flags >> 15) != (0xabcd, 1) {
        return None;
    }
    if flags & 0x0200 != 0 {
        return Some("truncated".into());
    }
    if flags & 15 != 0 {
        return Some(format!("code {}", flags & 15));
    }
    let mut at = skip_name(answer, 12)? + 4;
    let mut records = Vec::new();
    for _ in 0..number(6)? {
        at = skip_name(answer, at)?;
        let (kind, length, data) = (number(at)?, usize::from(number(at + 8)?), at + 10);
        at = data + length;
        let bytes = answer.get(data..at)?;
        records.push(match kind {
            1 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string(),
            33 => format!("{}:{}", name_at(answer, data + 6)?, number(data + 4)?),
            _ => name_at(answer, data)?,
        });
    }
    records.sort();
    Some(records.join(" "))
}

fn skip_name(answer: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *answer.get(at)? {
            0 => return Some(at + 1),
            length if length >= 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

fn name_at(answer: &[u8], mut at: usize) -> Option<String> {
    let mut labels = Vec::new();
    loop {
        match usize::from(*answer.get(at)?) {
            0 => return Some(labels.join(".")),
            length if length >= 0xc0 => at = (length & 0x3f) << 8 | usize::from(*answer.get(at + 1)?),
            length => {
                labels.push(String::from_utf8_lossy(answer.get(at + 1..at + 1 + length)?).into_owned());
                at += 1 + length;
            }
        }
    }
}
