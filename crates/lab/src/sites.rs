//! The sites of a scenario, in the home and on the internet: nginx serves them, one real browser opens them, and
//! nginx's log shows afterwards which packets belonged to which site.

use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::policy::Match;
use fairweir_core::units::{Span, Time};
use fairweir_scenario::report::{Samples, WebSamples};
use fairweir_scenario::{Browser as Site, Flow, Kind, Page, Scenario, app};

use crate::Error;
use crate::browser::site::{self, Servers};
use crate::browser::{self, Browser, Extension};
use crate::daemon::Daemon;
use crate::home::Home;
use crate::layout::{Layout, SITE_PORT, sites};
use crate::line::Shared;
use crate::watch::{STATUS, ask};

/// Time limit for the daemon to hear from the extension; below, the interval between two checks.
const HEARD_WITHIN: Duration = Duration::from_secs(20);
const HEARD_CHECK: Duration = Duration::from_millis(100);
/// A page without any request for this time is opened again: on a busy machine Chromium sometimes requests only
/// one of two pages, for an unknown reason.
const ASKED_WITHIN: Span = Span::secs(3);

/// A page that is to be opened.
#[derive(Debug)]
struct Visit {
    at: Time,
    site: String,
}

/// The servers and browser that play the sites of a scenario; they end when dropped.
#[derive(Debug)]
pub(crate) struct Sites {
    /// `None` after the run has ended.
    browser: Option<Browser>,
    servers: Servers,
    /// The visits to come, in reverse order: the next one is last.
    visits: Vec<Visit>,
    /// Pages that have not been requested yet, and when they were opened.
    opened: Vec<Visit>,
}

impl Sites {
    /// Starts the servers and the browser if there is any site. If the daemon's rules need it, waits until the
    /// daemon has heard from the extension.
    pub(crate) fn start(
        layout: &Layout<'_>,
        home: &Home,
        daemon: Option<&Daemon>,
        executable: &Path,
        dir: &Path,
    ) -> Result<Option<Sites>, Error> {
        let scenario = layout.scenario;
        let Some((first_flow, first)) = sites(scenario).next() else { return Ok(None) };
        let is_web = |matched: &Match| matches!(matched, Match::Web(_));
        let has_rule = scenario.groups.iter().any(|group| group.matches.iter().any(is_web));
        let listening = daemon.filter(|_| has_rule);
        let extension = listening.map(|_| Extension::find(executable)).transpose()?;
        let shared = layout.shared_hosts();
        let names = shared.iter().map(|(name, _)| name.clone());
        let names = names.chain(sites(scenario).map(|(_, site)| site.site.clone()));
        let identity = site::identity(names.collect())?;
        let seeds = app::seeds(scenario, scenario.seed);
        let page = |(flow, seed): (&Flow, u64)| match &flow.kind {
            Kind::Browser(site) => Some((site.site.clone(), page(site, &shared, seed))),
            _ => None,
        };
        let servers = site::Setup {
            netns: &home.internet,
            dir: &dir.join("nginx"),
            sites: scenario.flows.iter().zip(seeds).filter_map(page).collect(),
            http: first.http,
            ports: vec![SITE_PORT],
            congestion_control: first_flow.congestion_control,
        };
        let servers = Servers::start(&servers, &identity)?;
        let home_of_sites = shared[0].1;
        let opened = sites(scenario).map(|(_, site)| (site.site.clone(), home_of_sites));
        let run_dir = daemon.map_or_else(|| dir.to_owned(), |daemon| daemon.run_dir.clone());
        let browser = Browser::start(&browser::Setup {
            program: first.program,
            netns: &home.home,
            dir,
            run_dir: &run_dir,
            hosts: shared.iter().cloned().chain(opened).collect(),
            quic: None,
            extension,
        })?;
        if let Some(daemon) = listening {
            wait_until_heard(daemon)?;
        }
        let visit =
            |(flow, site): (&Flow, &Site)| Visit { at: flow.start, site: site.site.clone() };
        let mut visits: Vec<_> = sites(scenario).map(visit).collect();
        visits.sort_by_key(|visit| std::cmp::Reverse(visit.at));
        Ok(Some(Sites { browser: Some(browser), servers, visits, opened: Vec::new() }))
    }

