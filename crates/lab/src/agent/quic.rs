//! What both ends of a QUIC connection have in common.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use fairweir_scenario::{CongestionControl, UDP_HEADER};
use nix::sys::socket::{setsockopt, sockopt};
use quinn::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{EndpointConfig, TransportConfig, VarInt};

use super::bbr::BbrConfig;
use crate::job::Job;

/// The name in the server's certificate.
pub(super) const NAME: &str = "fairweir.test";
/// Receive window, large enough that only the congestion window limits the sender: as large as the
/// largest TCP window in the emulated home.
const RECEIVE_WINDOW: u32 = 16 << 20;
/// Size of socket buffers, so that a process may run late.
const SOCKET_BUFFER: usize = 4 << 20;

/// Packets as large as the link carries, sent and received one by one: if the kernel split or merged packets,
/// a queue that counts bytes would be wrong. A connection in a bundle has the bundle's controller.
pub(super) fn transport(
    job: &Job,
    bundled: Option<Arc<dyn ControllerFactory + Send + Sync>>,
) -> io::Result<TransportConfig> {
    let congestion = match (bundled, job.flow.congestion_control) {
        (Some(bundled), _) => bundled,
        (None, named) => controller(job, named)?,
    };
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(congestion);
    transport.initial_mtu(payload_max(job)?).mtu_discovery_config(None);
    transport.enable_segmentation_offload(false);
    let window = VarInt::from_u32(RECEIVE_WINDOW);
    transport.stream_receive_window(window).receive_window(window);
    Ok(transport)
}

pub(super) fn endpoint_config(job: &Job) -> io::Result<EndpointConfig> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(payload_max(job)?).map_err(io::Error::other)?;
    Ok(config)
}

fn controller(
    job: &Job,
    named: CongestionControl,
) -> io::Result<Arc<dyn ControllerFactory + Send + Sync>> {
    Ok(match named {
        CongestionControl::Reno => Arc::new(NewRenoConfig::default()),
        CongestionControl::Cubic => Arc::new(CubicConfig::default()),
        CongestionControl::Bbr => Arc::new(BbrConfig { seed: job.seed }),
        CongestionControl::Vegas => {
            return Err(io::Error::other("quinn has no congestion control `vegas`"));
        }
    })
}

/// UDP payload of a full packet, in bytes.
fn payload_max(job: &Job) -> io::Result<u16> {
    let ip = if job.server.is_ipv4() { 20 } else { 40 };
    u16::try_from(u64::from(job.mtu) - ip - UDP_HEADER).map_err(io::Error::other)
}

/// Enlarges a socket's buffers; as root, which the lab needs, even beyond the system's maximum.
pub(super) fn enlarge_buffers(socket: &UdpSocket) -> io::Result<()> {
    setsockopt(socket, sockopt::RcvBufForce, &SOCKET_BUFFER)
        .or_else(|_| setsockopt(socket, sockopt::RcvBuf, &SOCKET_BUFFER))?;
    setsockopt(socket, sockopt::SndBuf, &SOCKET_BUFFER)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use fairweir_core::units::{Span, Time};
    use fairweir_scenario::Scenario;

    use super::super::{fetch, serve};
    use super::*;
    use crate::clock::Clock;

    /// A job of half a second on loopback, whose server is already running.
    fn job(certificate: Option<Vec<u8>>) -> (Job, Clock) {
        let text = "version = 1\nname = \"x\"\nduration = \"1s\"\n[link]\nrate = \"9mbit\"\n\
                    [[group]]\nname = \"a\"\nweight = 1\n[[flow]]\ngroup = \"a\"\n\
                    kind = \"quic\"\nconnections = 2\ndemand = \"4mbit\"\nstop = \"0.5s\"";
        let flow = Scenario::parse(text, "x").unwrap().flows.remove(0);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut job = Job::new(&flow, socket.local_addr().unwrap(), 1_500, 1);
        let identity = serve::Identity::new().unwrap();
        job.certificate = certificate.or_else(|| Some(identity.certificate()));
        let config = identity.server_config(&job, None).unwrap();
        let (clock, of_server) = (Clock::starting_in(Span::ZERO), Arc::new(job.clone()));
        // The server runs until the test's process ends.
        thread::spawn(move || serve::serve_quic(socket, config, &of_server, clock));
        (job, clock)
    }

    #[test]
    fn a_download_lasts_until_the_flow_stops() {
        let (job, clock) = job(None);
        fetch::receive_quic(&job, clock).unwrap();
        assert!(clock.now() >= job.stop(), "it ends no earlier");
        assert!(clock.now() < Time::ZERO + Span::secs(3), "and not much later");
    }

    #[test]
    fn only_the_servers_own_certificate_is_trusted() {
        let other = serve::Identity::new().unwrap().certificate();
        let (job, clock) = job(Some(other));
        let refused = fetch::receive_quic(&job, clock).unwrap_err().to_string();
        assert!(refused.contains("certificate"), "{refused}");
    }
}
