//! What the user asks for: flow groups, their weights, and what belongs to each.
//!
//! A [`Policy`] is an ordered list of [`Group`]s, one of which is the default group that takes
//! whatever matches nothing. Which group a packet belongs to:
//!
//! 1. each kind of match (address, port, application, unit, user, cgroup, host name) names at most
//!    one group: the longest prefix that contains the address wins, the most specific pattern of
//!    host names wins, and among equal ones the first group;
//! 2. among the groups named in this way, the first of the policy wins;
//! 3. if no group is named: the default group.
//!
//! A group may have groups beneath it ([`Branch`]), at most [`DEPTH_MAX`] levels in all. Its packets are
//! then assigned in the same way among these and their own default group. The leaves are measured and
//! enforced, and [`Policy::groups`] lists them; a leaf's name is its path, `tv/video`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::host_name::{Site, SiteError};
use crate::packet::{Mac, MacError, Side, Transport};
use crate::share::{Cap, DEPTH_MAX, Floor, Node, Tree, Weight};
use crate::units::Rate;

/// The most flow groups that a policy may have, the default group included.
pub const GROUPS_MAX: usize = 256;

/// The longest name of a group, application, unit or user, in bytes.
pub const NAME_MAX: usize = 63;

/// The most interfaces of a router's devices.
pub const LANS_MAX: usize = 8;

/// The most interfaces by which a router reaches the Internet.
pub const WANS_MAX: usize = 4;

/// The largest number of a class of an agreement ([`Match::Class`]).
pub const CLASS_MAX: u8 = 15;

/// The name of the group that takes all unmatched traffic.
pub const DEFAULT_GROUP: &str = "default";

/// Separates the names in the path of a leaf.
pub const PATH_SEPARATOR: char = '/';

/// A valid tree of flow groups: names are unique, one is the default, at most [`GROUPS_MAX`] leaves.
/// serde form: the list of branches, which is checked when it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Branch>", into = "Vec<Branch>")]
pub struct Policy {
    branches: Vec<Branch>,
    groups: Vec<Group>,
    within: Vec<Option<usize>>,
    tree: Tree,
    default: usize,
}

/// A group, and the groups beneath it, if any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Branch {
    /// Its name among its siblings, its weight among them, and what belongs to it.
    #[serde(flatten)]
    pub group: Group,
    /// What it is divided among, in the user's order.
    #[serde(rename = "group", default, skip_serializing_if = "Vec::is_empty")]
    pub beneath: Vec<Branch>,
}

/// What the user names: traffic that shares one weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Group {
    /// Unique within the policy; 1 to [`NAME_MAX`] bytes.
    pub name: String,
    /// Its part of the capacity relative to the other groups.
    pub weight: Weight,
    /// What belongs to it; any of these suffices. Empty for the default group.
    #[serde(rename = "match")]
    pub matches: Vec<Match>,
    /// What it may receive at most.
    #[serde(rename = "max_bps", default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Rate>,
    /// What it receives at least if it wants that much.
    #[serde(rename = "min_bps", default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Rate>,
}

impl Group {
    /// A group without limits besides its weight.
    pub fn new(name: impl Into<String>, weight: Weight, matches: Vec<Match>) -> Group {
        Group { name: name.into(), weight, matches, max: None, min: None }
    }
}

/// One criterion for belonging to a group. serde form: the text that users write, `app:steam`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Match {
    /// Base name of the executable file that receives: `app:steam`.
    App(String),
    /// systemd unit whose processes receive: `unit:backup.service`.
    Unit(String),
    /// Path of a cgroup below the root of the hierarchy, with all below it: `cgroup:/user.slice`.
    Cgroup(String),
    /// Name or number of the user whose processes receive: `user:backup`.
    User(String),
    /// Source address or prefix: `ip:203.0.113.0/24`.
    Ip(IpNet),
    /// Port or range of ports: `port:udp/443`, `local-port:8000-8010`.
    Port(PortMatch),
    /// Host names that connections are opened to: `web:netflix.com`, `web:*.netflix.com`.
    Web(Site),
    /// Link-layer address of a device behind a router: `mac:02:00:5e:00:53:01`.
    Mac(Mac),
    /// Name of a device behind a router, which it tells the DHCP server: `host:tv`. In lower case.
    Host(String),
    /// All devices behind an interface of a router: `lan:br-guest`.
    Lan(String),
    /// A class of an agreement with the device's own fairweir, by number: `class:3`. No user writes it.
    Class(u8),
}

