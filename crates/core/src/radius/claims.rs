//! What attributes say about the plan of a session: its name, or its rates.
//!
//! Method: [`Claims::note`] reads one attribute. [`Claims::plan`] tries the sources in an order and takes the first
//! plan to which one of them leads: the plan of that name, or the only one with those rates. Rates not written as their
//! vendor documents, and names and rates of no plan, lead to no plan, and the reason is reported.
//!
//! | source | attribute | says |
//! |---|---|---|
//! | [`Source::FilterId`] | Filter-Id | a name |
//! | [`Source::Class`] | Class | a name; other bytes are the server's own, and nothing is told |
//! | [`Source::Mikrotik`] | Mikrotik-Rate-Limit | `upload[/download]`, then bursts and a priority, which are left to the plan |
//! | [`Source::Wispr`] | WISPr-Bandwidth-Max-Up, -Down | bit/s |
//! | [`Source::Cisco`] | Cisco-AVPair | a name by `sub-qos-policy-out`, `-in`; bit/s by `interface-config=rate-limit` |
//! | [`Source::AdslForum`] | Maximum-Data-Rate-Upstream, -Downstream | bit/s of the line's profile; of no plan, nothing is told |
//!
//! A rate of zero means no limit. Source: RFC 2865 §5.11, §5.25, §5.26; RFC 4679 §3.3.10, §3.3.11; the vendors' manuals
//! and FreeRADIUS's dictionaries.

use std::collections::BTreeMap;

use super::{FILTER_ID, next, text};
use crate::units::Rate;

/// The attributes that state the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Filter-Id.
    FilterId,
    /// Class.
    Class,
    /// Mikrotik-Rate-Limit.
    Mikrotik,
    /// WISPr-Bandwidth-Max-Up and -Down.
    Wispr,
    /// Cisco-AVPair.
    Cisco,
    /// Maximum-Data-Rate-Upstream and -Downstream of the ADSL Forum.
    AdslForum,
}

impl Source {
    /// All sources, with their names in a configuration.
    pub const ALL: [(&'static str, Source); 6] = [
        ("filter-id", Source::FilterId),
        ("class", Source::Class),
        ("mikrotik", Source::Mikrotik),
        ("wispr", Source::Wispr),
        ("cisco", Source::Cisco),
        ("adsl-forum", Source::AdslForum),
    ];

    /// Attributes set by an AAA server. A line's profile is not among them, and is higher than most plans.
    pub const DEFAULT: [Source; 5] =
        [Source::FilterId, Source::Class, Source::Mikrotik, Source::Wispr, Source::Cisco];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        Source::ALL.into_iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }

    fn attribute(self) -> &'static str {
        match self {
            Source::FilterId => "Filter-Id",
            Source::Class => "Class",
            Source::Mikrotik => "Mikrotik-Rate-Limit",
            Source::Wispr => "WISPr-Bandwidth-Max",
            Source::Cisco => "Cisco-AVPair",
            Source::AdslForum => "Maximum-Data-Rate",
        }
    }

    /// Whether the attribute may have another meaning, so that a missing plan is not an error.
    fn is_of_others(self) -> bool {
        matches!(self, Source::Class | Source::AdslForum)
    }
}

/// Rates of a session; `None` means not stated, zero means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// To the user.
    pub download: Option<Rate>,
    /// From the user.
    pub upload: Option<Rate>,
}

impl Rates {
    /// Whether a plan has these rates: a direction that is not stated must be unlimited in the plan, too.
    pub fn are(&self, download: Option<Rate>, upload: Option<Rate>) -> bool {
        let is = |said: Option<Rate>, has: Option<Rate>| {
            said.unwrap_or(Rate::ZERO) == has.unwrap_or(Rate::ZERO)
        };
        is(self.download, download) && is(self.upload, upload)
    }
}

impl std::fmt::Display for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |rate: Option<Rate>| match rate {
            Some(rate) if rate != Rate::ZERO => rate.to_string(),
            _ => "unbounded".to_owned(),
        };
        write!(f, "download {} and upload {}", text(self.download), text(self.upload))
    }
}

