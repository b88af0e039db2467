//! The rules and routes that deliver marked packets to this host.
//!
//! Three rules for each family, directly behind the rule of the table `local`, so that no other program's rule
//! takes the packets. Packets that leave this host, or are looked up as if they did, with the mark alone are left
//! to the rules behind; all others with the mark go to the table, where everything is local. The first rule is for
//! `src_valid_mark`: with it the kernel asks where a packet's *source* would be sent, with the packet's mark, and
//! drops the packet if the answer is this host. Source: `__fib_validate_source` in net/ipv4/fib_frontend.c.
//!
//! Rules and routes have the protocol `kernel`: systemd-networkd removes those of protocols that it does not know.

use super::{SOCKET_MARK, TABLE_NUMBER};
use crate::Error;
use crate::net::link;
use crate::net::netlink::{Netlink, Request, attribute, u32_at};

/// What a rule does with the packets that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Looks them up in the table [`TABLE_NUMBER`].
    Deliver,
    /// Leaves them to the rules behind [`PRIORITY_BEHIND`].
    Leave,
    /// Does nothing; the rule before leads to it.
    Nothing,
}

impl Action {
    /// The kernel's number. Source: linux/fib_rules.h.
    fn number(self) -> u8 {
        match self {
            Action::Deliver => 1,
            Action::Leave => 2,
            Action::Nothing => 3,
        }
    }

    fn priority(self) -> u32 {
        match self {
            Action::Leave => 1,
            Action::Deliver => 2,
            Action::Nothing => PRIORITY_BEHIND,
        }
    }
}

/// Adds the rules and routes.
///
/// # Errors
/// If the kernel refuses one, for example when another program uses the table.
pub(super) fn add(netlink: &mut Netlink, mark: u32) -> Result<(), Error> {
    let lo = link::find_with(netlink, "lo")?.ok_or_else(|| Error::NoDevice("lo".to_owned()))?;
    for family in FAMILIES {
        let route = route(libc::RTM_NEWROUTE, CREATE, family).with_u32(libc::RTA_OIF, lo.index);
        netlink.change(
            &format!(
                "deliver diverted packets by table {TABLE_NUMBER} (is lo up, the table empty?)"
            ),
            route,
        )?;
        for action in ACTIONS {
            let rule = rule(libc::RTM_NEWRULE, CREATE, family, action);
            let rule = match action {
                Action::Nothing => rule,
                Action::Deliver => rule.with_u32(FRA_FWMARK, mark).with_u32(FRA_FWMASK, mark),
                Action::Leave => rule
                    .with_text(FRA_IIFNAME, "lo")
                    .with_u32(FRA_FWMARK, mark)
                    .with_u32(FRA_FWMASK, mark | SOCKET_MARK),
            };
            netlink.change("add a rule for diverted packets", rule)?;
        }
    }
    Ok(())
}

