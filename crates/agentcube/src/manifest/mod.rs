//! Objects in files: YAML or JSON, several documents each, with the line of every field so that whatever a server
//! refuses can be found.

mod located;

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use located::{Located, Places};

/// The largest file that is read.
const SIZE_LIMIT: u64 = 64 << 20;

/// One object, and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) object: Value,
    file: String,
    /// Counted from one, within its file.
    number: usize,
    places: Places,
}

impl Document {
    pub(crate) fn text(&self, path: &[&str]) -> &str {
        let found = path.iter().try_fold(&self.object, |value, key| value.get(key));
        found.and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.text(&["metadata", "name"])
    }

    /// `file.yaml, document 2, line 7`; the line is that of the field, or of the nearest one around it.
    pub(crate) fn place(&self, field: Option<&str>) -> String {
        let line = self.line(field.unwrap_or_default());
        format!("{}, document {}, line {line}", self.file, self.number)
    }

    /// The line of a field, or of the nearest one around it.
    pub(crate) fn line(&self, field: &str) -> u64 {
        self.places.line_of(field, &self.object)
    }

    fn check(&self) -> Result<(), Problem> {
        let missing = |field: &str, hint: &str| {
            Err(Problem(format!(
                "{}: {field} is missing{hint}",
                self.place(field.rsplit_once('.').map(|p| p.0))
            )))
        };
        if !self.object.is_object() {
            return Err(Problem(format!("{}: this is not a Kubernetes object", self.place(None))));
        }
        for field in ["apiVersion", "kind"] {
            if self.text(&[field]).is_empty() {
                return missing(field, "");
            }
        }
        if self.name().is_empty() {
            let generated = !self.text(&["metadata", "generateName"]).is_empty();
            return missing(
                "metadata.name",
                if generated { " (generateName cannot be applied)" } else { "" },
            );
        }
        Ok(())
    }
}

/// Why a file, or a document of it, cannot be used: where and what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Problem(String);

/// All documents of the files, in order, and what is wrong with the others. `-` is standard input.
pub(crate) fn load(files: &[PathBuf], recursive: bool) -> (Vec<Document>, Vec<Problem>) {
    let (mut documents, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        for source in sources(file, recursive, &mut problems) {
            match read(&source) {
                Ok(text) => match parse(&source.display().to_string(), &text) {
                    Ok(found) => documents.extend(found),
                    Err(problem) => problems.push(problem),
                },
                Err(problem) => problems.push(problem),
            }
        }
    }
    let mut sound = Vec::new();
    for document in documents {
        match document.check() {
            Ok(()) => sound.push(document),
            Err(problem) => problems.push(problem),
        }
    }
    (sound, problems)
}

/// A file itself, or the manifests of a directory in the order of their names.
fn sources(path: &Path, recursive: bool, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    if path == Path::new("-") || !path.is_dir() {
        return vec![path.to_owned()];
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            problems.push(Problem(format!("cannot read {}: {error}", path.display())));
            return Vec::new();
        }
    };
    let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        // A link to a directory above would never end.
        if entry.is_dir() && !entry.is_symlink() {
            if recursive {
                found.extend(sources(&entry, recursive, problems));
            }
        } else if entry.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json") {
            found.push(entry);
        }
    }
    if found.is_empty() {
        let hint = if recursive { "" } else { "; -R also looks into the directories below" };
        problems.push(Problem(format!("{} holds no .yaml, .yml or .json file{hint}", path.display())));
    }
    found
}

fn read(path: &Path) -> Result<String, Problem> {
    let problem = |error: std::io::Error| Problem(format!("cannot read {}: {error}", path.display()));
    let mut text = String::new();
    let length = if path == Path::new("-") {
        std::io::stdin().lock().take(SIZE_LIMIT + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(SIZE_LIMIT + 1).read_to_string(&mut text))
    };
    match length.map_err(problem)? as u64 {
        length if length > SIZE_LIMIT => {
            Err(Problem(format!("{} is larger than {} MiB", path.display(), SIZE_LIMIT >> 20)))
        }
        _ => Ok(text),
    }
}

/// The documents of a text that is called so.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Document>, Problem> {
    let options = serde_saphyr::options! { with_snippet: false };
    let parsed: Vec<Located> = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let shown = error.to_string();
        let reason = shown.lines().next().unwrap_or_default();
        // The place goes in front, as everywhere; advice for programmers goes.
        let reason = reason.rsplit_once(" at line ").map_or(reason, |(reason, _)| reason);
        let reason =
            reason.strip_suffix(", set DuplicateKeyPolicy in Options if acceptable").unwrap_or(reason);
        match error.location() {
            Some(place) => {
                Problem(format!("{file}, line {}, column {}: {reason}", place.line(), place.column()))
            }
            None => Problem(format!("{file}: {reason}")),
        }
    })?;
    let mut documents = Vec::new();
    for (index, located) in parsed.into_iter().enumerate() {
        let document = Document {
            object: located.value,
            file: file.to_owned(),
            number: index + 1,
            places: located.places,
        };
        flatten(document, &mut documents);
    }
    Ok(documents)
}

