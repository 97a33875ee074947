//! A proxy between the driver and the server that can lose answers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The bytes of a CQL frame's header: version, flags, stream (2), opcode, length (4).
const HEADER: usize = 9;
const BATCH: u8 = 0x0d;

/// What happens to the connection of a conditional write.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The next writes reach the server, and their answers do not come back.
    pub(crate) lose_answers: AtomicU32,
    /// The next writes do not reach the server.
    pub(crate) lose_requests: AtomicU32,
    /// Writes that were cut off.
    pub(crate) cut: AtomicU32,
}

/// A proxy on a port of its own.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) plan: Arc<Plan>,
    pub(crate) address: String,
    ended: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let (plan, ended) = (Arc::new(Plan::default()), Arc::new(AtomicBool::new(false)));
        let (to_serve, until) = (Arc::clone(&plan), Arc::clone(&ended));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if until.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(server) = TcpStream::connect(&server) else { continue };
                serve(client, server, &to_serve);
            }
        });
        Self { plan, address, ended }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        drop(TcpStream::connect(&self.address));
    }
}

fn serve(client: TcpStream, server: TcpStream, plan: &Arc<Plan>) {
    let plan = Arc::clone(plan);
    let deaf = Arc::new(AtomicBool::new(false));
    let (mut from_client, mut to_server) =
        (client.try_clone().expect("open"), server.try_clone().expect("open"));
    let (mut from_server, mut to_client) = (server, client);
    let is_deaf = Arc::clone(&deaf);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_server.read(&mut buffer) {
            if is_deaf.load(Ordering::SeqCst) {
                break;
            }
            if to_client.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        drop(to_client.shutdown(Shutdown::Both));
        drop(from_server.shutdown(Shutdown::Both));
    });
    std::thread::spawn(move || {
        while let Some(frame) = frame(&mut from_client) {
            if is_write(&frame) {
                if take(&plan.lose_requests) {
                    plan.cut.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                if take(&plan.lose_answers) {
                    plan.cut.fetch_add(1, Ordering::SeqCst);
                    deaf.store(true, Ordering::SeqCst);
                }
            }
            if to_server.write_all(&frame).is_err() {
                break;
            }
        }
        if deaf.load(Ordering::SeqCst) {
            // The other direction closes both once the lost answer has come.
            return;
        }
        drop(to_server.shutdown(Shutdown::Both));
        drop(from_client.shutdown(Shutdown::Both));
    });
}

/// Takes one of what is left.
fn take(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn frame(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; HEADER];
    from.read_exact(&mut frame).ok()?;
    let length = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
    let length = usize::try_from(length).ok()?;
    frame.resize(HEADER + length, 0);
    from.read_exact(&mut frame[HEADER..]).ok()?;
    Some(frame)
}

/// Whether a frame is a batch; puts of rows are, and nothing else that this store sends.
fn is_write(frame: &[u8]) -> bool {
    frame[4] == BATCH
}
