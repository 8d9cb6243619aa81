//! Cuts the text of a template into tokens. What follows a mistake is not looked at: the mistake is the last token.

/// A piece of the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    /// Where it begins.
    pub(crate) at: usize,
    pub(crate) text: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Outside of actions.
    Text,
    /// `{{`
    Left,
    /// `}}`
    Right,
    Space,
    /// `:=`
    Declare,
    /// `=`
    Assign,
    Pipe,
    Comma,
    OpenParen,
    CloseParen,
    Dot,
    /// `.name`
    Field,
    /// `$` or `$name`
    Variable,
    Identifier,
    Keyword(Keyword),
    Nil,
    Bool,
    Number,
    Character,
    /// Between quotes of either kind.
    Quoted,
    /// Another character, which is nowhere right.
    Other,
    /// What is wrong here.
    Mistake(&'static str),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keyword {
    Block,
    Break,
    Continue,
    Define,
    Else,
    End,
    If,
    Range,
    Template,
    With,
}

const KEYWORDS: [(&str, Keyword); 10] = [
    ("block", Keyword::Block),
    ("break", Keyword::Break),
    ("continue", Keyword::Continue),
    ("define", Keyword::Define),
    ("else", Keyword::Else),
    ("end", Keyword::End),
    ("if", Keyword::If),
    ("range", Keyword::Range),
    ("template", Keyword::Template),
    ("with", Keyword::With),
];

const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// All tokens of a text; the last is `End` or `Mistake`.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { text, at: 0, tokens: Vec::new() };
    let last = match lexer.run() {
        Ok(()) => Token { kind: TokenKind::End, at: text.len(), text: "" },
        Err(mistake) => mistake,
    };
    lexer.tokens.push(last);
    lexer.tokens
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    tokens: Vec<Token<'a>>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Takes what follows up to a length.
    fn take(&mut self, kind: TokenKind, length: usize) {
        let token = Token { kind, at: self.at, text: &self.rest()[..length] };
        self.at += length;
        self.tokens.push(token);
    }

    fn mistake(&self, at: usize, what: &'static str) -> Token<'a> {
        Token { kind: TokenKind::Mistake(what), at, text: &self.text[at..] }
    }

    /// Text and actions in turn.
    fn run(&mut self) -> Result<(), Token<'a>> {
        while let Some(left) = self.rest().find("{{") {
            let text = &self.rest()[..left];
            let trimmed = match trims_left(&self.rest()[left + 2..]) {
                true => text.trim_end_matches(SPACE),
                false => text,
            };
            if !trimmed.is_empty() {
                self.take(TokenKind::Text, trimmed.len());
            }
            self.at += left - trimmed.len();
            self.action()?;
        }
        if !self.rest().is_empty() {
            self.take(TokenKind::Text, self.rest().len());
        }
        Ok(())
    }

    /// An action or a comment, from its `{{` to behind its `}}`.
    fn action(&mut self) -> Result<(), Token<'a>> {
        let begin = self.at;
        let marker = if trims_left(&self.rest()[2..]) { 2 } else { 0 };
        if let Some(comment) = self.rest()[2 + marker..].strip_prefix("/*") {
            let end = comment.find("*/").ok_or_else(|| self.mistake(begin, "unclosed comment"))?;
            self.at += 2 + marker + 2 + end + 2;
            if right_delimiter(self.rest()).is_none() {
                return Err(self.mistake(begin, "comment ends before closing delimiter"));
            }
            self.skip_right();
            return Ok(());
        }
        self.take(TokenKind::Left, 2);
        self.at += marker;
        let mut open: Vec<usize> = Vec::new();
        loop {
            if right_delimiter(self.rest()).is_some() {
                return match open.last() {
                    Some(paren) => Err(self.mistake(*paren, "unclosed left paren")),
                    None => {
                        self.right();
                        Ok(())
                    }
                };
            }
            let Some(char) = self.peek() else { return Err(self.mistake(begin, "unclosed action")) };
            match char {
                '(' => open.push(self.at),
                ')' if open.pop().is_none() => return Err(self.mistake(self.at, "unexpected right paren")),
                _ => {}
            }
            self.inside(char)?;
        }
    }

    /// Passes over the end of an action, and over space where it says so.
    fn skip_right(&mut self) {
        let Some((marker, trims)) = right_delimiter(self.rest()) else { return };
        self.at += marker + 2;
        if trims {
            self.at += self.rest().len() - self.rest().trim_start_matches(SPACE).len();
        }
    }

    fn right(&mut self) {
        let (marker, _) = right_delimiter(self.rest()).unwrap_or_default();
        self.tokens.push(Token { kind: TokenKind::Right, at: self.at + marker, text: "}}" });
        self.skip_right();
    }

    /// One token of an action.
    fn inside(&mut self, char: char) -> Result<(), Token<'a>> {
        match char {
            char if SPACE.contains(&char) => self.space(),
            '=' => self.take(TokenKind::Assign, 1),
            ':' if self.rest().starts_with(":=") => self.take(TokenKind::Declare, 2),
            ':' => return Err(self.mistake(self.at, "expected :=")),
            '|' => self.take(TokenKind::Pipe, 1),
            ',' => self.take(TokenKind::Comma, 1),
            '(' => self.take(TokenKind::OpenParen, 1),
            ')' => self.take(TokenKind::CloseParen, 1),
            '"' => self.quoted('"', TokenKind::Quoted, "unterminated quoted string")?,
            '\'' => self.quoted('\'', TokenKind::Character, "unterminated character constant")?,
            '`' => self.raw()?,
            '$' => self.name(TokenKind::Variable, TokenKind::Variable)?,
            '.' if !self.rest()[1..].starts_with(|next: char| next.is_ascii_digit()) => {
                self.name(TokenKind::Field, TokenKind::Dot)?;
            }
            '.' | '+' | '-' | '0'..='9' => self.number()?,
            char if is_alphanumeric(char) => self.word()?,
            ' '..='~' => self.take(TokenKind::Other, 1),
            _ => return Err(self.mistake(self.at, "unrecognized character in action")),
        }
        Ok(())
    }

    /// A run of space, without the last one if that belongs to the end of the action.
    fn space(&mut self) {
        let rest = self.rest();
        let mut length = rest.len() - rest.trim_start_matches(SPACE).len();
        if right_delimiter(&rest[length - 1..]).is_some_and(|(marker, _)| marker > 0) {
            length -= 1;
        }
        self.take(TokenKind::Space, length);
    }

    fn quoted(&mut self, quote: char, kind: TokenKind, unterminated: &'static str) -> Result<(), Token<'a>> {
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((index, char)) = chars.next() {
            match char {
                '\\' if chars.next().is_none_or(|(_, escaped)| escaped == '\n') => break,
                '\n' => break,
                char if char == quote => {
                    self.take(kind, index + 1);
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(self.mistake(self.at, unterminated))
    }

    fn raw(&mut self) -> Result<(), Token<'a>> {
        let Some(end) = self.rest()[1..].find('`') else {
            return Err(self.mistake(self.at, "unterminated raw quoted string"));
        };
        self.take(TokenKind::Quoted, end + 2);
        Ok(())
    }

    /// A name behind `.` or `$`, which can also stand alone.
    fn name(&mut self, named: TokenKind, alone: TokenKind) -> Result<(), Token<'a>> {
        let name = &self.rest()[1..];
        let length = name.find(|char| !is_alphanumeric(char)).unwrap_or(name.len());
        self.check_terminated(1 + length)?;
        self.take(if length == 0 { alone } else { named }, 1 + length);
        Ok(())
    }

    fn word(&mut self) -> Result<(), Token<'a>> {
        let rest = self.rest();
        let length = rest.find(|char| !is_alphanumeric(char)).unwrap_or(rest.len());
        self.check_terminated(length)?;
        let word = &rest[..length];
        let keyword = KEYWORDS.iter().find(|(name, _)| *name == word);
        let kind = match word {
            "true" | "false" => TokenKind::Bool,
            "nil" => TokenKind::Nil,
            _ => keyword.map_or(TokenKind::Identifier, |(_, keyword)| TokenKind::Keyword(*keyword)),
        };
        self.take(kind, length);
        Ok(())
    }

    /// What may follow a name: there is no arithmetic, so `$x+2` is a mistake.
    fn check_terminated(&self, length: usize) -> Result<(), Token<'a>> {
        let rest = &self.rest()[length..];
        let ends = rest.is_empty()
            || rest.starts_with(SPACE)
            || rest.starts_with(['.', ',', '|', ':', ')', '('])
            || rest.starts_with("}}");
        if ends { Ok(()) } else { Err(self.mistake(self.at + length, "bad character after a name")) }
    }

    /// Not quite only numbers: which they are, `literal` sees.
    fn number(&mut self) -> Result<(), Token<'a>> {
        let mut length = number_length(self.rest());
        if self.rest()[length..].starts_with(['+', '-']) {
            length += number_length(&self.rest()[length..]);
            if !self.rest()[..length].ends_with('i') {
                return Err(self.mistake(self.at, "bad number syntax"));
            }
        }
        if self.rest()[length..].starts_with(is_alphanumeric) {
            return Err(self.mistake(self.at, "bad number syntax"));
        }
        self.take(TokenKind::Number, length);
        Ok(())
    }
}

