//! Limits what a socket that anyone can write to receives: few datagrams of strangers, and enough of each client.
//!
//! The kernel drops the other datagrams before it wakes the process (`bpf/admit.bpf.c`).

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use fairweir_core::packet::as_ip6;
use libbpf_rs::{MapCore, MapHandle, ObjectBuilder, OpenObject};

use crate::Error;
use crate::bpf::abi::{AdmitClient, Plain};
use crate::bpf::{bpf_error, listen_to_the_loader, program, update};

/// Datagrams per second that a socket gets from all strangers together: short ones, and as many longer ones.
pub const STRANGERS_MAX: u32 = crate::bpf::header::ADMIT_STRANGERS_MAX;

/// The clients of a socket. See the module.
#[derive(Debug)]
pub struct Admission {
    clients: MapHandle,
}

impl Admission {
    /// Limits what a socket gets from now on, until it is closed. About `clients` clients are known
    /// at most; each takes 90 bytes, allocated now. The client that was silent longest makes room.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bound(socket: &UdpSocket, clients: u32) -> Result<Admission, Error> {
        let mut object = open()?;
        let failed = |e| bpf_error(BOUNDING, &e);
        for mut map in object.maps_mut().filter(|map| map.name() == CLIENTS) {
            map.set_max_entries(clients).map_err(failed)?;
        }
        let object = object.load().map_err(failed)?;
        let program = program(&object, "fairweir_admit")?.as_fd().as_raw_fd();
        // SAFETY: the kernel reads a descriptor of the given length, which is open.
        let refused = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_BPF,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        };
        if refused < 0 {
            return Err(Error::refused(BOUNDING, std::io::Error::last_os_error()));
        }
        let clients = object.maps().find(|map| map.name() == CLIENTS);
        let clients = clients.expect("invariant: the object has this map");
        let clients = MapHandle::try_from(&clients).map_err(failed)?;
        Ok(Admission { clients })
    }

    /// Makes `client` known: from now on it is not a stranger.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn know(&self, client: SocketAddr) -> Result<(), Error> {
        let words = as_ip6(client.ip()).octets();
        let word =
            |at: usize| u32::from_ne_bytes(words[4 * at..][..4].try_into().expect("4 bytes"));
        let address = std::array::from_fn(word);
        let key = AdmitClient { address, port: client.port().to_be(), pad: 0 };
        update(&self.clients, key.as_bytes(), &[0; PORTION_BYTES])
    }
}

/// Opens the object with the filter.
pub(crate) fn open() -> Result<OpenObject, Error> {
    listen_to_the_loader();
    ObjectBuilder::default().open_memory(OBJECT).map_err(|e| bpf_error(BOUNDING, &e))
}

const CLIENTS: &str = "clients";
const BOUNDING: &str = "bound what a socket gets";
/// Bytes of a client's counter; all zero if the client has sent nothing in this second.
const PORTION_BYTES: usize = 16;
/// The compiled `bpf/admit.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/admit.bpf.o"));
