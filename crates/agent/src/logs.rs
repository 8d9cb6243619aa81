//! What a run printed.

use agentcube_protos::agent::LogsRequest;
use agentcube_protos::link::Answers;
use agentcube_protos::session::LogChunk;
use agentcube_runtime::logs::Selection;
use futures_util::{StreamExt, stream};
use tonic::Status;

use crate::agent::Inner;
use crate::{limits, start};

/// Chunks of a run's log, as long as the run is in the inventory.
pub(crate) fn read(inner: &Inner, request: &LogsRequest) -> Result<Answers<LogChunk>, Status> {
    limits::run_id(&request.run_id).map_err(Status::invalid_argument)?;
    if !inner.read(|state| state.runs.contains_key(&request.run_id)) {
        return Err(Status::not_found(format!("there is no run {}", request.run_id)));
    }
    let options = request.options.unwrap_or_default();
    let since = Some(options.since_unix_ms).filter(|since| *since > 0);
    let selection = Selection {
        follow: options.follow,
        timestamps: options.timestamps,
        tail_lines: options.tail.map(u64::from),
        limit_bytes: Some(options.limit_bytes).filter(|limit| *limit > 0),
        since: since.map(|since| jiff::Timestamp::from_millisecond(since).unwrap_or(jiff::Timestamp::MAX)),
    };
    let chunks = inner.logs.read(&start::log(&request.run_id), selection);
    let chunks = stream::unfold(chunks, |mut chunks| async move {
        let chunk = chunks.recv().await?;
        Some((Ok(LogChunk { content: chunk.to_vec() }), chunks))
    });
    Ok(chunks.boxed())
}