impl Match {
    /// Whether it is an address, which identifies a device without a lookup.
    pub fn is_address(&self) -> bool {
        matches!(self, Match::Ip(_) | Match::Mac(_))
    }
}

/// Ports of a transport protocol at one end of the connection. serde form: the text that users
/// write, `port:udp/443`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortMatch {
    /// The protocol; `None` matches both.
    pub transport: Option<Transport>,
    /// The end that has the port.
    pub side: Side,
    /// First port of the range.
    pub first: u16,
    /// Last port of the range, not below the first.
    pub last: u16,
}

/// Why a list of groups is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// More groups than [`GROUPS_MAX`].
    #[error("{0} groups: at most {max} are allowed, the default group included", max = GROUPS_MAX)]
    TooManyGroups(usize),
    /// Two groups of one name.
    #[error("duplicate group `{0}`")]
    DuplicateGroup(String),
    /// A name that cannot be shown or stored.
    #[error(
        "`{0}` is not a valid group name (1 to {max} letters, digits, `-`, `_` or `.`)",
        max = NAME_MAX
    )]
    BadName(String),
    /// The default group takes all unmatched traffic, so it has no matches of its own.
    #[error("the group `default` takes all unmatched traffic and cannot have `match`")]
    DefaultMatches,
    /// More than [`DEPTH_MAX`] levels.
    #[error("`{0}` is nested too deeply: at most {max} levels are allowed", max = DEPTH_MAX)]
    TooDeep(String),
    /// A group beneath a group of the same name.
    #[error("`{0}`: a group cannot have the name of a group that it is in")]
    Cyclic(String),
    /// Groups beneath a default group.
    #[error("`{0}` cannot have groups; list them beside it")]
    BeneathDefault(String),
    /// A kind of match that is only allowed on the first level.
    #[error(
        "`{matched}` cannot be a match of `{path}`; groups within a device have ip: (of the server), \
         port:, local-port: and web:"
    )]
    MatchBeneath {
        /// The leaf.
        path: String,
        /// The match.
        matched: String,
    },
}

impl PolicyError {
    /// The name or path of the wrong group, if the error concerns a group.
    pub fn group(&self) -> Option<&str> {
        match self {
            PolicyError::TooManyGroups(_) | PolicyError::DefaultMatches => None,
            PolicyError::DuplicateGroup(path)
            | PolicyError::BadName(path)
            | PolicyError::TooDeep(path)
            | PolicyError::Cyclic(path)
            | PolicyError::BeneathDefault(path)
            | PolicyError::MatchBeneath { path, .. } => Some(path),
        }
    }
}

impl Policy {
    /// Checks `groups`, which have no groups beneath them, and adds a default group of weight 1 if there is
    /// none.
    ///
    /// # Errors
    /// [`PolicyError`] says which group is wrong and what would be right.
    pub fn new(groups: Vec<Group>) -> Result<Policy, PolicyError> {
        Policy::nested(groups.into_iter().map(Branch::from).collect())
    }

    /// Checks `branches`, and adds default groups of weight 1 where there are none.
    ///
    /// # Errors
    /// [`PolicyError`] says which group is wrong and what would be right.
    pub fn nested(mut branches: Vec<Branch>) -> Result<Policy, PolicyError> {
        complete(&mut branches, &mut Vec::new())?;
        let mut leaves = Leaves::default();
        let (nodes, default) = leaves.add(&branches, "");
        let tree = leaves.tree(nodes);
        let Leaves { groups, within, .. } = leaves;
        if groups.len() > GROUPS_MAX {
            return Err(PolicyError::TooManyGroups(groups.len()));
        }
        Ok(Policy { branches, groups, within, tree, default })
    }

    /// The leaves in the user's order, depth first. A leaf `default` beneath a group has the matches of
    /// that group.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Index of the group that takes all unmatched traffic.
    pub fn default_group(&self) -> usize {
        self.default
    }

    /// How the leaves share a download, in the order of the groups.
    pub fn weights(&self) -> Tree {
        self.tree.clone()
    }

    /// The leaf to which the packets of leaf `index` would belong without it: the default leaf of its branch.
    /// `None` on the first level. The matches of leaf `index` only apply to packets of that leaf.
    pub fn within(&self, index: usize) -> Option<usize> {
        self.within.get(index).copied().flatten()
    }

