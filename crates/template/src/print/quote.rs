//! Strings and characters between quotes, as Go's `strconv.Quote` writes them.

use std::fmt::Write;

/// `"a\tb"`
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        escape(&mut quoted, char, '"', is_printable);
    }
    quoted.push('"');
    quoted
}

/// The same in ASCII only.
pub(crate) fn quote_ascii(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for char in text.chars() {
        escape(&mut quoted, char, '"', |char| char.is_ascii() && is_printable(char));
    }
    quoted.push('"');
    quoted
}

/// `'a'`
pub(crate) fn quote_char(char: char) -> String {
    let mut quoted = "'".to_owned();
    escape(&mut quoted, char, '\'', is_printable);
    quoted.push('\'');
    quoted
}

/// With backquotes if that can be: on one line, nothing that cannot be seen, and no backquote.
pub(crate) fn backquote(text: &str) -> Option<String> {
    let allowed =
        |char: char| char == '\t' || char != '`' && char != '\u{feff}' && char != '\u{7f}' && char >= ' ';
    text.chars().all(allowed).then(|| format!("`{text}`"))
}

fn escape(out: &mut String, char: char, quote: char, is_shown: fn(char) -> bool) {
    match char {
        '\\' => out.push_str("\\\\"),
        char if char == quote => {
            out.push('\\');
            out.push(char);
        }
        '\u{7}' => out.push_str("\\a"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{b}' => out.push_str("\\v"),
        char if is_shown(char) => out.push(char),
        char => {
            let code = u32::from(char);
            let written = match code {
                0..0x80 => write!(out, "\\x{code:02x}"),
                0x80..0x1_0000 => write!(out, "\\u{code:04x}"),
                _ => write!(out, "\\U{code:08x}"),
            };
            // Writing to a text does not fail.
            let _ = written;
        }
    }
}

/// Letters, marks, numbers, punctuation, symbols and the ordinary space.
pub(crate) fn is_printable(char: char) -> bool {
    if char.is_ascii() {
        return (' '..='~').contains(&char);
    }
    // The library keeps its table to itself. A mark is escaped only where it has nothing to stand on.
    let standing: String = ['a', char].iter().collect();
    standing.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go_does() {
        for (text, quoted) in [
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\u{7}\u{8}\u{b}\u{c}\n\r\t", r#""\a\b\v\f\n\r\t""#),
            ("é😀\u{301}", "\"é😀\u{301}\""),
            ("\u{0}\u{7f}\u{a0}\u{2028}\u{e000}\u{10ffff}", r#""\x00\x7f\u00a0\u2028\ue000\U0010ffff""#),
            ("'", r#""'""#),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }
}
