//! Writes values as YAML: block style, keys sorted so that numbers in them count, long lines folded.

use std::cmp::Ordering;

use super::scalar::{Plain, is_sexagesimal, resolve};
use crate::error::Fault;
use crate::memory::{DEEPEST, Entries, Memory, too_deep};
use crate::print::{Out, number};
use crate::value::Value;

/// Where lines of text are folded.
const WIDTH: usize = 80;
/// Longer keys are written as `? key`.
const LONGEST_KEY: usize = 128;

/// One document, ending in a line break.
pub(crate) fn write(memory: &Memory, value: &Value) -> Result<String, Fault> {
    let mut writer = Writer { memory, out: Out::new(memory.limits().output) };
    writer.node(value, Place { indent: 0, inside: Inside::Document }, 0)?;
    Ok(writer.out.take())
}

struct Writer<'a> {
    memory: &'a Memory,
    out: Out,
}

/// Where a node is written.
#[derive(Clone, Copy)]
struct Place {
    /// Of the lines of the list or map around it.
    indent: usize,
    inside: Inside,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Document,
    /// Behind `key:`.
    Map,
    /// Behind `-`.
    List,
}

impl Writer<'_> {
    fn node(&mut self, value: &Value, place: Place, depth: usize) -> Result<(), Fault> {
        if depth > DEEPEST {
            return Err(too_deep());
        }
        match value {
            Value::List(list) if !list.items.is_empty() => {
                // Lists stand at the indent of their key.
                let indent = if place.inside == Inside::List { place.indent + 2 } else { place.indent };
                for (index, item) in list.items.iter().enumerate() {
                    self.begin(place, index, indent)?;
                    self.out.push("-")?;
                    self.node(item, Place { indent, inside: Inside::List }, depth + 1)?;
                }
                Ok(())
            }
            Value::Map(map) if !self.memory.entries(*map).is_empty() => {
                let memory = self.memory;
                let indent = if place.inside == Inside::Document { 0 } else { place.indent + 2 };
                for (index, (key, value)) in sorted(memory.entries(*map)).into_iter().enumerate() {
                    self.begin(place, index, indent)?;
                    let inside = self.key(key, indent)?;
                    self.node(value, Place { indent, inside }, depth + 1)?;
                }
                Ok(())
            }
            scalar => {
                self.out.push(if place.inside == Inside::Document { "" } else { " " })?;
                // Whatever has more lines is indented further than what is around it.
                self.scalar(scalar, place.indent + 2)?;
                self.out.push(if self.out.text().ends_with('\n') { "" } else { "\n" })
            }
        }
    }

    /// Up to where an entry begins: on a line of its own, or behind the dash of the list around it.
    fn begin(&mut self, place: Place, index: usize, indent: usize) -> Result<(), Fault> {
        match (place.inside, index) {
            (Inside::List, 0) => self.out.push(" "),
            (Inside::Map, 0) => {
                self.out.push("\n")?;
                self.out.repeat(" ", indent)
            }
            (Inside::Document, 0) => Ok(()),
            _ => self.out.repeat(" ", indent),
        }
    }

    /// A key, and how its value stands: behind the colon of a long one like behind a dash.
    fn key(&mut self, key: &str, indent: usize) -> Result<Inside, Fault> {
        if key.len() <= LONGEST_KEY && !key.contains(is_break) {
            self.text(key, 0, true)?;
            self.out.push(":")?;
            return Ok(Inside::Map);
        }
        self.out.push("? ")?;
        self.text(key, indent + 2, false)?;
        self.out.push(if self.out.text().ends_with('\n') { "" } else { "\n" })?;
        self.out.repeat(" ", indent)?;
        self.out.push(":")?;
        Ok(Inside::List)
    }

    fn scalar(&mut self, value: &Value, indent: usize) -> Result<(), Fault> {
        match value {
            Value::Missing | Value::Nil => self.out.push("null"),
            Value::Bool(bool) => self.out.push(if *bool { "true" } else { "false" }),
            Value::Int(number) | Value::Int64(number) => self.out.push(&number.to_string()),
            Value::Uint64(number) => self.out.push(&number.to_string()),
            Value::Byte(number) => self.out.push(&number.to_string()),
            Value::Float(float) if float.is_finite() => {
                // By way of JSON, where whole numbers have no point.
                let json = number::json(*float);
                match resolve(&json) {
                    Plain::Float(float) => self.out.push(&number::shortest(float)),
                    _ => self.out.push(if json == "-0" { "0" } else { &json }),
                }
            }
            Value::Float(_) => Err("JSON has no such number".into()),
            Value::Text(text) => self.text(text, indent, false),
            Value::Version(version) => self.text(&version.to_string(), indent, false),
            Value::List(list) if list.is_nil => self.out.push("null"),
            Value::List(_) => self.out.push("[]"),
            Value::Map(_) => self.out.push("{}"),
        }
    }

    /// A string, plain if it means itself so.
    fn text(&mut self, text: &str, indent: usize, is_key: bool) -> Result<(), Fault> {
        let allowed = Allowed::of(text);
        let means_itself = matches!(resolve(text), Plain::Text | Plain::Merge) && !is_sexagesimal(text);
        if text.contains('\n') {
            return match allowed.block && !is_key {
                true => self.literal(text, indent),
                false => self.double_quoted(text, indent, is_key),
            };
        }
        if !means_itself {
            return self.double_quoted(text, indent, is_key);
        }
        match (allowed.plain, allowed.single_quoted) {
            (true, _) => self.folded(text, indent, is_key, false),
            (false, true) => self.folded(text, indent, is_key, true),
            (false, false) => self.double_quoted(text, indent, is_key),
        }
    }

    fn column(&self) -> usize {
        let text = self.out.text();
        text[text.rfind('\n').map_or(0, |newline| newline + 1)..].chars().count()
    }

    fn fold(&mut self, indent: usize) -> Result<(), Fault> {
        self.out.push("\n")?;
        self.out.repeat(" ", indent)
    }

    /// Plain or in single quotes: a space in a line that is too long becomes a line break.
    fn folded(&mut self, text: &str, indent: usize, is_key: bool, quoted: bool) -> Result<(), Fault> {
        let mut column = self.column() + usize::from(quoted);
        self.out.push(if quoted { "'" } else { "" })?;
        let mut after_space = false;
        let mut chars = text.chars().enumerate().peekable();
        while let Some((index, char)) = chars.next() {
            let next_is_space = chars.peek().is_some_and(|(_, next)| *next == ' ');
            let inside = !quoted || index > 0 && chars.peek().is_some();
            if char == ' ' && !is_key && !after_space && column > WIDTH && !next_is_space && inside {
                self.fold(indent)?;
                column = indent;
            } else {
                let doubled = quoted && char == '\'';
                self.out.push(if doubled { "'" } else { "" })?;
                self.out.push(char.encode_utf8(&mut [0; 4]))?;
                column += 1 + usize::from(doubled);
            }
            after_space = char == ' ';
        }
        self.out.push(if quoted { "'" } else { "" })
    }

    fn double_quoted(&mut self, text: &str, indent: usize, is_key: bool) -> Result<(), Fault> {
        let mut column = self.column() + 1;
        self.out.push("\"")?;
        let mut after_space = false;
        let mut chars = text.chars().enumerate().peekable();
        while let Some((index, char)) = chars.next() {
            let next = chars.peek().map(|(_, next)| *next);
            if char == ' ' && !is_key && !after_space && column > WIDTH && index > 0 && next.is_some() {
                self.fold(indent)?;
                column = indent;
                if next == Some(' ') {
                    self.out.push("\\")?;
                    column += 1;
                }
            } else {
                let written = escaped(char);
                self.out.push(&written)?;
                column += written.chars().count();
            }
            after_space = char == ' ';
        }
        self.out.push("\"")
    }

    /// `|` and the lines as they are.
    fn literal(&mut self, text: &str, indent: usize) -> Result<(), Fault> {
        self.out.push("|")?;
        if text.starts_with([' ', '\n']) {
            self.out.push("2")?;
        }
        let lines: Vec<&str> = text.split('\n').collect();
        let ends_empty = text == "\n" || text.ends_with("\n\n");
        let chomping = match (text.ends_with('\n'), ends_empty) {
            (false, _) => "-",
            (true, true) => "+",
            (true, false) => "",
        };
        self.out.push(chomping)?;
        for line in lines.iter().take(lines.len() - usize::from(text.ends_with('\n'))) {
            self.out.push("\n")?;
            if !line.is_empty() {
                self.out.repeat(" ", indent)?;
                self.out.push(line)?;
            }
        }
        self.out.push("\n")
    }
}

