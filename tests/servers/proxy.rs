//! A TCP proxy that breaks connections as tests tell it to: cuts them, lets them hang, loses answers to what was written.
//!
//! Bytes go through unchanged until a fault is set; a fault holds for open and new connections alike.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Fault {
    /// Nothing.
    None,
    /// Connections are closed, new ones at once.
    Cut,
    /// Connections stay open and nothing goes through.
    Hang,
    /// Requests go through; their answers are lost and the connection with them.
    LoseAnswers,
    /// The same for the next answer only; then nothing is wrong any more.
    LoseOne,
}

/// What the bytes that a server sends are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// Answers to commands: every byte belongs to one.
    Plain,
    /// Frames of HTTP/2: an answer ends with the end of its stream, and what keeps the connection going is no answer.
    Http2,
}

/// A running proxy. Dropping it cuts every connection.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    wire: Wire,
    fault: AtomicU8,
    /// What a request holds before which everything hangs.
    hangs_at: Mutex<Option<String>>,
    /// What the requests hold of which one is kept back, and how many of them are let through before it.
    keeps_back: Mutex<Option<(String, u32)>>,
    /// Whether a request is kept back.
    kept_back: AtomicBool,
    lost: AtomicU64,
    /// How late answers come, in microseconds.
    late_micros: AtomicU64,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// How long a pump waits before it looks at the fault again.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The head of an HTTP/2 frame: length (3), type, flags, stream (RFC 9113, 4.1).
const FRAME_HEAD: usize = 9;
const FRAME_DATA: u8 = 0;
const FRAME_HEADERS: u8 = 1;
const FLAG_END_STREAM: u8 = 1;