    /// The first-level leaf to which the packets would belong without all that is beneath: the leaf itself, or the
    /// default leaf of its device.
    pub fn outermost(&self, mut index: usize) -> usize {
        while let Some(above) = self.within(index) {
            index = above;
        }
        index
    }

    /// The groups in their nesting, with all default groups.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }
}

impl Branch {
    /// The group or branch of this path beneath `branches`, such as `tv` or `tv/video`.
    pub fn find_mut<'b>(branches: &'b mut [Branch], path: &str) -> Option<&'b mut Branch> {
        let (name, rest) = match path.split_once(PATH_SEPARATOR) {
            Some((name, rest)) => (name, Some(rest)),
            None => (path, None),
        };
        let found = branches.iter_mut().find(|branch| branch.group.name == name)?;
        match rest {
            Some(rest) => Branch::find_mut(&mut found.beneath, rest),
            None => Some(found),
        }
    }

    /// The branch's floor: its own, or the sum of those beneath it if that is more.
    pub fn floor(&self) -> Rate {
        let beneath: Rate = self.beneath.iter().map(Branch::floor).sum();
        self.group.min.unwrap_or_default().max(beneath)
    }

    fn is_default(&self) -> bool {
        self.group.name == DEFAULT_GROUP
    }
}

impl From<Group> for Branch {
    fn from(group: Group) -> Branch {
        Branch { group, beneath: Vec::new() }
    }
}

/// Checks one level and all beneath it; `above` are the names of the groups that contain the level.
fn complete(branches: &mut Vec<Branch>, above: &mut Vec<String>) -> Result<(), PolicyError> {
    let path =
        |name: &str| above.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("/");
    for (i, Branch { group, beneath }) in branches.iter().enumerate() {
        if !is_name(&group.name) {
            return Err(PolicyError::BadName(group.name.clone()));
        }
        if branches[..i].iter().any(|other| other.group.name == group.name) {
            return Err(PolicyError::DuplicateGroup(path(&group.name)));
        }
        if group.name == DEFAULT_GROUP && !group.matches.is_empty() {
            return Err(PolicyError::DefaultMatches);
        }
        if above.len() >= DEPTH_MAX {
            return Err(PolicyError::TooDeep(path(&group.name)));
        }
        let is_default = group.name == DEFAULT_GROUP;
        if !is_default && above.contains(&group.name) {
            return Err(PolicyError::Cyclic(path(&group.name)));
        }
        if is_default && !above.is_empty() && !beneath.is_empty() {
            return Err(PolicyError::BeneathDefault(path(&group.name)));
        }
        let is_inner = |m: &&Match| {
            matches!(m, Match::Ip(_) | Match::Port(_) | Match::Web(_) | Match::Class(_))
        };
        let bad = group.matches.iter().find(|m| !is_inner(m));
        if let Some(bad) = bad.filter(|_| !above.is_empty()) {
            let (path, matched) = (path(&group.name), bad.to_string());
            return Err(PolicyError::MatchBeneath { path, matched });
        }
    }
    if !branches.iter().any(Branch::is_default) {
        let name = DEFAULT_GROUP.to_owned();
        branches.push(Group::new(name, Weight::ONE, Vec::new()).into());
    }
    for branch in branches.iter_mut().filter(|branch| !branch.beneath.is_empty()) {
        above.push(branch.group.name.clone());
        complete(&mut branch.beneath, above)?;
        above.pop();
    }
    Ok(())
}

/// The tree of groups on one level.
pub fn tree_of<'g>(groups: impl Iterator<Item = &'g Group>) -> Tree {
    let branches: Vec<Branch> = groups.cloned().map(Branch::from).collect();
    let mut leaves = Leaves::default();
    let (nodes, _) = leaves.add(&branches, "");
    leaves.tree(nodes)
}

/// The leaves found so far.
#[derive(Default)]
struct Leaves {
    groups: Vec<Group>,
    within: Vec<Option<usize>>,
    caps: Vec<Cap>,
    floors: Vec<Floor>,
}

impl Leaves {
    fn tree(&mut self, nodes: Vec<Node>) -> Tree {
        let (caps, floors) = (std::mem::take(&mut self.caps), std::mem::take(&mut self.floors));
        Tree::new(nodes).with_caps(caps).with_floors(floors)
    }