/// Removes the existing rules and routes, and returns what was removed.
///
/// # Errors
/// If something cannot be removed.
pub(super) fn remove(netlink: &mut Netlink) -> Result<Vec<String>, Error> {
    let mut removed = Vec::new();
    for family in FAMILIES {
        let name = family_name(family);
        let rules = ACTIONS.map(|action| rule(libc::RTM_DELRULE, 0, family, action));
        let rules = rules.into_iter().map(|rule| ("rule for diverted packets", rule));
        let route = route(libc::RTM_DELROUTE, 0, family);
        for (what, request) in rules.chain([("route of diverted packets", route)]) {
            match netlink.change(&format!("remove the {what}"), request) {
                Ok(()) => removed.push(format!("{name} {what}")),
                Err(e) if matches!(e.errno(), Some(libc::ENOENT | libc::ESRCH)) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(removed)
}

/// The fault, in words; `None` if everything is as it was created.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn fault(netlink: &mut Netlink, mark: u32) -> Result<Option<String>, Error> {
    for family in FAMILIES {
        let name = family_name(family);
        let mut missing = ACTIONS.to_vec();
        each_rule(netlink, family, |rule| missing.retain(|&action| !rule.is(action, mark)))?;
        if !missing.is_empty() {
            return Ok(Some(format!("{name} rules for diverted packets were removed")));
        }
        if !is_delivered(netlink, family, mark | SOCKET_MARK)? {
            return Ok(Some(format!(
                "{name} diverted packets are not delivered to this host: a route or a rule was changed"
            )));
        }
    }
    Ok(None)
}

/// The mark bits in other programs' rules; rules that compare the whole mark do not count.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn bits_of_others(netlink: &mut Netlink) -> Result<u32, Error> {
    let mut bits = 0;
    for family in FAMILIES {
        each_rule(netlink, family, |rule| {
            if rule.priority > PRIORITY_BEHIND && rule.mask != u32::MAX {
                bits |= rule.mask;
            }
            if rule.mark & SOCKET_MARK != 0 {
                tracing::warn!(
                    priority = rule.priority,
                    "a policy rule matches marks with the bit {SOCKET_MARK:#010x}, which the proxy's sockets have"
                );
            }
        })?;
    }
    Ok(bits)
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    priority: u32,
    action: u8,
    mark: u32,
    mask: u32,
}

impl Rule {
    fn parse(payload: &[u8]) -> Option<Rule> {
        let attributes = payload.get(RULE_HEADER_BYTES..)?;
        let number = |kind| attribute(attributes, kind).and_then(|value| u32_at(value, 0));
        Some(Rule {
            priority: number(FRA_PRIORITY).unwrap_or(0),
            action: payload[7],
            mark: number(FRA_FWMARK).unwrap_or(0),
            mask: number(FRA_FWMASK).unwrap_or(0),
        })
    }

    fn is(self, action: Action, mark: u32) -> bool {
        (self.action, self.priority) == (action.number(), action.priority())
            && (self.mark == mark || action == Action::Nothing)
    }
}

fn each_rule(netlink: &mut Netlink, family: i32, mut each: impl FnMut(Rule)) -> Result<(), Error> {
    let mut header = [0; RULE_HEADER_BYTES];
    header[0] = family as u8;
    let request = Request::new(libc::RTM_GETRULE, 0, &header);
    netlink.dump("list the policy rules", request, |payload| {
        Rule::parse(payload).into_iter().for_each(&mut each);
    })
}

/// Whether the kernel delivers packets with this mark to itself, when this host sends them to another.
fn is_delivered(netlink: &mut Netlink, family: i32, mark: u32) -> Result<bool, Error> {
    let mut header = [0; ROUTE_HEADER_BYTES];
    header[0] = family as u8;
    // Addresses of the blocks for documentation, which no network uses.
    let far: &[u8] = match family {
        libc::AF_INET => &[192, 0, 2, 1],
        _ => &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    };
    header[1] = far.len() as u8 * 8;
    let request = Request::new(libc::RTM_GETROUTE, 0, &header)
        .with(libc::RTA_DST, far)
        .with_u32(libc::RTA_MARK, mark);
    match netlink.ask("look up a route", request) {
        Ok(payload) => Ok(payload.get(7) == Some(&libc::RTN_LOCAL)),
        // There is no route at all.
        Err(e) if e.errno().is_some() => Ok(false),
        Err(e) => Err(e),
    }
}

/// `struct fib_rule_hdr` and the attributes that identify our rule. Source: linux/fib_rules.h.
fn rule(kind: u16, flags: u16, family: i32, action: Action) -> Request {
    let mut header = [0; RULE_HEADER_BYTES];
    header[0] = family as u8;
    header[7] = action.number();
    let rule = Request::new(kind, flags, &header)
        .with_u32(FRA_PRIORITY, action.priority())
        .with(FRA_PROTOCOL, &[libc::RTPROT_KERNEL]);
    match action {
        Action::Deliver => rule.with_u32(FRA_TABLE, TABLE_NUMBER),
        Action::Leave => rule.with_u32(FRA_GOTO, PRIORITY_BEHIND),
        Action::Nothing => rule,
    }
}

/// `local default` in the table of the rule.
fn route(kind: u16, flags: u16, family: i32) -> Request {
    let mut header = [0; ROUTE_HEADER_BYTES];
    header[0] = family as u8;
    header[5] = libc::RTPROT_KERNEL;
    header[6] = libc::RT_SCOPE_HOST;
    header[7] = libc::RTN_LOCAL;
    Request::new(kind, flags, &header).with_u32(libc::RTA_TABLE, TABLE_NUMBER)
}

fn family_name(family: i32) -> &'static str {
    if family == libc::AF_INET { "IPv4" } else { "IPv6" }
}

const FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
const ACTIONS: [Action; 3] = [Action::Nothing, Action::Leave, Action::Deliver];
const PRIORITY_BEHIND: u32 = 3;
const RULE_HEADER_BYTES: usize = 12;
const ROUTE_HEADER_BYTES: usize = 12;
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PROTOCOL: u16 = 21;
