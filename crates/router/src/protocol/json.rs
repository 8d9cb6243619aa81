//! Finds a few members of a JSON text while it comes in, piece by piece, without keeping the rest. Pure. Memory is
//! bounded whatever comes: nesting, strings and names have limits. A name that matters and comes twice in one object is
//! refused, since readers differ in which of the two counts. What does not matter is not judged: whoever reads the whole
//! text will.

/// How deep objects and arrays may be nested.
const DEEPEST: usize = 128;
/// The longest value that is kept, in bytes; of a longer one it is only known that it is there.
pub const LONGEST: usize = 1024;
/// The longest name that is compared.
const LONGEST_NAME: usize = 64;

/// The members to find: a tree of names.
#[derive(Debug)]
pub struct Shape {
    nodes: Vec<Node>,
    leaves: usize,
}

#[derive(Debug)]
struct Node {
    name: &'static str,
    parent: usize,
    leaf: Option<usize>,
}

impl Shape {
    /// Of paths such as `params.message.taskId`; the n-th is found as the n-th.
    pub fn new(paths: &[&'static str]) -> Shape {
        let mut nodes = vec![Node { name: "", parent: 0, leaf: None }];
        for (leaf, path) in paths.iter().enumerate() {
            let mut at = 0;
            for name in path.split('.') {
                let known = (1..nodes.len()).find(|n| nodes[*n].parent == at && nodes[*n].name == name);
                at = known.unwrap_or_else(|| {
                    nodes.push(Node { name, parent: at, leaf: None });
                    nodes.len() - 1
                });
            }
            nodes[at].leaf = Some(leaf);
        }
        Shape { nodes, leaves: paths.len() }
    }

    fn child(&self, of: usize, name: &[u8]) -> Option<usize> {
        (1..self.nodes.len()).find(|n| self.nodes[*n].parent == of && self.nodes[*n].name.as_bytes() == name)
    }
}

/// A value that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    /// A number, `true`, `false` or `null`, as it stands.
    Scalar(String),
    /// An object or an array.
    Composite,
    TooLong,
}

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("it is not JSON, at byte {0}")]
    Malformed(usize),
    #[error("it is nested deeper than {DEEPEST} levels")]
    TooDeep,
    #[error("the name {0:?} stands twice in one object")]
    Twice(&'static str),
    #[error("it ends in the middle")]
    Incomplete,
}

/// What was found, by the number of the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found(Vec<Option<Value>>);

impl Found {
    pub fn get(&self, leaf: usize) -> Option<&Value> {
        self.0.get(leaf)?.as_ref()
    }

    /// The text that stands there; none if there is something else, or nothing.
    pub fn text(&self, leaf: usize) -> Option<&str> {
        match self.get(leaf)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A value has to come.
    Value,
    /// A value, or the end of the array that has just begun.
    FirstItem,
    /// A name, or the end of the object that has just begun.
    FirstName,
    Name,
    Colon,
    /// A value is over.
    After,
    Text {
        is_name: bool,
        escape: Escape,
    },
    Scalar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// So many hexadecimal digits have come, and what they say.
    Unicode(u8, u16),
}

#[derive(Clone, Copy, Debug)]
struct Open {
    is_object: bool,
    /// Where in the tree it is; none if it does not matter.
    node: Option<usize>,
}

/// A text that is being read.
#[derive(Debug)]
pub struct Scan<'s> {
    shape: &'s Shape,
    state: State,
    open: Vec<Open>,
    /// Where in the tree the value is that comes next.
    next: Option<usize>,
    seen: Vec<bool>,
    found: Vec<Option<Value>>,
    /// The string or scalar at hand, decoded, as far as it is kept.
    kept: Vec<u8>,
    keep: usize,
    overflow: bool,
    /// The first half of a pair of escapes.
    surrogate: Option<u16>,
    at: usize,
}