    /// Adds the leaves of one level, which lies beneath `path`; returns its nodes, and its default leaf.
    fn add(&mut self, branches: &[Branch], path: &str) -> (Vec<Node>, usize) {
        let (mut nodes, mut leaves, mut default) = (Vec::new(), Vec::new(), 0);
        for branch in branches {
            let Branch { group, beneath } = branch;
            let name = format!("{path}{}", group.name);
            let first = self.groups.len();
            let leaf = if beneath.is_empty() {
                nodes.push(Node::Leaf(group.weight));
                self.groups.push(Group { name, ..group.clone() });
                self.within.push(None);
                self.groups.len() - 1
            } else {
                let (inner, leaf) = self.add(beneath, &format!("{name}{PATH_SEPARATOR}"));
                nodes.push(Node::Branch(group.weight, inner));
                self.groups[leaf].matches.clone_from(&group.matches);
                leaf
            };
            let cap = |max| Cap { leaves: first..self.groups.len(), max };
            self.caps.extend(group.max.map(cap));
            let floor = |min| Floor { leaves: first..self.groups.len(), min };
            self.floors.extend(group.min.map(floor));
            leaves.push(leaf);
            if branch.is_default() {
                default = leaf;
            }
        }
        for leaf in leaves.into_iter().filter(|&leaf| !path.is_empty() && leaf != default) {
            self.within[leaf] = Some(default);
        }
        (nodes, default)
    }
}

impl TryFrom<Vec<Branch>> for Policy {
    type Error = PolicyError;
    fn try_from(branches: Vec<Branch>) -> Result<Policy, PolicyError> {
        Policy::nested(branches)
    }
}

impl From<Policy> for Vec<Branch> {
    fn from(policy: Policy) -> Vec<Branch> {
        policy.branches
    }
}

/// The name of a device in the form in which names are compared, if `text` is one: 1 to 63 letters, digits and
/// hyphens, no hyphen first or last. Source: RFC 1123, section 2.1.
pub fn host_label(text: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_label = (1..=63).contains(&text.len())
        && text.chars().all(fits)
        && !text.starts_with('-')
        && !text.ends_with('-');
    is_label.then(|| text.to_ascii_lowercase())
}

/// Whether a name can be shown and stored.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Why a text is not a match; says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// No `kind:` in front.
    #[error("`{0}` has no kind; use for example `app:{0}` or `ip:203.0.113.0/24` (kinds: {KINDS})")]
    NoKind(String),
    /// A kind that does not exist.
    #[error("unknown kind of match `{kind}:` (kinds: {KINDS})")]
    UnknownKind {
        /// The text before the colon.
        kind: String,
    },
    /// A kind that is planned.
    #[error("`{0}:` is reserved and does not work yet (kinds: {KINDS})")]
    NotYet(String),
    /// A name that is empty, too long or a path.
    #[error("`{text}` is not {wanted}, at most {max} bytes{hint}", hint = short_name(.text), max = NAME_MAX)]
    BadName {
        /// The whole match.
        text: String,
        /// What should follow the colon.
        wanted: &'static str,
    },
    /// Neither an address nor a prefix.
    #[error("`{0}` is neither an address (203.0.113.7, 2001:db8::7) nor a prefix (203.0.113.0/24)")]
    BadPrefix(String),
    /// A prefix whose address is not its first one.
    #[error(
        "`{0}` has host bits set; write {prefix} for the prefix or {address} for the address",
        prefix = .0.trunc(),
        address = .0.addr()
    )]
    HostBits(IpNet),
    /// Not a pattern of host names.
    #[error("`{site}`: {why}")]
    BadSite {
        /// The text after the colon.
        site: String,
        /// Why.
        why: SiteError,
    },
    /// Not the address of a device.
    #[error(transparent)]
    BadMac(#[from] MacError),
    /// Not the name of a device.
    #[error("`{0}` is not the name of a device (1 to 63 letters, digits and hyphens, such as tv)")]
    BadHost(String),
    /// Not a port.
    #[error("`{0}` is not a port ({hint})", hint = port_hint(.0))]
    BadPort(String),
}

/// The kinds of match that a user can write, for error messages.
pub const KINDS: &str = "app:, unit:, cgroup:, user:, ip:, port:, local-port:, web:";

