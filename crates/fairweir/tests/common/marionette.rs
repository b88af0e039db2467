//! Marionette, by which programs drive Firefox: each message is its length, a colon and JSON.
//!
//! Source: <https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html>.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::stage::Stage;

/// Firefox's own choice.
const PORT: u16 = 2_828;

/// The connection to a Firefox.
pub struct Marionette {
    stream: TcpStream,
    asked: u64,
}

impl Marionette {
    /// Begins a session with the Firefox in the home, which may still be starting.
    pub fn connect(stage: &Stage, patience: Duration) -> Marionette {
        let begun = Instant::now();
        let stream = loop {
            match stage.at_home(|| TcpStream::connect(("127.0.0.1", PORT))) {
                Ok(stream) => break stream,
                Err(e) => assert!(begun.elapsed() < patience, "Firefox does not start: {e}"),
            }
            thread::sleep(Duration::from_millis(100));
        };
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut marionette = Marionette { stream, asked: 0 };
        assert_eq!(marionette.read()["marionetteProtocol"], 3);
        let wanted = json!({ "acceptInsecureCerts": true, "pageLoadStrategy": "none" });
        marionette.ask("WebDriver:NewSession", &wanted);
        marionette
    }

    /// Installs an extension that need not be signed, until Firefox ends.
    pub fn install(&mut self, xpi: &Path) {
        self.ask("Addon:Install", &json!({ "path": xpi, "temporary": true }));
    }

    /// Opens a site's page in a window of its own.
    pub fn open(&mut self, site: &str) {
        let window = self.ask("WebDriver:NewWindow", &json!({ "type": "window", "focus": false }));
        let handle = json!({ "handle": window["handle"], "focus": false });
        self.ask("WebDriver:SwitchToWindow", &handle);
        self.ask("WebDriver:Navigate", &json!({ "url": format!("https://{site}/") }));
    }

    /// Sends a command and waits for its result.
    fn ask(&mut self, command: &str, parameters: &Value) -> Value {
        self.asked += 1;
        let message = json!([0, self.asked, command, parameters]).to_string();
        write!(self.stream, "{}:{message}", message.len()).unwrap();
        let reply = self.read();
        assert_eq!(
            (&reply[1], &reply[2]),
            (&json!(self.asked), &Value::Null),
            "{command}: {reply}"
        );
        reply[3].clone()
    }

    fn read(&mut self) -> Value {
        let mut length = 0;
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            match byte[0] {
                b':' => break,
                digit => length = 10 * length + usize::from(digit - b'0'),
            }
        }
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message).unwrap();
        serde_json::from_slice(&message).unwrap()
    }
}