/// How much of a text could be one number.
fn number_length(text: &str) -> usize {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut digits = "0123456789_";
    if let Some(after) = rest.strip_prefix('0') {
        rest = after;
        for (prefix, set) in
            [(['x', 'X'], "0123456789abcdefABCDEF_"), (['o', 'O'], "01234567_"), (['b', 'B'], "01_")]
        {
            if let Some(after) = rest.strip_prefix(prefix) {
                (rest, digits) = (after, set);
                break;
            }
        }
    }
    rest = rest.trim_start_matches(|char| digits.contains(char));
    if let Some(after) = rest.strip_prefix('.') {
        rest = after.trim_start_matches(|char| digits.contains(char));
    }
    let exponent = match digits.len() {
        11 => rest.strip_prefix(['e', 'E']),
        23 => rest.strip_prefix(['p', 'P']),
        _ => None,
    };
    if let Some(after) = exponent {
        rest = after.strip_prefix(['+', '-']).unwrap_or(after);
        rest = rest.trim_start_matches(|char: char| char.is_ascii_digit() || char == '_');
    }
    text.len() - rest.strip_prefix('i').unwrap_or(rest).len()
}

fn is_alphanumeric(char: char) -> bool {
    char == '_' || char.is_alphanumeric()
}

/// Whether what follows `{{` says that the space before it goes.
fn trims_left(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| rest.starts_with(SPACE))
}

/// The length of the marker before `}}`, and whether there is one.
fn right_delimiter(text: &str) -> Option<(usize, bool)> {
    if text.starts_with("}}") {
        return Some((0, false));
    }
    let marked = text.strip_prefix(SPACE)?.strip_prefix("-}}").is_some();
    marked.then_some((2, true))
}