impl FromStr for Match {
    type Err = MatchError;

    fn from_str(text: &str) -> Result<Match, MatchError> {
        let (kind, value) =
            text.split_once(':').ok_or_else(|| MatchError::NoKind(text.to_owned()))?;
        let name = |wanted: &'static str, ok: fn(&str) -> bool| {
            if value.is_empty() || value.len() > NAME_MAX || !ok(value) {
                return Err(MatchError::BadName { text: text.to_owned(), wanted });
            }
            Ok(value.to_owned())
        };
        let no_slash = |value: &str| !value.contains('/') && !value.contains('\0');
        match kind {
            "app" => {
                name("the base name of an executable file, such as steam", no_slash).map(Match::App)
            }
            "unit" => name("the name of a systemd unit, such as backup.service", no_slash)
                .map(Match::Unit),
            "user" => name("a user's name or number", no_slash).map(Match::User),
            "cgroup" => {
                let wanted = "a cgroup's path, such as /user.slice";
                if value.len() < 2 || !value.starts_with('/') || value.contains("/../") {
                    return Err(MatchError::BadName { text: text.to_owned(), wanted });
                }
                Ok(Match::Cgroup(value.trim_end_matches('/').to_owned()))
            }
            "ip" => parse_prefix(value).map(Match::Ip),
            "port" => parse_port(value, Side::Remote).map(Match::Port),
            "local-port" => parse_port(value, Side::Local).map(Match::Port),
            "web" => value
                .parse()
                .map(Match::Web)
                .map_err(|why| MatchError::BadSite { site: value.to_owned(), why }),
            "mac" => Ok(Match::Mac(value.parse()?)),
            "host" => host_label(value)
                .map(Match::Host)
                .ok_or_else(|| MatchError::BadHost(value.chars().take(NAME_MAX).collect())),
            "lan" => name("an interface, such as br-guest", no_slash).map(Match::Lan),
            "class" => {
                let number = value.parse().ok().filter(|number| *number <= CLASS_MAX);
                let unknown = MatchError::UnknownKind { kind: kind.to_owned() };
                number.map(Match::Class).ok_or(unknown)
            }
            "dev" => Err(MatchError::NotYet(kind.to_owned())),
            _ => Err(MatchError::UnknownKind { kind: kind.to_owned() }),
        }
    }
}

impl TryFrom<String> for Match {
    type Error = MatchError;
    fn try_from(text: String) -> Result<Match, MatchError> {
        text.parse()
    }
}

impl From<Match> for String {
    fn from(m: Match) -> String {
        m.to_string()
    }
}

impl TryFrom<String> for PortMatch {
    type Error = MatchError;
    fn try_from(text: String) -> Result<PortMatch, MatchError> {
        match text.parse()? {
            Match::Port(port) => Ok(port),
            Match::App(_)
            | Match::Unit(_)
            | Match::Cgroup(_)
            | Match::User(_)
            | Match::Ip(_)
            | Match::Web(_)
            | Match::Mac(_)
            | Match::Host(_)
            | Match::Lan(_)
            | Match::Class(_) => Err(MatchError::BadPort(text)),
        }
    }
}

impl From<PortMatch> for String {
    fn from(port: PortMatch) -> String {
        port.to_string()
    }
}

/// Reads an address, which counts as the prefix of its full length, or a prefix.
///
/// # Errors
/// [`MatchError::BadPrefix`], or [`MatchError::HostBits`].
pub fn parse_prefix(text: &str) -> Result<IpNet, MatchError> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    let net = address.or_else(|_| text.parse::<IpNet>());
    net.map_err(|_| MatchError::BadPrefix(text.to_owned())).and_then(check_prefix)
}

/// Refuses a prefix with host bits: either the length is wrong or the address.
///
/// # Errors
/// [`MatchError::HostBits`].
pub fn check_prefix(net: IpNet) -> Result<IpNet, MatchError> {
    if net.trunc() == net { Ok(net) } else { Err(MatchError::HostBits(net)) }
}

/// What the path probably was meant to name.
fn short_name(text: &str) -> String {
    let name = text.strip_prefix("app:").and_then(|path| path.rsplit('/').next());
    let name = name.filter(|name| !name.is_empty() && name.len() <= NAME_MAX);
    name.map(|name| format!("; write `app:{name}`")).unwrap_or_default()
}

