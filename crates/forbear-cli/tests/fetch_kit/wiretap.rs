//! A server that keeps every request head as it came, and answers with bytes: for what no limiter looks at.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// It listens until it is dropped. Each connection carries one request.
pub(crate) struct Wiretap {
    addr: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Wiretap {
    /// Listens on a free port of `ip`; `answer` gets the head of each request and writes to its connection.
    pub(crate) fn start(
        ip: [u8; 4],
        answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Wiretap {
        let listener = TcpListener::bind((IpAddr::from(ip), 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let (heads, stop) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let (kept, stopped, answer) = (heads.clone(), stop.clone(), Arc::new(answer));
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let (kept, answer) = (kept.clone(), answer.clone());
                std::thread::spawn(move || {
                    let Some(head) = read_head(&mut stream) else { return };
                    kept.lock().unwrap().push(head.clone());
                    let _ = answer(&head, &mut stream); // the client may leave when it likes
                });
            }
        });
        Wiretap { addr, heads, stop, listening: Some(listening) }
    }

    /// The URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The heads so far, as they came.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Wiretap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.addr); // wakes it
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

/// A whole answer with this head (no line end at its end) and body; the connection closes after it.
pub(crate) fn say(stream: &mut TcpStream, head: &str, body: &[u8]) -> std::io::Result<()> {
    let length = body.len();
    write!(stream, "{head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(body)
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 64 * 1024 {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}
