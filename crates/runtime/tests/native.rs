//! Containers of the native runtime, from start to removal.

mod harness;

use agentcube_runtime::{Error, Exit};
use harness::Node;

#[tokio::test]
async fn runs_a_program_and_tells_its_output_and_end() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (exit, output) = node.run(node.spec("a", &sandbox, &["echo", "hello"])).await.unwrap();
    assert_eq!(exit, Exit { code: 0, signal: None, out_of_memory: false });
    assert_eq!(output, "hello\n");
    let (exit, _) = node.run(node.spec("b", &sandbox, &["exit", "7"])).await.unwrap();
    assert_eq!(exit.code, 7);
    node.handle.stop().await;
}

#[tokio::test]
async fn says_in_the_usual_words_what_is_not_there() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = node.spec("a", &sandbox, &[]);
    spec.args = vec!["no-such-program".to_owned()];
    let scratch = spec.scratch.clone();
    let error = node.run(spec).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert_eq!(error.to_string(), "exec: \"no-such-program\": executable file not found in $PATH");
    assert!(!scratch.exists(), "a start that failed leaves nothing");
}
