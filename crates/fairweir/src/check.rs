//! `fairweir check`: prints how a configuration is read, or what is wrong with it.

use std::io::{self, Write};

use fairweir_core::policy::Group;

use crate::cli::CheckArgs;
use crate::isp;
use crate::sender;
use crate::table::{self, Align};
use fairweir_config::host::Config;
use fairweir_config::text;

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    if isp::is_isp_file(&args.file) {
        return isp::check(&args.file, args.json);
    }
    if sender::is_sender_file(&args.file) {
        return sender::check(&args.file, args.json);
    }
    let config = Config::load(&args.file)?;
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
    match &host.dev {
        Some(dev) => writeln!(out, ", dev {dev}\n")?,
        None => writeln!(out, ", no dev (give --dev)\n")?,
    }
    print_groups(out, &config)?;
    for warning in &config.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

fn print_groups(out: &mut impl Write, config: &Config) -> io::Result<()> {
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
        ("GROUP", Align::Left),
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
        "dev": config.host.dev,
        "control": config.host.control.unwrap_or_default(),
        "capacity_bps": config.host.capacity,
        "strict_priority": config.host.strict_priority,
        "probe": config.host.probe.to_string(),
        "probe_interval_ms": config.host.probe_interval.as_millis_f64(),
        "groups": groups,
        "warnings": config.warnings,
    })
}
