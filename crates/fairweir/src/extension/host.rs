//! The program that a browser starts for its extension: it forwards the extension's messages to the
//! daemon as requests, and returns the replies.
//!
//! Each message is preceded by its length, 32 bits in the machine's byte order. The extension sends
//! a message and waits for the reply; it gets no other messages. Names, addresses and times are not
//! kept. Source: <https://developer.chrome.com/docs/extensions/develop/concepts/native-messaging>.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use fairweir_daemon::{Access, Client, Error, instances, web_dir};
use serde_json::{Value, json};

use crate::host::wire::{ClaimsReply, ClaimsRequest, HostRequest};
use crate::words::chained;

/// The longest message, in bytes; the extension never sends a longer one.
const MESSAGE_MAX: u32 = 64 << 10;

/// How long to wait for a daemon's reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves the extension until the browser closes stdin.
///
/// # Errors
/// If the browser sends what no extension of fairweir sends, or stops reading.
pub(super) fn run(run_dir: &Path) -> anyhow::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut daemon = None;
    while let Some(message) = read(&mut input)? {
        let reply = match serde_json::from_slice::<ClaimsRequest>(&message) {
            Ok(request) => ask(&mut daemon, run_dir, request),
            Err(e) => json!({ "error": format!("not a request: {e}") }),
        };
        write(&mut output, &reply)?;
    }
    Ok(())
}

/// The daemon's reply, or the error; reconnects to a daemon that was restarted.
fn ask(daemon: &mut Option<Client>, run_dir: &Path, request: ClaimsRequest) -> Value {
    let request = HostRequest::Claims(request);
    let known = daemon.take();
    let is_new = known.is_none();
    let mut asked = attempt(daemon, known, run_dir, &request);
    if !is_new && !matches!(asked, Ok(_) | Err(Error::Refused(_))) {
        asked = attempt(daemon, None, run_dir, &request);
    }
    match asked {
        Ok(reply) => json!(reply),
        Err(e) => json!({ "error": chained(&e.into()) }),
    }
}

fn attempt(
    daemon: &mut Option<Client>,
    known: Option<Client>,
    run_dir: &Path,
    request: &HostRequest,
) -> Result<ClaimsReply, Error> {
    let mut client = known.map_or_else(|| connect(run_dir), Ok)?;
    let reply = client.ask(request);
    if matches!(reply, Ok(_) | Err(Error::Refused(_))) {
        *daemon = Some(client);
    }
    reply
}

/// Connects to the first host daemon that answers, in the order of names. Usually there is one.
fn connect(run_dir: &Path) -> Result<Client, Error> {
    let names = instances(&web_dir(run_dir))?;
    let mut error = Error::Refused("no `fairweir host` runs here".to_owned());
    for name in &names {
        match Client::connect(run_dir, name, Access::Claim, PATIENCE) {
            Ok(client) => return Ok(client),
            Err(e) => error = e,
        }
    }
    Err(error)
}

/// The next message, or `None` if the browser has closed its end.
fn read(input: &mut impl Read) -> anyhow::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_ne_bytes(length);
    if length > MESSAGE_MAX {
        bail!("a message of {length} bytes; expected at most {MESSAGE_MAX}");
    }
    let mut message = vec![0; length as usize];
    input.read_exact(&mut message)?;
    Ok(Some(message))
}

fn write(output: &mut impl Write, reply: &Value) -> io::Result<()> {
    let reply = reply.to_string();
    output.write_all(&(reply.len() as u32).to_ne_bytes())?;
    output.write_all(reply.as_bytes())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(mut bytes: &[u8]) -> Vec<anyhow::Result<Option<Vec<u8>>>> {
        (0..2).map(|_| read(&mut bytes)).collect()
    }

    #[test]
    fn messages_are_read_as_they_are_written_and_bounded() {
        let mut bytes = Vec::new();
        write(&mut bytes, &json!({ "a": 1 })).unwrap();
        let read = read_all(&bytes);
        assert_eq!(read[0].as_ref().unwrap().as_deref(), Some(&br#"{"a":1}"#[..]));
        assert!(read[1].as_ref().unwrap().is_none(), "the end");
        for length in [MESSAGE_MAX + 1, u32::MAX] {
            assert!(read_all(&length.to_ne_bytes())[0].is_err());
        }
        assert!(read_all(&[4, 0, 0, 0, b'{'])[0].is_err(), "cut off");
    }
}
