//! A broker as seen over a bad network: a proxy that can hold requests back or cut all connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// The API key of a produce request.
const PRODUCE: [u8; 2] = [0, 0];

#[derive(Default)]
struct State {
    holds_appends: bool,
    is_cut: bool,
    is_over: bool,
    connections: Vec<TcpStream>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Listens at a port of its own, and puts that port in place of the broker's into every answer.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// A proxy in front of the broker.
    pub(crate) fn new(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for client in listener.incoming() {
                    let mut state = shared.state.lock().unwrap();
                    if state.is_over {
                        return;
                    }
                    let (Ok(client), false) = (client, state.is_cut) else { continue };
                    let Ok(server) = TcpStream::connect(broker) else { continue };
                    let copies = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                    state.connections.extend(copies);
                    let copies = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    let from_client = Arc::clone(&shared);
                    thread::spawn(move || pass_requests(client, server, &from_client));
                    thread::spawn(move || pass_answers(copies.1, copies.0, broker, address));
                }
            }
        });
        Self { address, shared }
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Keeps produce requests from the broker, or lets all go.
    pub(crate) fn hold(&self, is_held: bool) {
        self.shared.state.lock().unwrap().holds_appends = is_held;
        self.shared.changed.notify_all();
    }

    /// Ends all connections and takes no more, until it is told otherwise.
    pub(crate) fn cut(&self, is_cut: bool) {
        let mut state = self.shared.state.lock().unwrap();
        state.is_cut = is_cut;
        for connection in state.connections.drain(..) {
            // The other side may have ended it before.
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.hold(false);
        self.cut(true);
        self.shared.state.lock().unwrap().is_over = true;
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
    }
}

fn pass_requests(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    while let Some(frame) = read_frame(&mut from) {
        if frame.get(4..6) == Some(&PRODUCE) {
            let state = shared.state.lock().unwrap();
            drop(shared.changed.wait_while(state, |state| state.holds_appends).unwrap());
        }
        if to.write_all(&frame).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}

fn pass_answers(mut from: TcpStream, mut to: TcpStream, broker: SocketAddr, own: SocketAddr) {
    let place = |address: SocketAddr| {
        let port = i32::from(address.port()).to_be_bytes();
        [address.ip().to_string().as_bytes(), &port].concat()
    };
    let (theirs, ours) = (place(broker), place(own));
    while let Some(mut frame) = read_frame(&mut from) {
        // Addresses stand in short answers; records are none of this proxy's business.
        for start in 0..frame.len().min(10_000) {
            let end = start + theirs.len();
            if frame.get(start..end) == Some(&theirs) {
                frame[start..end].copy_from_slice(&ours);
            }
        }
        if to.write_all(&frame).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}

/// A request or an answer with its length in front.
fn read_frame(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let mut frame = length.to_vec();
    frame.resize(4 + usize::try_from(u32::from_be_bytes(length)).unwrap(), 0);
    from.read_exact(&mut frame[4..]).ok()?;
    Some(frame)
}
