//! How long a container takes, by what its program says.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::words;

/// The times of one container.
#[derive(Clone, Copy)]
pub struct Times {
    /// From asking for it to its program's first output.
    pub running: Duration,
    /// From asking for it to the end of its first HTTP answer.
    pub answering: Duration,
}

/// Waits for the program's two words, then asks; `connect` is the way to it.
pub async fn time<S>(
    begun: Instant,
    output: &mut tokio::net::unix::pipe::Receiver,
    connect: impl Future<Output = Result<S>>,
) -> Result<(Times, S)>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let word = output.read_u8().await.context("the program did not run")?;
    anyhow::ensure!(word == words::RUNNING, "the program says {word}");
    let running = begun.elapsed();
    let word = output.read_u8().await.context("the program does not listen")?;
    anyhow::ensure!(word == words::LISTENING, "the program says {word}");
    let mut stream = connect.await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: bench\r\n\r\n").await?;
    let mut answer = [0; words::ANSWER.len()];
    stream.read_exact(&mut answer).await?;
    anyhow::ensure!(answer == words::ANSWER, "the program answers {answer:?}");
    Ok((Times { running, answering: begun.elapsed() }, stream))
}
