//! Every template of the table gives what Go gave for it, or is refused where Go refused it.

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod table;

/// The line that Go names in an error: `template: main:3:7: …`.
fn line_of(error: &str) -> Option<usize> {
    let place = error.strip_prefix("template: ")?;
    let (_, rest) = place.split_once(':')?;
    rest.split(':').next()?.parse().ok()
}

#[test]
fn every_case_is_as_in_go() {
    let common = table::common_data();
    let mut count = 0;
    let mut wrong = Vec::new();
    for file in table::files() {
        for case in &file.cases {
            count += 1;
            let name = format!("{}: {}", file.path.file_name().unwrap().to_string_lossy(), case.title);
            let Some(expected) = &case.expected else {
                wrong.push(format!(
                    "{name}\n  has no result of Go; AGENTCUBE_RECORD=1 cargo test --test go records it"
                ));
                continue;
            };
            match (case.render(&common), expected) {
                (Ok(output), Ok(expected)) if output == *expected => {}
                (Err(error), Err(expected)) => {
                    // Of what a template called we name the innermost place, of what has no end its beginning.
                    let elsewhere = !error.called_from.is_empty()
                        || expected.contains("EOF")
                        || expected.contains("unclosed");
                    if !elsewhere && line_of(expected).is_some_and(|line| line != error.place.line) {
                        wrong.push(format!("{name}\n  ours: {error}\n  Go:   {expected}"));
                    }
                    let shown = error.to_string();
                    assert!(!shown.contains('\n') && !error.message.is_empty(), "{shown}");
                }
                (ours, expected) => {
                    let ours = ours.map_err(|error| error.to_string());
                    wrong.push(format!("{name}\n  ours: {ours:?}\n  Go:   {expected:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} differ\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 150, "only {count} cases");
}
