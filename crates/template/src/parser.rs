//! Tokens become trees, one for the text itself and one for each template that it defines.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Kind};
use crate::functions::{self, Found};
use crate::lexer::{Keyword, Token, TokenKind, tokens};
use crate::literal;
use crate::tree::{Block, Branch, Command, Node, Operand, Pipe, Source, Term, Tree, is_empty};

/// How deep blocks and parentheses may be nested in one another.
const NESTING: usize = 100;

/// How many variables there may be at one place.
const VARIABLES: usize = 1000;

/// The templates of a text: itself, by the name of the source, and those that it defines.
pub(crate) fn parse(name: &str, text: &str) -> Result<BTreeMap<Arc<str>, Tree>, Error> {
    let source = Arc::new(Source { name: name.into(), text: text.into() });
    let tokens = tokens(text);
    let mut parser = Parser {
        source: &source,
        tokens: &tokens,
        next: 0,
        variables: vec!["$"],
        ranges: 0,
        nesting: 0,
        trees: BTreeMap::new(),
    };
    let root = parser.file()?;
    parser.add(source.name.clone(), root, 0)?;
    Ok(parser.trees)
}

struct Parser<'a> {
    source: &'a Arc<Source>,
    tokens: &'a [Token<'a>],
    next: usize,
    /// Those that may be used here.
    variables: Vec<&'a str>,
    /// Loops around here, which `break` may leave.
    ranges: usize,
    nesting: usize,
    trees: BTreeMap<Arc<str>, Tree>,
}

/// What ends a block.
enum Closing {
    End,
    Else,
    /// `else if`, `else with`: the keyword comes next.
    ElseIf,
    ElseWith,
}

impl<'a> Parser<'a> {
    fn error<T>(&self, token: Token<'_>, message: String) -> Result<T, Error> {
        Err(self.source.error(Kind::Syntax, token.at, message))
    }

    fn unexpected<T>(&self, token: Token<'_>, context: &str) -> Result<T, Error> {
        let message = match token.kind {
            TokenKind::Mistake(what) => {
                let near: String = token.text.chars().take_while(|char| *char != '\n').take(20).collect();
                format!("{what} at {near:?}")
            }
            TokenKind::End => format!("unexpected end of the text in {context}; an {{{{end}}}} is missing"),
            TokenKind::Right => format!("unexpected \"}}}}\" in {context}"),
            _ => format!("unexpected {:?} in {context}", token.text),
        };
        self.error(token, message)
    }

