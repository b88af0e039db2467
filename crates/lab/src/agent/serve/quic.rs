//! Serves downloads over QUIC.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use fairweir_scenario::Kind;
use quinn::congestion::ControllerFactory;
use quinn::rustls::pki_types::PrivateKeyDer;
use quinn::{Endpoint, Incoming, ServerConfig, TokioRuntime};

use super::super::bundle::Bundles;
use super::super::{quic, request};
use super::{Allowance, CHUNK, PAYLOAD, Source, unsent_max};
use crate::clock::Clock;
use crate::job::Job;

/// Bytes that a segment leaves free in a packet, so that it always fits: quinn reserves 8 bytes for a length,
/// and the packet number may take 3 more bytes.
const SPARE: u64 = 8 + 3;

/// The server's identity: a key that never leaves the process, and a self-signed certificate.
pub(in super::super) struct Identity(rcgen::CertifiedKey<rcgen::KeyPair>);

impl Identity {
    pub(in super::super) fn new() -> io::Result<Identity> {
        let names = vec![quic::NAME.to_owned()];
        rcgen::generate_simple_self_signed(names).map(Identity).map_err(io::Error::other)
    }

    /// The certificate as DER.
    pub(in super::super) fn certificate(&self) -> Vec<u8> {
        self.0.cert.der().to_vec()
    }

    pub(in super::super) fn server_config(
        &self,
        job: &Job,
        bundled: Option<Arc<dyn ControllerFactory + Send + Sync>>,
    ) -> io::Result<ServerConfig> {
        let key = PrivateKeyDer::Pkcs8(self.0.signing_key.serialize_der().into());
        let chain = vec![self.0.cert.der().clone()];
        let mut config = ServerConfig::with_single_cert(chain, key).map_err(io::Error::other)?;
        config.transport_config(Arc::new(quic::transport(job, bundled)?));
        Ok(config)
    }
}

/// State shared by all flows over QUIC.
pub(super) struct Quic {
    /// `None` if no flow is over QUIC.
    identity: Option<Identity>,
    pub(super) bundles: Bundles,
}

impl Quic {
    pub(super) fn new(jobs: &[Job]) -> io::Result<Quic> {
        let is_used = jobs.iter().any(|job| job.flow.kind == Kind::Quic);
        let identity = is_used.then(Identity::new).transpose()?;
        Ok(Quic { identity, bundles: Bundles::default() })
    }

    /// The certificate as DER, if a flow needs one.
    pub(super) fn certificate(&self) -> Option<Vec<u8>> {
        self.identity.as_ref().map(Identity::certificate)
    }

    /// The configuration of the server for a flow over QUIC.
    pub(super) fn config(&mut self, job: &Job) -> io::Result<ServerConfig> {
        let identity = self.identity.as_ref().ok_or_else(|| io::Error::other("no certificate"))?;
        identity.server_config(job, self.bundles.factory(job))
    }
}

pub(in super::super) fn serve(
    socket: UdpSocket,
    config: ServerConfig,
    job: &Arc<Job>,
    clock: Clock,
) -> io::Result<()> {
    quic::enlarge_buffers(&socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (endpoint, runtime) = (quic::endpoint_config(job)?, Arc::new(TokioRuntime));
        let endpoint = Endpoint::new(endpoint, Some(config), socket, runtime)?;
        while let Some(incoming) = endpoint.accept().await {
            // The receiver ends a flow by closing, so an error while sending is normal.
            tokio::spawn(send(incoming, Arc::clone(job), clock));
        }
        Ok(())
    })
}

/// Sends as much as the demand allows, until the flow stops.
async fn send(incoming: Incoming, job: Arc<Job>, clock: Clock) -> io::Result<()> {
    let connection = incoming.await?;
    let (mut send, mut receive) = connection.accept_bi().await?;
    receive.read_exact(&mut [0; request::LENGTH]).await.map_err(io::Error::other)?;
    let mut source = Source::new(&job, clock.now(), job.segment() - SPARE);
    while clock.now() < job.stop() {
        match source.allowance(clock.now()) {
            Allowance::Bytes(bytes) => {
                // As with TCP's `TCP_NOTSENT_LOWAT`: little is buffered, so that a falling demand takes effect at once.
                let window = connection.stats().path.cwnd;
                connection.set_send_window(window + u64::from(unsent_max(&job)));
                let length = (bytes as usize).min(CHUNK);
                source.sent(send.write(&PAYLOAD[..length]).await? as u64);
            }
            Allowance::NothingUntil(due) => {
                let wait = due.min(job.stop()).since(clock.now());
                tokio::time::sleep(Duration::from(wait)).await;
            }
        }
    }
    connection.close(0u32.into(), b"");
    Ok(())
}
