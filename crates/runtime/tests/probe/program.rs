//! The program of the tests: it is their spawner, and it is what runs in their containers.

mod attempts;
mod node;
mod worker;

use std::io::{BufRead, Read, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    match arguments.as_slice() {
        ["__spawner"] => return agentcube_runtime::spawner::main(),
        [agentcube_runtime::confine::WORD, ..] => return agentcube_runtime::confine::main(),
        ["exit", code] => return ExitCode::from(code.parse::<u8>().unwrap_or(255)),
        ["echo", words @ ..] => println!("{}", words.join(" ")),
        ["cat"] => copy_input(),
        ["environment"] => {
            let bytes: usize = std::env::vars().map(|(key, value)| key.len() + value.len()).sum();
            println!("{bytes}");
        }
        ["variables"] => {
            let mut all: Vec<_> = std::env::vars().map(|(key, value)| format!("{key}={value}")).collect();
            all.sort();
            println!("{}", all.join(" "));
        }
        ["read", path] => match std::fs::read_to_string(path) {
            Ok(text) => print!("{text}"),
            Err(error) => println!("{error}"),
        },
        ["write", path, text] => match std::fs::write(path, text) {
            Ok(()) => println!("written"),
            Err(error) => println!("{error}"),
        },
        ["whoami"] => print!("{}", attempts::identity()),
        ["signal", number] => attempts::raise(number.parse().unwrap_or(9)),
        ["wait"] => wait(),
        ["forever"] => loop {
            std::thread::park();
        },
        ["serve", port, text] => serve(port, text),
        ["terminal"] => print!("{}", attempts::terminal()),
        ["node", name, directory] => node::run(name, directory),
        ["keeper", name, directory, what] => return worker::keep(name, directory, what),
        ["worker", name, directory, what, inherited] => return worker::run(name, directory, what, inherited),
        ["count"] => count(),
        ["try", attempt, rest @ ..] => return attempts::attempt(attempt, rest),
        other => {
            eprintln!("unknown: {other:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Counts until nobody listens.
fn count() {
    for number in 0_u64.. {
        if writeln!(std::io::stdout(), "{number}").is_err() {
            return;
        }
    }
}

fn copy_input() {
    let mut text = String::new();
    match std::io::stdin().read_to_string(&mut text) {
        Ok(_) => print!("{text}"),
        Err(error) => println!("cannot read: {error}"),
    }
}

/// Answers one connection after the other with a text.
fn serve(port: &str, text: &str) {
    let listener = match std::net::TcpListener::bind(format!("0.0.0.0:{port}")) {
        Ok(listener) => listener,
        Err(error) => return println!("{error}"),
    };
    println!("listening");
    let _ = std::io::stdout().flush();
    for mut connection in listener.incoming().flatten() {
        let _ = connection.write_all(text.as_bytes());
    }
}

/// Says that it is there, and stays until its input ends or a signal comes.
fn wait() {
    println!("waiting");
    let _ = std::io::stdout().flush();
    let mut line = String::new();
    while std::io::stdin().lock().read_line(&mut line).is_ok_and(|length| length > 0) {}
}
