//! Upper and lower case, and names that are written in one of the usual ways.

use super::Param::Text;
use super::{Function, exactly, text};

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("upper", &[Text], |memory, values| {
        memory.text(text(values, 0).chars().map(upper).collect::<String>())
    }),
    exactly("lower", &[Text], |memory, values| {
        memory.text(text(values, 0).chars().map(lower).collect::<String>())
    }),
    exactly("title", &[Text], |memory, values| memory.text(title(text(values, 0)))),
    exactly("untitle", &[Text], |memory, values| memory.text(untitle(text(values, 0)))),
    exactly("swapcase", &[Text], |memory, values| memory.text(swap(text(values, 0)))),
    exactly("initials", &[Text], |memory, values| {
        let words = text(values, 0).split_whitespace();
        memory.text(words.filter_map(|word| word.chars().next()).collect::<String>())
    }),
    exactly("snakecase", &[Text], |memory, values| memory.text(joined(text(values, 0), '_'))),
    exactly("kebabcase", &[Text], |memory, values| memory.text(joined(text(values, 0), '-'))),
    exactly("camelcase", &[Text], |memory, values| memory.text(camel(text(values, 0)))),
];

/// One character for one, as Go does it.
fn upper(char: char) -> char {
    let mut mapped = char.to_uppercase();
    mapped.next().filter(|_| mapped.next().is_none()).unwrap_or(char)
}

fn lower(char: char) -> char {
    // The only one that becomes two has its dot as the second.
    char.to_lowercase().next().unwrap_or(char)
}

/// Every word begins large. Whatever is no letter, digit or underscore ends a word.
fn title(text: &str) -> String {
    let mut previous = ' ';
    let begins = |previous: char| match previous {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => false,
        char if char.is_ascii() => true,
        char => !char.is_alphanumeric() && char.is_whitespace(),
    };
    let each = |char: char| {
        let mapped = if begins(previous) { upper(char) } else { char };
        previous = char;
        mapped
    };
    text.chars().map(each).collect()
}

/// Every word begins small.
fn untitle(text: &str) -> String {
    let mut begins = true;
    let each = |char: char| {
        let mapped = if begins { lower(char) } else { char };
        begins = char.is_whitespace();
        mapped
    };
    text.chars().map(each).collect()
}

fn swap(text: &str) -> String {
    let each = |char: char| if char.is_uppercase() { lower(char) } else { upper(char) };
    text.chars().map(each).collect()
}

fn is_connector(char: char) -> bool {
    char == '-' || char == '_' || char.is_whitespace()
}

/// `SomeWords`. One connector between words goes, of several the last; what is before all words stays.
fn camel(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let begin = chars.iter().position(|char| !is_connector(*char)).unwrap_or(chars.len());
    let mut out: String = chars[..begin].iter().collect();
    if begin == chars.len() {
        // Where there is no word, Go's has the last of them twice.
        out.extend(chars.last());
    }
    let mut word_begins = true;
    // Words in capitals keep only their first.
    let mut in_capitals = false;
    for (index, char) in chars.iter().copied().enumerate().skip(begin) {
        let followed = chars.get(index + 1);
        if is_connector(char) {
            if followed.is_none_or(|next| is_connector(*next)) {
                out.push(char);
            }
            word_begins = true;
            continue;
        }
        if word_begins {
            in_capitals = char.is_uppercase();
            out.push(upper(char));
        } else if in_capitals && char.is_uppercase() {
            out.push(lower(char));
        } else {
            in_capitals = false;
            out.push(char);
        }
        word_begins = false;
    }
    out
}

/// What a name is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Connectors,
    Punctuation,
    /// Capitals only.
    Capitals,
    /// Begins small, or with one capital.
    Letters,
    Digits,
    Other,
}

fn part(char: char) -> Part {
    match char {
        char if is_connector(char) => Part::Connectors,
        // Those that Unicode calls symbols are none.
        char if char.is_ascii_punctuation() && !"$+<=>^`|~".contains(char) => Part::Punctuation,
        char if char.is_uppercase() => Part::Capitals,
        char if char.is_alphabetic() => Part::Letters,
        char if char.is_numeric() => Part::Digits,
        _ => Part::Other,
    }
}

fn parts(text: &str) -> Vec<(Part, String)> {
    let mut parts: Vec<(Part, String)> = Vec::new();
    for char in text.chars() {
        let kind = part(char);
        match parts.last_mut() {
            Some((last, word)) if *last == kind => word.push(char),
            // Dashes among punctuation are no more than that.
            Some((Part::Punctuation, word)) if char == '-' || char == '_' => word.push(char),
            // The last of several capitals begins a word: HTTPServer is HTTP and Server.
            Some((last @ Part::Capitals, word)) if kind == Part::Letters => {
                let capital = word.pop();
                let begun: String = capital.into_iter().chain([char]).collect();
                if word.is_empty() {
                    (*last, *word) = (Part::Letters, begun);
                } else {
                    parts.push((Part::Letters, begun));
                }
            }
            _ => parts.push((kind, char.to_string())),
        }
    }
    parts
}

/// `some_words`. A number belongs to the word before it, unless small letters follow: then it begins one.
fn joined(text: &str, connector: char) -> String {
    let parts = parts(text);
    let mut out = String::new();
    let is_word = |part: Option<&(Part, String)>| {
        part.is_some_and(|(part, _)| !matches!(part, Part::Connectors | Part::Punctuation))
    };
    let mut in_number = false;
    for (index, (part, word)) in parts.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|index| parts.get(index));
        let small_follows = parts.get(index + 1).is_some_and(|(part, word)| {
            *part == Part::Letters && word.starts_with(|char: char| !char.is_uppercase())
        });
        let small = *part == Part::Letters && word.starts_with(|char: char| !char.is_uppercase());
        let continues = match part {
            Part::Digits => in_number || before.is_some() && is_word(before) && !small_follows,
            Part::Letters => in_number && small,
            _ => false,
        };
        if is_word(before) && is_word(Some(&parts[index])) && !continues {
            out.push(connector);
        }
        in_number = match part {
            Part::Digits => in_number || small_follows || !is_word(before),
            Part::Letters => in_number && small,
            _ => false,
        };
        match part {
            Part::Connectors => out.extend(word.chars().map(|_| connector)),
            _ => out.extend(word.chars().map(lower)),
        }
    }
    out
}