/// What to write instead of `text`.
fn port_hint(text: &str) -> String {
    let usual = || "443, udp/443 or tcp/8000-8010; 1 to 65535".to_owned();
    if let Some((ports, transport @ ("tcp" | "udp"))) = text.split_once('/') {
        return format!("write {transport}/{ports}");
    }
    let (transport, ports) = text.split_once('/').unwrap_or(("", text));
    let slash = if transport.is_empty() { "" } else { "/" };
    match ports.split_once('-').map(|(first, last)| (first.parse::<u16>(), last.parse::<u16>())) {
        Some((Ok(first), Ok(last @ 1..))) if last < first => {
            format!("the range is in reverse order; write {transport}{slash}{last}-{first}")
        }
        _ => usual(),
    }
}

fn parse_port(text: &str, side: Side) -> Result<PortMatch, MatchError> {
    let bad = || MatchError::BadPort(text.to_owned());
    let (transport, ports) = match text.split_once('/') {
        Some(("tcp", ports)) => (Some(Transport::Tcp), ports),
        Some(("udp", ports)) => (Some(Transport::Udp), ports),
        Some(_) => return Err(bad()),
        None => (None, text),
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port = |text: &str| text.parse::<u16>().ok().filter(|&p| p > 0).ok_or_else(bad);
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err(bad());
    }
    Ok(PortMatch { transport, side, first, last })
}

/// Prints as the user writes it.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::App(name) => write!(f, "app:{name}"),
            Match::Unit(name) => write!(f, "unit:{name}"),
            Match::Cgroup(path) => write!(f, "cgroup:{path}"),
            Match::User(name) => write!(f, "user:{name}"),
            Match::Ip(net) if net.prefix_len() == net.max_prefix_len() => {
                write!(f, "ip:{}", net.addr())
            }
            Match::Ip(net) => write!(f, "ip:{net}"),
            Match::Port(port) => port.fmt(f),
            Match::Web(site) => write!(f, "web:{site}"),
            Match::Mac(mac) => write!(f, "mac:{mac}"),
            Match::Host(name) => write!(f, "host:{name}"),
            Match::Lan(name) => write!(f, "lan:{name}"),
            Match::Class(number) => write!(f, "class:{number}"),
        }
    }
}