/// The most names of a packet.
const NAMES_MAX: usize = 32;

/// Why the rates of a source cannot be read.
pub type Unclear = &'static str;

/// Knows the plans.
pub trait Plans {
    /// Whether there is a plan of this name.
    fn has(&self, name: &str) -> bool;
    /// The names of plans with these rates; at least two of them if there are several.
    fn with(&self, rates: &Rates) -> Vec<String>;
}

/// What a packet says about the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pub(super) names: Vec<(Source, String)>,
    pub(super) rates: BTreeMap<Source, Result<Rates, Unclear>>,
}

impl Claims {
    /// Notes an attribute; returns whether all of it concerned the plan.
    pub(super) fn note(&mut self, kind: u8, value: &[u8]) -> bool {
        match kind {
            FILTER_ID => {
                match text(value) {
                    Some(name) => self.add_name(Source::FilterId, name),
                    None if value.is_empty() => return false,
                    None => self.refuse(Source::FilterId, "not a text"),
                }
                true
            }
            CLASS => {
                let Some(name) = text(value) else { return false };
                self.add_name(Source::Class, name);
                true
            }
            VENDOR_SPECIFIC => self.note_vendor(value),
            _ => false,
        }
    }

    fn note_vendor(&mut self, value: &[u8]) -> bool {
        let Some((&vendor, mut attributes)) = value.split_first_chunk::<4>() else { return false };
        let source = match u32::from_be_bytes(vendor) {
            CISCO => Source::Cisco,
            ADSL_FORUM => Source::AdslForum,
            WISPR => Source::Wispr,
            MIKROTIK => Source::Mikrotik,
            _ => return false,
        };
        let mut is_all = true;
        loop {
            match next(&mut attributes) {
                Ok(Some((_, kind, value))) => is_all &= self.note_of(source, kind, value),
                Ok(None) => return is_all,
                Err(_) => {
                    self.refuse(source, "its lengths do not fit");
                    return false;
                }
            }
        }
    }

    fn note_of(&mut self, source: Source, kind: u8, value: &[u8]) -> bool {
        let rate = || match <[u8; 4]>::try_from(value) {
            Ok(bytes) => Ok(Rate::bps(u32::from_be_bytes(bytes).into())),
            Err(_) => Err("not a number of four bytes"),
        };
        match (source, kind) {
            (Source::Mikrotik, MIKROTIK_RATE_LIMIT) => self.add(source, mikrotik(value)),
            (Source::Wispr, WISPR_MAX_UP) | (Source::AdslForum, MAXIMUM_UPSTREAM) => {
                self.add(source, rate().map(|rate| Rates { upload: Some(rate), download: None }));
            }
            (Source::Wispr, WISPR_MAX_DOWN) | (Source::AdslForum, MAXIMUM_DOWNSTREAM) => {
                self.add(source, rate().map(|rate| Rates { download: Some(rate), upload: None }));
            }
            (Source::Cisco, CISCO_AV_PAIR) => return self.note_cisco(value),
            _ => return false,
        }
        true
    }

    /// Notes one of Cisco's pairs of a key and a value, most of which concern other things.
    fn note_cisco(&mut self, value: &[u8]) -> bool {
        let pair = std::str::from_utf8(value).ok().and_then(|pair| pair.split_once('='));
        let Some((key, value)) = pair else { return false };
        let key = key.trim();
        let key = key.split_once(':').map_or(key, |(_, key)| key);
        let is_interface = key == "interface-config" || key.starts_with("interface-config#");
        match key {
            "sub-qos-policy-out" | "sub-qos-policy-in" => match text(value.trim().as_bytes()) {
                Some(name) => self.add_name(Source::Cisco, name),
                None => self.refuse(Source::Cisco, "not the name of a policy"),
            },
            _ if is_interface && value.trim_start().starts_with("rate-limit") => {
                self.add(Source::Cisco, rate_limit(value));
            }
            _ => return false,
        }
        true
    }

    fn add_name(&mut self, source: Source, name: String) {
        if self.names.len() < NAMES_MAX {
            self.names.push((source, name));
        } else {
            self.refuse(source, "too many names");
        }
    }

