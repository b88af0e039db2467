//! Marionette, the protocol for driving Firefox: each message is its length, a colon and JSON.
//!
//! Source: <https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html>.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::netns::Netns;
use serde_json::{Value, json};

/// Firefox's default port.
const PORT: u16 = 2_828;
const CONNECT_CHECK: Duration = Duration::from_millis(100);
/// Maximum size of a message in bytes.
const MESSAGE_MAX: usize = 1 << 24;

/// A connection to Firefox.
#[derive(Debug)]
pub(super) struct Marionette {
    stream: TcpStream,
    asked: u64,
}

impl Marionette {
    /// Starts a session with the Firefox in a namespace, which may still be starting up.
    pub(super) fn connect(netns: &Netns, patience: Duration) -> io::Result<Marionette> {
        let begun = Instant::now();
        let stream = loop {
            match netns.run(|| TcpStream::connect(("127.0.0.1", PORT))) {
                Ok(stream) => break stream,
                Err(e) if begun.elapsed() >= patience => return Err(e),
                Err(_) => thread::sleep(CONNECT_CHECK),
            }
        };
        stream.set_read_timeout(Some(patience))?;
        let mut marionette = Marionette { stream, asked: 0 };
        let hello = marionette.read()?;
        if hello["marionetteProtocol"] != 3 {
            return Err(io::Error::other(format!("another protocol: {hello}")));
        }
        let wanted = json!({ "acceptInsecureCerts": true, "pageLoadStrategy": "none" });
        marionette.ask("WebDriver:NewSession", &wanted)?;
        Ok(marionette)
    }

    /// Installs an unsigned extension until Firefox ends.
    pub(super) fn install(&mut self, xpi: &Path) -> io::Result<()> {
        self.ask("Addon:Install", &json!({ "path": xpi, "temporary": true })).map(drop)
    }

    /// Opens a site's page in a new window.
    pub(super) fn open(&mut self, site: &str) -> io::Result<()> {
        let window =
            self.ask("WebDriver:NewWindow", &json!({ "type": "window", "focus": false }))?;
        let handle = json!({ "handle": window["handle"], "focus": false });
        self.ask("WebDriver:SwitchToWindow", &handle)?;
        self.ask("WebDriver:Navigate", &json!({ "url": format!("https://{site}/") })).map(drop)
    }

    /// Sends a command and waits for its result.
    fn ask(&mut self, command: &str, parameters: &Value) -> io::Result<Value> {
        self.asked += 1;
        let message = json!([0, self.asked, command, parameters]).to_string();
        write!(self.stream, "{}:{message}", message.len())?;
        let mut reply = self.read()?;
        if (&reply[1], &reply[2]) != (&json!(self.asked), &Value::Null) {
            return Err(io::Error::other(format!("{command}: {reply}")));
        }
        Ok(reply[3].take())
    }

    fn read(&mut self) -> io::Result<Value> {
        let mut length = 0;
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            match byte[0] {
                b':' => break,
                digit @ b'0'..=b'9' if length <= MESSAGE_MAX => {
                    length = 10 * length + usize::from(digit - b'0');
                }
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
        if length > MESSAGE_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message)?;
        Ok(serde_json::from_slice(&message)?)
    }
}
