//! Objects as the real server's error messages show them: its internal Go structs, written as JSON.
//!
//! `layouts.json` lists the fields of each struct in order. Only messages are made of this text.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use super::access::Peek;
use super::selector;

/// A field of an internal struct.
struct Field {
    shown: String,
    /// Its name in the object.
    key: String,
    /// The field is one of the struct around this one.
    outer: bool,
    holds: String,
}

fn layouts() -> &'static BTreeMap<String, Vec<Field>> {
    static LAYOUTS: OnceLock<BTreeMap<String, Vec<Field>>> = OnceLock::new();
    LAYOUTS.get_or_init(|| {
        let raw: BTreeMap<String, Vec<String>> = serde_json::from_str(include_str!("layouts.json"))
            .expect("layouts.json is generated and well formed");
        let fields = |lines: Vec<String>| lines.iter().filter_map(|line| Field::parse(line)).collect();
        raw.into_iter().map(|(name, lines)| (name, fields(lines))).collect()
    })
}

impl Field {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (shown, key, holds) = (words.next()?, words.next()?, words.next()?);
        Some(Self {
            shown: shown.to_owned(),
            key: key.trim_start_matches('^').to_owned(),
            outer: key.starts_with('^'),
            holds: holds.to_owned(),
        })
    }
}

/// The text of a value that is a `layout`, like `PodSpec`, on one line.
pub(crate) fn shown(value: &Value, layout: &str) -> String {
    let mut writer = Writer { text: String::new(), pretty: false, depth: 0 };
    writer.value(value, layout, &Value::Null);
    writer.text
}

/// What differs between two values, as lines with three lines of context around them.
pub(crate) fn difference(old: &Value, new: &Value, layout: &str) -> String {
    let pretty = |value: &Value| {
        let mut writer = Writer { text: String::new(), pretty: true, depth: 0 };
        writer.value(value, layout, &Value::Null);
        writer.text
    };
    super::diff::unified(&pretty(old), &pretty(new))
}

struct Writer {
    text: String,
    pretty: bool,
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value, holds: &str, outer: &Value) {
        match (holds.as_bytes().first(), value) {
            (Some(b'*' | b'[' | b'{') | None, Value::Null) => self.text.push_str("null"),
            (Some(b'*'), value) => self.value(value, &holds[1..], outer),
            (Some(b'['), Value::Array(list)) => {
                self.group('[', ']', list.iter(), |writer, item| writer.value(item, &holds[1..], value));
            }
            (Some(b'{'), Value::Object(map)) => {
                self.group('{', '}', map.iter(), |writer, (key, item)| {
                    writer.key(key);
                    writer.value(item, &holds[1..], value);
                });
            }
            _ => match holds {
                "S" | "Y" | "I" | "B" | "Q" | "T" | "X" | "M" => self.leaf(value, holds),
                "L" => self.text.push_str(&selector::shown(value)),
                layout => self.fields(value, layout, outer),
            },
        }
    }

    fn leaf(&mut self, value: &Value, holds: &str) {
        let zero = match holds {
            "S" => "\"\"",
            "I" | "X" => "0",
            "B" => "false",
            "Q" => "\"0\"",
            _ => "null",
        };
        if value.is_null() {
            self.text.push_str(zero);
        } else {
            self.text.push_str(&value.to_string());
        }
    }

    fn fields(&mut self, value: &Value, layout: &str, outer: &Value) {
        let Some(fields) = layouts().get(layout) else {
            self.text.push_str(&value.to_string());
            return;
        };
        // Metadata is embedded: its labels and annotations stand among the fields.
        let embedded = [("labels", "{S"), ("annotations", "{S")];
        let mut all: Vec<(&str, &Value, &str)> = Vec::new();
        for field in fields {
            if field.holds == "M" {
                let meta = value.sub(&field.key);
                all.extend(
                    embedded
                        .iter()
                        .filter(|(key, _)| meta.has(key))
                        .map(|(key, holds)| (*key, meta.sub(key), *holds)),
                );
            } else {
                let holder = if field.outer { outer } else { value };
                all.push((&field.shown, holder.sub(&field.key), &field.holds));
            }
        }
        self.group('{', '}', all.into_iter(), |writer, (key, item, holds)| {
            writer.key(key);
            writer.value(item, holds, value);
        });
    }

    fn key(&mut self, key: &str) {
        self.text.push_str(&Value::from(key).to_string());
        self.text.push_str(if self.pretty { ": " } else { ":" });
    }

    fn group<T>(
        &mut self,
        open: char,
        close: char,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.text.push(open);
        self.depth += 1;
        let mut any = false;
        for item in items {
            if any {
                self.text.push(',');
            }
            any = true;
            self.line();
            write(self, item);
        }
        self.depth -= 1;
        if any {
            self.line();
        }
        self.text.push(close);
    }

    fn line(&mut self) {
        if self.pretty {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', self.depth));
        }
    }
}
