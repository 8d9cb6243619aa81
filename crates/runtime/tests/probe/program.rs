//! The program of the tests: it is their spawner, and it is what runs in their containers.

use std::io::Read;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    match arguments.as_slice() {
        ["__spawner"] => agentcube_runtime::spawner::main(),
        ["exit", code] => ExitCode::from(code.parse::<u8>().unwrap_or(255)),
        ["echo", words @ ..] => {
            println!("{}", words.join(" "));
            ExitCode::SUCCESS
        }
        ["cat"] => {
            let mut text = String::new();
            match std::io::stdin().read_to_string(&mut text) {
                Ok(_) => print!("{text}"),
                Err(error) => println!("cannot read: {error}"),
            }
            ExitCode::SUCCESS
        }
        other => {
            eprintln!("unknown: {other:?}");
            ExitCode::FAILURE
        }
    }
}
