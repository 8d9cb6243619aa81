//! The same templates to Go itself: what the table says it prints, it prints. `cargo xtask test templates` builds the Go program;
//! `AGENTCUBE_RECORD=1` writes the table anew.

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod generate;
mod table;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use agentcube_template::Kind;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::Value;

use table::Case;

/// Go, answering questions.
struct Go {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Go {
    /// None, if it is not there and may be missing.
    fn start() -> Option<Go> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || variable("HOME").unwrap_or_default().join(".cache");
        let cache = variable("AGENTCUBE_CACHE")
            .unwrap_or_else(|| variable("XDG_CACHE_HOME").unwrap_or_else(home).join("agentcube"));
        let program = cache.join("templates/go-templates");
        if !program.is_file() {
            let strict = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!strict, "there is no Go to compare templates with");
            // Past the harness, which keeps what a passing test prints to itself.
            let line =
                "\nSKIPPED: templates against Go itself: `cargo xtask test templates` builds what it needs\n";
            std::io::stdout().write_all(line.as_bytes()).unwrap();
            return None;
        }
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Some(Go { child, input, output })
    }

    fn ask(&mut self, question: &Value) -> Result<String, String> {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{question}").unwrap();
        input.flush().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let answer: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("Go has no answer to {question}"));
        match answer["output"].as_str() {
            Some(output) => Ok(output.to_owned()),
            None => Err(answer["error"].as_str().unwrap().to_owned()),
        }
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

#[test]
fn the_table_says_what_go_says() {
    let Some(mut go) = Go::start() else { return };
    let record = std::env::var_os("AGENTCUBE_RECORD").is_some();
    let common = table::common_data();
    let mut wrong = Vec::new();
    for mut file in table::files() {
        for case in &mut file.cases {
            let answer = go.ask(&case.question(&common)).map_err(|error| error.replace('\n', " "));
            if record {
                case.expected = Some(answer);
            } else if case.expected.as_ref() != Some(&answer) {
                wrong.push(format!("{}\n  table: {:?}\n  Go:    {answer:?}", case.title, case.expected));
            }
        }
        if record {
            file.write();
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

/// How many templates are made up.
const GENERATED: usize = 4000;

#[test]
fn templates_that_nobody_wrote_are_rendered_alike() {
    let Some(mut go) = Go::start() else { return };
    let data = table::common_data();
    // The same ones each time.
    let mut runner = TestRunner::deterministic();
    let strategy = generate::template();
    let (mut rendered, mut wrong) = (0, Vec::new());
    for index in 0..GENERATED {
        let text = strategy.new_tree(&mut runner).unwrap().current();
        let case = Case {
            title: String::new(),
            templates: vec![("main".to_owned(), text), ("others".to_owned(), generate::OTHER.to_owned())],
            data: None,
            missing: Some(["zero", "zero", "default", "error"][index % 4].to_owned()),
            expected: None,
        };
        let answer = go.ask(&case.question(&data));
        match (case.render(&data), answer) {
            (Ok(ours), Ok(theirs)) if ours == theirs => rendered += 1,
            (Err(_), Err(_)) => {}
            // What only Go can hold: half of a character.
            (Err(error), Ok(_)) if error.message.contains("cut a character") => {}
            // What Go does with a slice that has more room than items, and with less than nothing.
            (Err(error), Ok(_)) if error.message.contains("slice bounds out of range") => {}
            (Err(error), Ok(_)) if error.message.contains("size of chunks") => {}
            // What Go would print for ever.
            (Err(error), Ok(_)) if error.kind == Kind::Limit => {}
            (ours, theirs) => {
                let ours = ours.map_err(|error| error.to_string());
                let short = |text: String| text.chars().take(2000).collect::<String>();
                let (ours, theirs) = (short(format!("{ours:?}")), short(format!("{theirs:?}")));
                wrong.push(format!("{}\n  ours: {ours}\n  Go:   {theirs}", case.templates[0].1));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(rendered > GENERATED / 4, "only {rendered} were rendered at all");
}

/// What is written of any data, in each of the ways there are.
const WRITTEN: &str = "{{ toYaml . }}\n---\n{{ toJson . }}\n{{ toPrettyJson . }}\n{{ . }}\n{{ printf \"%q %#v %x %v\" . . . . }}\n{{ quote . }}\n\
    {{ dict \"a\" (list .) | toYaml | nindent 2 }}\n{{ dict \"v\" . | toYaml | fromYaml | toJson }}";

#[test]
fn values_that_nobody_wrote_are_written_alike() {
    let Some(mut go) = Go::start() else { return };
    let mut runner = TestRunner::deterministic();
    let strategy = generate::data();
    let mut wrong = Vec::new();
    for _ in 0..GENERATED {
        let data = strategy.new_tree(&mut runner).unwrap().current();
        let case = Case {
            title: String::new(),
            templates: vec![("main".to_owned(), WRITTEN.to_owned())],
            data: None,
            missing: Some("default".to_owned()),
            expected: None,
        };
        let theirs = go.ask(&case.question(&data));
        let ours = case.render(&data).map_err(|error| error.to_string());
        if ours != theirs {
            wrong.push(format!("{data}\n  ours: {ours:?}\n  Go:   {theirs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n\n"));
}
