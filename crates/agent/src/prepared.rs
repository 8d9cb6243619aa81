//! Sandboxes that are made before anybody has asked for them: all but their programs. They take no slot, give way to
//! runs, and are made one at a time, when nothing else starts.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use agentcube_protos::agent::{Reason, Shape as Wire};
use agentcube_protos::session::Egress;
use agentcube_runtime::native::Native;
use agentcube_runtime::spec::User;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::Inner;
use crate::describe::{self, Place, Shape, Wanted};
use crate::images::Loaded;
use crate::network::Identity;
use crate::place;
use crate::start::{self, Failure};

/// So long nothing may have started before another one is made: a burst has the machine for itself.
const QUIET: Duration = Duration::from_millis(50);
/// Pauses after one that could not be made.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const MOST_SHAPES: usize = 16;

/// One that waits to be told what to run.
pub(crate) struct Waiting {
    pub(crate) place: Place,
    pub(crate) image: Arc<Loaded>,
    pub(crate) home: String,
    uid: u32,
}

#[derive(Default)]
pub(crate) struct Prepared {
    pool: Mutex<Pool>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Pool {
    /// As the controller has written them, and how we read them.
    wanted: Vec<(Wire, Shape)>,
    waiting: HashMap<Shape, Vec<Waiting>>,
    last_start: Option<Instant>,
    number: u64,
}

/// What is to be done next about what waits.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Make(Shape),
    GiveUp(Shape),
    Nothing,
}

/// Pure: how many are wanted and wait of each shape, in the order of their importance.
fn next(counts: &[(Shape, u32, u32)], used: u32, capacity: u32) -> Next {
    let waiting: u32 = counts.iter().map(|(_, _, waiting)| waiting).sum();
    let too_many = counts.iter().find(|(_, wanted, waiting)| waiting > wanted);
    if let Some((shape, ..)) = too_many {
        return Next::GiveUp(shape.clone());
    }
    if waiting > 0 && used.saturating_add(waiting) > capacity {
        let least = counts.iter().rev().find(|(_, _, waiting)| *waiting > 0);
        return least.map_or(Next::Nothing, |(shape, ..)| Next::GiveUp(shape.clone()));
    }
    if used.saturating_add(waiting) >= capacity {
        return Next::Nothing;
    }
    let lacking = counts.iter().find(|(_, wanted, waiting)| waiting < wanted);
    lacking.map_or(Next::Nothing, |(shape, ..)| Next::Make(shape.clone()))
}

impl Pool {
    /// What is not wanted any more comes last.
    fn counts(&self) -> Vec<(Shape, u32, u32)> {
        let waiting = |shape: &Shape| self.waiting.get(shape).map_or(0, |list| list.len() as u32);
        let mut counts: Vec<_> =
            self.wanted.iter().map(|(wire, shape)| (shape.clone(), wire.count, waiting(shape))).collect();
        let others =
            self.waiting.iter().filter(|(shape, _)| !self.wanted.iter().any(|(_, known)| known == *shape));
        counts.extend(others.map(|(shape, list)| (shape.clone(), 0, list.len() as u32)));
        counts
    }

    fn pop(&mut self, shape: &Shape) -> Option<Waiting> {
        let list = self.waiting.get_mut(shape)?;
        let waiting = list.pop();
        if list.is_empty() {
            self.waiting.remove(shape);
        }
        waiting
    }
}

impl Prepared {
    /// What to keep ready from now on.
    pub(crate) fn want(&self, shapes: Vec<Wire>) {
        let mut wanted: Vec<(Wire, Shape)> = Vec::new();
        for wire in shapes.into_iter().take(MOST_SHAPES) {
            match Shape::read(&wire) {
                Ok(shape) if wanted.iter().all(|(_, known)| *known != shape) => wanted.push((wire, shape)),
                Ok(_) => {}
                Err(message) => tracing::warn!(image = wire.image, "cannot be kept ready: {message}"),
            }
        }
        let mut pool = self.pool.lock();
        pool.wanted = wanted;
        drop(pool);
        self.changed.notify_one();
    }

    /// Something starts, or has ended.
    pub(crate) fn stir(&self, starts: bool) {
        let mut pool = self.pool.lock();
        if starts {
            pool.last_start = Some(Instant::now());
        }
        let any = !pool.wanted.is_empty() || !pool.waiting.is_empty();
        drop(pool);
        if any {
            self.changed.notify_one();
        }
    }

