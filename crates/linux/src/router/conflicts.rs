//! Other software on this machine that makes the router's control impossible. It is reported, never switched off.
//!
//! | what | why |
//! |---|---|
//! | a flowtable with `flags offload` | the hardware forwards packets, so no program sees them |
//! | a flowtable that lists a port of the LAN bridge | packets go from the WAN straight to the port, past the classes of the bridge |
//! | a root qdisc of another program at the WAN, or a routing rule that looks at the bits of packet marks that tell devices apart | the upload is not shared unless that is asked for |
//! | a shaper at an ifb to which the WAN redirects what arrives (SQM, qosify) | two shapers of one direction: the control learns the other one's rate |
//!
//! Source: linux/netfilter/nf_tables.h, net/netfilter/nft_flow_offload.c (`nft_dev_forward_path`),
//! linux/pkt_cls.h, linux/tc_act/tc_mirred.h.

use crate::Error;
use crate::bpf::header::MARK_MASK;
use crate::net::link::{self, Link};
use crate::net::netlink::{
    NFGENMSG_BYTES, Netlink, Request, TCMSG_BYTES, attribute, attributes, dump_nftables, tcmsg,
    text, u32_at,
};
use crate::shape::htb;

/// Refuses if packets bypass the classifier, or the download already has a shaper.
///
/// # Errors
/// [`Error::Bypassed`] or [`Error::Occupied`] says what was found; or if the kernel does not answer.
pub(crate) fn refuse_if_any(netlink: &mut Netlink, lans: &[Link], wan: &Link) -> Result<(), Error> {
    let links = link::all_with(netlink)?;
    let tables = flowtables()?;
    for lan in lans {
        let ports: Vec<&str> =
            links.iter().filter(|l| l.master == lan.index).map(|l| l.name.as_str()).collect();
        tables.iter().try_for_each(|table| table.refuse_if_in_the_way(&ports, &lan.name))?;
    }
    let targets = redirections(netlink, wan.index)?;
    let mut shapers = Vec::new();
    htb::roots(netlink, |device, kind, is_ours| {
        if SHAPERS.contains(&kind.as_str()) && !is_ours {
            shapers.push((device, kind));
        }
    })?;
    for (device, kind) in shapers {
        let Some(ifb) = links.iter().find(|l| l.index == device) else { continue };
        if targets.contains(&device) || (ifb.kind == "ifb" && is_named_after(&ifb.name, &wan.name))
        {
            return Err(Error::Occupied {
                dev: wan.name.clone(),
                found: format!("`{kind}` at {} shapes its download", ifb.name),
                remedy: format!("tc qdisc del dev {} root", ifb.name),
            });
        }
    }
    Ok(())
}

/// Whether an ifb has the name that SQM or qosify gives.
fn is_named_after(ifb: &str, wan: &str) -> bool {
    ["ifb4", "ifb-"].iter().any(|prefix| ifb.strip_prefix(prefix) == Some(wan))
}

/// A flowtable of nftables: connections in it are forwarded without the rest of the stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Flowtable {
    table: String,
    name: String,
    in_hardware: bool,
    devices: Vec<String>,
}

impl Flowtable {
    fn parse(payload: &[u8]) -> Option<Flowtable> {
        let mut found = Flowtable::default();
        for (kind, value) in attributes(payload.get(NFGENMSG_BYTES..)?) {
            match kind {
                NFTA_FLOWTABLE_TABLE => found.table = text(value),
                NFTA_FLOWTABLE_NAME => found.name = text(value),
                NFTA_FLOWTABLE_FLAGS => {
                    let flags = u32::from_be(u32_at(value, 0)?);
                    found.in_hardware = flags & NFT_FLOWTABLE_HW_OFFLOAD != 0;
                }
                NFTA_FLOWTABLE_HOOK => {
                    let devices = attribute(value, NFTA_FLOWTABLE_HOOK_DEVS).unwrap_or_default();
                    found.devices = attributes(devices).map(|(_, name)| text(name)).collect();
                }
                _ => {}
            }
        }
        Some(found)
    }