impl<'s> Scan<'s> {
    pub fn new(shape: &'s Shape) -> Scan<'s> {
        Scan {
            shape,
            state: State::Value,
            open: Vec::new(),
            next: Some(0),
            seen: vec![false; shape.nodes.len()],
            found: vec![None; shape.leaves],
            kept: Vec::new(),
            keep: 0,
            overflow: false,
            surrogate: None,
            at: 0,
        }
    }

    /// Takes in a piece.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            // Most of a large text is inside of strings that nobody asks for.
            if self.keep == 0 && matches!(self.state, State::Text { escape: Escape::None, .. }) {
                let plain = |byte: &u8| !matches!(byte, b'"' | b'\\' | ..0x20);
                let skipped = rest.iter().take_while(|byte| plain(byte)).count();
                if skipped > 0 {
                    self.overflow = true;
                    self.at += skipped;
                    rest = &rest[skipped..];
                    continue;
                }
            }
            self.byte(byte)?;
            self.at += 1;
            rest = after;
        }
        Ok(())
    }

    /// Whether the value of this path has been read.
    pub fn has(&self, leaf: usize) -> bool {
        self.found[leaf].is_some()
    }

    /// What has been found so far.
    pub fn so_far(&self) -> Found {
        Found(self.found.clone())
    }

    /// The text is over.
    pub fn finish(mut self) -> Result<Found, Error> {
        if self.state == State::Scalar {
            self.end_scalar()?;
        }
        match self.state == State::After && self.open.is_empty() {
            true => Ok(Found(self.found)),
            false => Err(Error::Incomplete),
        }
    }

    fn malformed<T>(&self) -> Result<T, Error> {
        Err(Error::Malformed(self.at))
    }

    fn byte(&mut self, byte: u8) -> Result<(), Error> {
        match self.state {
            State::Text { is_name, escape } => return self.in_text(byte, is_name, escape),
            State::Scalar if byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.') => {
                self.keep_byte(byte);
                return Ok(());
            }
            State::Scalar => self.end_scalar()?,
            _ => {}
        }
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            return Ok(());
        }
        match (self.state, byte) {
            (State::FirstName, b'}') | (State::FirstItem, b']') => self.close(),
            (State::FirstName | State::Name, b'"') => self.begin_text(true),
            (State::Colon, b':') => self.state = State::Value,
            (State::After, b',') => match self.open.last() {
                Some(open) if open.is_object => self.state = State::Name,
                Some(_) => (self.state, self.next) = (State::Value, None),
                None => return self.malformed(),
            },
            (State::After, b'}' | b']') => {
                let fits = self.open.last().is_some_and(|open| open.is_object == (byte == b'}'));
                if !fits {
                    return self.malformed();
                }
                self.close();
            }
            (State::Value | State::FirstItem, _) => return self.begin_value(byte),
            _ => return self.malformed(),
        }
        Ok(())
    }

    fn close(&mut self) {
        self.open.pop();
        self.state = State::After;
    }

    fn begin_value(&mut self, byte: u8) -> Result<(), Error> {
        match byte {
            b'{' | b'[' => {
                if self.open.len() == DEEPEST {
                    return Err(Error::TooDeep);
                }
                let is_object = byte == b'{';
                self.find(Value::Composite);
                let node = self.next.take().filter(|_| is_object);
                self.open.push(Open { is_object, node });
                self.state = if is_object { State::FirstName } else { State::FirstItem };
            }
            b'"' => self.begin_text(false),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
                self.state = State::Scalar;
                // Long enough for what is judged, kept or not.
                (self.keep, self.overflow) = (LONGEST_NAME, false);
                self.kept.clear();
                self.kept.push(byte);
            }
            _ => return self.malformed(),
        }
        Ok(())
    }

    fn begin_text(&mut self, is_name: bool) {
        let matters = match is_name {
            true => self.open.last().is_some_and(|open| open.node.is_some()),
            false => self.leaf().is_some(),
        };
        self.keep = match (matters, is_name) {
            (false, _) => 0,
            (true, true) => LONGEST_NAME,
            (true, false) => LONGEST,
        };
        self.kept.clear();
        (self.overflow, self.surrogate) = (false, None);
        self.state = State::Text { is_name, escape: Escape::None };
    }

    fn leaf(&self) -> Option<usize> {
        self.shape.nodes[self.next?].leaf
    }

    fn find(&mut self, value: Value) {
        if let Some(leaf) = self.leaf() {
            self.found[leaf] = Some(value);
        }
    }

    fn keep_byte(&mut self, byte: u8) {
        match self.kept.len() < self.keep {
            true => self.kept.push(byte),
            false => self.overflow = true,
        }
    }

    fn keep_char(&mut self, char: char) {
        let mut bytes = [0; 4];
        char.encode_utf8(&mut bytes).bytes().for_each(|byte| self.keep_byte(byte));
    }

    fn in_text(&mut self, byte: u8, is_name: bool, escape: Escape) -> Result<(), Error> {
        let escape = match (escape, byte) {
            (Escape::None, b'"') => return self.end_text(is_name),
            (Escape::None, b'\\') => Escape::Begun,
            (Escape::None, ..0x20) => return self.malformed(),
            (Escape::None, _) => {
                self.lone_surrogate()?;
                self.keep_byte(byte);
                Escape::None
            }
            (Escape::Begun, b'u') => Escape::Unicode(0, 0),
            (Escape::Begun, _) => {
                self.lone_surrogate()?;
                let plain = match byte {
                    b'"' | b'\\' | b'/' => byte,
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    _ => return self.malformed(),
                };
                self.keep_byte(plain);
                Escape::None
            }
            (Escape::Unicode(count, value), _) => {
                let Some(digit) = char::from(byte).to_digit(16) else { return self.malformed() };
                let value = value << 4 | digit as u16;
                match count {
                    3 => {
                        self.unit(value)?;
                        Escape::None
                    }
                    _ => Escape::Unicode(count + 1, value),
                }
            }
        };
        self.state = State::Text { is_name, escape };
        Ok(())
    }

    /// One unit of UTF-16, of which an escape says one.
    fn unit(&mut self, unit: u16) -> Result<(), Error> {
        let first = self.surrogate.take();
        let units = first.into_iter().chain([unit]);
        match (first, unit) {
            (None, 0xd800..0xdc00) => self.surrogate = Some(unit),
            _ => match char::decode_utf16(units).next() {
                Some(Ok(char)) => self.keep_char(char),
                // Half a character: no text that matters has such.
                _ if self.keep > 0 => return self.malformed(),
                _ => {}
            },
        }
        Ok(())
    }

    fn lone_surrogate(&mut self) -> Result<(), Error> {
        match self.surrogate.take() {
            Some(_) if self.keep > 0 => self.malformed(),
            _ => Ok(()),
        }
    }

    fn end_text(&mut self, is_name: bool) -> Result<(), Error> {
        self.lone_surrogate()?;
        if is_name {
            self.state = State::Colon;
            return self.end_name();
        }
        self.state = State::After;
        if self.leaf().is_some() {
            let value = match (self.overflow, std::str::from_utf8(&self.kept)) {
                (true, _) => Value::TooLong,
                (false, Ok(text)) => Value::Text(text.to_owned()),
                (false, Err(_)) => return self.malformed(),
            };
            self.find(value);
        }
        self.next = None;
        Ok(())
    }

    fn end_name(&mut self) -> Result<(), Error> {
        let of = self.open.last().and_then(|open| open.node);
        let known = of.filter(|_| !self.overflow).and_then(|of| self.shape.child(of, &self.kept));
        self.next = known;
        if let Some(node) = known {
            if self.seen[node] {
                return Err(Error::Twice(self.shape.nodes[node].name));
            }
            self.seen[node] = true;
        }
        Ok(())
    }

    fn end_scalar(&mut self) -> Result<(), Error> {
        self.state = State::After;
        let text = String::from_utf8_lossy(&self.kept).into_owned();
        let first = self.kept.first().copied().unwrap_or_default();
        let fits = match first {
            b't' | b'f' | b'n' => !self.overflow && matches!(text.as_str(), "true" | "false" | "null"),
            // A longer number than anybody counts with is none that matters.
            _ => self.overflow || serde_json::from_str::<serde_json::Number>(&text).is_ok(),
        };
        if !fits {
            return self.malformed();
        }
        self.find(if self.overflow { Value::TooLong } else { Value::Scalar(text) });
        self.next = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
