//! Recognised properties of devices, for the status.

use std::io::Write;

use fairweir_core::packet::Mac;
use fairweir_core::recognition::{Portrait, Set, Verdict, Word};
use serde::{Deserialize, Serialize};

use crate::table::{self, Align};

/// The most rows of a table for people; JSON has all.
pub(super) const ROWS_SHOWN: usize = 30;

/// The recognised properties of a device, and the evidence for them.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct DeviceStatus {
    mac: Mac,
    os: VerdictStatus,
    kind: VerdictStatus,
    evidence: Vec<EvidenceStatus>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct VerdictStatus {
    /// The value that rules use; null if it is unknown.
    known: Option<String>,
    /// `user`, `several sources` or `one source`.
    confidence: Option<String>,
    /// Whether the evidence contradicts itself.
    conflict: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct EvidenceStatus {
    source: String,
    seen: String,
    /// The values that this evidence leaves possible; null means any.
    os: Option<Vec<String>>,
    kind: Option<Vec<String>>,
}

pub(super) fn of_portrait(portrait: Portrait) -> DeviceStatus {
    let evidence = portrait.claims.iter().map(|claim| EvidenceStatus {
        source: claim.source.name().to_owned(),
        seen: claim.seen.clone(),
        os: names(claim.what.os),
        kind: names(claim.what.kinds),
    });
    DeviceStatus {
        mac: portrait.mac,
        os: verdict(portrait.os),
        kind: verdict(portrait.kind),
        evidence: evidence.collect(),
    }
}

/// Prints a table for people.
pub(super) fn print(out: &mut impl Write, devices: &[DeviceStatus]) -> std::io::Result<()> {
    let shown = |verdict: &VerdictStatus| match (&verdict.known, &verdict.confidence) {
        (Some(known), Some(confidence)) => format!("{known} ({confidence})"),
        _ if verdict.conflict => "conflict".to_owned(),
        _ => "unknown".to_owned(),
    };
    let row = |device: &DeviceStatus| {
        let seen = device.evidence.iter().map(|e| format!("{} {}", e.source, e.seen));
        let seen = seen.map(|text| text.trim_end().to_owned()).collect::<Vec<_>>().join("; ");
        vec![device.mac.to_string(), shown(&device.os), shown(&device.kind), seen]
    };
    let headings = ["DEVICE", "OS", "KIND", "EVIDENCE"].map(|heading| (heading, Align::Left));
    table::print(out, &headings, &devices.iter().take(ROWS_SHOWN).map(row).collect::<Vec<_>>())
}

fn verdict<W: Word>(verdict: Verdict<W>) -> VerdictStatus {
    let (known, confidence) = match verdict {
        Verdict::Known(word, confidence) => (Some(word.name()), Some(confidence.name())),
        Verdict::Unknown(_) | Verdict::Conflict => (None, None),
    };
    VerdictStatus {
        known: known.map(str::to_owned),
        confidence: confidence.map(str::to_owned),
        conflict: verdict == Verdict::Conflict,
    }
}

fn names<W: Word>(set: Set<W>) -> Option<Vec<String>> {
    (set != Set::all()).then(|| set.words().map(|word| word.name().to_owned()).collect())
}
