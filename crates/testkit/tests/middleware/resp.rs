//! A client of Redis, as small as the protocol allows.

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

/// What Redis answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(String),
    Error(String),
    Number(i64),
    Nothing,
    List(Vec<Reply>),
}

impl Reply {
    /// The text, where nothing else will do.
    pub(crate) fn text(self) -> Result<String> {
        match self {
            Reply::Text(text) => Ok(text),
            other => bail!("{other:?} is no text"),
        }
    }
}

/// Any way to a server.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(crate) struct Client {
    stream: BufReader<Box<dyn Stream>>,
}

impl Client {
    pub(crate) async fn new(stream: Box<dyn Stream>, password: &str) -> Result<Client> {
        let mut client = Client { stream: BufReader::new(stream) };
        match client.ask(&["AUTH", password]).await? {
            Reply::Text(_) => Ok(client),
            refused => bail!("the password is not taken: {refused:?}"),
        }
    }

    /// One command, one answer. What is an error to Redis is an answer.
    pub(crate) async fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        let mut all = self.ask_all(&[words]).await?;
        all.pop().context("an answer for each command")
    }

    /// Commands at once, and their answers.
    pub(crate) async fn ask_all(&mut self, commands: &[&[&str]]) -> Result<Vec<Reply>> {
        let mut bytes = Vec::new();
        for words in commands {
            bytes.extend(format!("*{}\r\n", words.len()).bytes());
            for word in *words {
                bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
            }
        }
        self.stream.write_all(&bytes).await?;
        self.stream.flush().await?;
        let mut answers = Vec::new();
        for _ in commands {
            answers.push(self.read().await?);
        }
        Ok(answers)
    }

    async fn read(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        let line = line.strip_suffix("\r\n").context("the connection has ended")?;
        let (kind, rest) = line.split_at_checked(1).context("an empty answer")?;
        Ok(match kind {
            "+" => Reply::Text(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Number(rest.parse()?),
            "$" | "*" if rest == "-1" => Reply::Nothing,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                self.stream.read_exact(&mut bytes).await?;
                bytes.truncate(bytes.len() - 2);
                Reply::Text(String::from_utf8(bytes)?)
            }
            "*" => {
                let count: usize = rest.parse()?;
                ensure!(count < 1 << 20, "a list of {count}");
                let mut list = Vec::new();
                for _ in 0..count {
                    list.push(Box::pin(self.read()).await?);
                }
                Reply::List(list)
            }
            _ => bail!("{line:?} is no answer"),
        })
    }

    /// A line of INFO.
    pub(crate) async fn info(&mut self, section: &str, name: &str) -> Result<String> {
        let text = self.ask(&["INFO", section]).await?.text()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(line.with_context(|| format!("no {name} in {text}"))?.trim().to_owned())
    }
}
