//! A registry on loopback with one image, which has no files.

use std::net::SocketAddr;

use agentcube_runtime::image::Digest;
use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Registry {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Registry {
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Ok(Self { address, task })
    }

    /// The name of its image.
    pub(crate) fn image(&self) -> String {
        format!("{}/team/empty:1", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream) -> Result<()> {
    let mut stream = BufReader::new(stream);
    // A client tries TLS first, which is no line of text: the connection is closed on it.
    let first = *stream.fill_buf().await?.first().context("nothing is asked")?;
    if !first.is_ascii_alphabetic() {
        return Ok(());
    }
    let (mut asked, mut line) = (String::new(), String::new());
    stream.read_line(&mut asked).await?;
    while stream.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let path = asked.split(' ').nth(1).context("no path is asked for")?;
    let (status, body) = match answer(path) {
        Some(body) => (200, body),
        None => (404, Vec::new()),
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    Ok(stream.shutdown().await?)
}

fn answer(path: &str) -> Option<Vec<u8>> {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    // An archive of nothing.
    let layer = vec![0; 1024];
    let config = format!(
        r#"{{"os":"linux","architecture":"{architecture}","config":{{}},"rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#,
        Digest::of(&layer)
    );
    let described = |kind: &str, bytes: &[u8]| {
        let (digest, size) = (Digest::of(bytes), bytes.len());
        format!(r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"{digest}","size":{size}}}"#)
    };
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{},"layers":[{}]}}"#,
        described("config.v1+json", config.as_bytes()),
        described("layer.v1.tar", &layer)
    );
    if path == "/v2/team/empty/manifests/1" {
        return Some(manifest.into_bytes());
    }
    let blobs = [layer, config.into_bytes()];
    blobs.into_iter().find(|blob| path == format!("/v2/team/empty/blobs/{}", Digest::of(blob)))
}