impl Proxy {
    /// Listens on a free port and connects each caller with the target.
    pub fn start(target: SocketAddr, wire: Wire) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            wire,
            fault: AtomicU8::new(Fault::None as u8),
            hangs_at: Mutex::default(),
            keeps_back: Mutex::default(),
            kept_back: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            late_micros: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for caller in listener.incoming() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                // A caller that cannot be connected is dropped, as a target that is not there would drop it.
                let _ = caller.and_then(|caller| accepting.connect(caller));
            }
        });
        Ok(Self { address, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what goes wrong from now on.
    pub fn set(&self, fault: Fault) {
        self.shared.fault.store(fault as u8, Ordering::SeqCst);
        if fault == Fault::Cut {
            self.shared.cut_all();
        }
    }

    /// Lets everything hang from the first request on that holds a text; that one goes nowhere.
    pub fn hang_at(&self, text: &str) {
        *self.shared.hangs_at.lock().expect("nobody panics with it") = Some(text.to_owned());
    }

    /// Keeps back the request that holds a text, after so many others that hold it, and what follows on its connection.
    pub fn keep_back(&self, text: &str, after: u32) {
        *self.shared.keeps_back.lock().expect("nobody panics with it") = Some((text.to_owned(), after));
    }

    /// Whether a request is kept back.
    pub fn keeps_back(&self) -> bool {
        self.shared.kept_back.load(Ordering::SeqCst)
    }

    /// Lets the request go on that is kept back.
    pub fn let_go(&self) {
        self.shared.kept_back.store(false, Ordering::SeqCst);
    }

    /// Lets every answer come so late from now on.
    pub fn delay_answers(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.shared.late_micros.store(micros, Ordering::SeqCst);
    }

    /// Whether everything hangs.
    pub fn hangs(&self) -> bool {
        self.shared.has(Fault::Hang)
    }

    /// Leads new connections to another target, as an address does behind which a server was restarted.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock().expect("nobody panics with it") = target;
    }

    /// Cuts what is open; new connections are taken.
    pub fn cut_open_connections(&self) {
        self.shared.cut_all();
    }

    /// How many answers were lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.cut_all();
        // Wakes the thread that accepts, so that it sees the end; it may be gone already.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn has(&self, fault: Fault) -> bool {
        self.fault.load(Ordering::SeqCst) == fault as u8
    }

    fn hangs_before(&self, request: &[u8]) -> bool {
        let text = self.hangs_at.lock().expect("nobody panics with it");
        text.as_deref().is_some_and(|text| holds(request, text))
    }

    /// Waits with a request as long as it is to be kept back.
    fn keep_back(&self, request: &[u8]) {
        {
            let mut kept = self.keeps_back.lock().expect("nobody panics with it");
            match &mut *kept {
                Some((text, before)) if holds(request, text) && *before > 0 => return *before -= 1,
                Some((text, _)) if holds(request, text) => *kept = None,
                Some(_) | None => return,
            }
            self.kept_back.store(true, Ordering::SeqCst);
        }
        while self.kept_back.load(Ordering::SeqCst) && !self.ended.load(Ordering::SeqCst) {
            thread::park_timeout(LOOK_EVERY);
        }
    }

    fn cut_all(&self) {
        for stream in self.open.lock().expect("no pump panics").drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn connect(self: &Arc<Self>, caller: TcpStream) -> io::Result<()> {
        if self.has(Fault::Cut) {
            return caller.shutdown(Shutdown::Both);
        }
        let target = *self.target.lock().expect("nobody panics with it");
        let target = TcpStream::connect(target)?;
        for stream in [&caller, &target] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LOOK_EVERY))?;
            self.open.lock().expect("no pump panics").push(stream.try_clone()?);
        }
        let (requests, answers) = ((caller.try_clone()?, target.try_clone()?), (target, caller));
        let (forth, back) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || forth.pump(requests, Direction::Requests));
        thread::spawn(move || back.pump(answers, Direction::Answers));
        Ok(())
    }

    fn pump(&self, (mut from, mut to): (TcpStream, TcpStream), direction: Direction) {
        let mut frames = Frames::default();
        let mut chunk = vec![0; 64 * 1024];
        // Either side closes, a write fails, or the pump cuts the connection itself: then it ends both.
        while let Some(read) = self.next(&mut from, &mut chunk) {
            if direction == Direction::Requests && self.hangs_before(&chunk[..read]) {
                self.fault.store(Fault::Hang as u8, Ordering::SeqCst);
                continue;
            }
            match direction {
                Direction::Requests => self.keep_back(&chunk[..read]),
                Direction::Answers => self.be_late(),
            }
            let loses = self.has(Fault::LoseAnswers) || self.has(Fault::LoseOne);
            let loses = loses && direction == Direction::Answers;
            let (kept, answers) = match self.wire {
                Wire::Plain if loses => (Vec::new(), 1),
                Wire::Plain => (chunk[..read].to_vec(), 0),
                Wire::Http2 if direction == Direction::Answers => frames.take(&chunk[..read], loses),
                Wire::Http2 => (chunk[..read].to_vec(), 0),
            };
            if answers > 0 {
                self.lost.fetch_add(answers, Ordering::SeqCst);
                let (one, none) = (Fault::LoseOne as u8, Fault::None as u8);
                // Another fault may be set meanwhile: it stays.
                let _ = self.fault.compare_exchange(one, none, Ordering::SeqCst, Ordering::SeqCst);
            }
            if answers > 0 || to.write_all(&kept).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn be_late(&self) {
        let until = Instant::now() + Duration::from_micros(self.late_micros.load(Ordering::SeqCst));
        while Instant::now() < until && !self.ended.load(Ordering::SeqCst) {
            thread::park_timeout(LOOK_EVERY);
        }
    }

    /// Waits for bytes; none at the end. While it hangs, nothing is read.
    fn next(&self, from: &mut TcpStream, chunk: &mut [u8]) -> Option<usize> {
        loop {
            if self.ended.load(Ordering::SeqCst) {
                return None;
            }
            if self.has(Fault::Hang) {
                thread::park_timeout(LOOK_EVERY);
                continue;
            }
            match from.read(chunk) {
                Ok(0) => return None,
                Ok(read) => return Some(read),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(_) => return None,
            }
        }
    }
}

fn holds(request: &[u8], text: &str) -> bool {
    request.windows(text.len()).any(|part| part == text.as_bytes())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Answers,
}

/// The frames of an HTTP/2 server, as far as they have come.
#[derive(Default)]
struct Frames {
    begun: Vec<u8>,
}

impl Frames {
    /// Takes bytes in and answers the whole frames that go through, and how many answers were lost.
    fn take(&mut self, bytes: &[u8], loses: bool) -> (Vec<u8>, u64) {
        self.begun.extend_from_slice(bytes);
        let (mut kept, mut answers) = (Vec::new(), 0);
        while self.begun.len() >= FRAME_HEAD {
            let length = u32::from_be_bytes([0, self.begun[0], self.begun[1], self.begun[2]]) as usize + FRAME_HEAD;
            if self.begun.len() < length {
                break;
            }
            let frame: Vec<u8> = self.begun.drain(..length).collect();
            let is_answer = loses && [FRAME_DATA, FRAME_HEADERS].contains(&frame[3]);
            answers += u64::from(is_answer && frame[4] & FLAG_END_STREAM != 0);
            if !is_answer {
                kept.extend(frame);
            }
        }
        (kept, answers)
    }
}
