//! `printf`: flags, width, precision, and a verb for each argument. What does not fit is written into the text, as Go does.

use super::quote::{backquote, is_printable, quote, quote_ascii, quote_char};
use super::{Out, nested, number};
use crate::error::Fault;
use crate::memory::{DEEPEST, Memory, too_deep};
use crate::value::Value;

/// The widest that Go pads to.
const WIDEST: usize = 1_000_000;

/// What stands between `%` and the verb.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

/// As `fmt.Sprintf`.
pub(crate) fn sprintf(memory: &Memory, format: &str, values: &[Value]) -> Result<String, Fault> {
    let mut printer = Printer {
        memory,
        out: Out::new(memory.limits().output),
        values,
        next: 0,
        reordered: false,
        good_index: true,
        flags: Flags::default(),
    };
    let mut rest = format;
    while let Some(percent) = rest.find('%') {
        printer.out.push(&rest[..percent])?;
        rest = printer.directive(&rest[percent + 1..])?;
    }
    printer.out.push(rest)?;
    printer.extra()?;
    Ok(printer.out.take())
}

struct Printer<'a> {
    memory: &'a Memory,
    out: Out,
    values: &'a [Value],
    next: usize,
    reordered: bool,
    good_index: bool,
    flags: Flags,
}

impl Printer<'_> {
    /// What follows `%`; gives back what follows the verb.
    fn directive<'t>(&mut self, text: &'t str) -> Result<&'t str, Fault> {
        let mut flags = Flags::default();
        let mut rest = text;
        while let Some(char) = rest.chars().next() {
            match char {
                '-' => flags.minus = true,
                '+' => flags.plus = true,
                '#' => flags.sharp = true,
                ' ' => flags.space = true,
                '0' => flags.zero = true,
                _ => break,
            }
            rest = &rest[1..];
        }
        self.good_index = true;
        let mut indexed;
        (rest, indexed) = self.index(rest);
        if let Some(after) = rest.strip_prefix('*') {
            rest = after;
            match self.star() {
                Some(width) => {
                    flags.minus |= width < 0;
                    flags.width = usize::try_from(width.unsigned_abs()).ok();
                }
                None => self.out.push("%!(BADWIDTH)")?,
            }
            indexed = false;
        } else {
            let (width, after) = digits(rest);
            if width.is_some() && indexed {
                // `%[3]2d`
                self.good_index = false;
            }
            flags.width = width;
            rest = after;
        }
        if let Some(after) = rest.strip_prefix('.') {
            if indexed {
                self.good_index = false;
            }
            (rest, indexed) = self.index(after);
            if let Some(after) = rest.strip_prefix('*') {
                rest = after;
                let precision = self.star();
                flags.precision = precision.and_then(|precision| usize::try_from(precision).ok());
                if precision.is_none() {
                    self.out.push("%!(BADPREC)")?;
                }
                indexed = false;
            } else {
                let (precision, after) = digits(rest);
                flags.precision = Some(precision.unwrap_or(0));
                rest = after;
            }
        }
        if !indexed {
            (rest, _) = self.index(rest);
        }
        self.flags = flags;
        let Some(verb) = rest.chars().next() else {
            self.out.push("%!(NOVERB)")?;
            return Ok(rest);
        };
        rest = &rest[verb.len_utf8()..];
        if verb == '%' {
            self.out.push("%")?;
        } else if !self.good_index {
            self.out.push(&format!("%!{verb}(BADINDEX)"))?;
        } else if let Some(value) = self.values.get(self.next) {
            self.next += 1;
            self.value(value, verb, 0)?;
        } else {
            self.out.push(&format!("%!{verb}(MISSING)"))?;
        }
        Ok(rest)
    }

    /// `[2]`: which argument is meant; whether there was one.
    fn index<'t>(&mut self, text: &'t str) -> (&'t str, bool) {
        let Some(inner) = text.strip_prefix('[') else { return (text, false) };
        self.reordered = true;
        let Some((number, rest)) = inner.split_once(']') else {
            self.good_index = false;
            return (inner, false);
        };
        match number.parse::<usize>().ok().filter(|number| (1..=self.values.len()).contains(number)) {
            Some(number) => self.next = number - 1,
            None => self.good_index = false,
        }
        (rest, true)
    }

    /// A width or precision that is an argument.
    fn star(&mut self) -> Option<i64> {
        let value = self.values.get(self.next);
        self.next += usize::from(value.is_some());
        let number = i64::try_from(value?.as_integer()?).ok()?;
        (number.unsigned_abs() <= WIDEST as u64).then_some(number)
    }

    /// Arguments that nothing asked for.
    fn extra(&mut self) -> Result<(), Fault> {
        if self.reordered || self.next >= self.values.len() {
            return Ok(());
        }
        self.flags = Flags::default();
        self.out.push("%!(EXTRA ")?;
        for (index, value) in self.values.iter().enumerate().skip(self.next) {
            self.out.push(if index == self.next { "" } else { ", " })?;
            if value.is_nil() {
                self.out.push("<nil>")?;
                continue;
            }
            self.out.push(&self.memory.type_name(value))?;
            self.out.push("=")?;
            nested(self.memory, &mut self.out, value, 0)?;
        }
        self.out.push(")")
    }

    fn value(&mut self, value: &Value, verb: char, depth: usize) -> Result<(), Fault> {
        if depth > DEEPEST {
            return Err(too_deep());
        }
        match (value, verb) {
            (_, 'T') => self.padded_text(&self.memory.type_name(value)),
            (Value::Missing | Value::Nil, 'v') => self.padded_text("<nil>"),
            (Value::Missing | Value::Nil, _) => self.bad(value, verb),
            (Value::Bool(bool), 't' | 'v') => self.padded_text(if *bool { "true" } else { "false" }),
            (Value::Int(_) | Value::Int64(_) | Value::Uint64(_) | Value::Byte(_), _) => {
                self.integer(value, verb)
            }
            (Value::Float(float), _) => self.float(*float, verb, value),
            (Value::Text(text), _) => self.string(text, verb, value),
            (Value::Version(version), _) => self.string(&version.to_string(), verb, value),
            (Value::List(list), _) => {
                let go = verb == 'v' && self.flags.sharp;
                let type_name = self.memory.type_name(value);
                self.out.push(if go { &type_name } else { "" })?;
                if go && list.is_nil {
                    return self.out.push("(nil)");
                }
                self.out.push(if go { "{" } else { "[" })?;
                for (index, item) in list.items.iter().enumerate() {
                    self.out.push(if index == 0 {
                        ""
                    } else if go {
                        ", "
                    } else {
                        " "
                    })?;
                    self.element(item, verb, depth)?;
                }
                self.out.push(if go { "}" } else { "]" })
            }
            (Value::Map(map), _) => {
                let go = verb == 'v' && self.flags.sharp;
                let type_name = self.memory.type_name(value);
                self.out.push(if go { &type_name } else { "map" })?;
                self.out.push(if go { "{" } else { "[" })?;
                for (index, (key, item)) in self.memory.entries(*map).iter().enumerate() {
                    self.out.push(if index == 0 {
                        ""
                    } else if go {
                        ", "
                    } else {
                        " "
                    })?;
                    self.value(&Value::Text(key.clone()), verb, depth + 1)?;
                    self.out.push(":")?;
                    self.element(item, verb, depth)?;
                }
                self.out.push(if go { "}" } else { "]" })
            }
            _ => self.bad(value, verb),
        }
    }

    /// A value inside of a list or a map.
    fn element(&mut self, value: &Value, verb: char, depth: usize) -> Result<(), Fault> {
        match value {
            Value::Nil if verb == 'v' && self.flags.sharp => self.out.push("interface {}(nil)"),
            // Inside of others a nil is no argument that does not fit.
            Value::Nil => self.out.push("<nil>"),
            _ => self.value(value, verb, depth + 1),
        }
    }

    /// A verb that a value has no text for.
    fn bad(&mut self, value: &Value, verb: char) -> Result<(), Fault> {
        self.out.push(&format!("%!{verb}("))?;
        match value {
            Value::Missing | Value::Nil => self.out.push("<nil>")?,
            value => {
                self.out.push(&self.memory.type_name(value))?;
                self.out.push("=")?;
                let flags = std::mem::take(&mut self.flags);
                self.flags.width = flags.width;
                self.value(value, 'v', 0)?;
            }
        }
        self.out.push(")")
    }

    fn integer(&mut self, value: &Value, verb: char) -> Result<(), Fault> {
        let number = value.as_integer().unwrap_or(0);
        let size = number.unsigned_abs();
        let code = u32::try_from(number).ok().and_then(char::from_u32).unwrap_or('\u{fffd}');
        let sharp = self.flags.sharp;
        let digits = match verb {
            'v' if sharp && matches!(value, Value::Uint64(_) | Value::Byte(_)) => format!("0x{size:x}"),
            'v' | 'd' => size.to_string(),
            'b' => format!("{}{size:b}", if sharp { "0b" } else { "" }),
            'o' => format!("{}{size:o}", if sharp { "0" } else { "" }),
            'O' => format!("0o{size:o}"),
            'x' => format!("{}{size:x}", if sharp { "0x" } else { "" }),
            'X' => format!("{}{size:X}", if sharp { "0X" } else { "" }),
            'c' => return self.padded_text(&code.to_string()),
            'q' => return self.padded_text(&quote_char(code)),
            'U' => {
                let shown = if sharp && is_printable(code) { format!(" '{code}'") } else { String::new() };
                return self.padded_text(&format!("U+{size:04X}{shown}"));
            }
            _ => return self.bad(value, verb),
        };
        let digits = match self.flags.precision {
            Some(0) if number == 0 => String::new(),
            Some(precision) => {
                format!("{}{digits}", "0".repeat(precision.min(WIDEST).saturating_sub(digits.len())))
            }
            None => digits,
        };
        self.padded_number(number < 0, &digits, self.flags.precision.is_none())
    }

    fn float(&mut self, float: f64, verb: char, value: &Value) -> Result<(), Fault> {
        let size = float.abs();
        let precision = self.flags.precision.map(|precision| precision.min(1000));
        let digits = match verb {
            'v' | 'g' => number::general(size, precision, 'e'),
            'G' => number::general(size, precision, 'E'),
            'e' => number::exponent(size, precision.or(Some(6)), 'e'),
            'E' => number::exponent(size, precision.or(Some(6)), 'E'),
            'x' => number::hexadecimal(size, precision),
            'X' => number::hexadecimal(size, precision).to_uppercase(),
            'f' | 'F' => number::fixed(size, precision.or(Some(6))),
            _ => return self.bad(value, verb),
        };
        let finite = float.is_finite();
        let plus = self.flags.plus;
        self.flags.plus |= float == f64::INFINITY;
        let written = self.padded_number(
            float.is_sign_negative() && !float.is_nan(),
            digits.trim_start_matches('+'),
            finite,
        );
        self.flags.plus = plus;
        written
    }

    fn string(&mut self, text: &str, verb: char, value: &Value) -> Result<(), Fault> {
        let cut = match self.flags.precision {
            Some(precision) => text.char_indices().nth(precision).map_or(text, |(end, _)| &text[..end]),
            None => text,
        };
        match verb {
            'v' if self.flags.sharp => self.padded_text(&quote(text)),
            's' | 'v' => self.padded_text(cut),
            'q' => {
                let quoted = self.flags.sharp.then(|| backquote(cut)).flatten();
                let quote = if self.flags.plus { quote_ascii } else { quote };
                self.padded_text(&quoted.unwrap_or_else(|| quote(cut)))
            }
            'x' | 'X' => {
                let bytes = text.as_bytes();
                let bytes = &bytes[..self.flags.precision.unwrap_or(bytes.len()).min(bytes.len())];
                self.memory.check_length(bytes.len().saturating_mul(5))?;
                let one = |byte: &u8| if verb == 'x' { format!("{byte:02x}") } else { format!("{byte:02X}") };
                let prefix = match (self.flags.sharp, verb) {
                    (false, _) => "",
                    (true, 'x') => "0x",
                    (true, _) => "0X",
                };
                let separator = if self.flags.space { format!(" {prefix}") } else { String::new() };
                let hexadecimal: Vec<String> = bytes.iter().map(one).collect();
                let prefix = if bytes.is_empty() { "" } else { prefix };
                self.padded_text(&format!("{prefix}{}", hexadecimal.join(&separator)))
            }
            _ => self.bad(value, verb),
        }
    }

    /// A number with its sign, filled up with zeros behind it or with spaces.
    fn padded_number(&mut self, negative: bool, digits: &str, zeros_fit: bool) -> Result<(), Fault> {
        let sign = match (negative, self.flags.plus, self.flags.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        };
        let length = sign.len() + digits.chars().count();
        let missing = self.flags.width.unwrap_or(0).saturating_sub(length);
        if self.flags.zero && !self.flags.minus && zeros_fit {
            self.out.push(sign)?;
            self.out.repeat("0", missing)?;
            return self.out.push(digits);
        }
        self.padded(&format!("{sign}{digits}"), " ")
    }

    fn padded_text(&mut self, text: &str) -> Result<(), Fault> {
        // Go fills texts with zeros too, unless they stand on the left.
        let filler = if self.flags.zero && !self.flags.minus { "0" } else { " " };
        self.padded(text, filler)
    }

    fn padded(&mut self, text: &str, filler: &str) -> Result<(), Fault> {
        let missing = self.flags.width.unwrap_or(0).saturating_sub(text.chars().count());
        if self.flags.minus {
            self.out.push(text)?;
            return self.out.repeat(filler, missing);
        }
        self.out.repeat(filler, missing)?;
        self.out.push(text)
    }
}

/// Leading digits, if there are some, and what follows. What is too large is no width.
fn digits(text: &str) -> (Option<usize>, &str) {
    let length = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..length].parse::<usize>().ok().filter(|number| *number <= WIDEST);
    (number, &text[length..])
}
