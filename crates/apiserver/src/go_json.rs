//! What Go says about text that is not JSON, and how it quotes text that is odd. Clients and their users read these words, so they
//! are found again here, after our own decoder has refused the text.

/// Go refuses deeper nesting.
const MAX_DEPTH: usize = 10_000;

/// The first syntax error in Go's words.
pub(crate) fn syntax_error(text: &[u8]) -> String {
    let mut scanner = Scanner { text, at: 0 };
    match scanner.document() {
        Err(problem) => problem,
        Ok(()) => "the value is nested too deeply, or a number in it is too large".to_owned(),
    }
}

/// What Go calls a JSON value that has the wrong type.
pub(crate) fn type_name(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "bool",
        serde_json::Value::Number(_) => "number",
        serde_json::Value::String(_) => "string",
        serde_json::Value::Array(_) => "array",
        serde_json::Value::Object(_) => "object",
    }
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

type Scan = Result<(), String>;

impl Scanner<'_> {
    fn peek(&mut self) -> Option<u8> {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn fail(&self, context: &str) -> String {
        match self.text.get(self.at) {
            None => "unexpected end of JSON input".to_owned(),
            Some(byte) => format!("invalid character {} {context}", quoted(*byte)),
        }
    }

    fn document(&mut self) -> Scan {
        self.value()?;
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.fail("after top-level value")),
        }
    }

    /// Iterative, so that no nesting can exhaust the stack.
    fn value(&mut self) -> Scan {
        let mut open: Vec<u8> = Vec::new();
        loop {
            if self.scalar_or_open(&mut open)? {
                continue;
            }
            // A value has ended: what may follow depends on what is open.
            loop {
                match open.last() {
                    None => return Ok(()),
                    Some(b'{') => match self.peek() {
                        Some(b',') => {
                            self.at += 1;
                            self.key()?;
                            break;
                        }
                        Some(b'}') => {
                            self.at += 1;
                            open.pop();
                        }
                        _ => return Err(self.fail("after object key:value pair")),
                    },
                    Some(_) => match self.peek() {
                        Some(b',') => {
                            self.at += 1;
                            break;
                        }
                        Some(b']') => {
                            self.at += 1;
                            open.pop();
                        }
                        _ => return Err(self.fail("after array element")),
                    },
                }
            }
        }
    }

    /// Reads a scalar, an empty container, or the beginning of one that is not; true for the last.
    fn scalar_or_open(&mut self, open: &mut Vec<u8>) -> Result<bool, String> {
        const LOOKING: &str = "looking for beginning of value";
        let Some(byte) = self.peek() else { return Err(self.fail(LOOKING)) };
        match byte {
            b'{' | b'[' => {
                self.at += 1;
                if open.len() >= MAX_DEPTH {
                    return Err(format!("invalid character {} exceeded max depth", quoted(byte)));
                }
                let close = if byte == b'{' { b'}' } else { b']' };
                if self.peek() == Some(close) {
                    self.at += 1;
                    return Ok(false);
                }
                open.push(byte);
                if byte == b'{' {
                    self.key()?;
                }
                Ok(true)
            }
            b'"' => self.string().map(|()| false),
            b't' => self.literal("true").map(|()| false),
            b'f' => self.literal("false").map(|()| false),
            b'n' => self.literal("null").map(|()| false),
            b'-' | b'0'..=b'9' => self.number().map(|()| false),
            _ => Err(self.fail(LOOKING)),
        }
    }

    fn key(&mut self) -> Scan {
        if self.peek() != Some(b'"') {
            return Err(self.fail("looking for beginning of object key string"));
        }
        self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.fail("after object key"));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Scan {
        self.at += 1;
        loop {
            match self.text.get(self.at) {
                None => return Err(self.fail("")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape()?;
                }
                Some(0..=0x1f) => return Err(self.fail("in string literal")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Scan {
        match self.text.get(self.at) {
            Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.text.get(self.at).is_some_and(u8::is_ascii_hexdigit) {
                        return Err(self.fail("in \\u hexadecimal character escape"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.fail("in string escape code")),
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Scan {
        for expected in word.bytes() {
            if self.text.get(self.at) != Some(&expected) {
                return Err(self.fail(&format!("in literal {word} (expecting {})", quoted(expected))));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn digits(&mut self, context: &str) -> Scan {
        if !self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            return Err(self.fail(context));
        }
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Scan {
        if self.text.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        match self.text.get(self.at) {
            Some(b'0') => self.at += 1,
            _ => self.digits("in numeric literal")?,
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits("after decimal point in numeric literal")?;
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.text.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits("in exponent of numeric literal")?;
        }
        Ok(())
    }
}

/// A value as Go's `%v` prints a decoded object: `map[a:1 b:[x y]]`.
pub(crate) fn go_map(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_map).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", go_map(value))).collect();
            format!("map[{}]", pairs.join(" "))
        }
        other => other.to_string(),
    }
}

/// A value as Go's encoder writes it into a message: safe for HTML.
pub(crate) fn html_safe(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Text as Go's `%q` prints it.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\x0b' => quoted.push_str("\\v"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control()
                || matches!(c, '\u{feff}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}') =>
            {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A byte as Go quotes it.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        0x20..=0x7e => format!("'{}'", char::from(byte)),
        0..=0x1f | 0x7f => format!("'\\x{byte:02x}'"),
        0x80..=0x9f => format!("'\\u{:04x}'", u32::from(byte)),
        _ => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::syntax_error;

    #[test]
    fn speaks_as_go_does() {
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{nonsense", "invalid character 'n' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("tru!", "invalid character '!' in literal true (expecting 'e')"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("apiVersion: v1", "invalid character 'a' looking for beginning of value"),
        ] {
            assert_eq!(syntax_error(text.as_bytes()), expected, "{text}");
        }
        let deep = "[".repeat(1_000_000);
        assert_eq!(syntax_error(deep.as_bytes()), "invalid character '[' exceeded max depth");
    }
}
