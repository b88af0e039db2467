//! Reads what a flow does, from the keys that only some kinds have.

use fairweir_core::units::{Bytes, Rate, Span};

use fairweir_core::host_name::Site;

use super::super::{
    Browser, DemandStep, Http, Kind, OnOff, PING_INTERVAL, Page, Program, SHARED_HOSTS_MAX, Short,
    Video, Web,
};
use fairweir_config::{ConfigError, Placed, Table, not_one_of};

const KINDS: [&str; 9] =
    ["bulk", "quic", "ping", "on-off", "udp", "video", "web", "short", "browser"];
/// All kinds that have a program and servers of their own.
const WITH_SERVER: &[&str] = KINDS.split_at(8).0;
const WITH_CONGESTION_CONTROL: &[&str] =
    &["bulk", "quic", "on-off", "video", "web", "short", "browser"];
/// Keys that only flows of these kinds may have.
const KEYS_OF_KINDS: [(&str, &[&str]); 29] = [
    ("app", WITH_SERVER),
    ("server", WITH_SERVER),
    ("site", &["browser"]),
    ("program", &["browser"]),
    ("http", &["browser"]),
    ("page", &["browser"]),
    ("congestion_control", WITH_CONGESTION_CONTROL),
    ("paced", &["bulk", "on-off", "video", "web", "short"]),
    ("timestamps", &["bulk", "on-off", "video", "web", "short"]),
    ("ecn", &["bulk", "on-off", "video", "web", "short"]),
    ("timestamp_period", &["bulk", "on-off", "video", "web", "short"]),
    ("connections", &["bulk", "quic"]),
    ("demand", &["bulk", "quic", "on-off", "udp"]),
    ("steps", &["bulk", "quic", "on-off", "udp"]),
    ("interval", &["ping"]),
    ("on", &["on-off"]),
    ("off", &["on-off"]),
    ("ladder", &["video"]),
    ("length", &["video"]),
    ("hosts", &["web", "browser"]),
    ("objects", &["web"]),
    ("object", &["web"]),
    ("think", &["web", "browser"]),
    ("session_gap", &["web"]),
    ("pages_per_session", &["web"]),
    ("rate_per_s", &["short"]),
    ("size", &["short"]),
    ("sigma", &["short"]),
    ("arrivals", &["short"]),
];

const ON: Span = Span::secs(2);
const OFF: Span = Span::secs(2);
/// Rates from 240p to 4K at a high frame rate.
const LADDER_KBIT: [u64; 8] = [300, 750, 1_200, 2_500, 5_000, 9_000, 16_000, 25_000];
const RUNGS_MAX: usize = 32;
const OBJECTS: (u32, u32) = (30, 80);
const OBJECTS_MAX: u32 = 1_000;
/// Median size of an object. With it, a page of 55 objects has 2 MB on average, as pages have
/// today. Source: Barford and Crovella, SIGMETRICS 1998, body of the file sizes.
const OBJECT: Bytes = Bytes::kb(15);
/// Largest median: with a larger one, more than one object in a thousand would be cut off.
const OBJECT_MEDIAN_MAX: Bytes = Bytes::kb(100);
/// Shortest interval of a ping, so that it does not become a flood.
const PING_INTERVAL_MIN: Span = Span::millis(10);
/// The most hosts of a page: with six connections to each host, a flow has enough slots.
const HOSTS_MAX: u64 = 42;
/// Mean times of a user who browses. Source: CRAB §5.3.
const THINK: Span = Span::secs(5);
const SESSION_GAP: Span = Span::secs(60);
const PAGES_PER_SESSION: u64 = 10;
const PAGES_MAX: u64 = 1_000_000;
/// Default number of hosts from which a site loads.
const SHARED_HOSTS: u32 = 3;
const RATE_PER_S_MAX: u32 = 10_000;
const SIGMA_MAX: u32 = 4;
/// The largest expected number of arrivals of a flow; their times are stored.
const SHORTS_MAX: u64 = 1_000_000;

