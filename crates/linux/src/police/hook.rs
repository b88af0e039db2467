//! The hooks where the policer sees packets.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::Object;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};

use super::Direction;
use super::abi::Settings;
use super::maps::Maps;
use super::pins::Pins;
use super::slots::Classes;
use crate::Error;
use crate::bpf::{pinned, program_info};
use crate::net::link::{self, Link};

/// The hook of a device at which packets are policed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Arriving packets, before the stack: by the driver if it can, else at the start of the stack.
    Xdp,
    /// Arriving packets, by the driver.
    XdpNative,
    /// Arriving packets, before anything else in the stack.
    XdpGeneric,
    /// Arriving packets, after GRO.
    TcxIngress,
    /// Leaving packets, before segmentation.
    TcxEgress,
}

/// A program at a hook. Dropping it, also at the end of the process, detaches the program unless it is pinned.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) device: String,
    pub(super) hook: Hook,
    pub(super) direction: Direction,
    link: OwnedFd,
    pub(super) pin: Option<PathBuf>,
    settings: Settings,
    /// Keeps the program's own maps.
    _object: Object,
}

impl Attachment {
    /// Loads the program for a hook and attaches it, in place of the pinned one if there is one.
    pub(super) fn new(
        maps: &Maps,
        device: &str,
        hook: Hook,
        direction: Direction,
        overhead: i32,
        classes: Classes,
        pins: Option<&Pins>,
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
        let pin = pins.map(|pins| pins.link(device, hook, direction));
        let adopted = pin.as_deref().and_then(|pin| adopt(pin, &found, hook, program));
        let link = match adopted {
            Some(link) => link,
            None => {
                let link = attach_by_any(program, &found, hook)?;
                pin.as_deref().map_or(Ok(()), |pin| pinned::pin(link.as_fd(), pin))?;
                link
            }
        };
        let device = device.to_owned();
        Ok(Attachment { device, hook, direction, link, pin, settings, _object: object })
    }

    /// Detaches the program, also if it is pinned.
    pub(super) fn detach(self) {
        if let Some(pin) = &self.pin
            && let Err(e) = pinned::remove(pin)
        {
            tracing::warn!(self.device, "still attached: {e}");
        }
    }

    /// Loads the program anew, for slots of these classes. It is not used until it replaces the
    /// attached one.
    pub(super) fn load_for(&self, maps: &Maps, classes: Classes) -> Result<Object, Error> {
        maps.load(&[self.hook.program()], Settings { classes: classes.bits(), ..self.settings })
    }

    /// Replaces the attached program by one that [`Attachment::load_for`] loaded: each packet meets
    /// one or the other.
    pub(super) fn replace(&mut self, object: Object) -> Result<(), Error> {
        let program = program_of(&object, self.hook);
        let attempted = || format!("replace the policer at {} ({:?})", self.device, self.hook);
        replace(&self.link, program).map_err(|e| Error::refused(attempted(), e))?;
        self._object = object;
        Ok(())
    }

    /// Whether the program is still attached: the device may be gone, or another process may have
    /// detached or replaced it.
    pub(super) fn is_attached(&self) -> bool {
        let program = self._object.progs().find(|program| program.name() == self.hook.program());
        let id = program.and_then(|program| id_of(program.as_fd()).ok());
        device_of(&self.link, self.hook)
            .is_some_and(|(device, program)| device != 0 && id == Some(program))
    }
}

/// The number of the device of a link for this hook (0 if the device is gone), and of the link's program.
fn device_of(link: &OwnedFd, hook: Hook) -> Option<(u32, u32)> {
    let info = LinkInfo::from_fd(link.as_fd()).ok()?;
    match (info.info, hook) {
        (LinkTypeInfo::Tcx(tcx), Hook::TcxIngress | Hook::TcxEgress) => {
            Some((tcx.ifindex, info.prog_id))
        }
        (LinkTypeInfo::Xdp(xdp), Hook::Xdp | Hook::XdpNative | Hook::XdpGeneric) => {
            Some((xdp.ifindex, info.prog_id))
        }
        _ => None,
    }
}

fn id_of(program: BorrowedFd<'_>) -> std::io::Result<u32> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    // SAFETY: no length in `info` is set.
    unsafe { program_info(program, &mut info) }?;
    Ok(info.id)
}

/// Replaces the program of the pinned link, if that link is at this device.
fn adopt(pin: &Path, device: &Link, hook: Hook, program: i32) -> Option<OwnedFd> {
    let link = pinned::open_link(pin)?;
    if device_of(&link, hook)?.0 != device.index {
        return None;
    }
    let replaced = replace(&link, program);
    if let Err(e) = &replaced {
        tracing::warn!(device = device.name, "cannot take a pinned policer over: {e}");
    }
    replaced.ok().map(|()| link)
}

fn replace(link: &OwnedFd, program: i32) -> std::io::Result<()> {
    // SAFETY: both descriptors are open, and no options are given.
    let result =
        unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program, std::ptr::null()) };
    if result < 0 { Err(std::io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// Attaches a program by the first kind of attachment of its hook that works.
fn attach_by_any(program: i32, device: &Link, hook: Hook) -> Result<OwnedFd, Error> {
    let mut link = Err(Error::refused("attach", std::io::ErrorKind::Unsupported));
    for &(attach_type, flags) in hook.ways() {
        link = attach(program, device, hook, attach_type, flags);
        // A program of other software is no reason to try the other kind.
        if !matches!(&link, Err(e) if e.errno() != Some(libc::EBUSY)) {
            break;
        }
    }
    link.map_err(|e| occupied(e, &device.name))
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
