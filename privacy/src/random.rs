//! Random bytes of the operating system.

use rand::SeedableRng;
use rand::rngs::StdRng;
use zeroize::Zeroizing;

/// The operating system gives no random bytes: nothing can be sealed safely, so do not start.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the operating system gives no random bytes")]
pub struct NoRandomness(#[source] getrandom::Error);

pub(crate) fn bytes<const N: usize>() -> Result<Zeroizing<[u8; N]>, NoRandomness> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(bytes.as_mut()).map_err(NoRandomness)?;
    Ok(bytes)
}

/// A cryptographic generator that nobody else has the seed of.
pub(crate) fn generator() -> Result<StdRng, NoRandomness> {
    Ok(StdRng::from_seed(*bytes()?))
}
