//! What series are about, and may go away: a Task, say. What is asked for after that is counted, but shown nowhere, so that
//! whoever is late does not bring back the series of what is gone.

use parking_lot::Mutex;

use super::{Family, Series};

/// What the first labels of some families name.
#[derive(Debug)]
pub struct Subject {
    values: Box<[Box<str>]>,
    /// Held while a series is made, or all are forgotten.
    gone: Mutex<bool>,
}

impl Subject {
    pub fn new(values: &[&str]) -> Subject {
        Subject { values: values.iter().map(|value| (*value).into()).collect(), gone: Mutex::new(false) }
    }

    /// The series about it, with these values of the other labels. To be kept by whoever is hot.
    pub fn of<S: Series>(&self, family: &Family<S>, rest: &[&str]) -> S {
        let gone = self.gone.lock();
        if *gone {
            return family.unseen();
        }
        let all: Vec<&str> = self.values.iter().map(|value| &**value).chain(rest.iter().copied()).collect();
        family.with(&all)
    }

    /// It is gone: `forget` is given the values by which its series are to be [forgotten](Family::forget).
    pub fn forget(&self, forget: impl FnOnce(&[&str])) {
        let mut gone = self.gone.lock();
        *gone = true;
        let values: Vec<&str> = self.values.iter().map(|value| &**value).collect();
        forget(&values);
    }
}
