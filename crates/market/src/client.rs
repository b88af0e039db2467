//! The gateway's end: one request per connection, over mutual TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::household::Answers;
use crate::identity::{Enrolment, Identity, IdentityError, unhex};
use crate::messages::{Bid, Bids, Enrolled};
use crate::server::{Hurried, PATIENCE};

/// A market's server, as a gateway sees it.
pub struct Client {
    address: SocketAddr,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not connected, or cut off.
    #[error("cannot ask the market: {0}")]
    Io(#[from] io::Error),
    /// A name that no certificate can have.
    #[error("`{0}` is not a host name or an address")]
    Name(String),
    /// Keys and certificates.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The server refuses.
    #[error("the market refuses ({status}): {title}")]
    Refused {
        /// Of HTTP.
        status: u16,
        /// What it says.
        title: String,
    },
}

/// The longest answer: 48 statements and prices.
const ANSWER_MAX: u64 = 256 << 10;

impl Client {
    /// A client of the server at `address`, whose certificate has `name`, with a TLS of
    /// [`Identity::client_config`].
    ///
    /// # Errors
    /// If it is not a name.
    pub fn new(
        address: SocketAddr,
        name: &str,
        tls: Arc<ClientConfig>,
    ) -> Result<Client, ClientError> {
        let wrong = |_| ClientError::Name(name.to_owned());
        let name = ServerName::try_from(name.to_owned()).map_err(wrong)?;
        Ok(Client { address, name, tls })
    }

    /// A client of the server with which a gateway enrolled.
    ///
    /// # Errors
    /// If the server's name has no address, or a key cannot be used.
    pub fn of(enrolment: &Enrolment) -> Result<Client, ClientError> {
        let address = address_of(&enrolment.server)?;
        Client::new(address, &enrolment.name, enrolment.client_config()?)
    }

    /// Asks for all that an agent decides by.
    ///
    /// # Errors
    /// If the server refuses, or does not answer in time.
    pub fn look(&self, gateway: &str) -> Result<Answers, ClientError> {
        let clock = self.read("/v1/clock")?;
        let account = self.read(&format!("/v1/gateways/{gateway}/statements"))?;
        let prices = self.read("/v1/prices")?;
        let lease = match self.read(&format!("/v1/gateways/{gateway}/lease")) {
            Ok(lease) => Some(lease),
            Err(ClientError::Refused { status: 404, .. }) => None,
            Err(e) => return Err(e),
        };
        Ok(Answers { clock, account, prices, lease })
    }

    /// Places all bids or none.
    ///
    /// # Errors
    /// If the server refuses, or does not answer in time: then they may have been placed.
    pub fn bid(&self, gateway: &str, bids: Vec<Bid>) -> Result<(), ClientError> {
        let body = serde_json::to_value(Bids { bids }).map_err(io::Error::from)?;
        self.ask("PUT", &format!("/v1/gateways/{gateway}/bids"), Some(&body)).map(drop)
    }

    fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.ask("GET", path, None)?;
        serde_json::from_value(answer).map_err(|e| invalid(&format!("{path}: {e}")).into())
    }

    /// Enrols with a code; returns the gateway's name, and gives `identity` its certificate.
    ///
    /// # Errors
    /// If the server refuses, or does not answer.
    pub fn enrol(&self, identity: &mut Identity, code: &str) -> Result<String, ClientError> {
        let body = json!({ "code": code, "public_key": identity.public_key() });
        let answer = self.ask("POST", "/v1/enrolments", Some(&body))?;
        let answer = serde_json::from_value(answer);
        let Enrolled { gateway, certificate } = answer.map_err(|e| invalid(&e.to_string()))?;
        // It becomes part of paths.
        if gateway.is_empty() || !gateway.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(invalid("an invalid name of a gateway").into());
        }
        let der = unhex(&certificate).filter(|der| !der.is_empty());
        identity.set_certificate(der.ok_or_else(|| invalid("no certificate"))?);
        Ok(gateway)
    }

    /// Sends a request; returns the answer's body.
    ///
    /// # Errors
    /// If the server refuses, or does not answer in time.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: market\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, answer) = self.exchange(text.as_bytes())?;
        let value: Value = serde_json::from_slice(&answer).map_err(|_| invalid("no JSON"))?;
        if status >= 400 {
            let title = value["title"].as_str().unwrap_or_default().to_owned();
            return Err(ClientError::Refused { status, title });
        }
        Ok(value)
    }

    /// Sends bytes as they are; returns the status and the body.
    ///
    /// # Errors
    /// If the server does not answer in time.
    pub fn exchange(&self, bytes: &[u8]) -> Result<(u16, Vec<u8>), ClientError> {
        let until = Instant::now() + PATIENCE;
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_nodelay(true)?;
        let connection = ClientConnection::new(Arc::clone(&self.tls), self.name.clone());
        let connection = connection.map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, Hurried { stream, until });
        stream.write_all(bytes)?;
        let mut answer = Vec::new();
        // The server closes without a farewell of TLS; the length says whether it is whole.
        match stream.take(ANSWER_MAX).read_to_end(&mut answer) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(e) => return Err(e.into()),
        }
        let end = answer
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .ok_or_else(|| invalid("no headers"))?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
        let length: Option<usize> = length.and_then(|word| word.parse().ok());
        let body = answer.split_off(end + 4);
        match (status, length) {
            (Some(status), Some(length)) if length == body.len() => Ok((status, body)),
            _ => Err(invalid("a cut or invalid answer").into()),
        }
    }
}

/// The first address of a host and port.
///
/// # Errors
/// If it has none.
pub fn address_of(server: &str) -> Result<SocketAddr, ClientError> {
    let no_address =
        || io::Error::new(io::ErrorKind::NotFound, format!("`{server}` has no address"));
    Ok(server.to_socket_addrs()?.next().ok_or_else(no_address)?)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
