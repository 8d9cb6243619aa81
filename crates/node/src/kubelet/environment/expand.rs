//! `$(NAME)` in the values, commands and arguments of containers. What names nothing stays as it was written.

/// The most that the kernel takes for one argument or variable. Variables that name each other grow without bound,
/// so this is checked while they do.
pub const MOST_BYTES: usize = 128 << 10;

/// The text is longer than [`MOST_BYTES`] once references are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("longer than {MOST_BYTES} bytes once $(NAME) references are replaced")]
pub struct TooLong;

/// Replaces references by what `find` knows. `$$` is a dollar, so `$$(NAME)` is no reference.
pub fn expand<'a>(text: &str, find: impl Fn(&str) -> Option<&'a str>) -> Result<String, TooLong> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        rest = match after.as_bytes().first() {
            Some(b'$') => {
                out.push('$');
                &after[1..]
            }
            Some(b'(') => match after.find(')') {
                Some(end) => {
                    let name = &after[1..end];
                    match find(name) {
                        Some(value) => out.push_str(value),
                        None => out.extend(["$(", name, ")"]),
                    }
                    &after[end + 1..]
                }
                None => {
                    out.push_str("$(");
                    &after[1..]
                }
            },
            _ => {
                out.push('$');
                after
            }
        };
        if out.len() > MOST_BYTES {
            return Err(TooLong);
        }
    }
    out.push_str(rest);
    if out.len() > MOST_BYTES { Err(TooLong) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known(name: &str) -> Option<&'static str> {
        match name {
            "A" => Some("a"),
            "EMPTY" => Some(""),
            "REF" => Some("$(A)"),
            "" => Some("nameless"),
            _ => None,
        }
    }

    #[test]
    fn references_and_escapes() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x$(A)y$(A)z", "xayaz"),
            ("$(EMPTY)", ""),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$(REF)", "$(A)"),
            ("$()", "nameless"),
            ("$(A", "$(A"),
            ("$(A$(A)", "$(A$(A)"),
            ("$A", "$A"),
            ("$", "$"),
            ("A$", "A$"),
            ("$$", "$"),
            ("$é$(A)", "$éa"),
            ("$($(A))", "$($(A))"),
        ] {
            assert_eq!(expand(text, known).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn growth_is_bounded() {
        let long = "x".repeat(MOST_BYTES / 2 + 1);
        let find = |_: &str| Some(long.as_str());
        assert_eq!(expand("$(A)", find).map(|text| text.len()), Ok(MOST_BYTES / 2 + 1));
        assert_eq!(expand("$(A)$(A)", find), Err(TooLong));
    }

    proptest! {
        #[test]
        fn without_a_dollar_nothing_changes(text in "[^$]*") {
            prop_assert_eq!(expand(&text, known), Ok(text));
        }

        #[test]
        fn an_escaped_text_comes_out_as_it_was(text in ".*") {
            prop_assert_eq!(expand(&text.replace('$', "$$"), known), Ok(text));
        }
    }
}
