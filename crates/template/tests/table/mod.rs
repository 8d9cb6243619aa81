//! The table of templates with what Go makes of them, in `tests/cases`. A case begins with `# its title`; then come the template,
//! `: name` and the text of another template, `@ ` and its data as JSON if it is not `data.json`, `% ` and what missing keys mean if it
//! is not as with Helm, and last what Go says: `> ` and a line of the output, or `! ` and its error.

// Not every test uses all of it.
#![allow(dead_code)]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use agentcube_template::{Limits, Missing, Templates};
use serde_json::{Value, json};

pub(crate) struct Case {
    pub(crate) title: String,
    /// Names and texts; the first is rendered.
    pub(crate) templates: Vec<(String, String)>,
    pub(crate) data: Option<String>,
    pub(crate) missing: Option<String>,
    pub(crate) expected: Option<Result<String, String>>,
}

/// A file of cases, and what stands before the first of them.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) head: String,
    pub(crate) cases: Vec<Case>,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

pub(crate) fn files() -> Vec<File> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    paths.into_iter().map(|path| parse(&std::fs::read_to_string(&path).unwrap(), path)).collect()
}

/// What templates are rendered with where a case says nothing else.
pub(crate) fn common_data() -> Value {
    serde_json::from_str(&std::fs::read_to_string(directory().join("data.json")).unwrap()).unwrap()
}

fn parse(text: &str, path: PathBuf) -> File {
    let mut file = File { path, head: String::new(), cases: Vec::new() };
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            file.cases.push(Case {
                title: title.to_owned(),
                templates: vec![("main".to_owned(), String::new())],
                data: None,
                missing: None,
                expected: None,
            });
            continue;
        }
        let Some(case) = file.cases.last_mut() else {
            file.head.push_str(line);
            file.head.push('\n');
            continue;
        };
        case.line(line);
    }
    for case in &mut file.cases {
        for (_, text) in &mut case.templates {
            *text = text.trim_end_matches('\n').to_owned();
        }
    }
    file
}

impl Case {
    fn line(&mut self, line: &str) {
        let marked =
            |marker: &str| line.strip_prefix(marker).filter(|rest| rest.is_empty() || rest.starts_with(' '));
        let rest = |rest: &str| rest.strip_prefix(' ').unwrap_or(rest).to_owned();
        if let Some(name) = marked(":") {
            self.templates.push((rest(name), String::new()));
        } else if let Some(data) = marked("@") {
            self.data = Some(rest(data));
        } else if let Some(missing) = marked("%") {
            self.missing = Some(rest(missing));
        } else if let Some(output) = marked(">") {
            self.expected = Some(Ok(match self.expected.take() {
                Some(Ok(before)) => format!("{before}\n{}", rest(output)),
                _ => rest(output),
            }));
        } else if let Some(error) = marked("!") {
            self.expected = Some(Err(rest(error)));
        } else if self.expected.is_none() {
            // Blank lines behind the result only separate.
            let text = &mut self.templates.last_mut().unwrap().1;
            text.push_str(line);
            text.push('\n');
        }
    }

    pub(crate) fn missing_key(&self) -> &str {
        self.missing.as_deref().unwrap_or("zero")
    }

    pub(crate) fn data(&self, common: &Value) -> Value {
        self.data.as_ref().map_or_else(|| common.clone(), |data| serde_json::from_str(data).unwrap())
    }

    /// What Go is given.
    pub(crate) fn question(&self, common: &Value) -> Value {
        let templates: Vec<Value> =
            self.templates.iter().map(|(name, text)| json!({"Name": name, "Text": text})).collect();
        json!({"Templates": templates, "Data": self.data(common), "MissingKey": self.missing_key()})
    }

    /// What we make of it.
    pub(crate) fn render(&self, common: &Value) -> Result<String, agentcube_template::Error> {
        let missing = match self.missing_key() {
            "zero" => Missing::Empty,
            "default" => Missing::NoValue,
            _ => Missing::Refused,
        };
        let templates =
            Templates::parse(self.templates.iter().map(|(name, text)| (name, text)))?.with_missing(missing);
        templates.render(&self.templates[0].0, &self.data(common), &Limits::default())
    }

    fn write(&self, out: &mut String) {
        writeln!(out, "# {}", self.title).unwrap();
        for (index, (name, text)) in self.templates.iter().enumerate() {
            if index > 0 {
                writeln!(out, ": {name}").unwrap();
            }
            writeln!(out, "{text}").unwrap();
        }
        for (marker, value) in [("@", &self.data), ("%", &self.missing)] {
            if let Some(value) = value {
                writeln!(out, "{marker} {value}").unwrap();
            }
        }
        match &self.expected {
            Some(Ok(output)) => output.split('\n').for_each(|line| writeln!(out, "> {line}").unwrap()),
            Some(Err(error)) => writeln!(out, "! {}", error.replace('\n', " ")).unwrap(),
            None => {}
        }
    }
}

impl File {
    pub(crate) fn write(&self) {
        let mut out = self.head.clone();
        for (index, case) in self.cases.iter().enumerate() {
            if index > 0 {
                out.push('\n');
            }
            case.write(&mut out);
        }
        std::fs::write(&self.path, out).unwrap();
    }
}