    fn add(&mut self, source: Source, more: Result<Rates, Unclear>) {
        let known = self.rates.entry(source).or_insert_with(|| Ok(Rates::default()));
        *known = (*known).and_then(|known| {
            let more = more?;
            let one = |known: Option<Rate>, more: Option<Rate>| match (known, more) {
                (Some(known), Some(more)) if known != more => Err("two rates of one direction"),
                (known, more) => Ok(known.or(more)),
            };
            let download = one(known.download, more.download)?;
            Ok(Rates { download, upload: one(known.upload, more.upload)? })
        });
    }

    fn refuse(&mut self, source: Source, why: Unclear) {
        self.rates.insert(source, Err(why));
    }

    /// The sources that say something about the plan.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        let names = self.names.iter().map(|(source, _)| *source);
        names.chain(self.rates.keys().copied())
    }

    /// The names that a source states, whether or not there are plans of these names.
    pub fn names_of(&self, source: Source) -> impl DoubleEndedIterator<Item = &String> {
        self.names.iter().filter(move |(of, _)| *of == source).map(|(_, name)| name)
    }

    /// Whether a source states only one name, or rates.
    pub(super) fn is_one(&self, source: Source) -> bool {
        let mut names = self.names_of(source);
        let Some(first) = names.next() else { return true };
        let is_alike = source == Source::Cisco || names.all(|name| name == first);
        is_alike && !self.rates.contains_key(&source)
    }

    /// The plan to which the first source in `order` leads; `None` if they say nothing about a plan.
    ///
    /// # Errors
    /// What a source says, and the reason, if no source leads to a plan although one says something.
    pub fn plan(&self, order: &[Source], plans: &impl Plans) -> Result<Option<String>, String> {
        let mut unknown = None;
        for &source in order {
            match self.plan_of(source, plans) {
                Ok(Some(plan)) => return Ok(Some(plan)),
                Err(why) if !source.is_of_others() => {
                    unknown.get_or_insert(why);
                }
                Ok(None) | Err(_) => {}
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    /// The plan to which one source leads.
    ///
    /// # Errors
    /// If the source says something that leads to no plan.
    pub fn plan_of(&self, source: Source, plans: &impl Plans) -> Result<Option<String>, String> {
        let attribute = source.attribute();
        let mut known = self.names_of(source).rev().filter(|name| plans.has(name));
        if let Some(name) = known.next() {
            // Of several filters the last one counts; but Cisco's policies are for two directions.
            return match known.find(|other| *other != name) {
                Some(other) if source == Source::Cisco => {
                    Err(format!("two plans, `{other}` and `{name}` ({attribute})"))
                }
                _ => Ok(Some(name.clone())),
            };
        }
        let of_rates = match self.rates.get(&source) {
            None => None,
            Some(Err(why)) => Some(format!("{attribute}: {why}")),
            Some(Ok(rates)) => match &plans.with(rates)[..] {
                [] => Some(format!("no plan of {rates} ({attribute})")),
                [plan] => return Ok(Some(plan.clone())),
                [one, other, ..] => {
                    Some(format!("plans `{one}` and `{other}` of {rates} ({attribute})"))
                }
            },
        };
        let of_names =
            self.names_of(source).next_back().map(|name| format!("no plan `{name}` ({attribute})"));
        of_names.or(of_rates).map_or(Ok(None), Err)
    }
}

/// `rx[/tx]` as the access server sees them, then `rx-burst[/tx-burst]`, thresholds, times, a priority, and least rates.
/// Source: RouterOS manual, "RADIUS", Mikrotik-Rate-Limit.
fn mikrotik(value: &[u8]) -> Result<Rates, Unclear> {
    const UNCLEAR: Unclear = "not written as `upload/download` with bit/s, k, M or G";
    const PARTS_MAX: usize = 6;
    let number = |text: &str| {
        let (digits, factor) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1_000),
            Some(b'M') => (&text[..text.len() - 1], 1_000_000),
            Some(b'G') => (&text[..text.len() - 1], 1_000_000_000),
            _ => (text, 1),
        };
        digits_of(digits)?.checked_mul(factor)
    };
    let pair = |text: &str| match text.split_once('/') {
        Some((upload, download)) => Some((number(upload)?, number(download)?)),
        None => number(text).map(|both| (both, both)),
    };
    let read = || {
        let mut parts = std::str::from_utf8(value).ok()?.split_ascii_whitespace();
        let (upload, download) = pair(parts.next()?)?;
        let rest = parts.by_ref().take(PARTS_MAX - 1).map(pair);
        let is_clear = rest.fold(true, |all, part| all & part.is_some());
        let rates = Rates { download: Some(Rate::bps(download)), upload: Some(Rate::bps(upload)) };
        (is_clear && parts.next().is_none()).then_some(rates)
    };
    read().ok_or(UNCLEAR)
}

