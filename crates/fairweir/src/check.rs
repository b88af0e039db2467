//! `fairweir check`: prints how a configuration is read, or what is wrong with it.

use std::io::{self, Write};
use std::path::Path;

use fairweir_core::policy::Group;

use crate::cli::CheckArgs;
use crate::isp;
#[cfg(feature = "market")]
use crate::market;
use crate::proxy;
use crate::sender;
use crate::table::{self, Align};
use fairweir_config::host::{Config, Role};
use fairweir_config::text;

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    if isp::is_isp_file(&args.file) {
        return isp::check(&args.file, args.json);
    }
    if sender::is_sender_file(&args.file) {
        return sender::check(&args.file, args.json);
    }
    if proxy::is_proxy_file(&args.file) {
        return proxy::check(&args.file, args.json);
    }
    #[cfg(feature = "market")]
    if market::is_agent_file(&args.file) {
        return market::check(&args.file, args.json);
    }
    let role = if is_router_file(&args.file) { Role::Router } else { Role::Host };
    let config = Config::load_as(role, &args.file)?;
    let out = &mut text::stdout();
    if args.json {
        serde_json::to_writer(&mut *out, &as_json(&config))?;
        writeln!(out)?;
        return Ok(());
    }
    for file in &config.files {
        writeln!(out, "read {}", file.display())?;
    }
    let host = &config.host;
    let control = host.control.unwrap_or_default();
    write!(out, "control {control}")?;
    if let Some(capacity) = host.capacity {
        write!(out, ", capacity {capacity}")?;
    }
    if host.strict_priority {
        write!(out, ", strict priority in the order below")?;
    }
    write!(out, ", probe {}", host.probe)?;
    match host.upload_capacity {
        _ if !host.upload => {}
        Some(capacity) => write!(out, ", upload shared at {capacity}")?,
        None => write!(out, ", upload shared")?,
    }
    if let Some(lan) = &host.lan {
        write!(out, ", lan {lan}")?;
    }
    match &host.dev {
        Some(wan) if role == Role::Router => writeln!(out, ", wan {wan}\n")?,
        Some(dev) => writeln!(out, ", dev {dev}\n")?,
        None => writeln!(out, ", no dev (give --dev)\n")?,
    }
    print_groups(out, &config, role)?;
    for warning in &config.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

/// Whether a file is a router's; one that is no TOML at all is one if it is called so.
fn is_router_file(path: &Path) -> bool {
    let is_called_so = path.file_name().is_some_and(|name| name == "router.toml");
    let Ok(text) = fairweir_config::sender::read_text(path) else { return is_called_so };
    let Ok(table) = text.as_str().parse::<toml::Table>() else { return is_called_so };
    table.contains_key("router") || table.contains_key("device") || is_called_so
}

fn print_groups(out: &mut impl Write, config: &Config, role: Role) -> io::Result<()> {
    let groups = config.policy.groups();
    let sum: u32 = groups.iter().map(|g| g.weight.as_u32()).sum();
    let row = |group: &Group| {
        let part = 100.0 * f64::from(group.weight.as_u32()) / f64::from(sum);
        let matches: Vec<String> = group.matches.iter().map(ToString::to_string).collect();
        let matches =
            if matches.is_empty() { "all other traffic".to_owned() } else { matches.join(" ") };
        vec![group.name.clone(), group.weight.to_string(), format!("{part:.1} %"), matches]
    };
    let headings = [
        (if role == Role::Router { "DEVICE" } else { "GROUP" }, Align::Left),
        ("WEIGHT", Align::Right),
        ("IF ALL WANT MORE", Align::Right),
        ("MATCH", Align::Left),
    ];
    table::print(out, &headings, &groups.iter().map(row).collect::<Vec<_>>())
}

fn as_json(config: &Config) -> serde_json::Value {
    let group = |group: &Group| {
        let matches: Vec<String> = group.matches.iter().map(ToString::to_string).collect();
        serde_json::json!({ "name": group.name, "weight": group.weight, "match": matches })
    };
    let groups: Vec<_> = config.policy.groups().iter().map(group).collect();
    serde_json::json!({
        "files": config.files,
        "lan": config.host.lan,
        "dev": config.host.dev,
        "control": config.host.control.unwrap_or_default(),
        "capacity_bps": config.host.capacity,
        "strict_priority": config.host.strict_priority,
        "upload": config.host.upload,
        "upload_capacity_bps": config.host.upload_capacity,
        "probe": config.host.probe.to_string(),
        "probe_interval_ms": config.host.probe_interval.as_millis_f64(),
        "groups": groups,
        "warnings": config.warnings,
    })
}
