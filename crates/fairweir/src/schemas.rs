//! Schemas of what commands print with `--json`: `fairweir generate schemas` prints docs/reference/json.schema.json.
//!
//! Objects are closed: a key that the schema does not have, or that is missing, is a fault. Tests hold everything that
//! they have printed against it. What other modules serialise is described by its own type; what they put together
//! by hand, by the types here, which are only schemas.

#![allow(dead_code, reason = "most types are only schemas")]

use std::collections::BTreeMap;

use fairweir_core::policy::Branch;
use fairweir_core::receiver::Control;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::page::history::Point;
use crate::page::history::suggest::Suggested;
use crate::{host, isp, page, proxy, sender};

/// A command, the version of its schema, which rises with each change, and the schema.
type Row = (&'static str, u32, fn(&mut SchemaGenerator) -> Schema);

const COMMANDS: &[Row] = &[
    ("check agent", 1, of::<AgentFile>),
    ("check host", 1, of::<HostFile>),
    ("check isp", 1, of::<IspFile>),
    ("check proxy", 1, of::<ProxyFile>),
    ("check router", 1, of::<HostFile>),
    ("check sender", 1, of::<SenderFile>),
    ("doctor", 1, of::<Vec<Finding>>),
    ("error", 1, of::<Error>),
    ("history", 1, of::<History>),
    ("host", 1, of::<host::wire::Status>),
    ("host status", 1, of::<host::wire::Status>),
    ("host test", 1, of::<host::trial::Comparison>),
    ("isp", 1, of::<IspFile>),
    ("isp import", 1, of::<isp::wire::Imported>),
    ("isp list", 1, of::<Listed>),
    ("isp plan list", 1, of::<Plan>),
    ("isp show", 1, of::<isp::wire::SubscriberStatus>),
    ("isp status", 1, of::<isp::wire::Status>),
    ("isp top", 1, of::<isp::wire::Busiest>),
    ("lab check", 1, of::<ScenarioFile>),
    ("market agent status", 1, of::<AgentStatus>),
    ("market codes", 1, of::<Vec<Code>>),
    ("market households", 1, of::<Vec<Household>>),
    ("market pause", 1, of::<Moved>),
    ("market prune", 1, of::<Pruned>),
    ("market remove", 1, of::<Household>),
    ("market resume", 1, of::<Moved>),
    ("market show", 1, of::<Shown>),
    ("market status", 1, of::<MarketStatus>),
    ("market why", 1, of::<AgentStatus>),
    ("page status", 1, of::<page::ask::PageStatus>),
    ("proxy status", 1, of::<proxy::report::Status>),
    ("proxy top", 1, of::<proxy::report::Status>),
    ("router", 1, of::<host::wire::Status>),
    ("router devices", 1, of::<host::who::Who>),
    ("router status", 1, of::<host::wire::Status>),
    ("router test", 1, of::<host::trial::Comparison>),
    ("sender", 1, of::<Bundles>),
    ("sender status", 1, of::<sender::report::Status>),
    ("sender top", 1, of::<sender::report::Status>),
    ("sim check", 1, of::<ScenarioFile>),
    ("suggest", 1, of::<Vec<Suggested>>),
];

fn of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Schema {
    schemas.subschema_for::<T>()
}

/// All schemas, as one document: `$defs`, and below `commands` which one is whose.
pub(crate) fn document() -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schemas = settings.with_transform(RecursiveTransform(close)).into_generator();
    let mut commands = Map::new();
    for (command, version, schema) in COMMANDS {
        let mut schema = schema(&mut schemas);
        RecursiveTransform(close).transform(&mut schema);
        commands.insert((*command).to_owned(), json!({ "version": version, "schema": schema }));
    }
    let document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What the commands of fairweir print with --json",
        "commands": commands,
        "$defs": schemas.take_definitions(true),
    });
    serde_json::to_string_pretty(&document).expect("invariant: the keys are strings") + "\n"
}

fn close(schema: &mut Schema) {
    let has_keys = schema.get("properties").is_some();
    if has_keys && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
}

