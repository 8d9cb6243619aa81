//! Tasks on the whole platform, as a process of its own: the user stories of the design deployed from the examples and
//! talked to through the gateway; its six end-to-end cases; and what clients do wrong.
//!
//! With `--cluster` on a real cluster, through Envoy Gateway: the six cases by the same code, and what only a cluster has.

/// Runs each trial that is wanted, and shows what the platform says when one fails.
macro_rules! trials {
    ($options:expr, $report:expr, $world:expr; $($name:literal => $trial:path),* $(,)?) => {
        $(if $options.selects($name) {
            let outcome = $trial($world).await;
            if outcome.is_err() {
                eprintln!("{}", $world.told());
            }
            $report.note($name, outcome);
        })*
    };
}

mod bundles;
mod cases;
mod cluster;
mod endings;
mod examples;
mod mistakes;
mod pools;
mod sign_on;
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
    if options.cluster {
        return cluster::run(options, report).await;
    }
    let program = match build_program() {
        Ok(program) => program,
        Err(error) => return report.note("agentcube builds", Err(error)),
    };
    let world = match World::start(&program).await {
        Ok(world) => world,
        Err(error) => return report.note("agentcube up starts", Err(error)),
    };
    trials! { options, report, &world;
        "story 1: a conversation stays with its instance" => examples::chat,
        "story 2: code of strangers" => examples::untrusted,
        "story 2: an interpreter for each session" => examples::interpreter,
        "story 3: code without an image" => examples::code_bundle,
        "story 3: a code bundle of another digest says so" => bundles::wrong_digest,
        "story 4: single sign-on in front of agents" => sign_on::single_sign_on,
        "story 5: a proxy that routes a second time by token" => examples::function_proxy,
        "story 6: a conversation on a pool of sandboxes" => pools::chat,
        "pools: idle sessions end, and the maximum is kept" => pools::endings,
        "pools: what is lost is replaced, and a change is another revision" => pools::replaced,
        "pools: an idle session is paused, and woken by a request" => pools::pause,
        "pools: nothing is paused under a stream" => pools::stream,
        "pools: a missing pool is told, and waited for" => pools::missing,
        "pools: code without an image" => pools::code,
        "pools: code from a server" => bundles::on_a_pool,
        "pools: each request its sandbox" => pools::oneshot,
        "the agent of the demonstration" => examples::hello,
        "mistakes of clients are told clearly" => mistakes::clients,
        "an instance dies in flight, and the session goes on" => mistakes::death_in_flight,
    }
    end_to_end(options, report, &world).await;
    report.note("agentcube down ends it in order", world.stop());
}

/// The design's cases, wherever it runs.
async fn end_to_end(options: &Options, report: &mut Report, world: &World) {
    trials! { options, report, world;
        "case 1: Oneshot requests are spread" => cases::oneshot_spread,
        "case 2: a session sticks, and its Pod says so" => cases::stickiness,
        "case 3: cold start from zero" => cases::cold_start,
        "case 4: idle sessions end" => endings::idle,
        "case 4: instances have a longest life" => endings::ttl,
        "case 4: a reused instance goes to the next session" => endings::reuse,
        "case 4: a stream is never idle" => endings::stream,
        "case 5: concurrent reservation" => cases::concurrent_reservation,
        "case 6: concurrent scale-up" => cases::concurrent_scale_up,
        "a Task that goes takes everything along" => endings::task,
    }
}
