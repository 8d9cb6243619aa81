//! Label and field selectors: parsing with the real server's messages, and matching.

use std::collections::BTreeSet;

use crate::builtin::names::{label_value as label_value_errors, qualified as label_key_errors};

/// A conjunction of requirements on labels. The empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Labels(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq)]
enum Requirement {
    Exists(String),
    Missing(String),
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Above(String, i64),
    Below(String, i64),
}

impl Requirement {
    fn matches(&self, labels: &[(Box<str>, Box<str>)]) -> bool {
        let get = |key: &str| labels.iter().find(|(k, _)| &**k == key).map(|(_, value)| &**value);
        let number = |key: &str| get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Exists(key) => get(key).is_some(),
            Self::Missing(key) => get(key).is_none(),
            Self::In(key, values) => get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => get(key).is_none_or(|value| !values.contains(value)),
            Self::Above(key, bound) => number(key).is_some_and(|value| value > *bound),
            Self::Below(key, bound) => number(key).is_some_and(|value| value < *bound),
        }
    }
}

impl Labels {
    pub fn parse(text: &str) -> Result<Self, String> {
        let tokens = tokenize(text);
        let mut parser = Parser { tokens, at: 0 };
        parser.requirements().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, labels: &[(Box<str>, Box<str>)]) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Symbol(&'static str),
    In,
    NotIn,
    End,
}

impl Token {
    fn literal(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Symbol(symbol) => symbol,
            Self::In => "in",
            Self::NotIn => "notin",
            Self::End => "",
        }
    }
}

fn tokenize(text: &str) -> Vec<Token> {
    const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push(Token::Symbol(symbol));
            rest = rest[symbol.len()..].trim_start();
            continue;
        }
        let end = rest.find(|c: char| "=!(),><".contains(c) || c.is_whitespace()).unwrap_or(rest.len());
        tokens.push(match &rest[..end] {
            "in" => Token::In,
            "notin" => Token::NotIn,
            word => Token::Word(word.to_owned()),
        });
        rest = rest[end..].trim_start();
    }
    tokens.push(Token::End);
    tokens
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    /// `in` and `notin` are words wherever a value may stand.
    fn peek_value(&self) -> Token {
        match &self.tokens[self.at.min(self.tokens.len() - 1)] {
            Token::In => Token::Word("in".into()),
            Token::NotIn => Token::Word("notin".into()),
            other => other.clone(),
        }
    }

    fn next_value(&mut self) -> Token {
        let token = self.peek_value();
        self.at += 1;
        token
    }

    fn next_operator(&mut self) -> Token {
        let token = self.tokens[self.at.min(self.tokens.len() - 1)].clone();
        self.at += 1;
        token
    }

    fn requirements(&mut self) -> Result<Vec<Requirement>, String> {
        let mut found = Vec::new();
        loop {
            match self.peek_value() {
                Token::Word(_) | Token::Symbol("!") => {
                    let requirement = self
                        .requirement()
                        .map_err(|problem| format!("unable to parse requirement: {problem}"))?;
                    found.push(requirement);
                }
                Token::End => return Ok(found),
                other => {
                    return Err(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        other.literal()
                    ));
                }
            }
            match self.next_value() {
                Token::End => return Ok(found),
                Token::Symbol(",") => match self.peek_value() {
                    Token::Word(_) | Token::Symbol("!") => {}
                    other => {
                        return Err(format!("found '{}', expected: identifier after ','", other.literal()));
                    }
                },
                other => {
                    return Err(format!("found '{}', expected: ',' or 'end of string'", other.literal()));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut token = self.next_value();
        let missing = token == Token::Symbol("!");
        if missing {
            token = self.next_value();
        }
        let Token::Word(key) = token else {
            return Err(format!("found '{}', expected: identifier", token.literal()));
        };
        checked("<nil>", &key, label_key_errors(&key))?;
        if missing {
            return Ok(Requirement::Missing(key));
        }
        if matches!(self.peek_value(), Token::End | Token::Symbol(",")) {
            return Ok(Requirement::Exists(key));
        }
        match self.next_operator() {
            Token::In => self.values(&key).map(|values| Requirement::In(key, values)),
            Token::NotIn => self.values(&key).map(|values| Requirement::NotIn(key, values)),
            Token::Symbol("=" | "==") => self.value(&key).map(|value| Requirement::In(key, [value].into())),
            Token::Symbol("!=") => self.value(&key).map(|value| Requirement::NotIn(key, [value].into())),
            Token::Symbol(">") => self.bound(&key).map(|bound| Requirement::Above(key, bound)),
            Token::Symbol("<") => self.bound(&key).map(|bound| Requirement::Below(key, bound)),
            other => Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.literal())),
        }
    }

    fn value(&mut self, key: &str) -> Result<String, String> {
        if matches!(self.peek_value(), Token::End | Token::Symbol(",")) {
            return Ok(String::new());
        }
        match self.next_value() {
            Token::Word(value) => {
                checked(&format!("values[0][{key}]"), &value, label_value_errors(&value))?;
                Ok(value)
            }
            other => Err(format!("found '{}', expected: identifier", other.literal())),
        }
    }

    fn bound(&mut self, key: &str) -> Result<i64, String> {
        let value = self.value(key)?;
        value.parse().map_err(|_| {
            format!(
                "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
            )
        })
    }

    fn values(&mut self, key: &str) -> Result<BTreeSet<String>, String> {
        let open = self.next_value();
        if open != Token::Symbol("(") {
            return Err(format!("found '{}' expected: '('", open.literal()));
        }
        let mut values = BTreeSet::new();
        if self.peek_value() == Token::Symbol(")") {
            // Nothing between the parentheses is one empty value.
            self.at += 1;
            return Ok([String::new()].into());
        }
        loop {
            match self.next_value() {
                Token::Word(value) => {
                    checked(&format!("values[0][{key}]"), &value, label_value_errors(&value))?;
                    values.insert(value);
                    match self.next_value() {
                        Token::Symbol(",") => {
                            if self.peek_value() == Token::Symbol(")") {
                                values.insert(String::new());
                                self.at += 1;
                                return Ok(values);
                            }
                        }
                        Token::Symbol(")") => return Ok(values),
                        other => return Err(format!("found '{}', expected: ',' or ')'", other.literal())),
                    }
                }
                Token::Symbol(",") => {
                    values.insert(String::new());
                }
                Token::Symbol(")") => return Ok(values),
                other => {
                    return Err(format!("found '{}', expected: ',', ')' or identifier", other.literal()));
                }
            }
        }
    }
}

