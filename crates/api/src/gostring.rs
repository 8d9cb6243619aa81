//! Reads the quoted strings of the golden tables, which Go wrote with `%q`. Only for tests.

/// The string that Go's `%q` printed.
pub(crate) fn unquote(quoted: &str) -> String {
    let inner = quoted.strip_prefix('"').and_then(|q| q.strip_suffix('"')).expect("a quoted string");
    // `\x00` is the only escape in the tables that JSON does not know.
    serde_json::from_str(&format!("\"{}\"", inner.replace("\\x", "\\u00"))).expect("escapes that JSON knows")
}
