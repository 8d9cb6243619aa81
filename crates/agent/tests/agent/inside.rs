//! What runs in the sandboxes of the tests.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::ExitCode;

pub(crate) fn main(words: &[&str]) -> ExitCode {
    match words {
        ["exit", code] => return ExitCode::from(code.parse::<u8>().unwrap_or(255)),
        ["say", lines @ ..] => {
            for line in lines {
                println!("{line}");
            }
        }
        ["say-and-wait", text] => {
            println!("{text}");
            let _gone = std::io::stdout().flush();
            forever();
        }
        ["copy"] => {
            let mut text = String::new();
            let _broken = std::io::stdin().read_to_string(&mut text);
            print!("{text}");
        }
        ["read", path] => match std::fs::read_to_string(path) {
            Ok(text) => print!("{text}"),
            Err(error) => println!("{error}"),
        },
        ["write", path, text] => match std::fs::write(path, text) {
            Ok(()) => println!("written"),
            Err(error) => println!("{error}"),
        },
        ["mode", path] => match std::fs::metadata(path) {
            Ok(metadata) => {
                use std::os::unix::fs::MetadataExt;
                println!("{:o} {}", metadata.mode() & 0o777, metadata.uid());
            }
            Err(error) => println!("{error}"),
        },
        ["variable", name] => println!("{}", std::env::var(name).unwrap_or_default()),
        ["directory"] => println!("{}", std::env::current_dir().unwrap_or_default().display()),
        ["size"] => loop {
            // It is set when the terminal is there already.
            match rustix::termios::tcgetwinsize(std::io::stdin()) {
                Ok(size) if size.ws_col == 0 => std::thread::yield_now(),
                Ok(size) => break println!("{} {}", size.ws_col, size.ws_row),
                Err(error) => break println!("{error}"),
            }
        },
        ["eat"] => {
            let mut eaten: Vec<Vec<u8>> = Vec::new();
            loop {
                eaten.push(vec![1; 4 << 20]);
                std::hint::black_box(&eaten);
            }
        }
        ["serve", port, text] => serve(port, text),
        ["until-told", code] => return until_told(code.parse().unwrap_or(255)),
        ["spin"] => loop {
            std::hint::spin_loop();
        },
        ["forever"] => forever(),
        other => {
            eprintln!("unknown: {other:?}");
            return ExitCode::from(254);
        }
    }
    ExitCode::SUCCESS
}

/// As the first process of its namespace it has no default action for SIGTERM.
fn forever() -> ! {
    loop {
        std::thread::park();
    }
}

fn serve(port: &str, text: &str) {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).expect("it works inside");
    for mut connection in listener.incoming().flatten() {
        let _gone = connection.write_all(text.as_bytes());
    }
}

fn until_told(code: u8) -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it works inside");
    runtime.block_on(async {
        let kind = tokio::signal::unix::SignalKind::terminate();
        let mut told = tokio::signal::unix::signal(kind).expect("it works inside");
        println!("listening");
        told.recv().await;
    });
    ExitCode::from(code)
}
