//! `fairweir router devices`: the devices behind a router, and the share of the link that each has.

use std::io::{self, Write};

use fairweir_config::host::Role;
use fairweir_config::text;
use fairweir_core::policy::DEFAULT_GROUP;
use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Rate};
use fairweir_daemon::{Access, Request};
use serde::Serialize;

use super::cli::{DevicesArgs, DevicesCommand};
use super::client::find;
use super::naming;
use super::show::headline;
use super::wire::{HostRequest, NeighbourStatus, Neighbours, Status};
use crate::table::{self, Align};
use crate::words::lasting;

pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    if let Some(DevicesCommand::Name(args)) = &args.command {
        return naming::run(args);
    }
    let (ask, out) = (&args.ask, &mut text::stdout());
    let role = Some(Role::Router);
    let mut client = find(&ask.run_dir.run_dir, role, ask.dev.as_deref(), Access::Read)?;
    let status: Status = client.ask(&Request::Status)?;
    let there: Neighbours = client.ask(&HostRequest::Neighbours)?;
    let devices = devices(&status, there.neighbours);
    if ask.json {
        let who = Who {
            dev: status.dev.clone(),
            since_s: status.since_s,
            capacity_bps: status.capacity_bps,
            upload_capacity_bps: status.upload.as_ref().and_then(|upload| upload.capacity_bps),
            devices,
        };
        return Ok(out.write_all(fairweir_daemon::as_line(&who).as_bytes())?);
    }
    writeln!(out, "{}\n", headline(&status))?;
    print(out, &devices)?;
    let since = lasting(status.since_s as u64);
    Ok(writeln!(
        out,
        "\nRates are in Mbit/s; bytes are counted since the daemon started, {since} ago."
    )?)
}

/// The output of `fairweir router devices --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Who {
    /// The interface that faces the Internet.
    dev: String,
    /// Seconds since the daemon started; bytes are counted from then on.
    since_s: f64,
    /// The estimated capacity of the link.
    capacity_bps: Option<Rate>,
    /// The estimated capacity of the uplink.
    upload_capacity_bps: Option<Rate>,
    /// Those that receive most come first.
    devices: Vec<Device>,
}

/// A device of the configuration; `default` stands for all others together.
#[derive(Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
struct Device {
    name: String,
    weight: Weight,
    /// Its cap; null without one.
    max_bps: Option<Rate>,
    /// The rate that it receives now.
    rate_bps: Rate,
    /// That rate as a fraction of the link's capacity; null while the capacity is unknown.
    of_link: Option<f64>,
    /// Its fair share of the link.
    share_bps: Rate,
    received_bytes: Bytes,
    /// The rate that it sends now; null if the upload is not shared.
    upload_rate_bps: Option<Rate>,
    sent_bytes: Option<Bytes>,
    /// The members that are present now.
    members: Vec<NeighbourStatus>,
}

/// The devices of a status, each with its members that are present.
fn devices(status: &Status, there: Vec<NeighbourStatus>) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for group in &status.groups {
        if devices.last().is_none_or(|device| device.name != group.top()) {
            devices.push(Device {
                name: group.top().to_owned(),
                weight: group.top_weight(),
                max_bps: group.within.first().map_or(group.max_bps, |top| top.max_bps),
                rate_bps: Rate::ZERO,
                of_link: None,
                share_bps: Rate::ZERO,
                received_bytes: Bytes::ZERO,
                upload_rate_bps: None,
                sent_bytes: None,
                members: Vec::new(),
            });
        }
        let device = devices.last_mut().expect("invariant: one was added if there was none");
        device.rate_bps += group.decision.rate;
        device.share_bps += group.decision.share;
        device.received_bytes += group.received_bytes;
        let mut sent = status.upload.iter().flat_map(|upload| &upload.groups);
        if let Some(sent) = sent.find(|sent| sent.name == group.name) {
            device.upload_rate_bps =
                Some(device.upload_rate_bps.unwrap_or_default() + sent.rate_bps);
            device.sent_bytes = Some(device.sent_bytes.unwrap_or_default() + sent.offered_bytes);
        }
    }
    for neighbour in there {
        let name = neighbour.device.as_deref().unwrap_or(DEFAULT_GROUP);
        if let Some(device) = devices.iter_mut().find(|device| device.name == name) {
            device.members.push(neighbour);
        }
    }
    for device in &mut devices {
        let capacity = status.capacity_bps.filter(|capacity| *capacity > Rate::ZERO);
        let rate = device.rate_bps.as_bps() as f64;
        device.of_link = capacity.map(|capacity| rate / capacity.as_bps() as f64);
    }
    devices.sort_by(|a, b| (b.rate_bps, &a.name).cmp(&(a.rate_bps, &b.name)));
    devices
}

fn print(out: &mut impl Write, devices: &[Device]) -> io::Result<()> {
    let headings = [
        ("DEVICE", Align::Left),
        ("DOWN", Align::Right),
        ("UP", Align::Right),
        ("OF LINK", Align::Right),
        ("SHARE", Align::Right),
        ("RECEIVED", Align::Right),
        ("SENT", Align::Right),
        ("WEIGHT", Align::Right),
        ("MAX", Align::Right),
        ("SINCE", Align::Right),
        ("HEARD", Align::Right),
        ("NAME BY", Align::Left),
        ("MAC", Align::Left),
        ("ADDRESSES", Align::Left),
    ];
    table::print(out, &headings, &devices.iter().flat_map(rows).collect::<Vec<_>>())
}