/// With every command: what is printed if it fails.
#[derive(JsonSchema)]
struct Error {
    error: String,
    exit_code: u8,
}

#[derive(JsonSchema)]
struct HostFile {
    /// `host` or `router`.
    kind: String,
    files: Vec<String>,
    lan: Option<String>,
    dev: Option<String>,
    control: Control,
    capacity_bps: Option<u64>,
    strict_priority: bool,
    upload: bool,
    upload_capacity_bps: Option<u64>,
    /// `auto`, `off` or an address.
    probe: String,
    probe_interval_ms: f64,
    groups: Vec<Branch>,
    /// Quotas and schedules by the path of the group, in words.
    plans: BTreeMap<String, Vec<String>>,
    warnings: Vec<String>,
}

#[derive(JsonSchema)]
struct IspFile {
    kind: String,
    files: Vec<String>,
    device: String,
    uplink: Option<String>,
    hook: String,
    ways: Vec<Vec<isp::wire::HookStatus>>,
    overhead: i32,
    group: Option<String>,
    metrics: Option<String>,
    subscribers: usize,
    addresses: usize,
    plans: Vec<Plan>,
    segments: Vec<SegmentOfFile>,
    radius: Option<Radius>,
    coa: Option<Coa>,
    usage: Option<Usage>,
    leases: Option<Leases>,
    warnings: Vec<String>,
}

#[derive(JsonSchema)]
struct SegmentOfFile {
    name: String,
    download_bps: Option<u64>,
    upload_bps: Option<u64>,
    guarantee_download_bps: u64,
    guarantee_upload_bps: u64,
    matching: usize,
}

#[derive(JsonSchema)]
struct Radius {
    listen: String,
    clients: Vec<String>,
    plan: Option<String>,
}

#[derive(JsonSchema)]
struct Coa {
    listen: String,
    clients: Vec<String>,
    strict: bool,
}

#[derive(JsonSchema)]
struct Usage {
    interval_s: f64,
    days: u64,
    collector: Option<String>,
}

#[derive(JsonSchema)]
struct Leases {
    files: Vec<String>,
    plan: String,
}

/// As in the file; rates and times are texts.
#[derive(JsonSchema)]
struct Plan {
    name: String,
    #[schemars(skip_serializing_if = "Option::is_none")]
    download: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    upload: Option<String>,
    rtt_max: String,
    signal: String,
    #[schemars(skip_serializing_if = "Option::is_none")]
    share: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    queues: Option<u32>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    class: Option<Vec<ClassOfPlan>>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    bundle: Option<BundleOfPlan>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    subscribers: Option<usize>,
}

#[derive(JsonSchema)]
struct ClassOfPlan {
    name: String,
    #[schemars(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    #[schemars(rename = "match", skip_serializing_if = "Option::is_none")]
    matches: Option<Vec<String>>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    share: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    queues: Option<u32>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    class: Option<Vec<ClassOfPlan>>,
}

#[derive(JsonSchema)]
struct BundleOfPlan {
    free: String,
    stunts: String,
    #[schemars(skip_serializing_if = "Option::is_none")]
    download: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    upload: Option<String>,
}

#[derive(JsonSchema)]
struct Listed {
    name: String,
    addresses: Vec<String>,
    plan: String,
    origin: String,
    own_plan: Option<String>,
}

#[derive(JsonSchema)]
struct SenderFile {
    kind: String,
    files: Vec<String>,
    bundles: Vec<BundleOfFile>,
    warnings: Vec<String>,
}

#[derive(JsonSchema)]
struct BundleOfFile {
    name: String,
    peers: Vec<String>,
    controller: String,
    min_rate_bps: u64,
    free: Vec<FreeOfFile>,
    stunts: Vec<StuntsOfFile>,
}

#[derive(JsonSchema)]
struct FreeOfFile {
    #[schemars(rename = "match")]
    matches: Vec<String>,
    target: String,
}

#[derive(JsonSchema)]
struct StuntsOfFile {
    #[schemars(rename = "match")]
    matches: Vec<String>,
    weight: u32,
}

