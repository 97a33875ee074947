//! Several requests at a time.

use tokio::task::JoinSet;

use crate::error::StoreError;

/// Requests under way at a time for one call.
const REQUESTS_MAX: usize = 16;

/// A part of the work panicked.
#[derive(Debug, thiserror::Error)]
#[error("the work was not finished")]
pub(super) struct Unfinished;

/// Does the work of all items, several at a time, in no order; ends with the first error.
pub(super) async fn side_by_side<I, T, F>(
    mut items: impl Iterator<Item = I>,
    work: impl Fn(I) -> F,
) -> Result<Vec<T>, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let (mut done, mut working) = (Vec::new(), JoinSet::new());
    loop {
        while working.len() < REQUESTS_MAX
            && let Some(item) = items.next()
        {
            working.spawn(work(item));
        }
        match working.join_next().await {
            Some(Ok(result)) => done.push(result?),
            Some(Err(_panicked)) => return Err(StoreError::unknown("do all of it", Unfinished)),
            None => return Ok(done),
        }
    }
}
