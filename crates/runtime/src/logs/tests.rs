use std::io::Write;

use super::*;

fn run(attempt: u32) -> Run {
    Run { pod_uid: "uid".into(), container: "c".into(), attempt }
}

fn logs() -> (tempfile::TempDir, Logs) {
    let directory = tempfile::tempdir().expect("a directory");
    let logs = Logs::new(directory.path());
    (directory, logs)
}

async fn text(logs: &Logs, run: &Run, selection: Selection) -> String {
    let mut chunks = logs.read(run, selection);
    let mut text = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        text.extend_from_slice(&chunk);
    }
    String::from_utf8(text).expect("text")
}

fn program(fd: OwnedFd, output: &[u8]) {
    std::fs::File::from(fd).write_all(output).expect("the pump reads");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_wrote_is_read() {
    let (_directory, logs) = logs();
    let (stdout, stderr) = logs.begin(&run(0)).expect("a log");
    drop(stderr);
    program(stdout, b"one\ntwo\n\nthree without end");
    logs.ended(&run(0)).await;
    let all = Selection::default();
    assert_eq!(text(&logs, &run(0), all.clone()).await, "one\ntwo\n\nthree without end");
    let tail = Selection { tail_lines: Some(2), ..all.clone() };
    assert_eq!(text(&logs, &run(0), tail).await, "\nthree without end");
    let none = Selection { tail_lines: Some(0), ..all.clone() };
    assert_eq!(text(&logs, &run(0), none).await, "");
    let few = Selection { limit_bytes: Some(5), ..all.clone() };
    assert_eq!(text(&logs, &run(0), few).await, "one\nt");
    let later = Selection { since: Some(jiff::Timestamp::MAX), ..all.clone() };
    assert_eq!(text(&logs, &run(0), later).await, "");
    let stamped = text(&logs, &run(0), Selection { timestamps: true, ..all.clone() }).await;
    let first = stamped.lines().next().expect("a line");
    let (time, rest) = first.split_once(' ').expect("a time");
    assert!(time.parse::<jiff::Timestamp>().is_ok() && rest == "one", "{first}");
    assert_eq!(text(&logs, &run(1), all).await, "", "a run that never was");
    assert_eq!(logs.tail(&run(0), 80, 10), "ithout end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_hears_the_rest_and_the_end() {
    let (_directory, logs) = logs();
    let (stdout, stderr) = logs.begin(&run(0)).expect("a log");
    let mut stdout = std::fs::File::from(stdout);
    stdout.write_all(b"early\n").expect("written");
    let follow = Selection { follow: true, ..Selection::default() };
    let mut chunks = logs.read(&run(0), follow);
    assert_eq!(chunks.recv().await.expect("early"), "early\n");
    stdout.write_all(b"late\n").expect("written");
    assert_eq!(chunks.recv().await.expect("late"), "late\n");
    drop((stdout, stderr));
    assert_eq!(chunks.recv().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_of_a_silent_program_hears_its_first_line() {
    let (directory, logs) = logs();
    let (stdout, stderr) = logs.begin(&run(0)).expect("a log");
    let follow = Selection { follow: true, tail_lines: Some(0), ..Selection::default() };
    let mut chunks = logs.read(&run(0), follow);
    assert!(!directory.path().join("uid/logs").exists(), "nothing was written yet");
    program(stdout, b"first\n");
    assert_eq!(chunks.recv().await.expect("first"), "first\n");
    drop(stderr);
    assert_eq!(chunks.recv().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_late_does_not_bring_a_removed_pod_back() {
    let (directory, logs) = logs();
    let (stdout, stderr) = logs.begin(&run(0)).expect("a log");
    std::fs::remove_dir_all(directory.path().join("uid")).expect("removed");
    program(stdout, b"late\n");
    drop(stderr);
    logs.ended(&run(0)).await;
    assert!(!directory.path().join("uid").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_bounded_and_a_follower_loses_nothing_that_it_keeps_up_with() {
    let (_directory, logs) = logs();
    let (stdout, stderr) = logs.begin(&run(0)).expect("a log");
    drop(stderr);
    let follower = logs.read(&run(0), Selection { follow: true, ..Selection::default() });
    let reading = tokio::spawn(async move {
        let mut follower = follower;
        let mut length = 0;
        while let Some(chunk) = follower.recv().await {
            length += chunk.len();
        }
        length
    });
    // In steps, each read before the next: a reader that is slow by two whole files does lose lines.
    let mut stdout = std::fs::File::from(stdout);
    let line = [vec![b'x'; 8 << 10], vec![b'\n']].concat();
    let count = 3 * usize::try_from(FILE_LIMIT).expect("small") / line.len();
    tokio::task::spawn_blocking(move || {
        for _ in 0..count {
            stdout.write_all(&line).expect("written");
        }
    })
    .await
    .expect("written");
    logs.ended(&run(0)).await;
    assert!(reading.await.expect("read") > 0);
    let file = logs.file(&run(0));
    for path in [older(&file), file] {
        assert!(path.metadata().expect("a file").len() <= FILE_LIMIT);
    }
    let kept = text(&logs, &run(0), Selection::default()).await;
    assert!(kept.len() as u64 > FILE_LIMIT, "the old file is shown, too: {}", kept.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_before_is_kept() {
    let (_directory, logs) = logs();
    for attempt in 0..4 {
        let (stdout, stderr) = logs.begin(&run(attempt)).expect("a log");
        drop(stderr);
        program(stdout, b"a line\n");
        logs.ended(&run(attempt)).await;
        logs.forget_before(&run(attempt)).expect("forgotten");
    }
    let left = |logs: &Logs| (0..4).filter(|n| logs.file(&run(*n)).exists()).collect::<Vec<_>>();
    assert_eq!(left(&logs), [2, 3]);
}
