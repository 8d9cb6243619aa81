//! Room for bodies that have to be read before it is known where they go. Tasks share it: each may take as much as it
//! leaves free, so that there is always some for another, however many requests one of them gets.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// All of it, in bytes.
const ALL: usize = 64 << 20;

/// Room for bodies.
pub(crate) struct Room(Arc<Mutex<State>>);

struct State {
    free: usize,
    /// What each Task has taken, by its UID.
    taken: HashMap<Arc<str>, usize>,
}

/// What a body has taken up, until it is dropped.
pub(crate) struct Taken {
    state: Arc<Mutex<State>>,
    task: Arc<str>,
    size: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room::of(ALL)
    }
}

impl Room {
    fn of(free: usize) -> Room {
        Room(Arc::new(Mutex::new(State { free, taken: HashMap::new() })))
    }

    /// For a body of this Task, which has nothing yet.
    pub(crate) fn begin(&self, task: &Arc<str>) -> Taken {
        Taken { state: self.0.clone(), task: task.clone(), size: 0 }
    }
}

impl Taken {
    /// Makes it that large; false if there is no room for that.
    #[must_use]
    pub(crate) fn grow(&mut self, size: usize) -> bool {
        let more = size.saturating_sub(self.size);
        if more == 0 {
            return true;
        }
        let mut state = self.state.lock();
        let of_task = state.taken.get(&self.task).copied().unwrap_or(0);
        if of_task.saturating_add(more) > state.free.saturating_sub(more) {
            return false;
        }
        state.free -= more;
        state.taken.insert(self.task.clone(), of_task + more);
        self.size = size;
        true
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.size == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.free += self.size;
        if let Some(of_task) = state.taken.get_mut(&self.task) {
            *of_task -= self.size;
            if *of_task == 0 {
                state.taken.remove(&self.task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_leaves_as_much_as_it_takes() {
        let room = Room::of(100);
        let task = |name: &str| room.begin(&name.into());
        let (mut one, mut same, mut two, mut three) = (task("a"), task("a"), task("b"), task("c"));
        assert!(one.grow(30) && same.grow(20), "half of it");
        assert!(!one.grow(31) && !same.grow(21), "and no more, however many bodies there are");
        assert!(two.grow(25) && !two.grow(26), "half of the rest");
        assert!(three.grow(12) && !three.grow(13), "and so on");
        assert!(one.grow(10), "less is always there");
        drop((same, two));
        assert!(one.grow(35));
        drop((one, three));
        let state = room.0.lock();
        assert_eq!((state.free, state.taken.len()), (100, 0));
    }
}
