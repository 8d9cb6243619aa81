//! A command as words. Quotes and backslashes group, as people expect, and `$(NAME)` stands for a value, as in the arguments of a
//! Pod; nothing else has a meaning, since there is no shell. A value is never looked at again: it stays within its word.

use std::collections::BTreeMap;

/// What `$(NAME)` stands for.
pub type Variables = BTreeMap<String, String>;

/// Why a command is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the command is empty")]
    Empty,
    #[error("a quote is not closed")]
    Open,
    #[error("it ends with a backslash")]
    Backslash,
    #[error("it holds a zero byte")]
    Zero,
    #[error("$({0}) stands for nothing here")]
    Unknown(String),
}

/// A word with the values that it names. `$$(` is for whoever means it literally.
pub fn expand(word: &str, variables: &Variables) -> Result<String, Error> {
    let mut expanded = String::new();
    let mut rest = word;
    while let Some(start) = rest.find("$(") {
        let (before, after) = (&rest[..start], &rest[start + 2..]);
        match (before.strip_suffix('$'), after.split_once(')')) {
            (Some(before), _) => {
                expanded.push_str(before);
                expanded.push_str("$(");
                rest = after;
            }
            (None, Some((name, after))) => {
                expanded.push_str(before);
                expanded.push_str(variables.get(name).ok_or_else(|| Error::Unknown(name.into()))?);
                rest = after;
            }
            (None, None) => break,
        }
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// The words of a command; at least one.
pub fn split(command: &str) -> Result<Vec<String>, Error> {
    if command.contains('\0') {
        return Err(Error::Zero);
    }
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = command.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('\'') => break,
                        Some(inside) => word.push(inside),
                        None => return Err(Error::Open),
                    }
                }
            }
            '"' => quoted(&mut characters, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(characters.next().ok_or(Error::Backslash)?),
            space if space.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    match words.first() {
        Some(program) if !program.is_empty() => Ok(words),
        _ => Err(Error::Empty),
    }
}

fn quoted(characters: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), Error> {
    loop {
        match characters.next() {
            Some('"') => return Ok(()),
            Some('\\') => match characters.next() {
                Some(escaped @ ('"' | '\\')) => word.push(escaped),
                Some(other) => word.extend(['\\', other]),
                None => return Err(Error::Open),
            },
            Some(inside) => word.push(inside),
            None => return Err(Error::Open),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_become_words() {
        let cases: [(&str, &[&str]); 6] = [
            ("redis-cli role", &["redis-cli", "role"]),
            ("  a   b ", &["a", "b"]),
            ("a 'b c' \"d e\" f\\ g", &["a", "b c", "d e", "f g"]),
            (r#"a "say \"hi\" \n""#, &["a", "say \"hi\" \\n"]),
            ("a '' \"\"", &["a", "", ""]),
            ("a $HOME; rm -rf | b > c && d", &["a", "$HOME;", "rm", "-rf", "|", "b", ">", "c", "&&", "d"]),
        ];
        for (command, words) in cases {
            assert_eq!(split(command).unwrap(), words, "{command}");
        }
        for (command, error) in [
            ("", Error::Empty),
            ("  ", Error::Empty),
            ("''", Error::Empty),
            ("a 'b", Error::Open),
            ("a \"b", Error::Open),
            ("a\\", Error::Backslash),
            ("a\0", Error::Zero),
        ] {
            assert_eq!(split(command), Err(error), "{command}");
        }
    }

    #[test]
    fn values_are_put_in_and_stay_within_their_word() {
        let variables: Variables =
            [("A", "10.0.0.1"), ("B", "x y; $(A)")].map(|(name, value)| (name.into(), value.into())).into();
        for (word, expanded) in [
            ("plain $A $ ( )", "plain $A $ ( )"),
            ("host=$(A)", "host=10.0.0.1"),
            ("$(A)$(B)", "10.0.0.1x y; $(A)"),
            ("$$(A)", "$(A)"),
            ("$(A", "$(A"),
        ] {
            assert_eq!(expand(word, &variables).unwrap(), expanded, "{word}");
        }
        assert_eq!(expand("$(C)", &variables), Err(Error::Unknown("C".into())));
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words in prop::collection::vec("[^\0']{1,8}", 1..5)) {
            let command = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
            prop_assert_eq!(split(&command).unwrap(), words);
        }

        #[test]
        fn nothing_panics(command in ".{0,40}") {
            let _ = split(&command);
            let _ = expand(&command, &Variables::new());
        }
    }
}
