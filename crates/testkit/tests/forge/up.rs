//! Front ends in `agentcube up`, from the file of a user to the bundle: Jobs are Pods there, and the command line shows them.

use std::process::Command;
use std::time::Duration;

use agentcube_testkit::cluster::up::Place;
use serde_json::{Value, json};

use crate::Tools;
use crate::stage::until;

fn run(place: &Place, command: &str) -> (bool, String, String) {
    let mut program = Command::new(place.program());
    program.args(command.split(' ')).env("KUBECONFIG", place.kubeconfig()).env("HOME", place.home());
    let output = program.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn json_of(place: &Place, command: &str) -> Value {
    let (well, out, err) = run(place, command);
    assert!(well, "{command}: {out} {err}");
    serde_json::from_str(&out).unwrap()
}

async fn until_phase(place: &Place, phase: &str) -> Value {
    let last = parking_lot::Mutex::new(Value::Null);
    let waiting = until(phase, async || {
        let now = json_of(place, "frontend describe tasks -o json");
        last.lock().clone_from(&now);
        (now["phase"] == phase).then_some(now)
    });
    match tokio::time::timeout(Duration::from_secs(100), waiting).await {
        Ok(found) => found,
        Err(_) => panic!("it is not {phase}: {:#}; {:?}", last.lock(), run(place, "frontend logs tasks")),
    }
}

pub(crate) async fn front_ends(tools: Tools) {
    let place = Place::new(&tools.program).unwrap();
    let bundler = tools.bundler.to_str().unwrap().to_owned();
    let up = place.start_with(&["--bundler".into(), bundler]).await.unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/frontends");
    let (well, _, err) = run(&place, &format!("apply -f {examples}/tasks-table.yaml"));
    assert!(well, "{err}");
    let first = until_phase(&place, "Succeeded").await;
    assert_eq!((&first["builds"], &first["ready"]), (&json!(1), &json!(true)));
    assert_eq!(first["bundle"]["files"][0]["path"], "index.js");
    let list = json_of(&place, "frontend ls -o json");
    assert_eq!((&list[0]["name"], &list[0]["paths"]), (&json!("tasks"), &json!(["agents/tasks"])));
    until("the log has its last line", async || {
        run(&place, "frontend logs tasks").1.contains("JSBundle fi-tasks is written").then_some(())
    })
    .await;
    let (well, said, err) = run(&place, "frontend rebuild tasks --wait --timeout 100");
    assert!(well && said.contains("Succeeded"), "{said} {err}");
    assert_eq!(json_of(&place, "frontend describe tasks -o json")["builds"], 2);
    for word in ["fi-tasks", "BuildSucceeded", "complete", "Available"] {
        // Events and the state of the Job may come a little later.
        until(&format!("it says {word}"), async || {
            let (well, text, err) = run(&place, "frontend describe tasks");
            assert!(well, "{err}");
            text.contains(word).then_some(())
        })
        .await;
    }
    // The Jobs of builds have a token for their own front end, and no more of the API server than that.
    let secret = json_of(&place, "get secret fi-tasks-runner -o json");
    assert!(secret["data"]["token"].is_string());
    let file = place.path().join("off.yaml");
    let text = std::fs::read_to_string(format!("{examples}/tasks-table.yaml")).unwrap();
    std::fs::write(&file, text.replace("enabled: true", "enabled: false")).unwrap();
    assert!(run(&place, &format!("apply -f {}", file.display())).0);
    until_phase(&place, "Disabled").await;
    assert!(!up.log().contains("fi1."), "no token is in the log");
    up.down(&place).unwrap();
}
