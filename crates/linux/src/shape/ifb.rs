//! The intermediate device behind which a device's ingress is shaped.

use fairweir_core::units::Bytes;

use crate::Error;
use crate::net::link::{self, Link};
use crate::net::netlink::Netlink;
use crate::shape::classes::At;
use crate::shape::htb;

/// A live intermediate device with its HTB.
#[derive(Clone, Debug)]
pub(crate) struct Ifb {
    pub(crate) name: String,
    pub(crate) index: u32,
}

impl Ifb {
    /// Makes the intermediate device of `dev`, in place of one that a killed daemon left.
    ///
    /// # Errors
    /// [`Error::Occupied`] if a device of that name exists that is not fairweir's.
    pub(crate) fn create(netlink: &mut Netlink, dev: &str) -> Result<Ifb, Error> {
        let name = name(dev);
        if let Some(old) = link::find_with(netlink, &name)? {
            refuse_if_foreign(&old, dev)?;
            netlink.change(&format!("delete the old {name}"), link::deletion(old.index))?;
        }
        link::create_ifb_with(netlink, &name, &alias(dev))?;
        let attempted = format!("prepare {name}");
        let made = link::find_with(netlink, &name)?.ok_or_else(|| Error::NoDevice(name.clone()))?;
        let ifb = Ifb { name, index: made.index };
        // Unshaped packets wait in the device's own queue, whose default is 32 packets.
        let requests = [
            link::queue_length(ifb.index, QUEUE_PACKETS),
            link::raising(ifb.index),
            htb::root(ifb.index),
        ];
        if let Err(e) = netlink.change_all(&attempted, &requests) {
            let _ = ifb.delete(netlink);
            return Err(e);
        }
        Ok(ifb)
    }

    /// The device with its classes.
    pub(crate) fn at(&self) -> At<'_> {
        At { name: &self.name, index: self.index }
    }

    /// Deletes the device, if it still exists.
    pub(crate) fn delete(&self, netlink: &mut Netlink) -> Result<(), Error> {
        match netlink.change(&format!("delete {}", self.name), link::deletion(self.index)) {
            Err(e) if e.errno() == Some(libc::ENODEV) => Ok(()),
            result => result,
        }
    }

    /// What is wrong with it, in words; `None` if nothing is.
    pub(crate) fn fault(&self, netlink: &mut Netlink) -> Result<Option<String>, Error> {
        Ok(match link::find_index_with(netlink, self.index)? {
            None => Some(format!("{} was deleted", self.name)),
            Some(link) if !link.is_up() => Some(format!("{} was set down", self.name)),
            Some(_) if !htb::is_there(netlink, self.index)? => {
                Some(format!("the HTB qdisc of {} was deleted or replaced", self.name))
            }
            Some(_) => None,
        })
    }
}

/// The name of the intermediate device of `dev`: `ifb4` and the name, or, where that is longer
/// than the 15 bytes of a device's name, `ifb4-` and a hash of the name.
pub(crate) fn name(dev: &str) -> String {
    if dev.len() + 4 <= NAME_MAX {
        return format!("ifb4{dev}");
    }
    // FNV-1a.
    let hash =
        dev.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("ifb4-{hash:08x}")
}

/// Refuses if the device of that name is not our intermediate device.
pub(crate) fn refuse_if_foreign(found: &Link, dev: &str) -> Result<(), Error> {
    if is_ours(found, dev) {
        return Ok(());
    }
    Err(Error::Occupied {
        dev: dev.to_owned(),
        found: format!("the device {} exists and was not created by fairweir", found.name),
        remedy: format!("ip link del {}", found.name),
    })
}

/// The maximum size of a packet on a device with this MTU, without the Ethernet header.
pub(crate) fn mtu(device: &Link) -> Bytes {
    Bytes::new(device.mtu.max(MTU_MIN).into())
}

/// Whether `link` is the intermediate device of `dev`.
pub(crate) fn is_ours(link: &Link, dev: &str) -> bool {
    link.kind == "ifb" && link.alias == alias(dev)
}

/// The alias of the intermediate device of `dev`, by which it is recognised.
fn alias(dev: &str) -> String {
    format!("{ALIAS}{dev}")
}

/// Prefix of the alias of an intermediate device; the name of its device follows.
pub(crate) const ALIAS: &str = "fairweir ";
/// IFNAMSIZ without the zero byte.
const NAME_MAX: usize = 15;
/// Packets in the device's own queue.
const QUEUE_PACKETS: u32 = 1_000;
/// Queues and quanta have room for packets of this size, even if the device's MTU is smaller.
const MTU_MIN: u32 = 1_500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_into_a_device_name() {
        assert_eq!(name("eth0"), "ifb4eth0");
        assert_eq!(name("enp0s31f6ab"), "ifb4enp0s31f6ab");
        let long = name("enx001122334455");
        assert!(long.len() <= NAME_MAX && long != name("enx001122334456"), "{long}");
    }
}
