//! Runs a command of the plugin: no shell, a time limit, and not more output than is kept. When the time is over the
//! command is killed with all that it has started.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::words::{self, Variables};

/// Output that is kept, of each of the two streams: the end of it.
pub const KEPT: usize = 64 << 10;

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// 128 and the signal's number, if a signal ended it.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// There was more.
    pub cut: bool,
}

/// Why nothing came of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Words(#[from] words::Error),
    #[error("{program} cannot be run: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("{program} was not done within {} s", .limit.as_secs_f32())]
    Late { program: String, limit: Duration },
    #[error("{program} is lost: {source}")]
    Lost { program: String, source: std::io::Error },
}

impl Output {
    /// What it printed, if it went well; otherwise what it said.
    pub fn text(&self) -> Result<String, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if self.code == 0 {
            return Ok(text(&self.stdout));
        }
        let said = [text(&self.stderr), text(&self.stdout)].into_iter().find(|said| !said.is_empty());
        let said: String = said.unwrap_or_default().chars().take(500).collect();
        Err(format!("exit code {}: {said}", self.code))
    }
}

/// Kills what is left of a group when nobody waits for it any longer.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs a command with the values that it names, and `more` words after it.
pub async fn run(
    command: &str,
    more: &[String],
    variables: &Variables,
    limit: Duration,
) -> Result<Output, Error> {
    let words = words::split(command)?;
    let words = words.iter().map(|word| words::expand(word, variables)).collect::<Result<Vec<_>, _>>()?;
    let (program, arguments) = words.split_first().ok_or(words::Error::Empty)?;
    let started = Command::new(program)
        .args(arguments)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let named = || program.clone();
    let mut child = started.map_err(|source| Error::Start { program: named(), source })?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let _group = Group(group);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        // Whoever holds its pipes open after it has ended is not waited for.
        let reading = async { tokio::join!(tail(stdout), tail(stderr)) };
        tokio::pin!(reading);
        let (status, read) = tokio::select! {
            status = child.wait() => (status, None),
            read = &mut reading => (child.wait().await, Some(read)),
        };
        let read = match read {
            Some(read) => read,
            None => {
                let late = tokio::time::timeout(Duration::from_millis(500), reading).await;
                late.unwrap_or_else(|_| (Tail::unread(), Tail::unread()))
            }
        };
        (status, read)
    };
    let (status, (stdout, stderr)) =
        tokio::time::timeout(limit, work).await.map_err(|_| Error::Late { program: named(), limit })?;
    let status = status.map_err(|source| Error::Lost { program: named(), source })?;
    Ok(Output {
        code: code(status),
        cut: stdout.cut || stderr.cut,
        stdout: stdout.bytes,
        stderr: stderr.bytes,
    })
}

/// The code of an end, as shells have it.
pub fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    fn unread() -> Tail {
        Tail { bytes: Vec::new(), cut: true }
    }
}

/// The end of a stream, read to its end.
async fn tail(stream: Option<impl AsyncRead + Unpin>) -> Tail {
    let mut tail = Tail { bytes: Vec::new(), cut: false };
    let Some(mut stream) = stream else { return tail };
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        tail.bytes.extend_from_slice(&buffer[..count]);
        if tail.bytes.len() > KEPT {
            tail.cut = true;
            tail.bytes.drain(..tail.bytes.len() - KEPT);
        }
    }
    tail
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn no_shell_runs() {
        let named: Variables = [("A".to_owned(), "a b; false".to_owned())].into();
        let output = run("printf '<%s>' $(A)", &[], &named, LIMIT).await.unwrap();
        assert_eq!(output.text().unwrap(), "<a b; false>");
        let output = run("echo $HOME ; false", &["last".into()], &Variables::new(), LIMIT).await.unwrap();
        assert_eq!(output.text().unwrap(), "$HOME ; false last");
        let output = run("sh -c 'echo wrong >&2; exit 7'", &[], &Variables::new(), LIMIT).await.unwrap();
        assert_eq!(output.text().unwrap_err(), "exit code 7: wrong");
        assert!(matches!(
            run("/no/such/program", &[], &Variables::new(), LIMIT).await,
            Err(Error::Start { .. })
        ));
    }

    #[tokio::test]
    async fn output_is_bounded_and_its_end_is_kept() {
        let output =
            run("sh -c 'yes | head -c 3000000; echo end'", &[], &Variables::new(), LIMIT).await.unwrap();
        assert!(output.cut && output.stdout.len() <= KEPT);
        assert!(output.text().unwrap().ends_with("end"));
    }

    #[tokio::test]
    async fn whoever_is_late_is_killed_with_all_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("sh -c 'sleep 1000 & echo $! > {}; wait'", file.display());
        let pid = async {
            loop {
                if let Ok(text) = tokio::fs::read_to_string(&file).await
                    && let Ok(pid) = text.trim().parse::<i32>()
                {
                    return pid;
                }
                tokio::task::yield_now().await;
            }
        };
        let nothing = Variables::new();
        // Long enough for the shell to say whom it has started, however busy the machine is.
        let pid = tokio::time::timeout(LIMIT, pid);
        let (late, pid) = tokio::join!(run(&script, &[], &nothing, Duration::from_secs(10)), pid);
        let pid = pid.expect("the shell has said whom it has started");
        assert!(matches!(late, Err(Error::Late { .. })), "{late:?}");
        // A zombie is dead too.
        let runs =
            || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        let killed = async {
            while runs() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, killed).await.expect("it ends");
    }
}
