//! Starts instances for those who wait: creates Pods or Sandboxes in the slots that a pool names, or raises the parallelism of a
//! Job. What is started is not given back when nobody waits any more: it becomes idle.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::index::Source;
use super::tasks::TaskView;
use super::waiting::{PoolKey, TaskPool};
use super::writes::Failure;

/// How many instances are created at a time.
const AT_A_TIME: usize = 64;
const JOB_RETRIES: u32 = 5;

impl Shared {
    /// Looks after the pools that need it, for as long as it is polled.
    pub(super) async fn look_after_pools(self: &Arc<Self>) {
        let mut later: HashMap<PoolKey, Duration> = HashMap::new();
        loop {
            let next = later.values().min().copied();
            let timer = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            let mut keys = tokio::select! {
                keys = self.pools.pokes.wait() => keys,
                () = timer => Default::default(),
            };
            let now = self.clock.now();
            keys.extend(later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()));
            for key in keys {
                later.remove(&key);
                if let Some(at) = self.look_after(&key) {
                    // Never in a circle: whatever is due now was just done.
                    later.insert(key, at.max(now + Duration::from_millis(10)));
                }
            }
        }
    }

    /// Starts what a pool needs; when to look again.
    fn look_after(self: &Arc<Self>, key: &PoolKey) -> Option<Duration> {
        let pool = self.pools.get(key)?;
        let view = self.tasks.by_uid(&key.uid).filter(|view| PoolKey::of(&view.id) == *key)?;
        let (rank, routers) = self.routers.rank(self.clock.now(), self.timing.silent);
        let (slots, again) = pool.starts(rank, routers);
        if view.by_job() {
            let now = self.clock.now();
            let wanted = pool.look(|pool| pool.waiting() > 0 && !pool.rests(now));
            if wanted && self.scaling.lock().insert(key.clone()) {
                tokio::spawn(self.clone().scale(pool, view));
            }
            return again;
        }
        for slot in slots {
            tokio::spawn(self.clone().start(pool.clone(), view.clone(), slot));
        }
        again
    }

    /// Creates an instance in a slot.
    async fn start(self: Arc<Self>, pool: Arc<TaskPool>, view: Arc<TaskView>, slot: u32) {
        let _permit = self.starts.acquire().await;
        let outcome = self.create(&pool, &view, slot).await;
        let now = self.clock.now();
        if let Err(failure) = &outcome {
            let trouble = format!("starting an instance failed: {failure}");
            tracing::warn!(task = %view.id, slot, "{trouble}");
            pool.set_trouble(Some(trouble));
        } else {
            pool.set_trouble(None);
        }
        pool.with(|pool| {
            if outcome.is_err() {
                pool.start_failed(now);
            }
            pool.created(slot);
        });
    }

    async fn create(&self, pool: &TaskPool, view: &TaskView, slot: u32) -> Result<(), Failure> {
        let Some(revision) = self.tasks.revision(view) else {
            let spec = view.spec.as_ref().map(|spec| spec.0.to_string()).unwrap_or_default();
            return Err(Failure::Refused(format!("there is no PodTemplate {spec} yet")));
        };
        let body = revision.instance(slot, Some(&self.me));
        let (kind, name) = (body.kind(), body.name());
        match self.writes.create_instance(&body).await {
            Ok(body) => {
                self.counts.started();
                self.learn_instance(body, Source::Write(self.clock.now()));
                return Ok(());
            }
            Err(Failure::Conflict) => {}
            // It may have been created: the name tells.
            Err(failure @ Failure::Unclear(_)) => {
                if self.writes.read_instance(kind, &view.id.namespace, &name).await?.is_none() {
                    return Err(failure);
                }
            }
            Err(failure) => return Err(failure),
        }
        let read = self.writes.read_instance(kind, &view.id.namespace, &name).await?;
        let Some(body) = read else { return Ok(()) };
        match body.instance() {
            Some(instance) if instance.task_uid == view.id.uid => self.learn_instance(body, Source::Read),
            _ => {
                let kind = kind.as_str();
                tracing::warn!(task = %view.id, kind, name, "what is not the Task's has the name of its slot");
                pool.with(|pool| pool.block(slot, self.clock.now()));
            }
        }
        Ok(())
    }

    /// Raises the parallelism of a Job for those who wait.
    async fn scale(self: Arc<Self>, pool: Arc<TaskPool>, view: Arc<TaskView>) {
        let outcome = self.raise(&pool, &view).await;
        self.scaling.lock().remove(&pool.key);
        match outcome {
            Ok(()) => pool.set_trouble(None),
            Err(failure) => {
                let trouble = format!("scaling the Job failed: {failure}");
                tracing::warn!(task = %view.id, "{trouble}");
                pool.set_trouble(Some(trouble));
                let now = self.clock.now();
                pool.with(|pool| pool.start_failed(now));
            }
        }
    }

    async fn raise(&self, pool: &TaskPool, view: &TaskView) -> Result<(), Failure> {
        let Some(spec) = &view.spec else { return Ok(()) };
        for _ in 0..JOB_RETRIES {
            let Some(job) = self.writes.read_job(&view.id.namespace, &spec.0).await? else {
                return Err(Failure::Refused(format!("there is no Job {spec} yet")));
            };
            let current = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
            let wanted = pool.look(|pool| pool.parallelism(u32::try_from(current).unwrap_or(0)));
            let Some(wanted) = wanted else { return Ok(()) };
            match self.writes.scale_job(&job, wanted).await {
                Ok(_) => {
                    self.counts.started();
                    return Ok(());
                }
                Err(Failure::Conflict | Failure::Unclear(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Conflict)
    }

    pub(super) fn starts_at_a_time() -> tokio::sync::Semaphore {
        tokio::sync::Semaphore::new(AT_A_TIME)
    }
}
