//! Schemas of the commands' `--json` output: `fairweir generate schemas` prints docs/reference/json.schema.json.
//!
//! Objects are closed: an unknown or missing key violates the schema. Tests validate all the JSON that they print.
//! Output that other modules serialise is described by their own types. Output that they build by hand is described by
//! the types here, which serve only as schemas.

#![allow(dead_code, reason = "most types are only schemas")]

use std::collections::BTreeMap;

use fairweir_core::policy::Branch;
use fairweir_core::receiver::Control;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, json};

use crate::page::history::Point;
use crate::page::history::suggest::Suggested;
use crate::{host, isp, page, proxy, sender};

/// The command, the version of its schema, which increases with each change, and the schema.
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
    ("isp unpoliced", 1, of::<isp::wire::UnpolicedStatus>),
    ("lab check", 1, of::<ScenarioFile>),
    ("market agent status", 2, of::<AgentStatus>),
    ("market codes", 1, of::<Vec<Code>>),
    ("market households", 2, of::<Vec<Household>>),
    ("market pause", 1, of::<Moved>),
    ("market prune", 1, of::<Pruned>),
    ("market remove", 2, of::<Household>),
    ("market resume", 1, of::<Moved>),
    ("market show", 2, of::<Shown>),
    ("market status", 2, of::<MarketStatus>),
    ("market why", 2, of::<AgentStatus>),
    ("page status", 1, of::<page::ask::PageStatus>),
    ("proxy status", 1, of::<proxy::report::Status>),
    ("proxy top", 1, of::<proxy::report::Status>),
    ("router", 1, of::<host::wire::Status>),
    ("router devices", 1, of::<host::who::Who>),
    ("router status", 1, of::<host::wire::Status>),
    ("router test", 1, of::<host::trial::Comparison>),
    ("sender", 2, of::<Bundles>),
    ("sender status", 2, of::<sender::report::Status>),
    ("sender top", 2, of::<sender::report::Status>),
    ("sim check", 1, of::<ScenarioFile>),
    ("suggest", 1, of::<Vec<Suggested>>),
];

fn of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Schema {
    schemas.subschema_for::<T>()
}

/// All schemas as one document: the types in `$defs`, and the schema of each command in `commands`.
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

/// What any command prints if it fails.
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
    /// The interfaces towards a router's devices.
    lan: Vec<String>,
    dev: Option<String>,
    /// Further interfaces through which a router reaches the Internet.
    beside: Vec<String>,
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
    plan_by: Vec<String>,
    stale_after_s: Option<f64>,
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

/// A plan as in the file: rates and times are strings.
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

/// The output of a dry run.
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
    /// The kinds of use to which the numbers in `always` and `importance` belong, in this order.
    kinds: Vec<String>,
    always: [u8; 4],
    times: Vec<TimeOfWeek>,
    warnings: Vec<String>,
}

#[derive(JsonSchema)]
struct TimeOfWeek {
    name: String,
    /// Monday is first.
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
    /// What `--fix` would do; null if it can do nothing.
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

/// An amount in micro-credits, as decimal digits.
type Credits = String;

#[derive(JsonSchema)]
struct Household {
    contract: Option<String>,
    /// The pseudonym of the household's gateway.
    gateway: String,
    balance: Credits,
    rate_bps: Option<u64>,
    peak_bps: Option<u64>,
    bids_ahead: usize,
    heard_s: Option<u64>,
}

#[derive(JsonSchema)]
struct Shown {
    #[schemars(flatten)]
    household: Household,
    bids: Vec<Bid>,
    statements: Vec<Dated>,
}

#[derive(JsonSchema)]
struct Bid {
    slot: u64,
    spend: Credits,
    /// Of two bids for a slot, the one with the higher number counts.
    sequence: u64,
}

#[derive(JsonSchema)]
struct Dated {
    slot: u64,
    statement: Statement,
}

#[derive(JsonSchema)]
struct Statement {
    opening: Credits,
    spent: Credits,
    received: Credits,
    /// The amount that the cap added, or removed if negative, in micro-credits.
    moved: i64,
    closing: Credits,
}

#[derive(JsonSchema)]
struct Moved {
    changed: bool,
    open_slot: u64,
    /// When the slot `open_slot` begins, in seconds since 1970.
    begins_s: u64,
}

#[derive(JsonSchema)]
struct Pruned {
    events: i64,
    statements: i64,
    /// The first slot that is kept.
    first_slot: u64,
}

#[derive(JsonSchema)]
struct MarketStatus {
    address: Option<String>,
    /// How the rates are enforced, in words.
    enforcement: String,
    doubt: Option<String>,
    rules: Option<Rules>,
    open_slot: u64,
    paused: bool,
    gateways: usize,
    credits_micro: u64,
    last: Option<Closed>,
}

#[derive(JsonSchema)]
struct Rules {
    terms: Terms,
    share: Credits,
    cap: Credits,
    slot_s: u64,
    close_before_s: u64,
    /// When slot 0 begins, in seconds since 1970.
    epoch_s: u64,
}

#[derive(JsonSchema)]
struct Terms {
    /// `float`, `even` or `plain`.
    mode: String,
    /// In bit/s.
    capacity: u64,
    floor_percent: u64,
}

#[derive(JsonSchema)]
struct Closed {
    slot: u64,
    /// The price of each Mbit/s above the floor.
    price: Credits,
    root: String,
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
    told: Vec<Told>,
    balance: Option<Credits>,
    bids: Option<Vec<Bid>>,
    /// The number of bids that the market accepted.
    placed: u64,
    cap: Option<Credits>,
    preferences: Preferences,
    plan: Vec<Planned>,
    why: Vec<String>,
}

/// A daemon's reply when it was told its guaranteed rate.
#[derive(JsonSchema)]
struct Told {
    daemon: String,
    said: String,
    is_followed: bool,
}

#[derive(JsonSchema)]
struct Preferences {
    /// The kinds of use to which the numbers in the other members belong, in this order.
    kinds: [String; 4],
    always: [u8; 4],
    times: Vec<TimeOfWeek>,
    boosted_for_s: [u64; 4],
    holiday_for_s: u64,
}

#[derive(JsonSchema)]
struct Planned {
    slot: u64,
    /// When the slot begins, in seconds since 1970.
    begins_s: u64,
    /// The same time as local time.
    begins: String,
    spend: Credits,
    rate_bps: u64,
    /// The price of each Mbit/s above the floor, in credits.
    price: f64,
    /// The use for which the rate is bought, in words.
    wanted: String,
}