    /// Opens the pages that are due, and checks that all processes are running.
    pub(crate) fn handle_time(&mut self, now: Time, home: &Home) -> Result<(), Error> {
        self.servers.check()?;
        let Some(browser) = &mut self.browser else { return Ok(()) };
        browser.check()?;
        while let Some(visit) = self.visits.pop_if(|visit| visit.at <= now) {
            browser.open(&home.home, &visit.site)?;
            self.opened.push(Visit { at: now, site: visit.site });
        }
        if self.opened.iter().any(|visit| now.since(visit.at) >= ASKED_WITHIN) {
            let requests = self.servers.requests();
            self.opened.retain(|visit| requests.iter().all(|r| r.site != visit.site));
            for visit in &mut self.opened {
                if now.since(visit.at) >= ASKED_WITHIN {
                    browser.open(&home.home, &visit.site)?;
                    visit.at = now;
                }
            }
        }
        Ok(())
    }

    /// Ends the browser, so that the servers log the requests in progress.
    pub(crate) fn close(&mut self) {
        self.browser = None;
    }

    /// Counts the packets of connections to shared servers, each in the group of its site, and returns how pages
    /// loaded. Packets without a site (on connections without a request) count in the group of the probe.
    ///
    /// # Errors
    /// If a site's page was never requested.
    pub(crate) fn settle(
        &self,
        scenario: &Scenario,
        shared: &[Shared],
        samples: &mut Samples,
    ) -> Result<Vec<WebSamples>, Error> {
        let requests = self.servers.requests();
        let known = site::sites_of(&requests);
        let group_of = |name: &str| {
            let mut flows = sites(scenario);
            flows.find(|(_, site)| site.site == name).map(|(flow, _)| flow.group)
        };
        let rest = scenario.rest_group();
        for packet in shared {
            let site = known.get(&(packet.server, packet.client_port));
            let group = site.and_then(|site| group_of(site)).unwrap_or(rest);
            samples.record_departure(packet.at, group, packet.size, packet.sojourn);
        }
        let mut pages = Vec::new();
        for (flow, site) in sites(scenario) {
            let own = || requests.iter().filter(|request| request.site == site.site);
            if own().next().is_none() {
                let why = "its page was not loaded".to_owned();
                return Err(Error::Ended { name: format!("the site {}", site.site), why });
            }
            if let Page::Images { .. } = site.page {
                let loads = own().filter_map(|request| site::loaded_ms(&request.uri));
                let loads: Vec<Span> = loads.map(Span::millis).collect();
                let bytes = own().filter_map(|request| site::object_size(&request.uri));
                let begun = own().filter(|request| site::is_document(&request.uri)).count() as u64;
                pages.push(WebSamples {
                    group: flow.group,
                    unfinished: u64::from(begun > loads.len() as u64),
                    volume: bytes.sum(),
                    loads,
                });
            }
        }
        Ok(pages)
    }
}

/// The behaviour of a site's page, which loads from the shared hosts.
fn page(site: &Site, shared: &[(String, IpAddr)], seed: u64) -> site::Page {
    let hosts = shared.iter().take(site.hosts as usize).map(|(name, _)| name.clone()).collect();
    match site.page {
        Page::Endless => site::Page::Endless { hosts, port: SITE_PORT },
        // The script of the page multiplies the seed, and its numbers are exact only up to 2⁵³.
        Page::Images { think } => site::Page::Images {
            hosts,
            seed: seed % (1 << 32),
            pause_ms: think.as_nanos() / 1_000_000,
        },
    }
}

/// Waits until the daemon has heard from the extension, which does not report earlier requests.
fn wait_until_heard(daemon: &Daemon) -> Result<(), Error> {
    let begun = Instant::now();
    while begun.elapsed() < HEARD_WITHIN {
        let is_heard = |status: serde_json::Value| status["sites"]["claims"]["users"] == 1;
        if ask(&daemon.socket, STATUS).is_ok_and(is_heard) {
            return Ok(());
        }
        thread::sleep(HEARD_CHECK);
    }
    let why = format!("the daemon did not hear of it within {} s", HEARD_WITHIN.as_secs());
    Err(Error::Ended { name: "the browser extension".to_owned(), why })
}