/// The key `kind`: one of [`KINDS`].
pub(super) fn name(table: &mut Table<'_>) -> Result<&'static str, ConfigError> {
    let Some(Placed { value, place }) = table.text("kind")? else {
        return Err(table.missing("kind", format!("one of {}", KINDS.join(", "))));
    };
    let known = KINDS.into_iter().find(|kind| *kind == value);
    known.ok_or_else(|| place.error(not_one_of(&value, &KINDS)))
}

/// Refuses a key that exists, but not for this kind.
pub(super) fn refuse_keys_of_others(table: &mut Table<'_>, kind: &str) -> Result<(), ConfigError> {
    for (key, kinds) in KEYS_OF_KINDS.iter().filter(|(_, kinds)| !kinds.contains(&kind)) {
        table.refuse(key, || {
            let owners: Vec<String> = kinds.iter().map(|k| format!("`{k}`")).collect();
            let owners = owners.join(", ");
            format!("found in a flow of kind `{kind}`; only flows of {owners} have it")
        })?;
    }
    Ok(())
}

/// Reads the keys of a kind; `active` is the duration of the flow.
pub(super) fn kind(
    table: &mut Table<'_>,
    name: &str,
    demands: &[DemandStep],
    active: Span,
) -> Result<Kind, ConfigError> {
    Ok(match name {
        "ping" => ping(table)?,
        "on-off" => {
            let on = above_zero(table, "on")?.unwrap_or(ON);
            let off = above_zero(table, "off")?.unwrap_or(OFF);
            Kind::OnOff(OnOff { on, off })
        }
        "udp" => {
            if demands.iter().any(|step| step.demand.is_none()) {
                let what = "UDP does not adapt: `demand` must be a rate such as 8mbit throughout";
                return Err(table.place().error(what));
            }
            Kind::Udp
        }
        "video" => Kind::Video(video(table)?),
        "web" => Kind::Web(web(table)?),
        "short" => Kind::Short(short(table, active)?),
        "browser" => Kind::Browser(browser(table)?),
        "bulk" => Kind::Bulk,
        "quic" => Kind::Quic,
        other => unreachable!("invariant: `{other}` is one of KINDS"),
    })
}

fn ping(table: &mut Table<'_>) -> Result<Kind, ConfigError> {
    let Some(Placed { value: interval, place }) = table.parsed::<Span>("interval")? else {
        return Ok(Kind::Ping { interval: PING_INTERVAL });
    };
    if interval < PING_INTERVAL_MIN {
        return Err(place.error(format!("found {interval}, allowed is from {PING_INTERVAL_MIN}")));
    }
    Ok(Kind::Ping { interval })
}

fn video(table: &mut Table<'_>) -> Result<Video, ConfigError> {
    let Some(Placed { value, place }) = table.texts("ladder")? else {
        let ladder = LADDER_KBIT.map(Rate::kbit).to_vec();
        return Ok(Video { ladder, length: above_zero(table, "length")? });
    };
    let rate =
        |text: &Placed<'_, String>| text.value.parse::<Rate>().map_err(|e| text.place.error(e));
    let ladder = value.iter().map(rate).collect::<Result<Vec<Rate>, _>>()?;
    let rising = ladder.windows(2).all(|w| w[0] < w[1]) && !ladder.contains(&Rate::ZERO);
    if !rising || ladder.is_empty() || ladder.len() > RUNGS_MAX {
        let what = format!("expected 1 to {RUNGS_MAX} rates above zero in rising order");
        return Err(place.error(what));
    }
    Ok(Video { ladder, length: above_zero(table, "length")? })
}

fn web(table: &mut Table<'_>) -> Result<Web, ConfigError> {
    let pages = table.integer("pages_per_session", 1, PAGES_MAX)?;
    let object = table.parsed::<Bytes>("object")?;
    let range = Bytes::new(1)..=OBJECT_MEDIAN_MAX;
    if let Some(object) = object.as_ref().filter(|p| !range.contains(&p.value)) {
        let (least, most) = (range.start(), range.end());
        let what = format!("found {}, allowed is from {least} to {most}", object.value);
        return Err(object.place.error(what));
    }
    Ok(Web {
        hosts: table.integer("hosts", 1, HOSTS_MAX)?.map_or(1, |p| p.value as u32),
        objects: table.range("objects", 1, OBJECTS_MAX)?.unwrap_or(OBJECTS),
        object: object.map_or(OBJECT, |p| p.value),
        think: table.parsed("think")?.map_or(THINK, |p| p.value),
        session_gap: table.parsed("session_gap")?.map_or(SESSION_GAP, |p| p.value),
        pages_per_session: pages.map_or(PAGES_PER_SESSION, |p| p.value) as u32,
    })
}

fn browser(table: &mut Table<'_>) -> Result<Browser, ConfigError> {
    let wanted = "the host name in the address bar, such as video.example.com";
    let site = table.text("site")?.ok_or_else(|| table.missing("site", wanted))?;
    let name = site
        .value
        .parse::<Site>()
        .map_err(|e| site.place.error(format!("`{}`: {e}", site.value)))?;
    if site.value.starts_with("*.") {
        return Err(site.place.error(format!("found `{}`, expected {wanted}", site.value)));
    }
    let programs = [("chromium", Program::Chromium), ("firefox", Program::Firefox)];
    let program = table.word("program", &programs)?.map_or(Program::Chromium, |p| p.value);
    let http = match table.integer("http", 1, 2)? {
        Some(Placed { value: 1, .. }) => Http::One,
        _ => Http::Two,
    };
    let is_images = table.word("page", &[("endless", false), ("images", true)])?;
    let think = table.parsed::<Span>("think")?;
    let page = match (is_images.is_some_and(|p| p.value), think) {
        (true, think) => Page::Images { think: think.map_or(THINK, |p| p.value) },
        (false, None) => Page::Endless,
        (false, Some(think)) => {
            return Err(think
                .place
                .error("an endless page has no pause; only `page = \"images\"` has it"));
        }
    };
    let hosts = table.integer("hosts", 1, SHARED_HOSTS_MAX.into())?;
    let hosts = hosts.map_or(SHARED_HOSTS, |p| p.value as u32);
    Ok(Browser { site: name.name().to_string(), hosts, program, http, page })
}

fn short(table: &mut Table<'_>, active: Span) -> Result<Short, ConfigError> {
    let wanted = format!("a number above 0 up to {RATE_PER_S_MAX}, such as 2.5");
    let rate = table.millionths("rate_per_s", RATE_PER_S_MAX, &wanted)?;
    let arrivals = table.integer("arrivals", 1, SHORTS_MAX)?.map(|p| p.value as u32);
    // A single download has no next one.
    let alone = (arrivals == Some(1)).then_some(1_000_000);
    let Some((value, place)) = rate.map(|p| (p.value, p.place)).or(alone.zip(Some(table.place())))
    else {
        return Err(table.missing("rate_per_s", &wanted));
    };
    let rate = Placed { value, place };
    if rate.value == 0 {
        return Err(rate.place.error(format!("found zero, expected {wanted}")));
    }
    // 10⁹ nanoseconds, divided by millionths of an arrival per second.
    let interval = Span::nanos(1_000_000_000_000_000 / rate.value);
    let expected = active.as_nanos() / interval.as_nanos();
    if expected > SHORTS_MAX {
        let what = format!("{expected} arrivals are too many; at most {SHORTS_MAX}");
        return Err(rate.place.error(what));
    }
    let size = table.parsed::<Bytes>("size")?;
    let size = size.ok_or_else(|| table.missing("size", "a volume such as 100kB"))?;
    if size.value == Bytes::ZERO {
        return Err(size.place.error("a size must be greater than zero"));
    }
    let wanted = format!("a number from 0 (all of one size) to {SIGMA_MAX}, such as 1.3");
    let sigma = table.millionths("sigma", SIGMA_MAX, &wanted)?;
    let sigma_ppm = sigma.map_or(0, |p| p.value as u32);
    Ok(Short { interval, size: size.value, sigma_ppm, arrivals })
}

fn above_zero(table: &mut Table<'_>, key: &str) -> Result<Option<Span>, ConfigError> {
    match table.parsed::<Span>(key)? {
        Some(Placed { value: Span::ZERO, place }) => {
            Err(place.error("a time must be greater than zero"))
        }
        other => Ok(other.map(|p| p.value)),
    }
}
