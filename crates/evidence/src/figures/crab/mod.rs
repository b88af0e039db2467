//! The figures of CRAB (NSDI 2023): the runs for each, and the paper's claims about them.
//!
//! | figure | where |
//! |---|---|
//! | 3, 9, 11a: a film during downloads | `film` |
//! | 13, 17: the same with other parameters | `tuning` |
//! | 10: web pages during downloads | `web` |
//! | 7, 8, 11b, 12, 16: downloads | `bulk` |
//! | 15: downloads that differ, and many of them | `robust` |
//!
//! Not here: 1, 2, 4, 5 and 6 are drawings, 14 shows what a real Wi-Fi carried.

use super::draw::{PLAIN, bars, bars_of, chart, named_bars, over_time};
use super::{Figure, File};

mod bulk;
mod film;
mod robust;
mod tuning;
mod web;

/// Every figure, in the paper's order.
pub(super) const FIGURES: [Figure; 13] = [
    film::FIGURE_3,
    bulk::FIGURE_7,
    bulk::FIGURE_8,
    film::FIGURE_9,
    web::FIGURE_10,
    film::FIGURE_11A,
    bulk::FIGURE_11B,
    bulk::FIGURE_12,
    tuning::FIGURE_13,
    robust::FIGURE_15,
    robust::FIGURE_15C,
    bulk::FIGURE_16,
    tuning::FIGURE_17,
];
