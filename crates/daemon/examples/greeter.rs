//! A daemon that greets: `cargo run -p fairweir-daemon --example greeter -- RUN_DIR FILE`.
#![allow(missing_docs)]

use std::fs;
use std::path::PathBuf;

use fairweir_core::units::{Span, Time};
use fairweir_daemon::{
    Access, Answer, Error, Metrics, Peer, Progress, Service, Spec, Watched, run,
};
use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;

/// Requests other than status, reload, metrics and off.
#[derive(Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Greet { name: String },
}

struct Greeter {
    file: PathBuf,
    greeting: String,
    greeted: u64,
    tick_at: Time,
}

impl Service for Greeter {
    type Request = Request;

    fn access_for(request: &Request) -> Access {
        match request {
            Request::Greet { .. } => Access::Read,
        }
    }

    fn deadline(&self) -> Time {
        self.tick_at
    }

    fn handle_tick(&mut self, now: Time) -> Result<(), Error> {
        self.tick_at = now + Span::secs(1);
        Ok(())
    }

    fn handle_request(
        &mut self,
        Request::Greet { name }: Request,
        _: Peer,
        _: Time,
        _: &mut Progress<'_>,
    ) -> Answer {
        self.greeted += 1;
        Answer::value(&format!("{}, {name}", self.greeting))
    }

    fn reload(
        &mut self,
        dry: bool,
        _force: bool,
        _: Time,
        _: &mut Progress<'_>,
    ) -> Result<String, String> {
        let greeting = read(&self.file).map_err(|e| e.to_string())?;
        if !dry {
            self.greeting = greeting;
        }
        Ok("greeting read".to_owned())
    }

    fn watched(&self) -> Watched {
        Watched { files: vec![self.file.clone()], dirs: Vec::new() }
    }

    fn status(&mut self, _: Time) -> Answer {
        Answer::value(&serde_json::json!({ "greeting": self.greeting, "greeted": self.greeted }))
    }

    fn metrics(&mut self, _: usize, _: Time) -> Result<String, String> {
        let mut metrics = Metrics::default();
        metrics.counter("greeter_greetings", "Requests to greet.");
        metrics.sample(&[], self.greeted);
        Ok(metrics.finish())
    }

    fn end(&mut self) -> Result<(), String> {
        Ok(())
    }
}

fn read(file: &PathBuf) -> Result<String, Error> {
    let text = fs::read_to_string(file);
    let text = text.map_err(|e| Error::io(format!("read {}", file.display()), e))?;
    Ok(text.trim().to_owned())
}

fn now() -> Time {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("invariant: Linux has this clock");
    Time::ZERO + Span::nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(run_dir), Some(file)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: greeter RUN_DIR FILE");
        std::process::exit(2);
    };
    let spec = Spec {
        name: "greeter".to_owned(),
        devices: Vec::new(),
        run_dir,
        admin_group: None,
        user_group: None,
        request_max: 1_024,
        metrics: None,
        until_stdin_closes: true,
        clock: now,
    };
    run(&spec, |_| {
        let greeting = read(&file)?;
        Ok::<_, Error>(Greeter { file, greeting, greeted: 0, tick_at: now() })
    })
}