    /// Refuses if the flowtable forwards in hardware, or to one of the `ports` of the bridge `lan`.
    fn refuse_if_in_the_way(&self, ports: &[&str], lan: &str) -> Result<(), Error> {
        let Flowtable { table, name, .. } = self;
        if self.in_hardware {
            return Err(Error::Bypassed {
                found: format!(
                    "the flowtable `{name}` of the table `{table}` has `flags offload`, so hardware \
                     forwards packets"
                ),
                remedy: "remove the flag; on OpenWrt: `uci set firewall.@defaults[0].\
                         flow_offloading_hw=0`"
                    .to_owned(),
            });
        }
        if let Some(port) = self.devices.iter().find(|device| ports.contains(&device.as_str())) {
            return Err(Error::Bypassed {
                found: format!(
                    "the flowtable `{name}` of the table `{table}` lists {port}, a port of {lan}, \
                     and forwards to it past {lan}"
                ),
                remedy: format!(
                    "remove {port} from the flowtable; on OpenWrt: `uci set \
                     firewall.@defaults[0].flow_offloading=0`"
                ),
            });
        }
        Ok(())
    }
}

/// Why the upload of `wan` should not be shared unless explicitly requested.
///
/// # Errors
/// If the kernel does not answer.
pub(crate) fn with_upload(netlink: &mut Netlink, wan: &Link) -> Result<Option<String>, Error> {
    match htb::refuse_if_occupied(netlink, wan) {
        Err(e @ Error::Occupied { .. }) => return Ok(Some(e.to_string())),
        other => other?,
    }
    let mut looks_at_marks = false;
    let request = Request::new(libc::RTM_GETRULE, 0, &[0; RULE_BYTES]);
    netlink.dump("list the routing rules", request, |payload| {
        let rule = payload.get(RULE_BYTES..).unwrap_or_default();
        let number = |kind| attribute(rule, kind).and_then(|value| u32_at(value, 0));
        let mask = number(FRA_FWMASK).unwrap_or(u32::MAX);
        looks_at_marks |= number(FRA_FWMARK).is_some() && mask & MARK_MASK != 0;
    })?;
    let found = "a routing rule looks at the bits of packet marks by which devices are told apart; see `ip rule`";
    Ok(looks_at_marks.then(|| found.to_owned()))
}

/// All flowtables; none if the kernel has no nftables.
fn flowtables() -> Result<Vec<Flowtable>, Error> {
    let mut found = Vec::new();
    dump_nftables("list the flowtables", GET_FLOWTABLE, |payload| {
        found.extend(Flowtable::parse(payload));
    })?;
    Ok(found)
}

/// The devices to which the filters at a device's ingress redirect arriving packets.
fn redirections(netlink: &mut Netlink, device: u32) -> Result<Vec<u32>, Error> {
    let mut targets = Vec::new();
    let request = Request::new(libc::RTM_GETTFILTER, 0, &tcmsg(device, 0, INGRESS));
    let asked = netlink.dump("list the filters", request, |payload| {
        targets.extend(redirection_targets(payload.get(TCMSG_BYTES..).unwrap_or_default()));
    });
    match asked {
        // There is no qdisc at the ingress.
        Err(e) if matches!(e.errno(), Some(libc::EINVAL | libc::ENOENT | libc::EOPNOTSUPP)) => {}
        asked => asked?,
    }
    Ok(targets)
}

/// The devices to which one filter redirects.
fn redirection_targets(filter: &[u8]) -> Vec<u32> {
    let kind = attribute(filter, libc::TCA_KIND).map(text).unwrap_or_default();
    let Some((_, place)) = ACTIONS.iter().find(|(name, _)| *name == kind) else {
        return Vec::new();
    };
    let options = attribute(filter, libc::TCA_OPTIONS).unwrap_or_default();
    let actions = attributes(attribute(options, *place).unwrap_or_default());
    let target = |(_, action): (u16, &[u8])| {
        let is_mirred = attribute(action, TCA_ACT_KIND).map(text)? == "mirred";
        let options = attribute(action, TCA_ACT_OPTIONS).filter(|_| is_mirred)?;
        let parameters = attribute(options, TCA_MIRRED_PARMS)?;
        let redirects = matches!(u32_at(parameters, 20)?, TCA_EGRESS_REDIR | TCA_INGRESS_REDIR);
        u32_at(parameters, 24).filter(|_| redirects)
    };
    actions.filter_map(target).collect()
}

/// Qdiscs that shape.
const SHAPERS: [&str; 5] = ["cake", "htb", "hfsc", "tbf", "cbq"];
/// The attribute with the actions of each kind of filter: `TCA_…_ACT`.
const ACTIONS: [(&str, u16); 6] =
    [("bpf", 1), ("matchall", 2), ("basic", 3), ("flower", 3), ("fw", 4), ("u32", 7)];
