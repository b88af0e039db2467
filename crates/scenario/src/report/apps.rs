//! The measurements of applications, and their evaluation.

use fairweir_core::units::{Bytes, Rate, Span};
use serde::{Deserialize, Serialize};

use super::rounded;

/// Round-trip times of a ping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PingSamples {
    /// Index of its group.
    pub group: usize,
    /// Number of requests.
    pub sent: u64,
    /// One round-trip time for each answer.
    pub rtts: Vec<Span>,
}

/// How a film was played.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VideoSamples {
    /// Index of its group.
    pub group: usize,
    /// Rate of each quality and how long it was played, in rising order.
    pub played: Vec<(Rate, Span)>,
    /// Number of times the player ran dry, the beginning not counted.
    pub stalls: u64,
    /// Time stalled in all.
    pub stalled: Span,
    /// From the start of the flow to the first picture; `None` if there was none.
    pub startup: Option<Span>,
    /// How often the quality changed from one chunk to the next.
    pub switches: u64,
}

/// How long web pages took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WebSamples {
    /// Index of its group.
    pub group: usize,
    /// Load time of each page that was loaded.
    pub loads: Vec<Span>,
    /// Pages that were not complete at the end.
    pub unfinished: u64,
    /// Payload of the pages that were loaded.
    pub volume: Bytes,
}

/// How long short downloads took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShortSamples {
    /// Index of its group.
    pub group: usize,
    /// Time from arrival to last byte, one for each download that was completed.
    pub completions: Vec<Span>,
    /// Downloads that were not complete at the end.
    pub unfinished: u64,
    /// Payload of the downloads that were completed.
    pub volume: Bytes,
}

/// Round-trip times of a ping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ping {
    /// Name of its group.
    pub group: String,
    /// Requests.
    pub sent: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Median in ms; `None` without an answer.
    pub rtt_ms_median: Option<f64>,
    /// 95th percentile in ms.
    pub rtt_ms_p95: Option<f64>,
}

/// How a film was played.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Video {
    /// Name of its group.
    pub group: String,
    /// Mean rate of the film over the time played; `None` if nothing was played.
    #[serde(rename = "quality_bps")]
    pub quality: Option<Rate>,
    /// The qualities and the part of the time for which each was played, the lowest first.
    pub rungs: Vec<Rung>,
    /// Number of times the player ran dry, the beginning not counted.
    pub stalls: u64,
    /// Time stalled in all.
    pub stalled_s: f64,
    /// From the start of the flow to the first picture; `None` if there was none.
    pub startup_s: Option<f64>,
    /// How often the quality changed from one chunk to the next.
    pub switches: u64,
}

/// A quality of a film.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rung {
    /// Rate of the film.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// The part of the playing time that had this quality.
    pub share: f64,
}

/// How long web pages took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pages {
    /// Name of its group.
    pub group: String,
    /// Pages that were loaded.
    pub pages: u64,
    /// Pages that were not complete at the end.
    pub unfinished: u64,
    /// Payload of the pages that were loaded.
    #[serde(rename = "bytes")]
    pub volume: Bytes,
    /// Median of the load times in ms; `None` if no page was loaded.
    pub load_ms_median: Option<f64>,
    /// 95th percentile in ms.
    pub load_ms_p95: Option<f64>,
    /// Every load time in rising order, for pictures.
    #[serde(skip)]
    pub loads: Vec<Span>,
}

/// How long short downloads took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shorts {
    /// Name of its group.
    pub group: String,
    /// Downloads that were completed.
    pub flows: u64,
    /// Downloads that were not complete at the end.
    pub unfinished: u64,
    /// Payload of the downloads that were completed.
    #[serde(rename = "bytes")]
    pub volume: Bytes,
    /// Median of the completion times in ms; `None` if no download was completed.
    pub completion_ms_median: Option<f64>,
    /// 95th percentile in ms.
    pub completion_ms_p95: Option<f64>,
    /// 99th percentile in ms.
    pub completion_ms_p99: Option<f64>,
}

impl PingSamples {
    pub(super) fn judge(&self, group: &str) -> Ping {
        let [rtt_ms_median, rtt_ms_p95] = percentiles(&self.rtts, [50, 95]);
        let lost = self.sent.saturating_sub(self.rtts.len() as u64);
        Ping { group: group.to_owned(), sent: self.sent, lost, rtt_ms_median, rtt_ms_p95 }
    }
}

impl VideoSamples {
    pub(super) fn judge(&self, group: &str) -> Video {
        let all: Span = self.played.iter().map(|(_, span)| *span).sum();
        let share = |span: Span| span.as_secs_f64() / all.as_secs_f64();
        let quality: f64 = self.played.iter().map(|(r, s)| r.as_bps() as f64 * share(*s)).sum();
        let is_played = all > Span::ZERO;
        let rung = |&(rate, span): &(Rate, Span)| Rung {
            rate,
            share: if is_played { rounded(share(span), 4) } else { 0.0 },
        };
        Video {
            group: group.to_owned(),
            quality: is_played.then(|| Rate::bps(quality.round() as u64)),
            rungs: self.played.iter().map(rung).collect(),
            stalls: self.stalls,
            stalled_s: rounded(self.stalled.as_secs_f64(), 3),
            startup_s: self.startup.map(|span| rounded(span.as_secs_f64(), 3)),
            switches: self.switches,
        }
    }
}

impl WebSamples {
    pub(super) fn judge(&self, group: &str) -> Pages {
        let [load_ms_median, load_ms_p95] = percentiles(&self.loads, [50, 95]);
        let mut loads = self.loads.clone();
        loads.sort_unstable();
        Pages {
            group: group.to_owned(),
            pages: self.loads.len() as u64,
            unfinished: self.unfinished,
            volume: self.volume,
            load_ms_median,
            load_ms_p95,
            loads,
        }
    }
}

impl ShortSamples {
    pub(super) fn judge(&self, group: &str) -> Shorts {
        let [median, p95, p99] = percentiles(&self.completions, [50, 95, 99]);
        Shorts {
            group: group.to_owned(),
            flows: self.completions.len() as u64,
            unfinished: self.unfinished,
            volume: self.volume,
            completion_ms_median: median,
            completion_ms_p95: p95,
            completion_ms_p99: p99,
        }
    }
}

/// The percentiles of times in ms; `None` if there are no times.
fn percentiles<const N: usize>(spans: &[Span], percents: [usize; N]) -> [Option<f64>; N] {
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    percents.map(|percent| {
        let rank = (spans.len() * percent).div_ceil(100).max(1);
        spans.get(rank - 1).map(|span| rounded(span.as_millis_f64(), 3))
    })
}