/// Of a dry run.
#[derive(JsonSchema)]
struct Bundles {
    bundles: Vec<sender::report::BundleStatus>,
    limits: Vec<String>,
}

#[derive(JsonSchema)]
struct ProxyFile {
    kind: String,
    files: Vec<String>,
    lan: Vec<String>,
    classes: Vec<ClassOfFile>,
    apps: Vec<AppOfFile>,
    priority: Option<[f64; 4]>,
    household: bool,
    devices: Vec<DeviceOfFile>,
    warnings: Vec<String>,
}

#[derive(JsonSchema)]
struct ClassOfFile {
    name: String,
    rate_bps: Option<u64>,
    lease: bool,
    #[schemars(rename = "match")]
    matches: Vec<String>,
}

#[derive(JsonSchema)]
struct AppOfFile {
    name: String,
    alpha: u32,
    #[schemars(rename = "match")]
    matches: Vec<String>,
}

#[derive(JsonSchema)]
struct DeviceOfFile {
    mac: String,
    os: Option<String>,
    kind: Option<String>,
}

#[derive(JsonSchema)]
struct AgentFile {
    kind: String,
    files: Vec<String>,
    /// What the numbers of `always` and `importance` are of, in this order.
    kinds: Vec<String>,
    always: [u8; 4],
    times: Vec<TimeOfWeek>,
    warnings: Vec<String>,
}

#[derive(JsonSchema)]
struct TimeOfWeek {
    name: String,
    /// From Monday.
    days: [bool; 7],
    from_min: u32,
    to_min: u32,
    importance: [Option<u8>; 4],
}

#[derive(JsonSchema)]
struct ScenarioFile {
    kind: String,
    name: String,
    groups: usize,
    flows: usize,
    duration_s: f64,
    events: Vec<Event>,
}

#[derive(JsonSchema)]
struct Event {
    at_s: f64,
    what: String,
}

#[derive(JsonSchema)]
struct Finding {
    feature: String,
    found: bool,
    required: bool,
    detail: String,
    since: Option<String>,
    lost_without: String,
    /// What `--fix` would do.
    fix: Option<String>,
}

#[derive(JsonSchema)]
struct History {
    /// Seconds since 1970.
    from: u64,
    to: u64,
    step_s: u64,
    points: Vec<Point>,
}

#[derive(JsonSchema)]
struct Code {
    contract: String,
    peak: Option<u64>,
    until_s: u64,
}

#[derive(JsonSchema)]
struct Household {
    contract: Option<String>,
    /// Its pseudonym.
    gateway: String,
    balance: Value,
    rate_bps: Option<u64>,
    peak_bps: Option<u64>,
    bids_ahead: usize,
    heard_s: Option<u64>,
}

#[derive(JsonSchema)]
struct Shown {
    #[schemars(flatten)]
    household: Household,
    /// As in the API: docs/reference/market.openapi.json.
    bids: Vec<Value>,
    statements: Vec<Dated>,
}

#[derive(JsonSchema)]
struct Dated {
    slot: u64,
    /// As in the API.
    statement: Value,
}

#[derive(JsonSchema)]
struct Moved {
    changed: bool,
    open_slot: u64,
    /// When that slot begins, in seconds since 1970.
    begins_s: u64,
}

#[derive(JsonSchema)]
struct Pruned {
    events: i64,
    statements: i64,
    /// The first that is kept.
    first_slot: u64,
}

/// What is not described closer is as in the API.
#[derive(JsonSchema)]
struct MarketStatus {
    address: Option<String>,
    enforcement: Value,
    doubt: Option<String>,
    rules: Value,
    open_slot: u64,
    paused: bool,
    gateways: usize,
    credits_micro: u64,
    last: Value,
}

#[derive(JsonSchema)]
struct AgentStatus {
    gateway: String,
    server: String,
    heard_s_ago: Option<f64>,
    error: Option<String>,
    rate_bps: Option<u64>,
    until_s: Option<u64>,
    is_refused: bool,
    told: Value,
    balance: Value,
    bids: Value,
    placed: Value,
    cap: Value,
    preferences: Value,
    plan: Value,
    why: Vec<String>,
}
