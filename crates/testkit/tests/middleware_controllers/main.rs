//! The controllers of middleware on a real kube-apiserver: the cases of `crates/middleware/tests/cases`, by the same bodies
//! that run there on the embedded one.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../../middleware/tests/cases/mod.rs"]
mod cases;
#[path = "../../../middleware/tests/stage/mod.rs"]
mod stage;

use std::process::ExitCode;

use agentcube_testkit::suite::Options;

fn main() -> ExitCode {
    let options = Options::from_environment();
    let cases = cases::all().into_iter().map(|case| (case.name, case.run));
    agentcube_testkit::cases::run(&options, "middleware-controllers", cases, stage::server::use_server)
}
