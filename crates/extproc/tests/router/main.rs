//! The router behind a real Envoy, on an embedded API server, with real servers in the place of instances. What both
//! fronts have to do is tried through the built-in gateway as well, by the same code.

mod backend;
mod builtin;
mod cases;
mod client;
mod envoy;
mod failures;
mod load;
mod seeing;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result};

use envoy::Program;
use world::{Setting, World};

/// Longer than anything takes that goes right.
pub(crate) const LONG: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let options = Options::from_environment();
    let program = Program::find(&options.cache);
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(async {
        for case in cases::ALL {
            let name = format!("{}, through the built-in gateway", case.name);
            if options.selects(&name) {
                let tried =
                    async { (case.run)(&World::new(case.setting()).await?.with_gateway().await?).await };
                report.note(&name, Box::pin(limited(tried)).await);
            }
        }
        let program = match program {
            Ok(program) => program,
            Err(error) => {
                return report.skip("whatever needs Envoy", cases::ALL.len(), &format!("{error:#}"));
            }
        };
        for case in cases::ALL.iter().chain(failures::ALL) {
            let name = format!("{}, through Envoy", case.name);
            if options.selects(&name) {
                let tried = async {
                    let world = World::new(case.setting()).await?.with_envoy(&program).await?;
                    let tried = (case.run)(&world).await;
                    tried.with_context(|| world.told())
                };
                report.note(&name, Box::pin(limited(tried)).await);
            }
        }
    });
    runtime.shutdown_background();
    report.close(options.strict)
}

async fn limited(tried: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::time::timeout(LONG, tried).await.context("it does not come to an end")?
}

/// Something to try.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) change: fn(&mut Setting),
    pub(crate) run: for<'a> fn(&'a World) -> futures_util::future::LocalBoxFuture<'a, Result<()>>,
}

impl Case {
    fn setting(&self) -> Setting {
        let mut setting = Setting::default();
        (self.change)(&mut setting);
        setting
    }
}
