//! The gateway's client of the market, over mutual TLS: related requests share one connection.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::household::Answers;
use crate::http::Connection;
use crate::identity::{Enrolment, Identity, IdentityError, unhex};
use crate::messages::{Bid, Bids, Enrolled};

/// A market's server, as a gateway sees it.
pub struct Client {
    address: SocketAddr,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client cannot connect, or the connection broke.
    #[error("cannot ask the market: {0}")]
    Io(#[from] io::Error),
    /// A name that no certificate can contain.
    #[error("`{0}` is not a host name or an address")]
    Name(String),
    /// A key or certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The server refuses the request.
    #[error("the market refuses ({status}): {title}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The title of the server's error.
        title: String,
    },
}

impl Client {
    /// A client of the server at `address`, whose certificate must be for `name`. `tls` comes from
    /// [`Identity::client_config`].
    ///
    /// # Errors
    /// If `name` is not a valid host name or address.
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
    /// If the server's host name cannot be resolved, or a key cannot be used.
    pub fn of(enrolment: &Enrolment) -> Result<Client, ClientError> {
        let address = address_of(&enrolment.server)?;
        Client::new(address, &enrolment.name, enrolment.client_config()?)
    }

    /// Fetches everything on which an agent bases its decisions.
    ///
    /// # Errors
    /// If the server refuses, or does not answer in time.
    pub fn look(&self, gateway: &str) -> Result<Answers, ClientError> {
        let mut connection = self.connect()?;
        let clock = read(&mut connection, "/v1/clock")?;
        let account = read(&mut connection, &format!("/v1/gateways/{gateway}/statements"))?;
        let prices = read(&mut connection, "/v1/prices")?;
        let lease = match read(&mut connection, &format!("/v1/gateways/{gateway}/lease")) {
            Ok(lease) => Some(lease),
            Err(ClientError::Refused { status: 404, .. }) => None,
            Err(e) => return Err(e),
        };
        Ok(Answers { clock, account, prices, lease })
    }

    /// Places all bids, or none if one of them is refused.
    ///
    /// # Errors
    /// If the server refuses or does not answer in time; then the bids may or may not be placed.
    pub fn bid(&self, gateway: &str, bids: Vec<Bid>) -> Result<(), ClientError> {
        let body = serde_json::to_value(Bids { bids }).map_err(io::Error::from)?;
        self.ask("PUT", &format!("/v1/gateways/{gateway}/bids"), Some(&body)).map(drop)
    }

    /// Enrols with a code; returns the gateway's name and sets the certificate of `identity`.
    ///
    /// # Errors
    /// If the server refuses, or does not answer.
    pub fn enrol(&self, identity: &mut Identity, code: &str) -> Result<String, ClientError> {
        let body = json!({ "code": code, "public_key": identity.public_key() });
        let answer = self.ask("POST", "/v1/enrolments", Some(&body))?;
        let answer = serde_json::from_value(answer);
        let Enrolled { gateway, certificate } = answer.map_err(|e| invalid(&e.to_string()))?;
        // The name becomes part of URL paths.
        if gateway.is_empty() || !gateway.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(invalid("an invalid name of a gateway").into());
        }
        let der = unhex(&certificate).filter(|der| !der.is_empty());
        identity.set_certificate(der.ok_or_else(|| invalid("no certificate"))?);
        Ok(gateway)
    }

    /// Sends a request on a connection of its own; returns the answer's body.
    ///
    /// # Errors
    /// If the server refuses, or does not answer in time.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        ask(&mut self.connect()?, method, path, body)
    }

    fn connect(&self) -> io::Result<Connection> {
        Connection::open(self.address, self.name.clone(), Arc::clone(&self.tls))
    }
}

fn read<T: DeserializeOwned>(connection: &mut Connection, path: &str) -> Result<T, ClientError> {
    let answer = ask(connection, "GET", path, None)?;
    serde_json::from_value(answer).map_err(|e| invalid(&format!("{path}: {e}")).into())
}

fn ask(
    connection: &mut Connection,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, ClientError> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let (status, answer) = connection.ask(method, path, body)?;
    let value: Value = serde_json::from_slice(&answer).map_err(|_| invalid("no JSON"))?;
    if status >= 400 {
        let title = value["title"].as_str().unwrap_or_default().to_owned();
        return Err(ClientError::Refused { status, title });
    }
    Ok(value)
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