/// In which styles a string can be written.
struct Allowed {
    plain: bool,
    single_quoted: bool,
    block: bool,
}

impl Allowed {
    fn of(text: &str) -> Allowed {
        let chars: Vec<char> = text.chars().collect();
        let blank =
            |char: Option<&char>| char.is_none_or(|char| matches!(char, ' ' | '\t') || is_break(*char));
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let mut special = false;
        let (mut break_space, mut space_break) = (false, false);
        for (index, char) in chars.iter().copied().enumerate() {
            let before = index.checked_sub(1).and_then(|index| chars.get(index));
            let followed_by_blank = blank(chars.get(index + 1));
            indicators |= match (index, char) {
                (
                    0,
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                    | '`',
                ) => true,
                (0, '?' | '-') | (_, ':') => followed_by_blank,
                (_, '#') => blank(before),
                _ => false,
            };
            special |= !is_printable(char);
            break_space |= char == ' ' && before.is_some_and(|before| is_break(*before));
            space_break |= is_break(char) && before == Some(&' ');
        }
        let edge = |char: Option<&char>| char.is_some_and(|char| *char == ' ' || is_break(*char));
        let at_edges = edge(chars.first()) || edge(chars.last());
        let breaks = chars.iter().copied().any(is_break);
        Allowed {
            plain: !(at_edges || breaks || special || indicators || space_break || break_space),
            single_quoted: !(break_space || space_break || special),
            block: !(space_break || special || chars.last() == Some(&' ')),
        }
    }
}

