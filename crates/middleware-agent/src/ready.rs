//! Whether the middleware can serve, for probes, which have no token: a line of HTTP. It says yes or no and nothing else, and
//! however often it is asked, the plugin's command runs one at a time and not more than twice in a second.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::serve::Agent;

/// Time for somebody to ask.
const ASKING: Duration = Duration::from_secs(5);
/// So long an answer holds.
const HOLDS: Duration = Duration::from_millis(500);
/// Whoever asks beyond so many waits.
const MOST: usize = 32;
/// A request that is longer is none.
const LONGEST: usize = 8 << 10;

/// Answers probes until it is told to stop.
pub async fn serve(agent: Agent, listener: TcpListener, stop: CancellationToken) {
    let last: Arc<Mutex<Option<(Instant, bool)>>> = Arc::default();
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (agent, last) = (agent.clone(), last.clone());
                tokio::spawn(async move {
                    let _unheard = answer(&agent, &last, stream).await;
                    drop(place);
                });
            }
            // Too many files are open, or the like.
            Err(_) => tokio::time::sleep(HOLDS).await,
        }
    }
}

async fn answer(
    agent: &Agent,
    last: &Mutex<Option<(Instant, bool)>>,
    mut stream: TcpStream,
) -> std::io::Result<()> {
    let request = tokio::time::timeout(ASKING, read(&mut stream)).await.unwrap_or(Ok(Vec::new()))?;
    let line = match request.starts_with(b"GET /ready ") {
        true if ready(agent, last).await => "200 OK",
        true => "503 Service Unavailable",
        false => "404 Not Found",
    };
    let text = format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

async fn ready(agent: &Agent, last: &Mutex<Option<(Instant, bool)>>) -> bool {
    let mut last = last.lock().await;
    match *last {
        Some((at, ready)) if at.elapsed() < HOLDS => ready,
        _ => {
            let ready = agent.is_ready().await;
            *last = Some((Instant::now(), ready));
            ready
        }
    }
}

/// The head of a request.
async fn read(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while request.len() < LONGEST && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::Options;
    use crate::settings::Settings;

    async fn ask(address: std::net::SocketAddr, line: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        said.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn probes_are_answered() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        std::fs::write(&file, "link:down\n").unwrap();
        let settings = Settings {
            ready_command: Some(format!("cat {}", file.display())),
            ready_pattern: Some("^link:up$".into()),
            ..Settings::default()
        };
        let words = ["sleep", "1000"].map(str::to_owned).to_vec();
        let agent = Agent::new(Options { words, settings, settings_file: None, token: "secret".into() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(agent, listener, stop.clone()));
        assert_eq!(ask(address, "GET /ready").await, "HTTP/1.1 503 Service Unavailable");
        assert_eq!(ask(address, "GET /").await, "HTTP/1.1 404 Not Found");
        std::fs::write(&file, "a\nlink:up\n").unwrap();
        while ask(address, "GET /ready").await != "HTTP/1.1 200 OK" {
            tokio::task::yield_now().await;
        }
        stop.cancel();
        serving.await.unwrap();
    }
}
