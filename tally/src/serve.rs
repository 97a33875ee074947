//! Serving HTTP: an accept loop with bounded connections, header deadlines and a graceful end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

use crate::failure::{Exit, Failure};

/// Bounds of one listening service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServeLimits {
    /// Most connections at a time; more wait in the operating system's queue.
    pub(crate) connections: usize,
    /// A connection that has not sent its request's header by then is closed.
    pub(crate) header_deadline: Duration,
    /// A client that takes nothing of its answer for so long is hung up on.
    pub(crate) write_deadline: Duration,
    /// How long open requests may go on after the stop was asked for.
    pub(crate) drain_deadline: Duration,
}

/// Binds an address.
///
/// # Errors
/// Exit 1 with the flag to change, if the address is taken or not ours.
pub(crate) async fn bind(address: &str, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address)
        .await
        .with_context(|| {
            format!("cannot listen on {address}; choose another address with {flag} (port 0 = any)")
        })
        .map_err(|error| Failure { exit: Exit::Failed, error })
}

/// The address that a listener got.
pub(crate) fn local(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    Ok(listener.local_addr()?)
}

/// Serves `router` until `stop` turns true, then lets open requests end. Returns whether all did.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServeLimits,
    mut stop: watch::Receiver<bool>,
) -> bool {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Some((stream, peer, slot)) = accepted else { continue };
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(limits.header_deadline);
        let router = router.clone().layer(Extension(ConnectInfo(peer)));
        let service = TowerToHyperService::new(router);
        // A client that does not read its answers must not keep them in memory.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limits.write_deadline));
        let io = TokioIo::new(Box::pin(stream));
        let connection = graceful.watch(builder.serve_connection(io, service));
        tokio::spawn(async move {
            // A client that goes away or is too slow is its own matter.
            let _client_gone = connection.await;
            drop(slot);
        });
    }
    drop(listener);
    tokio::time::timeout(limits.drain_deadline, graceful.shutdown()).await.is_ok()
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => {
            // Answers are small and whole: waiting for more to send only delays them.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY");
            }
            Some((stream, peer, slot))
        }
        Err(error) => {
            // Out of file descriptors, say: give open connections time to end.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}
