//! One command over a plain connection, so that what a test looks at does not pass through what it tests.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may take to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// Sends a command to a server without a password.
#[allow(dead_code, reason = "not every test binary asks a server that it did not start by itself")]
pub fn ask(address: SocketAddr, words: &[&str]) -> Result<String, String> {
    send(address, None, words)
}

/// Sends a command, after the log-in. Answers the text that `redis-cli` prints to a pipe.
pub fn send(address: SocketAddr, password: Option<&str>, words: &[&str]) -> Result<String, String> {
    let said = |error: io::Error| format!("no answer of {address}: {error}");
    let mut connection = TcpStream::connect(address).map_err(said)?;
    connection.set_read_timeout(Some(ANSWERED_WITHIN)).map_err(said)?;
    let mut answers = BufReader::new(connection.try_clone().map_err(said)?);
    if let Some(password) = password {
        connection.write_all(&request(&["AUTH", password])).map_err(said)?;
        read(&mut answers).map_err(said)??;
    }
    connection.write_all(&request(words)).map_err(said)?;
    read(&mut answers).map_err(said)?
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

/// Reads one answer. The parts of a list are lines; an error inside a list is one of its lines.
fn read(from: &mut impl BufRead) -> io::Result<Result<String, String>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let (kind, rest) = line.trim_end().split_at(1);
    let count = || rest.parse::<i64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    match kind {
        "+" | ":" => Ok(Ok(rest.to_owned())),
        "-" => Ok(Err(rest.to_owned())),
        "$" => {
            let Ok(length) = usize::try_from(count()?) else { return Ok(Ok(String::new())) };
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(Ok(String::from_utf8_lossy(&bytes).into_owned()))
        }
        "*" => {
            let parts: io::Result<Vec<String>> =
                (0..count()?).map(|_| Ok(read(from)?.unwrap_or_else(|error| error))).collect();
            Ok(Ok(parts?.join("\n")))
        }
        _ => Err(io::ErrorKind::InvalidData.into()), // no other kind before the connection asks for a newer protocol
    }
}