fn checked(field: &str, value: &str, errors: Vec<String>) -> Result<(), String> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(format!("{field}: Invalid value: {value:?}: {}", errors.join("; ")))
}

/// A conjunction of equalities on selectable fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fields(Vec<(String, bool, String)>);

impl Fields {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let (field, equal, value) = split_term(term)
                .ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{term}'"))?;
            terms.push((field.to_owned(), equal, unescape(value)?));
        }
        Ok(Self(terms))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an equality.
    pub fn require(&mut self, field: &str, value: &str) {
        self.0.push((field.to_owned(), true, value.to_owned()));
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _, _)| name.as_str())
    }

    /// `get` answers the value of a field; one that the object lacks is empty.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|(name, equal, value)| (get(name).unwrap_or_default() == value) == *equal)
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// The leftmost operator wins, longer ones first.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    for at in term.char_indices().map(|(at, _)| at) {
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if term[at..].starts_with(operator) {
                return Some((&term[..at], equal, &term[at + operator.len()..]));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                Some(c) => return Err(format!("invalid field selector: invalid escape sequence: \\{c}")),
                None => return Err("invalid field selector: invalid escape sequence: \\".into()),
            },
            ',' | '=' => return Err(format!("invalid field selector: unescaped character in value: {c}")),
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Vec<(Box<str>, Box<str>)> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn label_selectors_match_as_in_kubernetes() {
        let object = labels(&[("app", "web"), ("tier", "1"), ("in", "x")]);
        let table = [
            ("", true),
            ("app=web", true),
            ("app==web,tier=1", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (web, db)", true),
            ("app notin (web)", false),
            ("missing notin (web)", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("tier>0", true),
            ("tier<1", false),
            ("in=x", true),
            ("app in (web,)", true),
        ];
        for (text, expected) in table {
            let selector = Labels::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(selector.matches(&object), expected, "{text}");
        }
    }

    #[test]
    fn bad_label_selectors_say_why() {
        for (text, message) in [
            ("app in web", "unable to parse requirement: found 'web' expected: '('"),
            ("app=web=x", "found '=', expected: ',' or 'end of string'"),
            ("=x", "found '=', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
        ] {
            assert_eq!(Labels::parse(text).unwrap_err(), message);
        }
    }

    #[test]
    fn field_selectors_split_at_the_first_operator() {
        let selector = Fields::parse("a!=b,c==d,e=f\\,g").unwrap();
        let get = |name: &str| match name {
            "c" => Some("d"),
            "e" => Some("f,g"),
            _ => None,
        };
        assert!(selector.matches(get));
        assert_eq!(Fields::parse("a=b,x").unwrap_err(), "invalid selector: 'a=b,x'; can't understand 'x'");
    }
}
