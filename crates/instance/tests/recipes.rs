//! The recipes of docs/tokens.md, run by the interpreters they are for, against tokens of ours, good and bad.
// The whole crate is a test; clippy sees that of functions marked so only.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentcube_instance::SessionKey;
use agentcube_instance::token::{Claims, KeyId, Keys, Nonce, TaskKeys, Token};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Reads cases, one a line, and prints for each what the recipe says of it.
const PYTHON: &str = r#"
import json, sys
from verify import verify

for line in sys.stdin:
    case = json.loads(line)
    try:
        print(json.dumps({"claims": verify(case["token"], case["instance"], case["now"])}))
    except ValueError as error:
        print(json.dumps({"error": str(error)}))
"#;

const NODE: &str = r#"
import { readFileSync } from 'node:fs';
import { verify } from './verify.mjs';

for (const line of readFileSync(0, 'utf8').split('\n').filter(Boolean)) {
  const { token, instance, now } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ claims: verify(token, instance, now) }));
  } catch (error) {
    console.log(JSON.stringify({ error: error.message }));
  }
}
"#;

struct Recipe {
    /// Of the block in the document.
    language: &'static str,
    program: &'static str,
    file: &'static str,
    driver: (&'static str, &'static str),
}

const RECIPES: [Recipe; 2] = [
    Recipe { language: "python", program: "python3", file: "verify.py", driver: ("drive.py", PYTHON) },
    Recipe { language: "javascript", program: "node", file: "verify.mjs", driver: ("drive.mjs", NODE) },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The one block of this language in the document.
fn recipe(language: &str) -> String {
    let document = std::fs::read_to_string(root().join("docs/tokens.md")).unwrap();
    let blocks: Vec<&str> = document.split(&format!("```{language}\n")).skip(1).collect();
    assert_eq!(blocks.len(), 1, "docs/tokens.md has one recipe in {language}");
    blocks[0].split("```").next().unwrap().to_owned()
}

/// Whether there is such a program. Where nothing may be skipped, its absence is a failure.
fn is_here(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let here = version.is_ok_and(|status| status.success());
    if !here {
        // Past the harness, which keeps what a passing test prints to itself.
        #[allow(clippy::explicit_write, reason = "println is what the harness catches")]
        writeln!(std::io::stdout(), "\nSKIPPED: the recipe for {program}: it is not installed").unwrap();
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{program} is not installed");
    }
    here
}

const TASK: &str = "f1c9a2d4-0000-4000-8000-000000000001";
const INSTANCE: &str = "f1c9a2d4-0000-4000-8000-000000000002";
const NOW: i64 = 1_800_000_000;

/// A token, what the recipe sees around it, and the beginning of what it has to complain of, if anything.
struct Case {
    token: String,
    instance: &'static str,
    now: i64,
    complaint: Option<&'static str>,
}

fn cases(keys: &TaskKeys, operator: &Keys) -> Vec<Case> {
    let claims = |key: Option<&str>| Claims {
        instance: INSTANCE.into(),
        key: key.map(|key| SessionKey::new(key).unwrap()),
        expires: Timestamp::from_second(NOW + 60).unwrap(),
    };
    let sign = |keys: &TaskKeys, key| keys.sign(&claims(key), Nonce::random()).reveal().to_owned();
    let plain = sign(keys, Some("user-1"));
    let (signed, signature) = plain.rsplit_once('.').unwrap();
    let (head, payload) = signed.rsplit_once('.').unwrap();
    let forged = Keys::generate(KeyId::new("k1").unwrap()).for_task(TASK);
    let unknown = Keys::generate(KeyId::new("k9").unwrap()).for_task(TASK);
    let (malformed, wrong) = (Some("malformed"), Some("wrong signature"));
    let longest = "\"".repeat(512);
    let case =
        |token: &str, complaint| Case { token: token.to_owned(), instance: INSTANCE, now: NOW, complaint };
    let mut flipped = signature.to_owned();
    flipped.replace_range(..1, if signature.starts_with('A') { "B" } else { "A" });
    vec![
        case(&plain, None),
        case(&sign(keys, None), None),
        case(&sign(keys, Some("Grüße \"1\" \\ 🦀")), None),
        case(&sign(keys, Some(&longest)), None),
        Case { now: NOW + 59, ..case(&plain, None) },
        Case { now: NOW + 60, ..case(&plain, Some("expired")) },
        Case { instance: TASK, ..case(&plain, Some("for another")) },
        case(&sign(&operator.for_task("another"), Some("user-1")), wrong),
        case(&sign(&forged, Some("user-1")), wrong),
        case(&sign(&unknown, Some("user-1")), malformed),
        case(&format!("{head}.{payload}A.{signature}"), wrong),
        case(&format!("{head}.{payload}.{flipped}"), wrong),
        case(&format!("{head}.{payload}.{signature}="), wrong),
        case(&format!("{head}.{payload}.{}", &signature[1..]), wrong),
        case(&format!("{head}.{payload}."), wrong),
        case(&format!("v2{}.{payload}.{signature}", &head[2..]), malformed),
        case(&format!("{plain}.x"), malformed),
        case(signed, malformed),
        case(&format!("v1.../../task.{payload}.{signature}"), malformed),
        case(&format!("v1.__proto__.{payload}.{signature}"), malformed),
        case(Token::random().reveal(), malformed),
        case("", malformed),
        case(&format!("{}.{signature}", "v1.k1.".to_owned() + &"A".repeat(5000)), malformed),
    ]
}

/// What the recipe says of each case.
fn run(recipe: &Recipe, directory: &Path, cases: &[Case]) -> Vec<Value> {
    std::fs::write(directory.join(recipe.file), self::recipe(recipe.language)).unwrap();
    std::fs::write(directory.join(recipe.driver.0), recipe.driver.1).unwrap();
    let mut command = Command::new(recipe.program);
    command.arg(recipe.driver.0).current_dir(directory).env("TOKEN_KEYS", directory.join("keys"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for Case { token, instance, now, .. } in cases {
        writeln!(stdin, "{}", json!({ "token": token, "instance": instance, "now": now })).unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{} failed", recipe.program);
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_recipes_agree_with_us_on_good_and_bad_tokens() {
    let operator = Keys::generate(KeyId::new("k1").unwrap());
    let keys = operator.for_task(TASK);
    let cases = cases(&keys, &operator);
    for recipe in RECIPES {
        if !is_here(recipe.program) {
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("keys")).unwrap();
        for (name, bytes) in keys.entries() {
            std::fs::write(directory.path().join("keys").join(name), bytes.0).unwrap();
        }
        let said = run(&recipe, directory.path(), &cases);
        assert_eq!(said.len(), cases.len());
        for (number, (case, said)) in cases.iter().zip(said).enumerate() {
            let ours = keys.verify(&case.token, Timestamp::from_second(case.now).unwrap());
            let ours = ours.and_then(|verified| verified.for_instance(case.instance));
            let at = format!("{} on case {number}: {said}, we say {ours:?}", recipe.language);
            assert_eq!(ours.is_ok(), case.complaint.is_none(), "{at}");
            match (case.complaint, ours) {
                (Some(complaint), _) => {
                    assert!(said["error"].as_str().is_some_and(|e| e.starts_with(complaint)), "{at}")
                }
                (None, ours) => {
                    let ours = ours.unwrap();
                    let key = ours.claims.key.as_ref().map(SessionKey::as_str);
                    assert_eq!(said["claims"].get("key").and_then(Value::as_str), key, "{at}");
                    assert_eq!(said["claims"]["task"], TASK, "{at}");
                    assert_eq!(said["claims"]["exp"], ours.claims.expires.as_second(), "{at}");
                }
            }
        }
    }
}

#[test]
fn the_document_shows_the_examples_as_they_are_and_they_are_short() {
    for Recipe { language, file, .. } in RECIPES {
        let example = std::fs::read_to_string(root().join("examples/tokens").join(file)).unwrap();
        assert_eq!(recipe(language), example, "{file}");
        let lines = example.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines <= 20, "{file} has {lines} lines");
    }
}
