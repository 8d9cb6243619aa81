//! `agentcube token verify`: keys from files and from the server, good tokens and bad ones.

use std::path::{Path, PathBuf};

use agentcube_instance::token::{Claims, KeyId, Keys, Nonce, TaskKeys, Token};
use agentcube_instance::{SessionKey, TaskId};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Home, Said, finish};

fn keys() -> TaskKeys {
    Keys::generate(KeyId::new("k1").unwrap()).for_task("task-uid")
}

fn token(keys: &TaskKeys, seconds: i64) -> Token {
    let expires = Timestamp::now() + SignedDuration::from_secs(seconds);
    let claims = Claims { instance: "pod-uid".into(), key: SessionKey::new("user 1").ok(), expires };
    keys.sign(&claims, Nonce::random())
}

/// The keys as the files of a volume.
fn files(home: &Home, keys: &TaskKeys) -> PathBuf {
    let directory = home.path().join("keys");
    std::fs::create_dir(&directory).unwrap();
    // As the kubelet makes it: links to what is in a directory of its own.
    std::fs::create_dir(directory.join("..data")).unwrap();
    for (name, bytes) in keys.entries() {
        std::fs::write(directory.join("..data").join(&name), bytes.0).unwrap();
        std::os::unix::fs::symlink(Path::new("..data").join(&name), directory.join(&name)).unwrap();
    }
    directory
}

fn verify(home: &Home, args: &[&str], token: &str) -> Said {
    let said = finish(home.command(&[&["token", "verify"], args].concat()), format!("{token}\n").as_bytes());
    assert!(
        token.len() < 20 || !said.stdout.contains(token) && !said.stderr.contains(token),
        "never printed"
    );
    said
}

#[test]
fn a_good_token_is_told_from_bad_ones() {
    let home = Home::new();
    let keys = keys();
    let directory = files(&home, &keys).display().to_string();
    let with_keys = ["--keys", &directory];
    let good = token(&keys, 600);
    let said = verify(&home, &with_keys, good.reveal()).well();
    assert!(
        said.starts_with("genuine\nTask:      task-uid\nInstance:  pod-uid\nSession:   user 1\n"),
        "{said}"
    );
    let said =
        verify(&home, &[&with_keys[..], &["--instance", "pod-uid", "-o", "json"]].concat(), good.reveal());
    let said: Value = serde_json::from_str(&said.well()).unwrap();
    assert_eq!(
        (&said["valid"], &said["session"], &said["key"]),
        (&json!(true), &json!("user 1"), &json!("k1"))
    );

    let other = Keys::generate(KeyId::new("k1").unwrap()).for_task("task-uid");
    let table = [
        (token(&keys, -600).reveal().to_owned(), &[][..], "Expired", "has expired"),
        (good.reveal().to_owned(), &["--instance", "another"], "WrongInstance", "for another instance"),
        (token(&other, 600).reveal().to_owned(), &[], "Signature", "signature"),
        (Token::random().reveal().to_owned(), &[], "Random", "tokenPolicy: Random"),
        (String::new(), &[], "Malformed", "v1.<key id>"),
        ("x".repeat(100_000), &[], "TooLong", "at most 4096"),
    ];
    for (text, more, reason, message) in table {
        let told = verify(&home, &[&with_keys[..], more].concat(), &text).fails(4);
        assert!(told.starts_with("error: the ") && told.contains(message), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        let said = verify(&home, &[&with_keys[..], more, &["-o", "json"]].concat(), &text);
        assert_eq!(said.code, Some(4));
        let said: Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!((&said["valid"], &said["reason"]), (&json!(false), &json!(reason)));
    }
}

#[test]
fn tokens_come_from_files_but_not_from_the_command_line() {
    let home = Home::new();
    let keys = keys();
    let directory = files(&home, &keys).display().to_string();
    let good = token(&keys, 600);
    let file = home.path().join("token").display().to_string();
    std::fs::write(&file, good.reveal()).unwrap();
    home.run(&["token", "verify", "--keys", &directory, "--token-file", &file]).well();
    let told = home.run(&["token", "verify", "--keys", &directory, "--token-file", "/nowhere"]).fails(1);
    assert!(told.contains("cannot open /nowhere"), "{told}");
    home.run(&["token", "verify", "--keys", &directory, good.reveal()]).fails(2);
    home.run(&["token", "verify"]).fails(2);
    home.run(&["token", "verify", "--keys", &directory, "--task", "agent"]).fails(2);
}

#[test]
fn keys_come_from_the_server_or_a_file_with_the_secret() {
    let cluster = Cluster::start();
    let task = TaskId { namespace: "default".into(), name: "agent".into(), uid: "task-uid".into() };
    let keys = keys();
    let good = token(&keys, 600);
    let told = verify(&cluster.home, &["--task", "agent"], good.reveal()).fails(3);
    assert!(told.contains("the keys of the Task \"agent\"") && told.contains("not found"), "{told}");

    let mut secret = serde_json::to_value(keys.to_secret(&task)).unwrap();
    // There is no such Task here, and what belongs to nobody is collected.
    secret["metadata"]["ownerReferences"] = Value::Null;
    cluster.send("POST", "/api/v1/namespaces/default/secrets", "application/json", &secret);
    verify(&cluster.home, &["--task", "agent"], good.reveal()).well();
    verify(&cluster.home, &["--task", "agent", "-n", "kube-system"], good.reveal()).fails(3);

    let file = cluster.home.path().join("secret.json").display().to_string();
    std::fs::write(&file, secret.to_string()).unwrap();
    verify(&cluster.home, &["--keys", &file], good.reveal()).well();
    secret["data"]["current"] = "bm9uZQ==".into();
    std::fs::write(&file, secret.to_string()).unwrap();
    let told = verify(&cluster.home, &["--keys", &file], good.reveal()).fails(1);
    assert!(told.contains("there is no entry \"none.key\""), "{told}");
    let told = verify(&cluster.home, &["--keys", "/nowhere"], good.reveal()).fails(3);
    assert!(told.contains("there is no /nowhere"), "{told}");
}
