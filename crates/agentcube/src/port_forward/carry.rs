//! Carries the bytes of one connection between this machine and a Pod.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

/// How long a Pod may be silent after the client has said its last word. The protocol cannot pass on that it has, and
/// a client that is gone altogether looks the same from here.
const LINGER: Duration = Duration::from_secs(5);
const CHUNK: usize = 16 << 10;

/// Ends when the Pod does, or a while after the client.
pub(super) async fn carry(
    client: impl AsyncRead + AsyncWrite,
    pod: impl AsyncRead + AsyncWrite,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_pod, mut to_pod) = tokio::io::split(pod);
    let (last_word, mut silent) = watch::channel(false);
    let onward = async {
        tokio::io::copy(&mut from_client, &mut to_pod).await?;
        last_word.send_replace(true);
        std::future::pending().await
    };
    let back = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            let gone = async {
                // The sender lives as long as we do.
                drop(silent.wait_for(|silent| *silent).await);
                tokio::time::sleep(LINGER).await;
            };
            let length = tokio::select! {
                length = from_pod.read(&mut buffer) => length?,
                () = gone => 0,
            };
            if length == 0 {
                return to_client.shutdown().await;
            }
            to_client.write_all(&buffer[..length]).await?;
        }
    };
    tokio::select! {
        ended = onward => ended,
        ended = back => ended,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;

    fn start() -> (DuplexStream, DuplexStream, JoinHandle<io::Result<()>>) {
        let ((client, near), (pod, far)) = (duplex(64), duplex(64));
        (client, pod, tokio::spawn(carry(near, far)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_arrives_after_the_clients_last_word() {
        let (mut client, mut pod, carrying) = start();
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut asked = [0; 8];
        pod.read_exact(&mut asked).await.unwrap();
        for part in [&b"long "[..], b"answer"] {
            tokio::time::sleep(LINGER / 2).await;
            pod.write_all(part).await.unwrap();
        }
        drop(pod);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&asked, answer.as_str()), (b"question", "long answer"));
        carrying.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_pod_is_left_after_the_clients_last_word() {
        let (mut client, mut pod, carrying) = start();
        client.shutdown().await.unwrap();
        carrying.await.unwrap().unwrap();
        assert_eq!(pod.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_send_without_reading() {
        let (mut client, mut pod, _carrying) = start();
        let flood = vec![b'x'; 1000];
        let (mut reading, mut writing) = tokio::io::split(&mut pod);
        let mut got = vec![0; 1000];
        let sent = async {
            client.write_all(&flood).await.unwrap();
        };
        // The Pod's own words fill every buffer, as nobody reads them.
        tokio::select! {
            ((), length) = async { tokio::join!(sent, reading.read_exact(&mut got)) } => assert_eq!(length.unwrap(), 1000),
            _ = async { loop { writing.write_all(b"noise").await.unwrap() } } => {}
        }
    }
}