/// The ingress of `clsact`, and of `ingress`.
const INGRESS: u32 = 0xffff_fff2;

const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
const TCA_INGRESS_REDIR: u32 = 3;

/// `NFT_MSG_GETFLOWTABLE`.
const GET_FLOWTABLE: u16 = 23;
const NFTA_FLOWTABLE_TABLE: u16 = 1;
/// `struct fib_rule_hdr`, linux/fib_rules.h.
const RULE_BYTES: usize = 12;
const FRA_FWMARK: u16 = 10;
const FRA_FWMASK: u16 = 16;
const NFTA_FLOWTABLE_NAME: u16 = 2;
const NFTA_FLOWTABLE_HOOK: u16 = 3;
const NFTA_FLOWTABLE_FLAGS: u16 = 7;
const NFTA_FLOWTABLE_HOOK_DEVS: u16 = 3;
const NFT_FLOWTABLE_HW_OFFLOAD: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::netlink::Nest;

    /// A flowtable, as the kernel lists it.
    fn listed(flags: u32, devices: &[&str]) -> Vec<u8> {
        let devices =
            devices.iter().fold(Nest::default(), |nest, device| nest.with_text(1, device));
        let hook = Nest::default()
            .with(1, &0u32.to_be_bytes())
            .with(2, &0u32.to_be_bytes())
            .with_nest(NFTA_FLOWTABLE_HOOK_DEVS, devices);
        let message = Nest::with_header(&[1, 0, 0, 0])
            .with_text(NFTA_FLOWTABLE_TABLE, "fw4")
            .with_text(NFTA_FLOWTABLE_NAME, "ft")
            .with(NFTA_FLOWTABLE_FLAGS, &flags.to_be_bytes())
            .with_nest(NFTA_FLOWTABLE_HOOK, hook);
        message.as_bytes().to_vec()
    }

    fn verdict(flags: u32, devices: &[&str]) -> Result<(), String> {
        let table = Flowtable::parse(&listed(flags, devices)).unwrap();
        table.refuse_if_in_the_way(&["lan1", "lan2"], "br-lan").map_err(|e| e.to_string())
    }

    #[test]
    fn a_flowtable_that_takes_packets_past_the_lan_is_refused_with_the_reason() {
        let said = verdict(1, &["wan"]).unwrap_err();
        assert!(said.contains("`ft` of the table `fw4`") && said.contains("hardware"), "{said}");
        let said = verdict(0, &["wan", "lan2"]).unwrap_err();
        assert!(said.contains("lists lan2, a port of br-lan"), "{said}");
        assert_eq!(verdict(0, &["wan", "br-lan", "lan22"]), Ok(()), "the bridge's egress sees it");
        assert_eq!(verdict(2, &[]), Ok(()), "other flags are not about hardware");
    }

    #[test]
    fn cut_answers_of_the_kernel_are_no_flowtables_and_no_panic() {
        let whole = listed(1, &["wan", "lan1"]);
        for length in 0..whole.len() {
            let _ = Flowtable::parse(&whole[..length]);
            let _ = redirection_targets(&whole[..length]);
        }
    }

    #[test]
    fn filters_tell_where_they_redirect() {
        let filter = |kind: &str, place: u16, action: &str, how: u32| {
            let mut parameters = vec![0; 28];
            parameters[20..24].copy_from_slice(&how.to_ne_bytes());
            parameters[24..28].copy_from_slice(&7u32.to_ne_bytes());
            let action = Nest::default()
                .with_text(TCA_ACT_KIND, action)
                .with_nest(TCA_ACT_OPTIONS, Nest::default().with(TCA_MIRRED_PARMS, &parameters));
            let options = Nest::default().with_nest(place, Nest::default().with_nest(1, action));
            let filter = Nest::default().with_text(libc::TCA_KIND, kind);
            redirection_targets(filter.with_nest(libc::TCA_OPTIONS, options).as_bytes())
        };
        for (kind, place) in ACTIONS {
            assert_eq!(filter(kind, place, "mirred", TCA_EGRESS_REDIR), [7], "{kind}");
        }
        assert!(filter("u32", 7, "mirred", 2).is_empty(), "a copy leaves the packet");
        assert!(filter("u32", 7, "police", TCA_EGRESS_REDIR).is_empty());
        assert!(filter("u32", 2, "mirred", TCA_EGRESS_REDIR).is_empty());
    }
}
