//! The controllers of Sandboxes and the fast path on a real kube-apiserver: the cases of `crates/sandbox/tests/cases`, by
//! the same bodies that run there on the embedded one; and who may do what, which only a real one knows.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../../sandbox/tests/cases/mod.rs"]
mod cases;
mod reviews;
#[path = "../../../sandbox/tests/stage/mod.rs"]
mod stage;

use std::process::ExitCode;

use agentcube_testkit::cases::Case;
use agentcube_testkit::suite::Options;

const REVIEWS: Case = ("reviews::an_account_gets_as_far_as_its_role", || {
    Box::pin(reviews::an_account_gets_as_far_as_its_role())
});

fn main() -> ExitCode {
    let options = Options::from_environment();
    let cases = cases::all().into_iter().map(|case| (case.name, case.run)).chain([REVIEWS]);
    agentcube_testkit::cases::run(&options, "sandbox-controllers", cases, stage::server::use_server)
}
