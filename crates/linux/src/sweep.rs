//! Finds and removes what a killed daemon leaves in the kernel.

use crate::Error;
use crate::classify::ingress;
use crate::net::link;
use crate::net::netlink::Netlink;
use crate::police::pins;
use crate::shape::{htb, ifb};
use crate::window::{self, expiry};

/// Removes what a killed daemon left at `dev`, and nothing else; returns in words what was removed.
///
/// # Errors
/// If the kernel refuses.
pub fn sweep(dev: &str) -> Result<Vec<String>, Error> {
    let mut netlink = Netlink::open()?;
    let mut swept = Vec::new();
    // The filter goes first: without the ifb it would send packets nowhere.
    let device = link::find_with(&mut netlink, dev)?.map(|device| device.index);
    if let Some(index) = device
        && ingress::detach_clsact(&mut netlink, index)?
    {
        swept.push(format!("the classifier at the ingress of {dev}"));
    }
    if let Some(index) = device
        && htb::is_there(&mut netlink, index)?
    {
        netlink.change(&format!("delete the HTB qdisc of {dev}"), htb::root_deletion(index))?;
        swept.push(format!("the HTB qdisc of {dev} with its classes"));
    }
    let name = ifb::name(dev);
    if let Some(old) = link::find_with(&mut netlink, &name)?.filter(|old| ifb::is_ours(old, dev)) {
        netlink.change(&format!("delete the old {name}"), link::deletion(old.index))?;
        swept.push(format!("the device {name} with its classes"));
    }
    if pins::sweep(dev)? {
        swept.push(format!("the policer that went on at {dev}"));
    }
    match expiry::sweep(device) {
        Ok(0) => {}
        Ok(count) => swept.push(format!("programs of killed daemons at the root cgroup: {count}")),
        Err(e) => tracing::debug!(error = %e, "no programs at the root cgroup are looked for"),
    }
    // A kernel that cannot lift bounds cannot have set them.
    match window::lift() {
        Ok(0) => {}
        Ok(count) => swept.push(format!("the bounds of {count} receive windows")),
        Err(e) => tracing::debug!(error = %e, "no bounds of windows are looked for"),
    }
    Ok(swept)
}

/// The devices of this network namespace with objects of fairweir, also of running daemons.
///
/// # Errors
/// If the kernel does not answer.
pub fn leftovers() -> Result<Vec<String>, Error> {
    let links = link::all()?;
    let mut netlink = Netlink::open()?;
    let mut devices = Vec::new();
    for link in &links {
        devices.extend(link.alias.strip_prefix(ifb::ALIAS).map(str::to_owned));
        let is_ifb = link.alias.starts_with(ifb::ALIAS);
        if ingress::has_our_filter(&mut netlink, link.index)?
            || (!is_ifb && htb::is_there(&mut netlink, link.index)?)
        {
            devices.push(link.name.clone());
        }
    }
    devices.extend(pins::devices()?);
    devices.sort();
    devices.dedup();
    Ok(devices)
}
