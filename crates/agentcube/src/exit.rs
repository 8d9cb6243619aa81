//! How a command ends: the exit code, and one line that says what is wrong, where, and what to do.

use std::io;
use std::process::ExitCode;

use crate::client;

/// Shown by `--help` and in docs/CLI.md.
pub(crate) const CODES: &str = "Exit codes:
  0  done
  1  something failed
  2  the command line is wrong
  3  not running, or not found
  4  plugin test: something would change; forge-runner: not before the spec changes (3: it has changed)
  exec exits with the code of the command that it ran, middleware-agent with that of the middleware";

/// A command that came to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Outcome {
    Done,
    /// Something failed and has been told already.
    Failed,
    /// What was asked for is not there, and that has been told already.
    Absent,
    /// A command ran elsewhere and ended with this code.
    Remote(u8),
    /// Another process did the work, and has told what there was to tell.
    Exited(ExitCode),
}

/// The command line asks for something that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// What was asked for is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Absent(pub(crate) String);

/// Says what went wrong, if anything did.
pub(crate) fn report(outcome: anyhow::Result<Outcome>) -> ExitCode {
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Absent) => ExitCode::from(3),
        Ok(Outcome::Remote(code)) => ExitCode::from(code),
        Ok(Outcome::Exited(code)) => code,
        // Whoever read the output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {}", one_line(&error)));
            ExitCode::from(code(&error))
        }
    }
}

/// Writes a line to standard error; when nobody listens there is nothing left to do about it.
pub(crate) fn say(line: &str) {
    use std::io::Write;
    let _unheard = writeln!(io::stderr().lock(), "{line}");
}

/// An error and its causes in one line.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.split_inclusive('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<Usage>() {
            return 2;
        }
        let absent = cause.downcast_ref::<client::Error>().is_some_and(client::Error::is_not_found);
        if absent || cause.is::<Absent>() {
            return 3;
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn codes_follow_the_cause_through_its_context() {
        let wrapped = |error: anyhow::Error| Err::<(), _>(error).context("while trying").unwrap_err();
        assert_eq!(code(&wrapped(Usage("x".into()).into())), 2);
        assert_eq!(code(&wrapped(Absent("x".into()).into())), 3);
        assert_eq!(code(&wrapped(anyhow::anyhow!("x"))), 1);
        let pipe = wrapped(io::Error::from(io::ErrorKind::BrokenPipe).into());
        assert!(is_broken_pipe(&pipe) && !is_broken_pipe(&wrapped(anyhow::anyhow!("x"))));
    }

    #[test]
    fn an_error_is_one_line() {
        let error = anyhow::anyhow!("first\n  second\n\nthird").context("while trying");
        assert_eq!(one_line(&error), "while trying: first second third");
    }
}
