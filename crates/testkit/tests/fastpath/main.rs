//! The fast path on the whole platform, as its users meet it: `agentcube up`, `agentcube sandbox`, and objects.

mod commands;
mod isolation;
mod left;
mod life;
mod terminal;
mod world;

use std::process::ExitCode;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::suite::{Options, Report};

use world::World;

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(run(&options, &mut report));
    report.close(options.strict)
}

async fn run(options: &Options, report: &mut Report) {
    let program = match build_program() {
        Ok(program) => program,
        Err(error) => return report.note("agentcube builds", Err(error)),
    };
    let world = match World::start(&program).await {
        Ok(world) => world,
        Err(error) => return report.note("agentcube up starts", Err(error)),
    };
    macro_rules! trials {
        ($($name:literal => $trial:path),* $(,)?) => {
            $(if options.selects($name) {
                let outcome = $trial(&world).await;
                if outcome.is_err() {
                    let log = world.log();
                    let lines: Vec<&str> = log.lines().collect();
                    eprintln!("the end of the log:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
                    if let Err(error) = world.clean().await {
                        eprintln!("what it left cannot be removed: {error:#}");
                    }
                }
                report.note($name, outcome);
            })*
        };
    }
    trials! {
        "FAST: it answers, and its object follows" => life::fast,
        "STRONG: its object comes first" => life::strong,
        "objects alone: it runs, and is gone with its object" => life::object,
        "a pool that is full says so, and takes the next when one is gone" => life::full,
        "a program that ends is told with its code" => life::ended,
        "expiry ends it, and keeps the object" => life::expired,
        "reset starts it afresh" => life::reset,
        "commands, their input and their codes" => commands::exec,
        "a shell on a terminal" => terminal::shell,
        "a shell whose client is ended" => terminal::ended,
        "variables, files and logs" => commands::given,
        "pause and resume" => commands::paused,
        "mistakes are told clearly" => commands::mistakes,
        "what it cannot reach" => isolation::reach,
        "what it cannot see" => isolation::sight,
    }
    let outside = "what it cannot reach outside, where everything answers";
    if options.selects(outside) {
        match rustix::process::geteuid().is_root() {
            true => report.note(outside, isolation::outside(&program).await),
            false => report.skip(outside, 1, "only root can pretend a machine"),
        }
    }
    let told = "after kill -9: what is left is removed, counted and told of";
    if options.selects(told) {
        report.note(told, left::told(&program).await);
    }
    if options.selects("after kill -9: lost, or started again") {
        report.note("after kill -9: lost, or started again", life::killed(world).await);
    } else {
        report.note("agentcube down ends it in order", world.stop());
    }
}
