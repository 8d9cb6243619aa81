//! Containers by a real containerd, which this program starts for itself, and by a real spawner. The programs in them
//! are this one again. After each case nothing of it may be left.
// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod adopts;
mod agents;
mod daemon;
mod image;
mod inside;
mod isolates;
mod lives;
mod world;

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use world::World;

/// The namespace of containerd that is used.
pub(crate) const NAMESPACE: &str = "agentcube-tests";
/// A case that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
type Case = (&'static str, for<'a> fn(&'a mut World) -> Running<'a>);

macro_rules! cases {
    ($($module:ident: $($name:ident),*;)*) => {
        &[$($((stringify!($name), |world| Box::pin($module::$name(world)))),*),*]
    };
}

const CASES: &[Case] = cases![
    lives: tells_output_and_exit_codes, connects_the_streams, says_what_cannot_be, signals_and_removes, executes,
        gives_terminals, freezes_and_measures, labels_say_whose_it_is, uses_images, goes_on_without_containerd,
        refuses_another_pid_namespace;
    isolates: restricts_as_the_other_runtimes_do, limits_memory_and_processes, mounts_and_read_only_roots;
    agents: an_agent_runs_sandboxes_by_it;
    adopts: dies_with_the_spawner, the_next_worker_goes_on, the_next_start_sweeps,
        stands_still_when_nobody_is_heard_of;
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__spawner"] => agentcube_runtime::spawner::main(),
        ["inside", words @ ..] => inside::main(words),
        ["abroad", socket] => match lives::abroad(socket) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
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
    let strict = std::env::var("CI").is_ok_and(|value| value == "true");
    let programs = daemon::programs().filter(|_| rustix::process::geteuid().is_root());
    let Some(programs) = programs else {
        ensure!(!strict || !rustix::process::geteuid().is_root(), "containerd is not installed");
        writeln!(
            std::io::stdout(),
            "SKIPPED: containers by containerd: it needs root, and `cargo xtask setup` gets it"
        )?;
        return Ok(());
    };
    let chosen: Vec<_> = CASES.iter().filter(|(name, _)| name.contains(filter)).collect();
    println!("running {} tests", chosen.len());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (mut passed, mut failed) = (0, 0);
    runtime.block_on(async {
        let mut world = World::start(&programs)?;
        for (name, case) in chosen {
            let ran = tokio::time::timeout(LIMIT, case(&mut world)).await.context("it hangs").flatten();
            let left = world.nothing_is_left().await;
            match ran.and(left) {
                Ok(()) => {
                    passed += 1;
                    println!("test {name} ... ok");
                }
                Err(error) => {
                    failed += 1;
                    println!("test {name} ... FAILED\n{error:#}\n{}", world.daemon.complaints());
                }
            }
        }
        anyhow::Ok(())
    })?;
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed; 0 ignored");
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}
