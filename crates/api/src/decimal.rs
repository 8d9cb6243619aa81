//! An exact decimal number of any length, just enough for [`crate::quantity`]: no floating point, no wrapping.
//! Work is bounded: an operation that would need more than [`MAX_DIGITS`] digits gives `None`.

use std::cmp::Ordering;

/// More digits than any sensible quantity has; keeps `1e2000000000 + 1` from eating the machine's memory.
const MAX_DIGITS: i64 = 4096;

/// `±digits × 10^exponent`, normalised: no leading or trailing zeros, and zero is an empty list of digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub(crate) negative: bool,
    /// Most significant first, each 0 to 9.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// From digits given as values 0 to 9.
    pub(crate) fn new(negative: bool, mut digits: Vec<u8>, mut exponent: i64) -> Self {
        while digits.last() == Some(&0) {
            digits.pop();
            exponent += 1;
        }
        let leading = digits.iter().take_while(|d| **d == 0).count();
        digits.drain(..leading);
        if digits.is_empty() { Self::default() } else { Self { negative, digits, exponent } }
    }

    pub(crate) fn from_i64(value: i64) -> Self {
        let digits = value.unsigned_abs().to_string().bytes().map(|b| b - b'0').collect();
        Self::new(value < 0, digits, 0)
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub(crate) fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    /// The same magnitude with the given sign.
    pub(crate) fn with_sign(mut self, negative: bool) -> Self {
        self.negative = negative && !self.is_zero();
        self
    }

    pub(crate) fn negated(mut self) -> Self {
        self.negative = !self.negative && !self.is_zero();
        self
    }

    /// Multiplied by `10^exponent`.
    pub(crate) fn scaled(mut self, exponent: i64) -> Self {
        if !self.is_zero() {
            self.exponent += exponent;
        }
        self
    }

    /// The digits as text and the exponent, the exponent being a multiple of three.
    pub(crate) fn engineering(&self) -> (String, i64) {
        let padding = self.exponent.rem_euclid(3);
        let mut text = self.text();
        text.extend(std::iter::repeat_n('0', padding as usize));
        (text, self.exponent - padding)
    }

    fn text(&self) -> String {
        let sign = self.negative.then_some('-');
        sign.into_iter().chain(self.digits.iter().map(|d| char::from(b'0' + d))).collect()
    }

    /// Rounded away from zero to a multiple of `10^exponent`.
    pub(crate) fn rounded_up(&self, exponent: i64) -> Self {
        if self.exponent >= exponent {
            return self.clone();
        }
        let (kept, _) = self.split(exponent);
        add_one_unit(kept, exponent, self.negative)
    }

    /// Cut towards zero to a multiple of `10^exponent`.
    pub(crate) fn truncated(&self, exponent: i64) -> Self {
        if self.exponent >= exponent {
            return self.clone();
        }
        Self::new(self.negative, self.split(exponent).0.to_vec(), exponent)
    }

    /// The digits above and below the place of `10^exponent`.
    fn split(&self, exponent: i64) -> (&[u8], &[u8]) {
        let dropped = usize::try_from(exponent - self.exponent).unwrap_or(0);
        self.digits.split_at(self.digits.len().saturating_sub(dropped))
    }

    /// Multiplied by a small number.
    pub(crate) fn times(&self, factor: u32) -> Self {
        let mut digits = Vec::with_capacity(self.digits.len() + 10);
        let mut carry = 0;
        for digit in self.digits.iter().rev() {
            let sum = u32::from(*digit) * factor + carry;
            digits.push((sum % 10) as u8);
            carry = sum / 10;
        }
        while carry > 0 {
            digits.push((carry % 10) as u8);
            carry /= 10;
        }
        digits.reverse();
        Self::new(self.negative, digits, self.exponent)
    }

    /// An integer divided by a small number, when that leaves no remainder.
    pub(crate) fn divided_exactly(&self, divisor: u32) -> Option<Self> {
        let mut remainder = 0;
        let mut quotient = Vec::with_capacity(self.digits.len());
        for digit in self.expanded(0)? {
            let value = remainder * 10 + u32::from(digit);
            quotient.push((value / divisor) as u8);
            remainder = value % divisor;
        }
        (remainder == 0).then(|| Self::new(self.negative, quotient, 0))
    }

    /// The number as text without an exponent; only for integers.
    pub(crate) fn integer_text(&self) -> Option<String> {
        if self.is_zero() {
            return Some("0".into());
        }
        let digits = self.expanded(0)?;
        Some(Self { negative: self.negative, digits, exponent: 0 }.text())
    }

    pub(crate) fn to_i64(&self) -> Option<i64> {
        self.integer_text()?.parse().ok()
    }

    /// The digits down to the place of `10^exponent`.
    fn expanded(&self, exponent: i64) -> Option<Vec<u8>> {
        let zeros = self.exponent.checked_sub(exponent)?;
        if zeros < 0 || zeros.checked_add(self.digits.len() as i64)? > MAX_DIGITS {
            return None;
        }
        let mut digits = self.digits.clone();
        digits.resize(digits.len() + zeros as usize, 0);
        Some(digits)
    }

    pub(crate) fn plus(&self, other: &Self) -> Option<Self> {
        if self.is_zero() {
            return Some(other.clone());
        }
        if other.is_zero() {
            return Some(self.clone());
        }
        let exponent = self.exponent.min(other.exponent);
        let (a, b) = (self.expanded(exponent)?, other.expanded(exponent)?);
        if self.negative == other.negative {
            return Some(Self::new(self.negative, add_digits(&a, &b), exponent));
        }
        Some(match self.compare_magnitude(other) {
            Ordering::Less => Self::new(other.negative, subtract_digits(&b, &a), exponent),
            _ => Self::new(self.negative, subtract_digits(&a, &b), exponent),
        })
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.compare_magnitude(other),
            (true, true) => other.compare_magnitude(self),
        }
    }

    /// Normalised digits compare like text once the first digits stand at the same place.
    fn compare_magnitude(&self, other: &Self) -> Ordering {
        let place = |n: &Self| n.digits.len() as i64 + n.exponent;
        match (self.is_zero(), other.is_zero()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => place(self).cmp(&place(other)).then_with(|| self.digits.cmp(&other.digits)),
        }
    }
}

fn add_one_unit(kept: &[u8], exponent: i64, negative: bool) -> Decimal {
    Decimal::new(negative, add_digits(kept, &[1]), exponent)
}

fn add_digits(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut sum = Vec::with_capacity(a.len().max(b.len()) + 1);
    let mut carry = 0;
    for place in 0..a.len().max(b.len()) {
        let value = from_right(a, place) + from_right(b, place) + carry;
        sum.push(value % 10);
        carry = value / 10;
    }
    sum.push(carry);
    sum.reverse();
    sum
}

/// `a - b`, where `a` is not smaller.
fn subtract_digits(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut difference = Vec::with_capacity(a.len());
    let mut borrow = 0;
    for place in 0..a.len() {
        let (upper, lower) = (from_right(a, place), from_right(b, place) + borrow);
        borrow = u8::from(upper < lower);
        difference.push(upper + 10 * borrow - lower);
    }
    difference.reverse();
    difference
}

fn from_right(digits: &[u8], place: usize) -> u8 {
    digits.len().checked_sub(place + 1).map_or(0, |index| digits[index])
}