/// `rate-limit output|input BPS BURST BURST conform-action …`, as the interface sees it: its output is the download.
/// Source: Cisco IOS command reference, `rate-limit`.
fn rate_limit(value: &str) -> Result<Rates, Unclear> {
    let mut words = value.split_ascii_whitespace();
    let rate = (words.next(), words.next(), words.next().and_then(digits_of).map(Rate::bps));
    match rate {
        (Some("rate-limit"), Some("output"), Some(rate)) => {
            Ok(Rates { download: Some(rate), upload: None })
        }
        (Some("rate-limit"), Some("input"), Some(rate)) => {
            Ok(Rates { download: None, upload: Some(rate) })
        }
        // Applies to an access group, for example: a part of the traffic.
        _ => Err("not a rate-limit of all traffic of a direction"),
    }
}

fn digits_of(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

const CLASS: u8 = 25;
pub(super) const VENDOR_SPECIFIC: u8 = 26;
const CISCO: u32 = 9;
const ADSL_FORUM: u32 = 3_561;
const WISPR: u32 = 14_122;
const MIKROTIK: u32 = 14_988;
const CISCO_AV_PAIR: u8 = 1;
const WISPR_MAX_UP: u8 = 7;
const WISPR_MAX_DOWN: u8 = 8;
const MIKROTIK_RATE_LIMIT: u8 = 8;
const MAXIMUM_UPSTREAM: u8 = 135;
const MAXIMUM_DOWNSTREAM: u8 = 136;

#[cfg(any(test, fuzzing))]
impl Claims {
    /// Attributes that state the same, for tests.
    pub(super) fn written(&self) -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        let vendor = |vendor: u32, kind: u8, value: &[u8]| {
            let start = [&vendor.to_be_bytes()[..], &[kind, value.len() as u8 + 2]].concat();
            (VENDOR_SPECIFIC, [&start, value].concat())
        };
        for (source, name) in &self.names {
            all.push(match source {
                Source::FilterId => (FILTER_ID, name.clone().into_bytes()),
                Source::Class => (CLASS, name.clone().into_bytes()),
                _ => vendor(CISCO, CISCO_AV_PAIR, format!("sub-qos-policy-in={name}").as_bytes()),
            });
        }
        for (source, rates) in &self.rates {
            let Ok(Rates { download, upload }) = rates else {
                let (of, kind) = match source {
                    Source::Mikrotik => (MIKROTIK, MIKROTIK_RATE_LIMIT),
                    Source::Wispr => (WISPR, WISPR_MAX_UP),
                    Source::AdslForum => (ADSL_FORUM, MAXIMUM_UPSTREAM),
                    Source::Cisco => {
                        let pair = b"lcp:interface-config=rate-limit x";
                        all.push(vendor(CISCO, CISCO_AV_PAIR, pair));
                        continue;
                    }
                    Source::FilterId | Source::Class => {
                        all.push((FILTER_ID, vec![0]));
                        continue;
                    }
                };
                all.push(vendor(of, kind, b"x"));
                continue;
            };
            let both = [("output", download), ("input", upload)];
            for (i, (word, rate)) in both.into_iter().enumerate() {
                let Some(bps) = rate.map(Rate::as_bps) else { continue };
                let bytes = (bps as u32).to_be_bytes();
                all.push(match source {
                    Source::Wispr => vendor(WISPR, [WISPR_MAX_DOWN, WISPR_MAX_UP][i], &bytes),
                    Source::AdslForum => {
                        vendor(ADSL_FORUM, [MAXIMUM_DOWNSTREAM, MAXIMUM_UPSTREAM][i], &bytes)
                    }
                    Source::Cisco => {
                        let pair = format!("lcp:interface-config#1=rate-limit {word} {bps} 1 1");
                        vendor(CISCO, CISCO_AV_PAIR, pair.as_bytes())
                    }
                    _ => continue,
                });
            }
            if let (Source::Mikrotik, Some(download), Some(upload)) = (source, download, upload) {
                let text = format!("{}/{} 9k 1M/2G 8", upload.as_bps(), download.as_bps());
                all.push(vendor(MIKROTIK, MIKROTIK_RATE_LIMIT, text.as_bytes()));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of plans, and their rates down and up in Mbit/s.
    struct Known(&'static [(&'static str, u64, u64)]);

    impl Plans for Known {
        fn has(&self, name: &str) -> bool {
            self.0.iter().any(|(known, ..)| *known == name)
        }

        fn with(&self, rates: &Rates) -> Vec<String> {
            let is = |(_, download, upload): &&(&str, u64, u64)| {
                let [download, upload] =
                    [download, upload].map(|n| (*n > 0).then(|| Rate::mbit(*n)));
                rates.are(download, upload)
            };
            self.0.iter().filter(is).map(|(name, ..)| (*name).to_owned()).collect()
        }
    }

    const PLANS: Known = Known(&[
        ("home-20", 20, 5),
        ("home-50", 50, 10),
        ("down-50", 50, 0),
        ("same", 9, 9),
        ("same-too", 9, 9),
    ]);

    fn of_vendor(vendor: u32, kind: u8, value: &[u8]) -> Vec<u8> {
        [&vendor.to_be_bytes()[..], &[kind, value.len() as u8 + 2], value].concat()
    }

    /// The plan to which the attributes lead, or a part of the reason.
    fn read(attributes: &[(u8, &[u8])]) -> Result<Option<String>, String> {
        let mut claims = Claims::default();
        for (kind, value) in attributes {
            claims.note(*kind, value);
        }
        claims.plan(&Source::ALL.map(|(_, source)| source), &PLANS)
    }

    #[test]
    fn vendors_rates_lead_to_the_only_plan_that_has_them() {
        let plan = |name: &str| Ok(Some(name.to_owned()));
        for (text, wanted) in [
            ("5M/20M", plan("home-20")),
            ("5000k/20000000", plan("home-20")),
            ("5M/20M 9M/40M 5M/20M 8/8 8 1M/1M", plan("home-20")),
            ("0/50M", plan("down-50")),
            ("10M/50M", plan("home-50")),
        ] {
            assert_eq!(read(&[(26, &of_vendor(MIKROTIK, 8, text.as_bytes()))]), wanted, "{text}");
        }
        for (text, wanted) in [
            ("20M/5M", "no plan of download 5mbit and upload 20mbit (Mikrotik-Rate-Limit)"),
            ("9M", "plans `same` and `same-too` of"),
            ("0", "no plan of download unbounded and upload unbounded"),
        ] {
            let error = read(&[(26, &of_vendor(MIKROTIK, 8, text.as_bytes()))]).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        for text in [
            "",
            "/",
            "5M/",
            "/20M",
            "5M/20M/1M",
            "5.5M/20M",
            "-5M/20M",
            "5m/20M",
            "5M/20M 1x",
            "5M/20M 1 1 1 1 1 1",
            "99999999999G",
            "18446744073709551616",
            "5M/20M 8s",
            "\u{fc}M",
        ] {
            let error = read(&[(26, &of_vendor(MIKROTIK, 8, text.as_bytes()))]).unwrap_err();
            assert!(error.contains("not written as"), "{text}: {error}");
        }
        let bps = |mbit: u32| (mbit * 1_000_000).to_be_bytes();
        let [up, down] =
            [(7, bps(5)), (8, bps(20))].map(|(kind, rate)| of_vendor(WISPR, kind, &rate));
        assert_eq!(read(&[(26, &up), (26, &down)]), plan("home-20"));
        let both = [&up[..], &[8, 6], &bps(20)].concat();
        assert_eq!(read(&[(26, &both)]), plan("home-20"));
        let error = read(&[(26, &down)]).unwrap_err();
        assert!(error.contains("and upload unbounded"), "what is not said is no guess: {error}");
        assert_eq!(read(&[(26, &of_vendor(WISPR, 8, &bps(50)))]), plan("down-50"));
        let twice = [(26, &down[..]), (26, &of_vendor(WISPR, 8, &bps(50)))];
        assert!(read(&twice).unwrap_err().contains("two rates of one direction"));
        assert!(read(&[(26, &of_vendor(WISPR, 8, &[1, 2, 3]))]).is_err());
        assert!(read(&[(26, &[0, 0, 0x37, 0x2a, 8, 60])]).unwrap_err().contains("lengths"));
        let line = [(135, bps(10)), (136, bps(50))].map(|(k, r)| of_vendor(ADSL_FORUM, k, &r));
        assert_eq!(read(&[(26, &line[0]), (26, &line[1])]), plan("home-50"));
        assert_eq!(read(&[(26, &line[0])]), Ok(None), "a line's profile of no plan is no mistake");
    }

    #[test]
    fn names_lead_to_plans_in_the_order_of_their_sources() {
        let plan = |name: &str| Ok(Some(name.to_owned()));
        let pair = |text: &str| of_vendor(CISCO, 1, text.as_bytes());
        let policies = |out: &str, of_in: &str| {
            let out = pair(&format!("ip:sub-qos-policy-out={out}"));
            read(&[(26, &out), (26, &pair(&format!("sub-qos-policy-in={of_in}")))])
        };
        assert_eq!(policies("home-20", "IN-5M"), plan("home-20"));
        assert_eq!(policies("home-20", "home-20"), plan("home-20"));
        assert!(policies("home-20", "home-50").unwrap_err().contains("two plans"));
        assert!(policies("OUT", "IN").unwrap_err().contains("no plan `IN` (Cisco-AVPair)"));
        let rate = |text: &str| pair(&format!("lcp:interface-config#1=rate-limit {text}"));
        let [output, input] = ["output 20000000 1 1 conform-action transmit", "input 5000000"];
        assert_eq!(read(&[(26, &rate(output)), (26, &rate(input))]), plan("home-20"));
        for text in ["output access-group 101 20000000 1 1", "output", "up 5000000 1 1"] {
            let error = read(&[(26, &rate(text))]).unwrap_err();
            assert!(error.contains("not a rate-limit of all traffic"), "{error}");
        }
        for other in ["client-mac-address=0200.0000.0001", "connect-progress", "\u{fc}=", "ip:="] {
            assert_eq!(read(&[(26, &pair(other))]), Ok(None), "{other}");
        }
        assert_eq!(read(&[(26, &[0, 0, 0x12, 0x34, 1, 3, 9]), (26, &[0])]), Ok(None));

        let rates = of_vendor(MIKROTIK, 8, b"10M/50M");
        let (filter, class) = ((FILTER_ID, &b"acl-7"[..]), (CLASS, &b"home-20"[..]));
        assert_eq!(read(&[filter, class, (26, &rates)]), plan("home-20"));
        assert_eq!(read(&[filter, (CLASS, b"\x00\x81"), (26, &rates)]), plan("home-50"));
        assert_eq!(read(&[filter]), Err("no plan `acl-7` (Filter-Id)".to_owned()));
        assert_eq!(read(&[(CLASS, b"cookie")]), Ok(None), "a class may be anything");
        assert_eq!(read(&[(FILTER_ID, b"home-20"), filter]), plan("home-20"));
        assert_eq!(read(&[(FILTER_ID, b"home-20"), (FILTER_ID, b"home-50")]), plan("home-50"));
        let mut claims = Claims::default();
        claims.note(VENDOR_SPECIFIC, &rates);
        assert_eq!(claims.plan(&[Source::Class], &PLANS), Ok(None), "of the sources that count");
    }
}