/// A `List` stands for its items.
fn flatten(mut document: Document, documents: &mut Vec<Document>) {
    let is_list = document.text(&["kind"]).ends_with("List") && document.object["items"].is_array();
    if !is_list {
        return documents.push(document);
    }
    let items = document.object["items"].take();
    for (index, object) in items.as_array().into_iter().flatten().enumerate() {
        let places = document.places.item("items", index);
        let item =
            Document { object: object.clone(), file: document.file.clone(), number: document.number, places };
        flatten(item, documents);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n---\n\n---\n\
        apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec:\n  containers:\n  - name: c\n    image: i\n  - name: d\n";

    #[test]
    fn documents_know_where_they_stand() {
        let documents = parse("f.yaml", TEXT).unwrap();
        assert_eq!(documents.iter().map(Document::name).collect::<Vec<_>>(), ["a", "b"]);
        for (field, expected) in [
            (None, "f.yaml, document 2, line 9"),
            (Some("spec.containers[0].image"), "f.yaml, document 2, line 15"),
            (Some("spec.containers[1].name"), "f.yaml, document 2, line 16"),
            (Some("spec.containers[1].image"), "f.yaml, document 2, line 16"),
            (Some("spec.nonsense"), "f.yaml, document 2, line 12"),
            (Some(".spec.containers[7]"), "f.yaml, document 2, line 13"),
            (Some(r#".spec.containers[name="c"].image"#), "f.yaml, document 2, line 15"),
            (Some(r#".spec.containers[name="d"].x.y"#), "f.yaml, document 2, line 16"),
            (Some(r#".spec.containers[name="e"]"#), "f.yaml, document 2, line 13"),
        ] {
            assert_eq!(documents[1].place(field), expected, "{field:?}");
        }
    }

    #[test]
    fn lists_stand_for_their_items() {
        let text = r#"{"kind": "List", "apiVersion": "v1", "items": [
            {"kind": "A", "apiVersion": "v1", "metadata": {"name": "x"}},
            {"kind": "BList", "apiVersion": "v1", "items": [{"kind": "B"}]}]}"#;
        let documents = parse("-", text).unwrap();
        assert_eq!(documents.iter().map(|d| d.text(&["kind"])).collect::<Vec<_>>(), ["A", "B"]);
        assert_eq!(documents[0].place(None), "-, document 1, line 2");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("a.yaml", "apiVersion: v1\nkind: X\nmetadata:\n  name: [\n");
        write("b.yaml", "apiVersion: v1\nkind: X\nkind: Y\n");
        write("c.yaml", "apiVersion: v1\nkind: X\nmetadata:\n  labels: {}\n");
        write("d.json", "{\"kind\": \"X\"}");
        write("e.yaml", "just text\n");
        write("ignored.txt", "x");
        let (documents, problems) =
            load(&[directory.path().to_owned(), PathBuf::from("/no/such.yaml")], false);
        assert!(documents.is_empty());
        let place = directory.path().display().to_string();
        let told: Vec<String> = problems.iter().map(|p| p.to_string().replace(&place, "")).collect();
        let told = told.join("\n");
        for expected in [
            "/a.yaml",
            "/b.yaml",
            "line 3",
            "/c.yaml, document 1, line 3: metadata.name is missing",
            "/d.json, document 1, line 1: apiVersion is missing",
            "/e.yaml, document 1, line 1: this is not a Kubernetes object",
            "cannot read /no/such.yaml: No such file",
        ] {
            assert!(told.contains(expected), "{expected}\n{told}");
        }
        assert!(!told.contains("ignored"));
    }

    #[test]
    fn directories_below_are_read_only_when_asked() {
        let directory = tempfile::tempdir().unwrap();
        let object = |name: &str| format!("apiVersion: v1\nkind: X\nmetadata:\n  name: {name}\n");
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("below/a.yml"), object("a")).unwrap();
        let files = [directory.path().to_owned()];
        let (documents, problems) = load(&files, false);
        assert!(documents.is_empty() && problems[0].to_string().contains("-R"), "{problems:?}");
        let (documents, problems) = load(&files, true);
        assert!(problems.is_empty() && documents[0].name() == "a");
    }
}
