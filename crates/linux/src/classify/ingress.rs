//! The ingress of a device: whether other software uses it, and, on kernels without tcx, how to
//! attach by clsact.

use crate::Error;
use crate::net::link::Link;
use crate::net::netlink::{Nest, Netlink, Request, TCMSG_BYTES, attribute, tcmsg, text, u32_at};

/// Refuses if the device has an ingress qdisc or filters that are not fairweir's.
///
/// # Errors
/// [`Error::Occupied`] says what was found and how to remove it.
pub(crate) fn refuse_if_occupied(netlink: &mut Netlink, device: &Link) -> Result<(), Error> {
    let dev = &device.name;
    let occupied =
        |found: String, remedy: String| Err(Error::Occupied { dev: dev.clone(), found, remedy });
    match qdisc(netlink, device.index)?.as_deref() {
        None => Ok(()),
        Some("clsact") => {
            let others = filters(netlink, device.index)?;
            match others.iter().find(|f| !f.is_ours()) {
                None => Ok(()),
                Some(filter) => occupied(
                    format!("a `{}` filter is attached at ingress", filter.kind),
                    format!("tc filter del dev {dev} ingress"),
                ),
            }
        }
        Some(kind) => occupied(
            format!("the `{kind}` qdisc of another program is attached"),
            format!("tc qdisc del dev {dev} {kind}"),
        ),
    }
}

/// Attaches the program behind `program_fd` by clsact and cls_bpf, for kernels before 6.6. Unlike a
/// tcx link this attachment outlives the process; the stale heartbeat then lets everything pass.
///
/// # Errors
/// If the kernel has neither clsact nor cls_bpf, or refuses.
pub(crate) fn attach_clsact(
    netlink: &mut Netlink,
    device: u32,
    program_fd: i32,
) -> Result<(), Error> {
    let make = Request::new(
        libc::RTM_NEWQDISC,
        (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16,
        &tcmsg(device, CLSACT_HANDLE, TC_H_CLSACT),
    );
    let made = match netlink.change("make a clsact qdisc", make.with_text(libc::TCA_KIND, "clsact"))
    {
        Ok(()) => true,
        Err(e) if e.errno() == Some(libc::EEXIST) => false,
        Err(e) => return Err(e),
    };
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let options = Nest::default()
        .with_u32(TCA_BPF_FD, program_fd as u32)
        .with_text(TCA_BPF_NAME, FILTER_NAME)
        .with_u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
    let filter = Request::new(libc::RTM_NEWTFILTER, flags, &filter_header(device, FILTER_PRIORITY))
        .with_text(libc::TCA_KIND, "bpf")
        .with_nest(libc::TCA_OPTIONS, options);
    let attached = netlink.change("attach the classifier to the ingress by clsact", filter);
    if attached.is_err() && made {
        // The error to report is why the program could not be attached.
        let _ = delete_clsact(netlink, device);
    }
    attached
}

/// Removes our filter, and the clsact qdisc if no other filter is attached to it; returns whether
/// something was removed.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn detach_clsact(netlink: &mut Netlink, device: u32) -> Result<bool, Error> {
    if qdisc(netlink, device)?.as_deref() != Some("clsact") {
        return Ok(false);
    }
    let ours: Vec<Filter> = filters(netlink, device)?.into_iter().filter(Filter::is_ours).collect();
    for filter in &ours {
        let request =
            Request::new(libc::RTM_DELTFILTER, 0, &filter_header(device, filter.priority));
        netlink.change("remove our filter", request.with_text(libc::TCA_KIND, "bpf"))?;
    }
    let egress = filters_at(netlink, device, CLSACT_EGRESS)?;
    if !ours.is_empty() && egress.is_empty() && filters(netlink, device)?.is_empty() {
        delete_clsact(netlink, device)?;
    }
    Ok(!ours.is_empty())
}

fn delete_clsact(netlink: &mut Netlink, device: u32) -> Result<(), Error> {
    let header = tcmsg(device, CLSACT_HANDLE, TC_H_CLSACT);
    netlink.change("remove our clsact qdisc", Request::new(libc::RTM_DELQDISC, 0, &header))
}

/// Whether a filter of ours is attached at the ingress.
pub(crate) fn has_our_filter(netlink: &mut Netlink, device: u32) -> Result<bool, Error> {
    let clsact = qdisc(netlink, device)?.as_deref() == Some("clsact");
    Ok(clsact && filters(netlink, device)?.iter().any(Filter::is_ours))
}

/// A filter at the ingress.
struct Filter {
    kind: String,
    name: String,
    priority: u32,
}

impl Filter {
    fn is_ours(&self) -> bool {
        self.kind == "bpf" && self.name == FILTER_NAME
    }
}

/// The kind of the qdisc at the ingress, if there is one.
fn qdisc(netlink: &mut Netlink, device: u32) -> Result<Option<String>, Error> {
    let mut found = None;
    let request = Request::new(libc::RTM_GETQDISC, 0, &tcmsg(device, 0, 0));
    netlink.dump("list the qdiscs", request, |payload| {
        let here = u32_at(payload, 4) == Some(device);
        if here && u32_at(payload, 12) == Some(TC_H_CLSACT) {
            let kind = attribute(payload.get(TCMSG_BYTES..).unwrap_or_default(), libc::TCA_KIND);
            found = kind.map(text);
        }
    })?;
    Ok(found)
}

fn filters(netlink: &mut Netlink, device: u32) -> Result<Vec<Filter>, Error> {
    filters_at(netlink, device, CLSACT_INGRESS)
}

fn filters_at(netlink: &mut Netlink, device: u32, parent: u32) -> Result<Vec<Filter>, Error> {
    let mut filters: Vec<Filter> = Vec::new();
    let request = Request::new(libc::RTM_GETTFILTER, 0, &tcmsg(device, 0, parent));
    netlink.dump("list the filters", request, |payload| {
        let attributes = payload.get(TCMSG_BYTES..).unwrap_or_default();
        let options = attribute(attributes, libc::TCA_OPTIONS).unwrap_or_default();
        let name = attribute(options, TCA_BPF_NAME).map(text).unwrap_or_default();
        let priority = u32_at(payload, 16).unwrap_or(0) >> 16;
        // The kernel lists a filter's chain first and then its elements; only those have options.
        if !options.is_empty() {
            let kind = attribute(attributes, libc::TCA_KIND).map(text).unwrap_or_default();
            filters.push(Filter { kind, name, priority });
        }
    })?;
    Ok(filters)
}

/// `struct tcmsg` for a filter at the ingress: the priority and the protocol are in one number.
fn filter_header(device: u32, priority: u32) -> [u8; TCMSG_BYTES] {
    let mut header = tcmsg(device, 0, CLSACT_INGRESS);
    let protocol = u32::from((libc::ETH_P_ALL as u16).to_be());
    header[16..20].copy_from_slice(&(priority << 16 | protocol).to_ne_bytes());
    header
}

/// Whether a kernel's refusal means that it has no tcx.
pub(crate) fn lacks_tcx(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::E2BIG))
}

const FILTER_NAME: &str = "fairweir";
/// The priority of our filter: behind most other filters, so that they see the packets first.
const FILTER_PRIORITY: u32 = 49_000;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
