//! The way to sandboxes, which is not the API server's: the fast path. Whoever starts the console knows it; here is what goes
//! over it, and logs, which pages follow like those of Pods.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use secrecy::SecretString;
use tokio::sync::mpsc::{Receiver, Sender};

use crate::live::{Lines, Split};
use crate::server::State;
use crate::session::Session;

/// What a tab follows instead of a path of the API server: `/sandbox-logs/<namespace>/<name>`.
pub(crate) const LOGS: &str = "/sandbox-logs/";
/// Lines of the past that a page shows first.
const TAIL: u32 = 1000;

/// What is wanted of a sandbox, by whoever has the token.
pub struct Wish {
    pub token: SecretString,
    pub namespace: String,
    pub name: String,
    pub what: What,
}

pub enum What {
    /// The last lines of its log, and those to come.
    Log { tail: u32 },
    /// A shell with a terminal.
    Shell { command: Vec<String>, columns: u16, rows: u16 },
}

/// What goes into a terminal.
#[derive(Debug)]
pub enum Input {
    Bytes(Bytes),
    Resize { columns: u16, rows: u16 },
}

/// What comes out of a sandbox.
#[derive(Debug)]
pub enum Output {
    Bytes(Bytes),
    /// There is no more: the exit code of a command, or what went wrong.
    End {
        code: Option<i32>,
        why: String,
    },
}

/// A log, or a terminal. Whoever drops it ends it.
pub struct Opened {
    pub input: Sender<Input>,
    pub output: Receiver<Output>,
}

/// Opens one, or says why not.
pub type Open = Arc<dyn Fn(Wish) -> BoxFuture<'static, Result<Opened, String>> + Send + Sync>;

/// Sends the log of `<namespace>/<name>` until it ends; how it ended.
pub(crate) async fn follow_log(
    place: &str,
    state: &State,
    session: &Session,
    lines: &Lines,
) -> (u16, String) {
    let Some((namespace, name)) = place.split_once('/').filter(|(_, name)| !name.contains('/')) else {
        return (400, "name the sandbox as namespace/name".to_owned());
    };
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let wish = Wish { token: session.token(), namespace, name, what: What::Log { tail: TAIL } };
    let mut opened = match (state.options.sandboxes)(wish).await {
        Ok(opened) => opened,
        Err(why) => return (502, why),
    };
    let mut split = Split::default();
    while let Some(output) = opened.output.recv().await {
        match output {
            Output::Bytes(data) => {
                if let Err(end) = split.pass(&data, lines).await {
                    return end;
                }
            }
            Output::End { why, .. } if !why.is_empty() => return (502, why),
            Output::End { .. } => break,
        }
    }
    split.finish(lines).await
}