impl fmt::Display for PortMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Remote => "port",
            Side::Local => "local-port",
        };
        let transport = match self.transport {
            None => "",
            Some(Transport::Tcp) => "tcp/",
            Some(Transport::Udp) => "udp/",
        };
        write!(f, "{side}:{transport}{}", self.first)?;
        if self.last > self.first {
            write!(f, "-{}", self.last)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn group(name: &str, matches: &[&str]) -> Group {
        Group::new(
            name.to_owned(),
            Weight::ONE,
            matches.iter().map(|m| m.parse().unwrap()).collect(),
        )
    }

    #[test]
    fn matches_print_as_they_are_written() {
        for text in [
            "app:steam",
            "unit:backup.service",
            "cgroup:/user.slice/user-1000.slice",
            "user:backup",
            "ip:203.0.113.0/24",
            "ip:2001:db8::/32",
            "ip:192.0.2.1",
            "port:udp/443",
            "port:443",
            "local-port:tcp/8000-8010",
            "web:netflix.com",
            "web:*.netflix.com",
            "mac:02:00:5e:00:53:01",
            "host:living-room",
            "class:15",
        ] {
            let parsed: Match = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
            assert_eq!(serde_json::to_value(&parsed).unwrap(), serde_json::json!(text));
        }
    }

    #[test]
    fn an_invalid_policy_is_refused_when_it_is_read() {
        let read = |text: &str| serde_json::from_str::<Policy>(text).map_err(|e| e.to_string());
        let policy = read(r#"[{"name":"a","weight":2,"match":["ip:192.0.2.9"]}]"#).unwrap();
        assert_eq!(policy.groups().len(), 2, "the default group is added");
        let why = read(r#"[{"name":"a","weight":0,"match":[]}]"#).unwrap_err();
        assert!(why.contains("1 to 10000"), "{why}");
        let why = read(r#"[{"name":"a","weight":1,"match":["aap:x"]}]"#).unwrap_err();
        assert!(why.contains("app:, unit:"), "{why}");
        let twice = r#"[{"name":"a","weight":1,"match":[]},{"name":"a","weight":1,"match":[]}]"#;
        assert!(read(twice).unwrap_err().contains("`a`"));
    }

    fn matches() -> impl Strategy<Value = Match> {
        let name = "[a-zA-Z0-9._:@ -]{1,63}";
        let port =
            (0..2usize, 0..3usize, 1u16.., 0u16..).prop_map(|(side, transport, first, n)| {
                Match::Port(PortMatch {
                    transport: [None, Some(Transport::Tcp), Some(Transport::Udp)][transport],
                    side: [Side::Remote, Side::Local][side],
                    first,
                    last: first.saturating_add(n),
                })
            });
        let v4 = (any::<u32>(), 0..=32u8).prop_map(|(a, p)| IpNet::new(IpAddr::V4(a.into()), p));
        let v6 = (any::<u128>(), 0..=128u8).prop_map(|(a, p)| IpNet::new(IpAddr::V6(a.into()), p));
        prop_oneof![
            name.prop_map(Match::App),
            name.prop_map(Match::Unit),
            name.prop_map(Match::User),
            "(/[a-z0-9.-]{3,9}){1,4}".prop_map(Match::Cgroup),
            prop_oneof![v4, v6].prop_map(|net| Match::Ip(net.unwrap().trunc())),
            "(\\*\\.)?[a-z0-9][a-z0-9-]{0,9}[a-z0-9]\\.com"
                .prop_filter_map("a public suffix or an A-label", |site| site.parse().ok())
                .prop_map(Match::Web),
            port,
        ]
    }

    proptest! {
        #[test]
        fn policies_come_back_from_json_as_they_were(
            groups in vec((1..=Weight::MAX, vec(matches(), 0..4)), 0..8)
        ) {
            let group = |(i, (weight, matches)): (usize, (u32, Vec<Match>))| {
                Group::new(format!("g{i}"), Weight::new(weight).unwrap(), matches)
            };
            let policy = Policy::new(groups.into_iter().enumerate().map(group).collect()).unwrap();
            let text = serde_json::to_string(&policy).unwrap();
            prop_assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy);
        }
    }

    #[test]
    fn bad_matches_say_what_would_be_right() {
        let why = |text: &str| text.parse::<Match>().unwrap_err().to_string();
        assert!(why("steam").contains("app:steam"));
        assert!(why("aap:steam").contains("app:, unit:"));
        assert!(why("web:co.uk").contains("public suffix"));
        assert!(why("web:https://x.com").contains("without scheme"));
        assert!(why("dev:tv").contains("not work yet"));
        assert!(why("app:/usr/bin/steam").contains("base name"));
        assert!(why("ip:203.0.113.0/33").contains("prefix"));
        assert_eq!(
            why("ip:203.0.113.7/24"),
            "`203.0.113.7/24` has host bits set; write 203.0.113.0/24 for the prefix or \
             203.0.113.7 for the address"
        );
        assert!(why("ip:2001:db8::1/32").contains("write 2001:db8::/32 for the prefix"));
        assert!("ip:203.0.113.7/32".parse::<Match>().is_ok());
        assert!(why("port:sctp/1").contains("udp/443"));
        assert!(why("host:tv.lan").contains("letters, digits and hyphens"));
        assert!(why(&format!("host:{}", "a".repeat(10_000))).len() < 200);
        assert!(why("port:0").contains("1 to 65535"));
        assert!(why("port:9-8").contains("not a port"));
    }

    #[test]
    fn a_policy_always_has_one_default_group() {
        let policy = Policy::new(vec![group("video", &["app:mpv"])]).unwrap();
        assert_eq!(policy.groups()[policy.default_group()].name, "default");
        assert_eq!(policy.default_group(), 1);
        let policy = Policy::new(vec![group("default", &[]), group("video", &[])]).unwrap();
        assert_eq!((policy.default_group(), policy.groups().len()), (0, 2));
    }

    fn branch(name: &str, matches: &[&str], beneath: Vec<Branch>) -> Branch {
        Branch { group: group(name, matches), beneath }
    }

    /// A television with a video group, in which one site is apart, and another device.
    fn nested() -> Vec<Branch> {
        let site = branch("site", &["ip:192.0.2.9"], vec![]);
        let video = branch("video", &["port:443"], vec![site]);
        vec![
            branch("tv", &["mac:02:00:5e:00:53:01"], vec![video]),
            branch("desk", &["mac:02:00:5e:00:53:02"], vec![]),
        ]
    }

    #[test]
    fn leaves_have_paths_and_defaults_have_the_matches_above() {
        let policy = Policy::nested(nested()).unwrap();
        let names: Vec<&str> = policy.groups().iter().map(|g| g.name.as_str()).collect();
        let wanted = ["tv/video/site", "tv/video/default", "tv/default", "desk", "default"];
        assert_eq!(names, wanted);
        let matches = |i: usize| policy.groups()[i].matches.first().map(ToString::to_string);
        assert_eq!(matches(1).as_deref(), Some("port:443"));
        assert_eq!(matches(2).as_deref(), Some("mac:02:00:5e:00:53:01"));
        let within: Vec<_> = (0..5).map(|i| policy.within(i)).collect();
        assert_eq!(within, [Some(1), Some(2), None, None, None]);
        assert_eq!(policy.default_group(), 4);
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy);
        let mut branches = policy.branches().to_vec();
        let found = Branch::find_mut(&mut branches, "tv/video/site").unwrap();
        assert_eq!(found.group.name, "site");
        assert!(Branch::find_mut(&mut branches, "tv/site").is_none());
    }

    #[test]
    fn floors_of_groups_are_those_of_their_device() {
        let mut branches = nested();
        let mbit = |n| Some(Rate::mbit(n));
        branches[0].group.min = mbit(2);
        branches[0].beneath[0].beneath[0].group.min = mbit(3);
        let floors: Vec<Rate> = branches.iter().map(Branch::floor).collect();
        assert_eq!(floors, [Rate::mbit(3), Rate::ZERO]);
        let policy = Policy::nested(branches).unwrap();
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy);
    }

    #[test]
    fn the_default_device_can_have_groups() {
        let inner = branch("mail", &["port:993"], vec![]);
        let policy = Policy::nested(vec![branch("default", &[], vec![inner])]).unwrap();
        let default = policy.default_group();
        assert_eq!(policy.groups()[default].name, "default/default");
        assert_eq!(policy.within(0), Some(default));
    }

    #[test]
    fn groups_that_cannot_be_nested_are_refused() {
        let refused = |inner: Vec<Branch>| {
            Policy::nested(vec![branch("tv", &["mac:02:00:5e:00:53:01"], inner)]).unwrap_err()
        };
        let leaf = |name: &str, m: &str| branch(name, &[m], vec![]);
        let twice = refused(vec![leaf("a", "port:1"), leaf("a", "port:2")]);
        assert_eq!(twice, PolicyError::DuplicateGroup("tv/a".into()));
        assert_eq!(refused(vec![leaf("tv", "port:1")]), PolicyError::Cyclic("tv/tv".into()));
        let deep = vec![branch("b", &["port:2"], vec![leaf("c", "port:3")])];
        let deep = refused(vec![branch("a", &["port:1"], deep)]);
        assert_eq!(deep, PolicyError::TooDeep("tv/a/b/c".into()));
        let mac = refused(vec![leaf("a", "mac:02:00:5e:00:53:02")]);
        assert!(mac.to_string().contains("`tv/a`"), "{mac}");
        let inner = refused(vec![branch("default", &[], vec![leaf("a", "port:1")])]);
        assert_eq!(inner, PolicyError::BeneathDefault("tv/default".into()));
        assert!(matches!(refused(vec![leaf("a/b", "port:1")]), PolicyError::BadName(_)));
        let many = (0..GROUPS_MAX).map(|i| leaf(&format!("g{i}"), "port:1")).collect();
        assert!(matches!(refused(many), PolicyError::TooManyGroups(_)));
    }

    #[test]
    fn a_list_that_is_no_policy_is_refused() {
        let refused = |groups| Policy::new(groups).unwrap_err();
        assert_eq!(refused(vec![group("default", &["app:x"])]), PolicyError::DefaultMatches);
        let twice = refused(vec![group("a", &[]), group("a", &[])]);
        assert_eq!(twice, PolicyError::DuplicateGroup("a".into()));
        assert!(matches!(refused(vec![group("a b", &[])]), PolicyError::BadName(_)));
        let many = (0..GROUPS_MAX).map(|i| group(&format!("g{i}"), &[])).collect();
        assert_eq!(refused(many), PolicyError::TooManyGroups(GROUPS_MAX + 1));
    }
}
