//! Where the policer sees packets.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::Object;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};

use super::Direction;
use super::abi::Settings;
use super::maps::Maps;
use super::slots::Classes;
use crate::Error;
use crate::net::link::{self, Link};

/// Where at a device packets are policed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// What arrives, before the stack: by the driver if it can, else before anything else.
    Xdp,
    /// What arrives, by the driver.
    XdpNative,
    /// What arrives, before anything else in the stack.
    XdpGeneric,
    /// What arrives, after GRO.
    TcxIngress,
    /// What leaves, before segmentation.
    TcxEgress,
}

/// A program at a hook; dropping it, also by the process's end, takes it away.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) device: String,
    pub(super) hook: Hook,
    pub(super) direction: Direction,
    link: OwnedFd,
    settings: Settings,
    /// Keeps the program's own maps.
    _object: Object,
}

impl Attachment {
    /// Loads the program for a hook and attaches it.
    pub(super) fn new(
        maps: &Maps,
        device: &str,
        hook: Hook,
        direction: Direction,
        overhead: i32,
        classes: Classes,
    ) -> Result<Attachment, Error> {
        let found = link::find(device)?.ok_or_else(|| Error::NoDevice(device.to_owned()))?;
        let settings = Settings {
            is_upload: u32::from(direction == Direction::Upload),
            has_ethernet: u32::from(has_ethernet(&found)),
            overhead,
            is_trial: 0,
            classes: classes.bits(),
        };
        let object = maps.load(&[hook.program()], settings)?;
        let program = program_of(&object, hook);
        let mut link = Err(Error::refused("attach", std::io::ErrorKind::Unsupported));
        for &(attach_type, flags) in hook.ways() {
            link = attach(program, &found, hook, attach_type, flags);
            // A program of other software is no reason to try the other way.
            if !matches!(&link, Err(e) if e.errno() != Some(libc::EBUSY)) {
                break;
            }
        }
        let link = link.map_err(|e| occupied(e, device))?;
        let device = device.to_owned();
        Ok(Attachment { device, hook, direction, link, settings, _object: object })
    }

    /// Loads the program anew, for slots of these classes. It is not used until it replaces the one that is
    /// attached.
    pub(super) fn load_for(&self, maps: &Maps, classes: Classes) -> Result<Object, Error> {
        maps.load(&[self.hook.program()], Settings { classes: classes.bits(), ..self.settings })
    }

    /// Puts a program that [`Attachment::load_for`] loaded in the place of the one that is attached: each
    /// packet meets one or the other.
    pub(super) fn replace(&mut self, object: Object) -> Result<(), Error> {
        let program = program_of(&object, self.hook);
        // SAFETY: both descriptors are open, and no options are wanted.
        let result = unsafe {
            libbpf_sys::bpf_link_update(self.link.as_raw_fd(), program, std::ptr::null())
        };
        if result < 0 {
            let attempted = format!("replace the policer at {} ({:?})", self.device, self.hook);
            return Err(Error::refused(attempted, std::io::Error::from_raw_os_error(-result)));
        }
        self._object = object;
        Ok(())
    }

    /// Whether the program is still attached: the device may be gone, or another process may have
    /// detached it.
    pub(super) fn is_attached(&self) -> bool {
        match LinkInfo::from_fd(self.link.as_fd()).map(|info| info.info) {
            Ok(LinkTypeInfo::Tcx(tcx)) => tcx.ifindex != 0,
            Ok(LinkTypeInfo::Xdp(xdp)) => xdp.ifindex != 0,
            _ => false,
        }
    }
}

impl Hook {
    /// The program for this hook.
    pub(super) fn program(self) -> &'static str {
        match self {
            Hook::Xdp | Hook::XdpNative | Hook::XdpGeneric => "police_xdp",
            Hook::TcxIngress | Hook::TcxEgress => "police_skb",
        }
    }

    /// Kinds of attachment and flags to try, in this order.
    fn ways(self) -> &'static [(libbpf_sys::bpf_attach_type, u32)] {
        const NATIVE: (libbpf_sys::bpf_attach_type, u32) = (libbpf_sys::BPF_XDP, 1 << 2);
        const GENERIC: (libbpf_sys::bpf_attach_type, u32) = (libbpf_sys::BPF_XDP, 1 << 1);
        match self {
            Hook::Xdp => &[NATIVE, GENERIC],
            Hook::XdpNative => &[NATIVE],
            Hook::XdpGeneric => &[GENERIC],
            Hook::TcxIngress => &[(libbpf_sys::BPF_TCX_INGRESS, 0)],
            Hook::TcxEgress => &[(libbpf_sys::BPF_TCX_EGRESS, 0)],
        }
    }
}

/// Whether packets at the device have an Ethernet header.
fn has_ethernet(device: &Link) -> bool {
    matches!(device.hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
}

/// The program for a hook in an object that was loaded with it.
fn program_of(object: &Object, hook: Hook) -> i32 {
    let program = object.progs().find(|program| program.name() == hook.program());
    program.expect("invariant: the compiled object has this program").as_fd().as_raw_fd()
}

fn attach(
    program: i32,
    device: &Link,
    hook: Hook,
    attach_type: libbpf_sys::bpf_attach_type,
    flags: u32,
) -> Result<OwnedFd, Error> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: the program is loaded and the options outlive the call.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(program, device.index as i32, attach_type, &raw const options)
    };
    if fd < 0 {
        let attempted = format!("attach the policer to {} ({hook:?})", device.name);
        return Err(Error::refused(attempted, std::io::Error::from_raw_os_error(-fd)));
    }
    // SAFETY: the descriptor is new and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn occupied(error: Error, device: &str) -> Error {
    if error.errno() != Some(libc::EBUSY) {
        return error;
    }
    Error::Occupied {
        dev: device.to_owned(),
        found: "the XDP program of another program is attached".to_owned(),
        remedy: format!("ip link set dev {device} xdp off"),
    }
}
