//! What runs in the Pods of the tests.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::ExitCode;

pub(crate) fn main(words: &[&str]) -> ExitCode {
    match words {
        ["exit", code] => ExitCode::from(code.parse::<u8>().unwrap_or(255)),
        ["say", text, code] => {
            println!("{text}");
            ExitCode::from(code.parse::<u8>().unwrap_or(255))
        }
        ["message", path, text, code] => {
            std::fs::write(path, text).expect("it works inside");
            ExitCode::from(code.parse::<u8>().unwrap_or(255))
        }
        ["append", path, word] => {
            let mut file = OpenOptions::new().create(true).append(true).open(path).expect("it works inside");
            writeln!(file, "{word}").expect("it works inside");
            ExitCode::SUCCESS
        }
        ["expect", path, text] => {
            let found = std::fs::read_to_string(path).unwrap_or_default();
            println!("{found}");
            ExitCode::from(u8::from(found.split_whitespace().collect::<Vec<_>>().join(",") != *text))
        }
        ["exists", path] => ExitCode::from(u8::from(!std::path::Path::new(path).exists())),
        ["variables", wanted @ ..] => {
            let all: BTreeMap<String, String> = std::env::vars().collect();
            let is =
                |word: &&str| word.split_once('=').is_some_and(|(k, v)| all.get(k).is_some_and(|it| it == v));
            match wanted.iter().find(|word| !is(word)) {
                None => ExitCode::SUCCESS,
                Some(wrong) => {
                    println!("{wrong} is not in {all:?}");
                    ExitCode::FAILURE
                }
            }
        }
        ["until-told", code] => until_told(code.parse().unwrap_or(255)),
        ["stubborn"] => loop {
            // As the first process of its namespace it has no default action for SIGTERM.
            std::thread::park();
        },
        ["eat"] => {
            let mut eaten: Vec<Vec<u8>> = Vec::new();
            loop {
                eaten.push(vec![1; 4 << 20]);
                std::hint::black_box(&eaten);
            }
        }
        ["serve", port] => serve(port.parse().expect("it works inside")),
        other => {
            eprintln!("unknown: {other:?}");
            ExitCode::from(254)
        }
    }
}

fn until_told(code: u8) -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it works inside");
    runtime.block_on(async {
        let mut told = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .expect("it works inside");
        std::fs::write("/tmp/listens", "").expect("it works inside");
        told.recv().await;
    });
    ExitCode::from(code)
}

/// Answers `GET /ready` and `GET /live`; `POST` of the same path turns the answer around.
fn serve(port: u16) -> ExitCode {
    let listener = TcpListener::bind(("0.0.0.0", port)).expect("it works inside");
    let mut good = BTreeMap::from([("/ready", false), ("/live", true)]);
    for stream in listener.incoming() {
        let mut stream = stream.expect("it works inside");
        let mut buffer = [0; 4096];
        let mut text = String::new();
        while !text.contains("\r\n\r\n") {
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
                _ => break,
            }
        }
        let mut words = text.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let Some((_, state)) = good.iter_mut().find(|(known, _)| **known == path) else { continue };
        if method == "POST" {
            *state = !*state;
        }
        let status = if *state { "200 OK" } else { "503 Service Unavailable" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let _gone = stream.write_all(answer.as_bytes());
    }
    ExitCode::SUCCESS
}
