//! The kernel boundary on the real kernel.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod admission;
mod classify;
mod common;
mod doctor;
mod host;
mod link;
mod owners;
mod police;
mod police_agreed;
mod police_bundle;
mod police_classes;
mod police_model;
mod police_traffic;
mod probe;
mod shaping;
mod windows;