    /// The token after this many others.
    fn peek_at(&self, ahead: usize) -> Token<'a> {
        let last = self.tokens.len().saturating_sub(1);
        let end = Token { kind: TokenKind::End, at: 0, text: "" };
        self.tokens.get((self.next + ahead).min(last)).copied().unwrap_or(end)
    }

    fn peek(&self) -> Token<'a> {
        self.peek_at(0)
    }

    fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn skip_space(&mut self) {
        while self.peek().kind == TokenKind::Space {
            self.next += 1;
        }
    }

    fn peek_word(&mut self) -> Token<'a> {
        self.skip_space();
        self.peek()
    }

    fn take_word(&mut self) -> Token<'a> {
        self.skip_space();
        self.take()
    }

    fn expect(&mut self, kind: TokenKind, context: &str) -> Result<Token<'a>, Error> {
        let token = self.take_word();
        if token.kind == kind { Ok(token) } else { self.unexpected(token, context) }
    }

    /// Goes one level down, unless that is too deep.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.nesting == NESTING {
            return self
                .error(self.peek(), format!("nested more than {NESTING} times; define a template for it"));
        }
        self.nesting += 1;
        let result = inner(self);
        self.nesting -= 1;
        result
    }

    fn add(&mut self, name: Arc<str>, root: Block, at: usize) -> Result<(), Error> {
        let before = self.trees.get(&name);
        if before.is_none_or(|tree| is_empty(&tree.root)) {
            self.trees.insert(name, Tree { source: self.source.clone(), root });
        } else if !is_empty(&root) {
            let message = format!("multiple definition of template {name:?}");
            return Err(self.source.error(Kind::Syntax, at, message));
        }
        Ok(())
    }

    /// The whole text. Only here templates can be defined.
    fn file(&mut self) -> Result<Block, Error> {
        let mut root = Block::new();
        loop {
            let token = self.peek();
            match token.kind {
                TokenKind::End => return Ok(root),
                TokenKind::Left if self.keyword_follows() == Some(Keyword::Define) => self.definition()?,
                _ => match self.node(&mut root)? {
                    None => {}
                    Some(Closing::End) => return self.error(token, "unexpected {{end}}".to_owned()),
                    Some(_) => return self.error(token, "unexpected {{else}}".to_owned()),
                },
            }
        }
    }

    /// The keyword with which the action begins that comes next.
    fn keyword_follows(&self) -> Option<Keyword> {
        let after = if self.peek_at(1).kind == TokenKind::Space { 2 } else { 1 };
        match self.peek_at(after).kind {
            TokenKind::Keyword(keyword) => Some(keyword),
            _ => None,
        }
    }

    fn definition(&mut self) -> Result<(), Error> {
        let left = self.take();
        self.take_word();
        let name = self.template_name("define clause")?;
        self.expect(TokenKind::Right, "define clause")?;
        let root = self.separately(left, "define clause")?;
        self.add(name, root, left.at)
    }

    /// The body of another template: it sees no variables of this one.
    fn separately(&mut self, left: Token<'a>, context: &str) -> Result<Block, Error> {
        let outer = std::mem::replace(&mut self.variables, vec!["$"]);
        let ranges = std::mem::take(&mut self.ranges);
        let (root, closing) = self.nested(|parser| parser.block(left))?;
        self.variables = outer;
        self.ranges = ranges;
        match closing {
            Closing::End => Ok(root),
            _ => self.error(left, format!("unexpected {{{{else}}}} in {context}")),
        }
    }

    fn template_name(&mut self, context: &str) -> Result<Arc<str>, Error> {
        let token = self.take_word();
        match token.kind {
            TokenKind::Quoted => match literal::string(token.text) {
                Ok(name) => Ok(name.into()),
                Err(message) => self.error(token, message),
            },
            _ => self.unexpected(token, context),
        }
    }

    /// Up to the action that closes it.
    fn block(&mut self, opened: Token<'a>) -> Result<(Block, Closing), Error> {
        let mut block = Block::new();
        while self.peek().kind != TokenKind::End {
            if let Some(closing) = self.node(&mut block)? {
                return Ok((block, closing));
            }
        }
        self.error(opened, "unexpected end of the text: this action has no {{end}}".to_owned())
    }

    /// The next text or action, or what closes the block.
    fn node(&mut self, block: &mut Block) -> Result<Option<Closing>, Error> {
        let token = self.take();
        match token.kind {
            TokenKind::Text => block.push(Node::Text { at: token.at, text: token.text.into() }),
            TokenKind::Left => return self.action(token, block),
            _ => return self.unexpected(token, "input"),
        }
        Ok(None)
    }

    fn action(&mut self, left: Token<'a>, block: &mut Block) -> Result<Option<Closing>, Error> {
        let token = self.peek_word();
        let TokenKind::Keyword(keyword) = token.kind else {
            block.push(Node::Action(self.pipeline("command", TokenKind::Right)?));
            return Ok(None);
        };
        self.take();
        match keyword {
            Keyword::End => {
                self.expect(TokenKind::Right, "end")?;
                return Ok(Some(Closing::End));
            }
            Keyword::Else => return self.closing_else().map(Some),
            Keyword::If => block.push(Node::If(self.branch(left, "if")?)),
            Keyword::With => block.push(Node::With(self.branch(left, "with")?)),
            Keyword::Range => block.push(Node::Range(self.branch(left, "range")?)),
            Keyword::Break => block.push(self.leave(token, Node::Break)?),
            Keyword::Continue => block.push(self.leave(token, Node::Continue)?),
            Keyword::Template => {
                let name = self.template_name("template clause")?;
                let pipe = match self.peek_word().kind {
                    TokenKind::Right => {
                        self.take();
                        None
                    }
                    _ => Some(self.pipeline("template clause", TokenKind::Right)?),
                };
                block.push(Node::Template { at: token.at, name, pipe });
            }
            Keyword::Block => {
                let name = self.template_name("block clause")?;
                let pipe = self.pipeline("block clause", TokenKind::Right)?;
                let root = self.separately(left, "block clause")?;
                self.add(name.clone(), root, left.at)?;
                block.push(Node::Template { at: token.at, name, pipe: Some(pipe) });
            }
            Keyword::Define => {
                return self
                    .error(token, "templates can be defined only outside of all other actions".to_owned());
            }
        }
        Ok(None)
    }

    fn closing_else(&mut self) -> Result<Closing, Error> {
        match self.peek_word().kind {
            TokenKind::Keyword(Keyword::If) => Ok(Closing::ElseIf),
            TokenKind::Keyword(Keyword::With) => Ok(Closing::ElseWith),
            _ => {
                self.expect(TokenKind::Right, "else")?;
                Ok(Closing::Else)
            }
        }
    }

    fn leave(&mut self, token: Token<'a>, node: Node) -> Result<Node, Error> {
        self.expect(TokenKind::Right, token.text)?;
        if self.ranges == 0 {
            return self.error(token, format!("{{{{{}}}}} outside {{{{range}}}}", token.text));
        }
        Ok(node)
    }

    /// `if`, `with` or `range`, from behind the keyword to behind its `end`.
    fn branch(&mut self, left: Token<'a>, context: &'static str) -> Result<Branch, Error> {
        let declared = self.variables.len();
        let branch = self.nested(|parser| parser.branch_inside(left, context));
        self.variables.truncate(declared);
        branch
    }

    fn branch_inside(&mut self, left: Token<'a>, context: &'static str) -> Result<Branch, Error> {
        let pipe = self.pipeline(context, TokenKind::Right)?;
        let in_range = usize::from(context == "range");
        self.ranges += in_range;
        let (then, closing) = self.block(left)?;
        self.ranges -= in_range;
        let otherwise = match (closing, context) {
            (Closing::End, _) => None,
            (Closing::ElseIf, "if") => {
                let token = self.take();
                Some(vec![Node::If(self.branch(token, "if")?)])
            }
            (Closing::ElseWith, "with") => {
                let token = self.take();
                Some(vec![Node::With(self.branch(token, "with")?)])
            }
            (Closing::ElseIf | Closing::ElseWith, _) => return self.unexpected(self.peek(), "else"),
            (Closing::Else, _) => match self.block(left)? {
                (otherwise, Closing::End) => Some(otherwise),
                _ => return self.error(left, "expected {{end}}; found a second {{else}}".to_owned()),
            },
        };
        Ok(Branch { pipe, then, otherwise })
    }

    fn pipeline(&mut self, context: &str, end: TokenKind) -> Result<Pipe, Error> {
        let at = self.peek_word().at;
        let (variables, assigns) = self.declarations(context)?;
        let mut commands: Vec<Command> = Vec::new();
        loop {
            let token = self.peek_word();
            match token.kind {
                kind if kind == end => break,
                TokenKind::Bool
                | TokenKind::Character
                | TokenKind::Dot
                | TokenKind::Field
                | TokenKind::Identifier
                | TokenKind::Number
                | TokenKind::Nil
                | TokenKind::Quoted
                | TokenKind::Variable
                | TokenKind::OpenParen => {}
                _ => return self.unexpected(token, context),
            }
            let command = self.command()?;
            let is_value = matches!(
                command.first.operand,
                Operand::Bool(_) | Operand::Dot | Operand::Nil | Operand::Number(_) | Operand::Text(_)
            );
            if is_value && !commands.is_empty() {
                let stage = commands.len() + 1;
                let message =
                    format!("non executable command in pipeline stage {stage}; only functions take values");
                return self.error(token, message);
            }
            commands.push(command);
        }
        let closing = self.take();
        if commands.is_empty() {
            return self.error(closing, format!("missing value for {context}"));
        }
        Ok(Pipe { at, variables, assigns, commands })
    }

    /// `$x :=`, `$x =`, and in a range `$key, $value :=`.
    fn declarations(&mut self, context: &str) -> Result<(Vec<Arc<str>>, bool), Error> {
        let mut names: Vec<Arc<str>> = Vec::new();
        loop {
            let variable = self.peek_word();
            if variable.kind != TokenKind::Variable {
                return Ok((names, false));
            }
            let spaces = usize::from(self.peek_at(1).kind == TokenKind::Space);
            let after = self.peek_at(1 + spaces);
            let kind = after.kind;
            if !matches!(kind, TokenKind::Assign | TokenKind::Declare | TokenKind::Comma) {
                // Just a value.
                return Ok((names, false));
            }
            self.next += 2 + spaces;
            names.push(variable.text.into());
            self.variables.push(variable.text);
            if self.variables.len() > VARIABLES {
                return self.error(variable, format!("more than {VARIABLES} variables; use a dict"));
            }
            if kind != TokenKind::Comma {
                return Ok((names, kind == TokenKind::Assign));
            }
            if context != "range" || names.len() == 2 {
                return self.error(after, format!("too many declarations in {context}"));
            }
            let next = self.peek_word();
            if !matches!(next.kind, TokenKind::Variable | TokenKind::Right | TokenKind::CloseParen) {
                return self.error(next, "range can only initialize variables".to_owned());
            }
        }
    }

    /// Values with space between them, up to `|`, which it takes, or to what ends the pipeline.
    fn command(&mut self) -> Result<Command, Error> {
        let mut terms = Vec::new();
        let begin = self.peek_word();
        loop {
            self.skip_space();
            terms.extend(self.operand()?);
            let token = self.peek();
            match token.kind {
                TokenKind::Space => {}
                TokenKind::Right | TokenKind::CloseParen => break,
                TokenKind::Pipe => {
                    self.take();
                    break;
                }
                _ => return self.unexpected(token, "operand"),
            }
        }
        if terms.is_empty() {
            return self.error(begin, "empty command".to_owned());
        }
        let first = terms.remove(0);
        Ok(Command { first, arguments: terms })
    }

    /// A term and the fields behind it.
    fn operand(&mut self) -> Result<Option<Term>, Error> {
        let token = self.peek();
        let Some(mut term) = self.term()? else { return Ok(None) };
        let mut fields: Vec<Arc<str>> = Vec::new();
        while self.peek().kind == TokenKind::Field {
            fields.push(self.take().text[1..].into());
        }
        if fields.is_empty() {
            return Ok(Some(term));
        }
        match &mut term.operand {
            Operand::Field(names) | Operand::Variable(_, names) => {
                names.extend(fields);
                Ok(Some(term))
            }
            Operand::Bool(_) | Operand::Text(_) | Operand::Number(_) | Operand::Nil | Operand::Dot => self
                .error(token, format!("unexpected . after term {:?}; put it into parentheses", token.text)),
            _ => Ok(Some(Term { at: term.at, operand: Operand::Chain(Box::new(term), fields) })),
        }
    }

    fn term(&mut self) -> Result<Option<Term>, Error> {
        let token = self.peek();
        let constant = |result: Result<Operand, String>| match result {
            Ok(operand) => Ok(operand),
            Err(message) => Err(self.source.error(Kind::Syntax, token.at, message)),
        };
        let operand = match token.kind {
            TokenKind::Identifier => self.function(token)?,
            TokenKind::Dot => Operand::Dot,
            TokenKind::Nil => Operand::Nil,
            TokenKind::Bool => Operand::Bool(token.text == "true"),
            TokenKind::Field => Operand::Field(vec![token.text[1..].into()]),
            TokenKind::Number => constant(literal::number(token.text).map(Operand::Number))?,
            TokenKind::Character => constant(literal::character(token.text).map(Operand::Number))?,
            TokenKind::Quoted => {
                constant(literal::string(token.text).map(|text| Operand::Text(text.into())))?
            }
            TokenKind::Variable if self.variables.contains(&token.text) => {
                Operand::Variable(token.text.into(), Vec::new())
            }
            TokenKind::Variable => {
                let message = format!("undefined variable {:?}; declare it with :=", token.text);
                return self.error(token, message);
            }
            TokenKind::OpenParen => {
                self.take();
                let inner =
                    |parser: &mut Self| parser.pipeline("parenthesized pipeline", TokenKind::CloseParen);
                let pipe = self.nested(inner)?;
                return Ok(Some(Term { at: token.at, operand: Operand::Pipe(Box::new(pipe)) }));
            }
            _ => return Ok(None),
        };
        self.take();
        Ok(Some(Term { at: token.at, operand }))
    }

    fn function(&self, token: Token<'a>) -> Result<Operand, Error> {
        match functions::find(token.text) {
            Found::Function(function) => Ok(Operand::Function(function)),
            Found::Refused(why) => {
                self.error(token, format!("function {:?} is not available here: {why}", token.text))
            }
            Found::Unknown => {
                let near = functions::nearest(token.text);
                let hint = near.map_or_else(String::new, |name| format!("; is {name:?} meant?"));
                self.error(token, format!("function {:?} not defined{hint}", token.text))
            }
        }
    }
}