/// A row for the device, and one for each present member, unless the device is its only member.
fn rows(device: &Device) -> Vec<Vec<String>> {
    let mbit = |rate: Rate| format!("{:.2}", rate.as_mbit_f64());
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let is_default = device.name == DEFAULT_GROUP;
    let mut first = vec![
        device.name.clone(),
        mbit(device.rate_bps),
        or_dash(device.upload_rate_bps.map(mbit)),
        or_dash(device.of_link.map(|part| format!("{:.0} %", part * 100.0))),
        mbit(device.share_bps),
        device.received_bytes.to_string(),
        or_dash(device.sent_bytes.map(|bytes| bytes.to_string())),
        device.weight.to_string(),
        or_dash(device.max_bps.map(mbit)),
    ];
    match device.members.as_slice() {
        [one] if !is_default => {
            first.extend(there(one, "configuration"));
            vec![first]
        }
        members => {
            let note = if is_default { "all others" } else { "configuration" };
            first.extend(["-", "-", note, "-", "-"].map(str::to_owned));
            let member = |one: &NeighbourStatus| {
                let (name, by) = match &one.dhcp_name {
                    Some(name) => (name.as_str(), "DHCP"),
                    None => ("?", "-"),
                };
                let dashes = vec!["-".to_owned(); COUNTED];
                [vec![format!("  {name}")], dashes, there(one, by)].concat()
            };
            [first].into_iter().chain(members.iter().map(member)).collect()
        }
    }
}

/// The number of columns that only devices of the configuration have.
const COUNTED: usize = 8;

/// Since when a member is present, when it was last heard, how its name is known, and its addresses.
fn there(one: &NeighbourStatus, by: &str) -> Vec<String> {
    let made_up = if one.mac.is_made_up() { " (made up)" } else { "" };
    let addresses: Vec<_> = one.addresses.iter().map(ToString::to_string).collect();
    let heard = match one.silent_s {
        0..60 => "now".to_owned(),
        silent => format!("{} ago", lasting(silent / 60 * 60)),
    };
    vec![
        lasting(one.since_s),
        heard,
        by.to_owned(),
        format!("{}{made_up}", one.mac),
        addresses.join(" "),
    ]
}

#[cfg(test)]
mod tests {
    use fairweir_core::receiver::GroupDecision;

    use super::super::wire::{GroupStatus, UploadGroupStatus, UploadStatus, WithinStatus};
    use super::*;

    fn group(name: &str, mbit: u64, received: u64) -> GroupStatus {
        let (rate, share) = (Rate::mbit(mbit), Rate::mbit(mbit + 1));
        GroupStatus {
            name: name.to_owned(),
            decision: GroupDecision { rate, share, ..GroupDecision::default() },
            received_bytes: Bytes::kb(received * 1_000),
            ..GroupStatus::default()
        }
    }

    fn neighbour(last: u8, device: Option<&str>, dhcp_name: Option<&str>) -> NeighbourStatus {
        NeighbourStatus {
            mac: fairweir_core::packet::Mac([last % 2 * 2, 0, 0x5e, 0, 0x53, last]),
            addresses: vec![[192, 168, 7, last].into()],
            device: device.map(str::to_owned),
            dhcp_name: dhcp_name.map(str::to_owned),
            since_s: 7_260,
            silent_s: u64::from(last) * 30,
        }
    }

    #[test]
    fn devices_come_by_their_rates_with_who_is_there_of_each() {
        let within = WithinStatus {
            name: "tv".to_owned(),
            weight: Weight::new(4).unwrap(),
            max_bps: Some(Rate::mbit(20)),
            min_bps: None,
            timed: None,
            plan: None,
        };
        let mut groups = vec![
            group("tv/video", 9, 5),
            group("tv/default", 1, 1),
            group("office", 15, 2),
            group("default", 3, 4),
        ];
        groups[..2].iter_mut().for_each(|group| group.within = vec![within.clone()]);
        let sends = |name: &str| UploadGroupStatus {
            name: name.to_owned(),
            rate_bps: Rate::mbit(1),
            offered_bytes: Bytes::kb(3_000),
            ..UploadGroupStatus::default()
        };
        let upload = UploadStatus {
            groups: ["tv/video", "tv/default", "office"].map(sends).to_vec(),
            ..UploadStatus::default()
        };
        let status = Status {
            groups,
            upload: Some(upload),
            capacity_bps: Some(Rate::mbit(40)),
            ..Status::default()
        };
        let there = vec![
            neighbour(1, Some("tv"), None),
            neighbour(2, Some("office"), Some("laptop")),
            neighbour(3, Some("office"), None),
            neighbour(4, None, Some("phone\u{1b}[2J")),
        ];
        let devices = devices(&status, there);
        let mut out = Vec::new();
        print(&mut out, &devices).unwrap();
        let text = String::from_utf8(out).unwrap();
        let words =
            |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().skip(1).map(words).collect();
        assert_eq!(
            lines,
            [
                "office 15.00 1.00 38 % 16.00 2MB 3MB 1 - - - configuration - -",
                "laptop - - - - - - - - 2 h 1 min 1 min ago DHCP 00:00:5e:00:53:02 192.168.7.2",
                "? - - - - - - - - 2 h 1 min 1 min ago - 02:00:5e:00:53:03 (made up) 192.168.7.3",
                "tv 10.00 2.00 25 % 12.00 6MB 6MB 4 20.00 2 h 1 min now configuration \
                 02:00:5e:00:53:01 (made up) 192.168.7.1",
                "default 3.00 - 8 % 4.00 4MB - 1 - - - all others - -",
                "phone\\u001b[2J - - - - - - - - 2 h 1 min 2 min ago DHCP 00:00:5e:00:53:04 192.168.7.4",
            ]
        );
    }
}
