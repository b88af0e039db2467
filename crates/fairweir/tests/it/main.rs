//! The binary, its services and its commands, as processes and with real packets.
#![allow(clippy::unwrap_used, reason = "it is a test")]

#[cfg(feature = "evidence")]
mod agreement;
mod attack;
mod browser;
#[cfg(feature = "evidence")]
mod campaign;
mod commands;
mod common;
mod configuration;
mod daemon;
mod divider;
mod extension;
#[cfg(feature = "evidence")]
mod figures;
mod gateway;
mod history;
mod install;
mod isp;
mod lab;
mod market;
mod mistakes;
mod openwrt;
mod page;
mod police;
mod probe;
mod proxy;
mod readme;
mod recognition;
mod router;
mod sender;
mod setup;
mod shares;
mod sim;
mod upload;
mod web;
mod windows;