fn is_break(char: char) -> bool {
    matches!(char, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(char: char) -> bool {
    matches!(char, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && char != '\u{feff}'
}

fn escaped(char: char) -> String {
    match char {
        '\0' => "\\0".to_owned(),
        '\u{7}' => "\\a".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\t' => "\\t".to_owned(),
        '\n' => "\\n".to_owned(),
        '\u{b}' => "\\v".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        '\r' => "\\r".to_owned(),
        '\u{1b}' => "\\e".to_owned(),
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\u{85}' => "\\N".to_owned(),
        '\u{2028}' => "\\L".to_owned(),
        '\u{2029}' => "\\P".to_owned(),
        char if is_printable(char) => char.to_string(),
        char => match u32::from(char) {
            code @ 0..0x100 => format!("\\x{code:02X}"),
            code @ 0x100..0x1_0000 => format!("\\u{code:04X}"),
            code => format!("\\U{code:08X}"),
        },
    }
}

/// Entries in the order of their keys.
fn sorted(entries: &Entries) -> Vec<(&str, &Value)> {
    sort(entries.iter().map(|(key, value)| (&**key, value)).collect())
}

/// The order of keys goes round in circles for some (`a2`, `a10`, `a1b`), which the sort of the library may refuse: so this one, by merging.
fn sort<'a>(mut entries: Vec<(&'a str, &'a Value)>) -> Vec<(&'a str, &'a Value)> {
    if entries.len() < 2 {
        return entries;
    }
    let second = sort(entries.split_off(entries.len() / 2));
    let first = sort(entries);
    let mut merged = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    while let (Some((left, _)), Some((right, _))) = (first.peek(), second.peek()) {
        let side = if compare_keys(left, right).is_le() { &mut first } else { &mut second };
        merged.extend(side.next());
    }
    merged.extend(first);
    merged.extend(second);
    merged
}

/// Letters by the alphabet, numbers by their value, other characters before letters.
fn compare_keys(left: &str, right: &str) -> Ordering {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let Some(index) = left.iter().zip(&right).position(|(left, right)| left != right) else {
        return left.len().cmp(&right.len());
    };
    let (a, b) = (left[index], right[index]);
    match (a.is_alphabetic(), b.is_alphabetic()) {
        (true, true) => return a.cmp(&b),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // A zero that stands inside of a number counts for what is before it.
    let digits_before = left[..index].iter().rev().take_while(|char| char.is_ascii_digit());
    let inside = (a == '0' || b == '0') && digits_before.into_iter().any(|char| *char != '0');
    let number = |chars: &[char]| {
        let digits = chars[index..].iter().map_while(|char| char.to_digit(10));
        let count = digits.clone().count();
        (
            digits.fold(i64::from(inside), |sum, digit| sum.wrapping_mul(10).wrapping_add(i64::from(digit))),
            count,
        )
    };
    number(&left).cmp(&number(&right)).then(a.cmp(&b))
}
