//! First configurations of an access network and of a server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

/// The most prefixes of peers that are listed; IPv4 and IPv6 addresses are grouped by the lengths below.
const PEERS_MAX: usize = 16;
const V4_PREFIX: u8 = 24;
const V6_PREFIX: u8 = 48;

/// The port of backups that is used if no other port is seen: rsync.
const BACKUPS: u16 = 873;

/// A configuration of an access network: one plan as an example, without subscribers.
pub(super) fn isp(device: &str, uplink: &str) -> String {
    format!(
        "# Written by `fairweir setup`. All keys: docs/isp/reference.md. Without subscribers all traffic passes.\n\
         version = 1\n\n\
         [isp]\n\
         device = {}   # towards the subscribers\n\
         uplink = {}   # towards the Internet\n\n\
         # An example: put your own rates here, then: fairweir isp add NAME --plan home-50 --address ADDRESS\n\
         [[plan]]\n\
         name = \"home-50\"\n\
         download = \"50mbit\"\n\
         upload = \"10mbit\"\n",
        toml::Value::from(device),
        toml::Value::from(uplink),
    )
}

/// A configuration of a server: connections to the port with the fewest hold a rate; those to other ports give way.
pub(super) fn sender(served: &BTreeMap<u16, Vec<IpAddr>>) -> String {
    let mut ports: Vec<(u16, usize)> =
        served.iter().map(|(port, all)| (*port, all.len())).collect();
    ports.sort_by_key(|&(_, connections)| connections);
    let free = ports.first().map_or(1935, |&(port, _)| port);
    let mut stunts: Vec<u16> = ports.iter().skip(1).map(|&(port, _)| port).collect();
    if stunts.is_empty() {
        stunts.push(BACKUPS);
    }
    let mut peers: BTreeSet<String> =
        served.values().flatten().map(|peer| prefix(*peer).to_string()).collect();
    if peers.is_empty() {
        peers.insert("192.0.2.0/24".to_owned());
    }
    let rules: Vec<String> =
        stunts.iter().take(PEERS_MAX).map(|port| format!("\"local-port:tcp/{port}\"")).collect();
    let peers: Vec<String> = peers.iter().take(PEERS_MAX).map(|net| format!("\"{net}\"")).collect();
    format!(
        "# Written by `fairweir setup`. All keys: docs/experiments/sender.md.\n\
         version = 1\n\n\
         [[bundle]]\n\
         name = \"served\"\n\
         # Keep only peers that share a bottleneck.\n\
         peers = [{}]\n\n\
         # Connections that hold a rate; put the one you want here.\n\
         [[bundle.free]]\n\
         match = [\"local-port:tcp/{free}\"]\n\
         target = \"1mbit\"\n\n\
         # Connections that give way.\n\
         [[bundle.stunts]]\n\
         match = [{}]\n",
        peers.join(", "),
        rules.join(", "),
    )
}

fn prefix(peer: IpAddr) -> IpNet {
    let length = if peer.is_ipv4() { V4_PREFIX } else { V6_PREFIX };
    IpNet::new(peer, length).expect("invariant: shorter than the address").trunc()
}

#[cfg(test)]
mod tests {
    use fairweir_config::isp::IspFile;
    use fairweir_config::sender::SenderFile;

    use super::*;

    #[test]
    fn what_is_proposed_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file.toml");
        std::fs::write(&path, isp("eth1", "eth0.7")).unwrap();
        let file = IspFile::load(&path).unwrap();
        assert_eq!(file.isp.device, "eth1");
        let peer = |i: u8| IpAddr::from([192, 0, i, 1]);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        for served in [
            BTreeMap::new(),
            BTreeMap::from([(443, vec![peer(1); 60])]),
            BTreeMap::from([(443, (0..=255).map(peer).collect()), (1935, vec![peer(1), v6])]),
        ] {
            std::fs::write(&path, sender(&served)).unwrap();
            let file = SenderFile::load(&path).unwrap();
            assert_eq!(file.bundles.len(), 1, "{served:?}");
            if served.len() == 2 {
                assert_eq!(file.bundles[0].free[0].matches[0].to_string(), "local-port:tcp/1935");
            }
        }
    }
}