    /// One that an order fits.
    pub(crate) fn take(&self, wanted: &Wanted) -> Option<Waiting> {
        let mut pool = self.pool.lock();
        let first = pool.waiting.get(&wanted.shape)?.last()?;
        // Files are written by the program's own user, and into what is there already.
        let writable = first.uid == 0 && !wanted.shape.read_only_root;
        if !wanted.files.is_empty() && !writable {
            return None;
        }
        let taken = pool.pop(&wanted.shape);
        drop(pool);
        // There is one less now, which was not so yet when the start was told.
        self.changed.notify_one();
        taken
    }

    /// What waits now, in the words of the controller.
    pub(crate) fn view(&self) -> Vec<Wire> {
        let pool = self.pool.lock();
        let counts = pool.counts().into_iter().zip(&pool.wanted);
        counts.map(|((_, _, waiting), (wire, _))| Wire { count: waiting, ..wire.clone() }).collect()
    }

    fn drain(&self) -> Vec<Waiting> {
        let mut pool = self.pool.lock();
        pool.wanted.clear();
        pool.waiting.drain().flat_map(|(_, list)| list).collect()
    }
}

/// Keeps as many ready as are wanted, until the agent ends.
pub(crate) async fn run(weak: Weak<Inner>, native: Native, closing: CancellationToken) {
    let Some(changed) = weak.upgrade().map(|inner| inner.prepared.changed.clone()) else { return };
    let mut pause = Duration::ZERO;
    loop {
        let Some(inner) = weak.upgrade() else { return };
        if closing.is_cancelled() {
            return;
        }
        let wait = match work(&inner, &native).await {
            Ok(wait) => {
                pause = Duration::ZERO;
                wait
            }
            Err(failure) => {
                pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                tracing::warn!("a sandbox could not be prepared: {}", failure.message);
                Some(pause)
            }
        };
        drop(inner);
        tokio::select! {
            () = closing.cancelled() => return,
            () = changed.notified(), if pause.is_zero() => {}
            () = sleep(wait) => {}
        }
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

/// Does one thing; how long to wait before the next, if not for news.
async fn work(inner: &Arc<Inner>, native: &Native) -> Result<Option<Duration>, Failure> {
    let (used, capacity) = inner.read(|state| (state.table.used(), state.table.capacity()));
    let (next, quiet) = {
        let pool = inner.prepared.pool.lock();
        let since = pool.last_start.map_or(QUIET, |last| last.elapsed());
        (next(&pool.counts(), used, capacity), QUIET.saturating_sub(since))
    };
    match next {
        Next::Nothing => Ok(None),
        Next::GiveUp(shape) => {
            let waiting = inner.prepared.pool.lock().pop(&shape);
            if let Some(waiting) = waiting {
                start::remove(inner, &waiting.place).await;
            }
            Ok(Some(Duration::ZERO))
        }
        Next::Make(_) if !quiet.is_zero() => Ok(Some(quiet)),
        Next::Make(shape) => {
            make(inner, native, shape).await?;
            Ok(Some(Duration::ZERO))
        }
    }
}

async fn make(inner: &Arc<Inner>, native: &Native, shape: Shape) -> Result<(), Failure> {
    let image = tokio::select! {
        image = inner.images.get(&shape.image) => image,
        () = inner.closing.cancelled() => return Ok(()),
    };
    let image = image.map_err(|message| Failure::new(Reason::Image, message))?;
    let (user, home) =
        describe::user(shape.user, &image).map_err(|message| Failure::new(Reason::Invalid, message))?;
    let number = {
        let mut pool = inner.prepared.pool.lock();
        pool.number += 1;
        pool.number
    };
    // A dot, which no run has in its id; and agents of one node share its spawner.
    let id = format!("prepared.{}.{number}", inner.incarnation);
    let place = inner.place(&id).map_err(|error| start::failed(&error))?;
    let uid = user.uid;
    if let Err(failure) = stand(inner, native, &shape, &place, &image, user).await {
        start::remove(inner, &place).await;
        return Err(failure);
    }
    let waiting = Waiting { place, image, home, uid };
    let late = {
        let mut pool = inner.prepared.pool.lock();
        if inner.closing.is_cancelled() {
            Some(waiting)
        } else {
            pool.waiting.entry(shape).or_default().push(waiting);
            None
        }
    };
    match late {
        Some(late) => start::remove(inner, &late.place).await,
        None => inner.update(|state| state.table.news()),
    }
    Ok(())
}

async fn stand(
    inner: &Arc<Inner>,
    native: &Native,
    shape: &Shape,
    place: &Place,
    image: &Loaded,
    user: User,
) -> Result<(), Failure> {
    let who = Identity {
        namespace: inner.options.namespace.clone(),
        name: "prepared".into(),
        egress: Egress::Closed,
        ..Identity::default()
    };
    let attached = inner.parts.network.attach(&place.sandbox, who.clone(), &[]).await;
    let attached = attached.map_err(|error| Failure::new(Reason::StartFailed, error.to_string()))?;
    let spec = describe::container(shape, place, image, user.clone(), &inner.options);
    let (made, stock, tmp) = (place.clone(), inner.stock.clone(), shape.read_only_root);
    start::blocking(move || {
        stock.take(&made.directory);
        place::make(&made, tmp, &[], &user)?;
        place::write_names(&made, &who, &attached)
    })
    .await?;
    native.prepare(spec).await.map_err(|error| start::failed(&error))
}

/// Gives up all that wait.
pub(crate) async fn end(inner: &Inner) {
    for waiting in inner.prepared.drain() {
        start::remove(inner, &waiting.place).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(image: &str) -> Shape {
        Shape {
            image: image.into(),
            memory_bytes: None,
            cpu_millis: None,
            read_only_root: false,
            egress: Egress::Closed,
            user: None,
        }
    }

    #[test]
    fn gives_way_and_fills_up() {
        let (a, b) = (|| shape("a"), || shape("b"));
        let (make, give_up) = (|name: &str| Next::Make(shape(name)), |name: &str| Next::GiveUp(shape(name)));
        let table = [
            (vec![], 0, 5, Next::Nothing),
            (vec![(a(), 2, 0)], 0, 5, make("a")),
            (vec![(a(), 2, 2), (b(), 1, 0)], 0, 5, make("b")),
            (vec![(a(), 2, 2), (b(), 1, 1)], 0, 5, Next::Nothing),
            (vec![(a(), 2, 1)], 4, 5, Next::Nothing),
            (vec![(a(), 2, 2), (b(), 1, 1)], 3, 5, give_up("b")),
            (vec![(a(), 2, 2), (b(), 1, 0)], 4, 5, give_up("a")),
            (vec![(a(), 2, 1)], 9, 5, give_up("a")),
            (vec![(a(), 2, 0)], 9, 5, Next::Nothing),
            (vec![(a(), 1, 0), (b(), 0, 1)], 0, 5, give_up("b")),
            (vec![(a(), u32::MAX, 4)], 0, 5, make("a")),
            (vec![(a(), u32::MAX, 5)], 0, 5, Next::Nothing),
        ];
        for (counts, used, capacity, expected) in table {
            assert_eq!(next(&counts, used, capacity), expected, "{counts:?} {used} of {capacity}");
        }
    }

    proptest::proptest! {
        /// Doing what is next comes to an end, with no more than fit and none that is not wanted.
        #[test]
        fn settles(wanted in proptest::collection::vec((0_u32..6, 0_u32..6), 0..4), used in 0_u32..12, capacity in 0_u32..12) {
            let name = |number: usize| shape(&number.to_string());
            let mut counts: Vec<_> =
                wanted.iter().enumerate().map(|(number, (want, have))| (name(number), *want, *have)).collect();
            let mut steps = 0;
            loop {
                let (shape, make) = match next(&counts, used, capacity) {
                    Next::Make(shape) => (shape, true),
                    Next::GiveUp(shape) => (shape, false),
                    Next::Nothing => break,
                };
                let one = counts.iter_mut().find(|(known, ..)| *known == shape).expect("a known shape");
                one.2 = if make { one.2 + 1 } else { one.2 - 1 };
                steps += 1;
                proptest::prop_assert!(steps < 100, "it never ends");
            }
            let waiting: u32 = counts.iter().map(|(_, _, waiting)| waiting).sum();
            proptest::prop_assert!(counts.iter().all(|(_, wanted, waiting)| waiting <= wanted));
            proptest::prop_assert!(waiting == 0 || used + waiting <= capacity);
            let lacks = counts.iter().any(|(_, wanted, waiting)| waiting < wanted);
            proptest::prop_assert!(!lacks || used + waiting >= capacity);
        }
    }
}
