//! The janitor with a real containerd, which has containers as agents would have made them, and with an API server. The
//! programs in the containers are this one again.
// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(dead_code, reason = "what is shared with the tests of containerd is used in part")]

#[path = "../../../containerd/tests/containerd/daemon.rs"]
mod daemon;
#[path = "../../../containerd/tests/containerd/image.rs"]
mod image;
#[path = "../../../containerd/tests/containerd/inside.rs"]
mod inside;
mod orphans;
mod world;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use world::World;

/// The namespace of containerd that is used.
pub(crate) const NAMESPACE: &str = "agentcube-tests";
/// A case that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__spawner"] => agentcube_runtime::spawner::main(),
        ["inside", words @ ..] => inside::main(words),
        // What tools ask test binaries for.
        ["--list", ..] => ExitCode::SUCCESS,
        words => {
            let filter = words.iter().find(|word| !word.starts_with('-')).copied().unwrap_or_default();
            match run(filter) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{error:#}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn run(filter: &str) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    let Some(programs) = daemon::programs().filter(|_| root) else {
        let strict = std::env::var("CI").is_ok_and(|value| value == "true");
        ensure!(!strict || !root, "containerd is not installed");
        writeln!(
            std::io::stdout(),
            "SKIPPED: the janitor: it needs root, and `cargo xtask setup` gets containerd"
        )?;
        return Ok(());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (mut passed, mut failed) = (0, 0);
    runtime.block_on(async {
        let world = World::start(&programs).await?;
        macro_rules! cases {
            ($($name:ident),*) => {$(
                if stringify!($name).contains(filter) {
                    let ran = tokio::time::timeout(LIMIT, Box::pin(orphans::$name(&world))).await;
                    match ran.context("it hangs").flatten().and(world.clear().await) {
                        Ok(()) => {
                            passed += 1;
                            println!("test {} ... ok", stringify!($name));
                        }
                        Err(error) => {
                            failed += 1;
                            println!("test {} ... FAILED\n{error:#}", stringify!($name));
                        }
                    }
                }
            )*};
        }
        cases!(
            removes_orphans_and_nothing_else,
            does_nothing_without_answers,
            proves_nothing_by_a_server_without_the_kind,
            looks_when_a_pod_is_deleted
        );
        world.stop().await;
        anyhow::Ok(())
    })?;
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed; 0 ignored");
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}
