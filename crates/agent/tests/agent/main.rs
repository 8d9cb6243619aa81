//! The agent with everything that it uses for real: the spawner, the native runtime, and the machine's own files as
//! image. The programs in the sandboxes are this one again. After each case nothing of it may be left.

mod ends;
mod fuzz;
mod inside;
mod ready;
mod registry;
mod remote;
mod stands;
mod starts;
mod streams;
mod traces;
mod world;

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Command, ExitCode};
use std::time::Duration;

use agentcube_runtime::spawner::{Options, Spawner};
use anyhow::{Context, Result};

use traces::Traces;
use world::World;

/// A case that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// How long what is done beside may take.
const SETTLED: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);

type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
type Case = (&'static str, for<'a> fn(&'a World) -> Running<'a>);

macro_rules! cases {
    ($($module:ident: $($name:ident),*;)*) => {
        &[$($((stringify!($name), |world| Box::pin($module::$name(world)))),*),*]
    };
}

/// Nobody's number, for the cases without root.
const SOMEBODY: u32 = 12_345;
/// These count processes and limit them by cgroups, which nobody has given to an ordinary user here.
const WITH_CGROUPS: &[&str] = &[
    "many_at_once",
    "killed_in_the_middle",
    "runs_out_of_memory",
    "usage",
    "paused_and_resumed",
    "stopped_while_paused",
];

const CASES: &[Case] = cases![
    starts: starts_answers_and_stops, the_same_order_joins, refusals, a_sandbox_as_ordered, many_at_once;
    ends: ends_by_itself, expires_without_a_controller, ends_within_its_grace, stopped_in_the_middle,
        killed_in_the_middle, runs_out_of_memory, unknown_ids_are_answered, only_empty_agents_go,
        who_ends_has_nothing_more_to_tell;
    streams: logs, commands, a_client_that_leaves, usage;
    stands: paused_and_resumed, stopped_while_paused, stands_still_without_a_controller;
    ready: what_waits_is_claimed, what_waits_gives_way, a_burst, images_are_fetched_ahead;
    remote: with_a_token, with_certificates;
    fuzz: any_words;
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__spawner"] => agentcube_runtime::spawner::main(),
        ["inside", words @ ..] => inside::main(words),
        // What tools ask test binaries for.
        ["--list", ..] => ExitCode::SUCCESS,
        words => {
            let filter = words.iter().find(|word| !word.starts_with('-')).copied().unwrap_or_default();
            match outside(filter).and_then(|()| again_without_root(filter)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{error:?}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn outside(filter: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let node = format!("agent-test-{}", std::process::id());
    let options = Options::new(node.clone(), directory.path().join("runtime"));
    let spawner =
        Spawner::start(&std::env::current_exe()?, &options).context("the spawner does not start")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let failures = runtime.block_on(async {
        let spawner = spawner.into_handle()?;
        let mut failures = Vec::new();
        let mut passed = 0;
        // What is made once and kept is there before anything is counted.
        spawner.spare("tests", world::CAPACITY as usize, true).await?;
        World::new(&spawner, directory.path()).await?.warm_up().await?;
        // Its own beside those of the sandboxes.
        let spare = world::CAPACITY as usize;
        settled(&node, |traces| traces.have(1 + spare, spare)).await.context("nothing is made ahead")?;
        let possible = |name: &str| is_root() || !WITH_CGROUPS.contains(&name);
        for (name, case) in CASES.iter().filter(|(name, _)| name.contains(filter) && possible(name)) {
            let before = Traces::of(&node)?;
            let world = World::new(&spawner, directory.path()).await?;
            let outcome = tokio::time::timeout(LIMIT, case(&world)).await.context("it hangs");
            let outcome = outcome.and_then(|outcome| outcome);
            let left = match world.end().await {
                // Sandboxes that are made ahead are made when nothing else is done.
                Ok(()) => settled(&node, |traces| traces.compare(&before)).await,
                Err(error) => Err(error),
            };
            match outcome.and(left) {
                Ok(()) => {
                    println!("test {name} ... ok");
                    passed += 1;
                }
                Err(error) => {
                    println!("test {name} ... FAILED: {error:?}");
                    failures.push(*name);
                }
            }
        }
        spawner.stop().await;
        let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
        let failed = failures.len();
        println!(
            "test result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
        );
        anyhow::Ok(failures)
    })?;
    anyhow::ensure!(failures.is_empty(), "failed: {}", failures.join(", "));
    Ok(())
}

/// Waits until what is in the kernel is as wanted.
pub(crate) async fn settled(node: &str, wanted: impl Fn(&Traces) -> Result<()>) -> Result<()> {
    let deadline = tokio::time::Instant::now() + SETTLED;
    loop {
        match wanted(&Traces::of(node)?) {
            Err(_) if tokio::time::Instant::now() < deadline => tokio::time::sleep(POLL).await,
            settled => return settled,
        }
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The same as an ordinary user, who cannot see where this was built.
fn again_without_root(filter: &str) -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
    let program = directory.path().join("tests");
    // By another process: what is open for writing in a child that was just forked cannot be executed.
    let copied = Command::new("cp").arg(std::env::current_exe()?).arg(&program).status()?;
    anyhow::ensure!(copied.success(), "this program cannot be copied");
    println!("without root:");
    let mut command = Command::new(&program);
    let status = command.arg(filter).current_dir("/").uid(SOMEBODY).gid(SOMEBODY).status()?;
    anyhow::ensure!(status.success(), "failed without root");
    Ok(())
}
