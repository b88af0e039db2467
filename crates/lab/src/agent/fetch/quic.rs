//! A download over QUIC, with the flow's number of connections.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use fairweir_core::units::Time;
use quinn::rustls::RootCertStore;
use quinn::{ClientConfig, Endpoint, ReadError, TokioRuntime};

use super::super::{quic, request};
use super::{BUFFER, READ_TIMEOUT, any};
use crate::clock::Clock;
use crate::job::Job;

/// Time for the closing messages; after that the server stops by its own clock anyway.
const FAREWELL_MAX: Duration = Duration::from_millis(100);

/// Receives until the flow stops; closing then tells the sender.
pub(in super::super) fn receive(job: &Job, clock: Clock) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let endpoint = endpoint(job)?;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..job.flow.connections {
            tasks.spawn(download(endpoint.clone(), job.clone(), clock));
        }
        let mut result = Ok(());
        while let Some(ended) = tasks.join_next().await {
            result = result.and(ended.map_err(io::Error::other)?);
        }
        endpoint.close(0u32.into(), b"");
        // Nothing depends on whether the closing messages arrived.
        let _ = tokio::time::timeout(FAREWELL_MAX, endpoint.wait_idle()).await;
        result
    })
}

fn endpoint(job: &Job) -> io::Result<Endpoint> {
    let mut trusted = RootCertStore::empty();
    let certificate = job.certificate.clone().ok_or_else(|| io::Error::other("no certificate"))?;
    trusted.add(certificate.into()).map_err(io::Error::other)?;
    let mut config =
        ClientConfig::with_root_certificates(Arc::new(trusted)).map_err(io::Error::other)?;
    config.transport_config(Arc::new(quic::transport(job, None)?));
    let socket = UdpSocket::bind(any(job.server))?;
    quic::enlarge_buffers(&socket)?;
    let runtime = Arc::new(TokioRuntime);
    let mut endpoint = Endpoint::new(quic::endpoint_config(job)?, None, socket, runtime)?;
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

async fn download(endpoint: Endpoint, job: Job, clock: Clock) -> io::Result<()> {
    let until_stop = |now: Time| Duration::from(job.stop().since(now));
    let receive = async {
        let connecting = endpoint.connect(job.server, quic::NAME).map_err(io::Error::other)?;
        let connection = connecting.await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        send.write_all(&request::written(None)).await?;
        let mut buffer = vec![0; BUFFER];
        loop {
            match receive.read(&mut buffer).await {
                Ok(Some(_)) => {}
                Ok(None) => return Err(io::Error::other("the server ended the stream too early")),
                // The reason says more than the fact that the connection is lost.
                Err(ReadError::ConnectionLost(reason)) => return Err(io::Error::other(reason)),
                Err(e) => return Err(e.into()),
            }
        }
    };
    match tokio::time::timeout(until_stop(clock.now()), receive).await {
        // The flow has stopped as planned.
        Err(_) => Ok(()),
        // The server stops by the same clock, and its close may arrive first.
        Ok(_) if until_stop(clock.now()) <= READ_TIMEOUT => Ok(()),
        Ok(ended) => ended,
    }
}
