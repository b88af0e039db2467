//! Turns the tables `[[police]]` into valid policing points, and makes the flows of their copies.

use fairweir_core::phantom::plan::{Deviation, RATE_MIN};
use fairweir_core::phantom::{Bundle, BundleSpec, Class, Criterion, Plan, PlanSpec, Share};
use fairweir_core::units::{Rate, Span, Time};

use super::super::police::{Algorithm, By, POLICE_COPIES_MAX, Police, PoliceSize, QueueBy};
use super::super::value::step_time;
use super::super::{FLOWS_MAX, Flow, Group};
use fairweir_config::plan::{self, Members};
use fairweir_config::{ConfigError, Place, Placed, Table, not_one_of};

/// Reads the policing points; if a point has copies, its flows are copied too.
pub(super) fn points(
    tables: Vec<Table<'_>>,
    segment: Option<Rate>,
    groups: &[Group],
    flows: &mut Vec<Flow>,
    end: Time,
) -> Result<Vec<Police>, ConfigError> {
    let mut points: Vec<Police> = Vec::new();
    // Flows copied for one point do not belong to the next point.
    let in_file = flows.len();
    for table in tables {
        let place = table.place();
        let (police, copies) = point(table, segment, end, groups, &flows[..in_file])?;
        let of_two = |p: &&Police| p.flows.iter().any(|flow| police.flows.contains(flow));
        if let Some(other) = points.iter().find(of_two) {
            let what = format!("some of its flows pass `{}` already; give it others", other.name);
            return Err(place.error(what));
        }
        if points.iter().any(|p| p.name == police.name) {
            let what = format!("there is a policing point `{}` already", police.name);
            return Err(place.error(what));
        }
        let made = copied(&police, &copies, flows, end)?;
        points.push(police);
        points.extend(made);
        if let Some(at) = overbooked(&points, segment) {
            let what = format!(
                "the guarantees sum to more than the segment's rate at {:?}",
                at.since(Time::ZERO)
            );
            return Err(place.error(what));
        }
    }
    Ok(points)
}

/// Reads `[segment]`: the rate of all points together.
pub(super) fn segment(mut table: Table<'_>) -> Result<Rate, ConfigError> {
    let rate = table.parsed::<Rate>("rate")?;
    let rate = rate.ok_or_else(|| table.missing("rate", "a rate such as 1gbit"))?;
    if rate.value < RATE_MIN {
        return Err(rate.place.error(format!("rate {} is below {RATE_MIN}", rate.value)));
    }
    table.finish()?;
    Ok(rate.value)
}

/// The time at which more is guaranteed than there is, if ever.
fn overbooked(points: &[Police], segment: Option<Rate>) -> Option<Time> {
    let mut steps: Vec<(Time, usize, Rate)> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        steps.extend(point.guarantees.iter().map(|&(at, rate)| (at, index, rate)));
    }
    steps.sort_unstable_by_key(|&(at, ..)| at);
    let mut now = vec![0; points.len()];
    let mut sum = 0;
    for (nth, &(at, index, rate)) in steps.iter().enumerate() {
        sum = sum - now[index] + rate.as_bps();
        now[index] = rate.as_bps();
        let is_last = steps.get(nth + 1).is_none_or(|next| next.0 > at);
        if is_last && segment.is_some_and(|segment| sum > segment.as_bps()) {
            return Some(at);
        }
    }
    None
}

/// The keys `guarantee` and `guarantees`.
fn guarantees(table: &mut Table<'_>, end: Time) -> Result<Vec<(Time, Rate)>, ConfigError> {
    let first = table.parsed::<Rate>("guarantee")?.map(|p| (Time::ZERO, p.value));
    let mut all: Vec<(Time, Rate)> = first.into_iter().collect();
    for mut step in table.tables("guarantees")? {
        let last = all.last().map_or(Time::ZERO, |(at, _)| *at);
        let at = step_time(&mut step, last, end)?;
        let rate = step.parsed("rate")?.ok_or_else(|| step.missing("rate", "a rate"))?;
        all.push((at, rate.value));
        step.finish()?;
    }
    Ok(all)
}

/// Number of copies of a point, and how much later each copy begins than the one before.
struct Copies<'t> {
    count: u64,
    stagger: Span,
    place: Place<'t>,
}

fn point<'t>(
    mut table: Table<'t>,
    segment: Option<Rate>,
    end: Time,
    groups: &[Group],
    flows: &[Flow],
) -> Result<(Police, Copies<'t>), ConfigError> {
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "a name for reports"))?;
    let rate = table.parsed::<Rate>("rate")?;
    let rate = rate.ok_or_else(|| table.missing("rate", "a rate such as 10mbit"))?;
    let words = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    let algorithm = table.word("algorithm", &words)?;
    if let Some(unbuilt) = algorithm.as_ref().filter(|p| !p.value.is_built()) {
        let what = format!(
            "`{}` is a baseline, which only a build with the feature `evidence` plays",
            unbuilt.value.name()
        );
        return Err(unbuilt.place.error(what));
    }
    let algorithm = algorithm.map_or(Algorithm::BcPqp, |p| p.value);
    let size = size(&mut table, algorithm)?;
    let without = table.word("without", &Deviation::ALL)?;
    if let Some(without) = without.as_ref().filter(|_| algorithm != Algorithm::BcPqp) {
        return Err(without.place.error("only `bc-pqp` has deviations to leave out"));
    }
    let queue_by = [("flow", QueueBy::Flow), ("hash", QueueBy::Hash), ("one", QueueBy::One)];
    let queue_by = table.word("queue_by", &queue_by)?.map_or(QueueBy::Flow, |p| p.value);
    let all = [("model", By::Model), ("daemon", By::Daemon), ("agreement", By::Agreement)];
    let by = table.word("by", &all)?;
    let copies = Copies {
        place: table.find("count").unwrap_or_else(|| table.place()),
        count: table.integer("count", 1, POLICE_COPIES_MAX)?.map_or(1, |p| p.value),
        stagger: table.parsed("stagger")?.map_or(Span::ZERO, |p| p.value),
    };
    let mut choosing = Choosing { groups, flows, chosen: vec![None; flows.len()], classes: 0 };
    let place = table.place();
    let all: Vec<usize> = match choosing.choose(&mut table)? {
        Some(chosen) => chosen,
        None => (0..flows.len()).collect(),
    };
    if let Some(by) = by.as_ref().filter(|by| by.value != By::Model) {
        let is_whole = all.len() == flows.len() && copies.count == 1;
        if algorithm != Algorithm::BcPqp || !is_whole {
            let what = "the daemon polices by `bc-pqp`, and in the emulated home all flows or none";
            return Err(by.place.error(what));
        }
    }
    let by_daemon = by.as_ref().is_some_and(|by| by.value != By::Model);
    let guarantees = guarantees(&mut table, end)?;
    if segment.is_none() && !guarantees.is_empty() {
        return Err(place.error("a guarantee needs a table [segment] with its `rate`"));
    }
    if segment.is_some() && (algorithm != Algorithm::BcPqp || by_daemon) {
        let what = "in a segment all points police by `bc-pqp`, and none by the daemon";
        return Err(place.error(what));
    }
    if let Some(without) = without.as_ref().filter(|_| segment.is_some() || by_daemon) {
        return Err(without.place.error("neither the daemon nor a segment leaves deviations out"));
    }
    let bundle = table.table("bundle")?.map(bundle).transpose()?;
    let sharing = plan::sharing(&mut table, &mut choosing)?;
    table.finish()?;
    let spec = sharing.spec(rate.value);
    let (spec, class_of) = choosing.settle(spec, &all, &place)?;
    if !matches!(algorithm, Algorithm::BcPqp | Algorithm::TokenBucket) && !is_flat(&spec.share) {
        let what = format!("`{}` knows weights of single queues only", algorithm.name());
        return Err(place.error(what));
    }
    let agrees = by.as_ref().filter(|by| by.value == By::Agreement);
    if let Some(by) = agrees.filter(|_| !matches!(spec.share, Share::Flows(_))) {
        return Err(by.place.error("the groups are the classes of an agreement"));
    }
    let plan = Plan::new(&spec).map_err(|e| sharing.error(&e, &rate.place))?;
    if let Some((bundle, place)) = &bundle {
        if algorithm != Algorithm::BcPqp || segment.is_some() {
            let what = "a bundle needs a policer by `bc-pqp`, outside of a segment";
            return Err(place.error(what));
        }
        Bundle::new(bundle, &spec, &plan).map_err(|e| place.error(e))?;
    }
    let bundle = bundle.map(|(bundle, _)| bundle);
    let name = name.value;
    let flows = all;
    let police = Police {
        name,
        spec,
        bundle,
        algorithm,
        size,
        without: without.map(|p| p.value),
        queue_by,
        by: by.map_or(By::Model, |by| by.value),
        guarantees,
        flows,
        class_of,
    };
    Ok((police, copies))
}

/// The table `bundle` of a point, and where it is.
fn bundle(mut table: Table<'_>) -> Result<(BundleSpec, Place<'_>), ConfigError> {
    let place = table.place();
    let class = "the name of a class";
    let free = table.text("free")?.ok_or_else(|| table.missing("free", class))?.value;
    let stunts = table.text("stunts")?.ok_or_else(|| table.missing("stunts", class))?.value;
    let target = table.parsed::<Rate>("target")?;
    let target = target.ok_or_else(|| table.missing("target", "a rate such as 4mbit"))?.value;
    table.finish()?;
    Ok((BundleSpec { free, target, stunts }, place))
}

/// The keys `burst` and `queue`.
fn size(table: &mut Table<'_>, algorithm: Algorithm) -> Result<PoliceSize, ConfigError> {
    let (has, has_not) = match algorithm {
        Algorithm::TokenBucket | Algorithm::FairPolicer => (Some("burst"), &["queue"][..]),
        Algorithm::BcPqpPrinted | Algorithm::Pqp | Algorithm::Shaper => {
            (Some("queue"), &["burst"][..])
        }
        Algorithm::BcPqp => (None, &["burst", "queue"][..]),
    };
    for key in has_not {
        let name = algorithm.name();
        table.refuse(key, || match has {
            Some(has) => format!("`{name}` has no `{key}`; what it has is `{has}`"),
            None => format!("`{name}` sizes its queues itself, by `rate` and `rtt_max`"),
        })?;
    }
    let given = has.map(|key| table.parsed(key)).transpose()?.flatten();
    Ok(given.map_or(algorithm.size(), |p| p.value))
}

/// Assigns flows to classes; a class is recognised by a DSCP that stands for it.
struct Choosing<'f> {
    groups: &'f [Group],
    flows: &'f [Flow],
    /// The class that named each flow.
    chosen: Vec<Option<String>>,
    classes: u8,
}

impl Choosing<'_> {
    /// The flows that the keys `groups` and `flows` name, in rising order; `None` without either.
    fn choose(&self, table: &mut Table<'_>) -> Result<Option<Vec<usize>>, ConfigError> {
        let groups = table.texts("groups")?;
        let numbers = table.integers("flows", 0, self.flows.len() as u64 - 1)?;
        if groups.is_none() && numbers.is_none() {
            return Ok(None);
        }
        let mut chosen = vec![false; self.flows.len()];
        if let Some(groups) = groups {
            for Placed { value: name, place } in groups.value {
                let names: Vec<&str> = self.groups.iter().map(|g| g.name.as_str()).collect();
                let index = names.iter().position(|n| **n == *name);
                let index = index.ok_or_else(|| place.error(not_one_of(&name, &names)))?;
                for (i, flow) in self.flows.iter().enumerate() {
                    chosen[i] |= flow.group == index;
                }
            }
        }
        for number in numbers.map(|p| p.value).unwrap_or_default() {
            chosen[number as usize] = true;
        }
        Ok(Some((0..chosen.len()).filter(|&i| chosen[i]).collect()))
    }

    /// Gives every flow of the aggregate its class. If all flows were named, the last class takes
    /// all traffic of no other class: there is none, but a plan needs such a class.
    fn settle(
        &self,
        mut spec: PlanSpec,
        all: &[usize],
        place: &Place<'_>,
    ) -> Result<(PlanSpec, Vec<String>), ConfigError> {
        let stranger =
            (0..self.flows.len()).find(|i| self.chosen[*i].is_some() && !all.contains(i));
        if let Some(class) = stranger.and_then(|i| self.chosen[i].as_ref()) {
            let what = format!("the class `{class}` names a flow that does not pass here");
            return Err(place.error(what));
        }
        let mut leaves = Vec::new();
        match &mut spec.share {
            Share::Flows(_) => return Ok((spec, Vec::new())),
            Share::Weighted(classes) | Share::Priority(classes) => undivided(classes, &mut leaves),
        }
        let default = leaves.iter().find(|class| class.matches.is_empty());
        let rest = default.map(|class| class.name.clone());
        let class_of = all.iter().map(|&i| self.chosen[i].clone().or(rest.clone()));
        let class_of: Option<Vec<String>> = class_of.collect();
        let Some(class_of) = class_of else {
            let what = "some of its flows belong to no class; leave one class without flows";
            return Err(place.error(what));
        };
        if let (None, Some(last)) = (rest, leaves.last_mut()) {
            last.matches.clear();
        }
        Ok((spec, class_of))
    }
}

impl Members for Choosing<'_> {
    fn take(&mut self, table: &mut Table<'_>, name: &str) -> Result<Vec<Criterion>, ConfigError> {
        let place = table.place();
        let Some(flows) = self.choose(table)? else { return Ok(Vec::new()) };
        for flow in flows {
            if let Some(other) = self.chosen[flow].replace(name.to_owned()) {
                let what = format!("the flow {flow} belongs to the class `{other}` already");
                return Err(place.error(what));
            }
        }
        self.classes += 1;
        Ok(vec![Criterion::Dscp(self.classes)])
    }
}

/// Whether all queues share by weight and no class has several queues.
fn is_flat(share: &Share) -> bool {
    match share {
        Share::Flows(_) => true,
        Share::Weighted(classes) => classes.iter().all(|class| class.share == Share::Flows(1)),
        Share::Priority(_) => false,
    }
}

/// The classes that are not divided into classes.
fn undivided<'c>(classes: &'c mut [Class], found: &mut Vec<&'c mut Class>) {
    for class in classes {
        if matches!(class.share, Share::Flows(_)) {
            found.push(class);
        } else if let Share::Weighted(inside) | Share::Priority(inside) = &mut class.share {
            undivided(inside, found);
        }
    }
}

/// The copies of a point except the first, with flows of their own.
fn copied(
    police: &Police,
    copies: &Copies<'_>,
    flows: &mut Vec<Flow>,
    end: Time,
) -> Result<Vec<Police>, ConfigError> {
    let mut made = Vec::new();
    for nth in 1..copies.count {
        let later = copies.stagger * nth;
        let first = flows.len();
        for &index in &police.flows {
            let mut flow = flows[index].clone();
            flow.start = flow.start + later;
            if flow.start >= flow.stop {
                let what = format!("copy {} would start at the end of the run", nth + 1);
                return Err(copies.place.error(what));
            }
            flow.demands.iter_mut().for_each(|step| step.at = step.at + later);
            flow.demands.retain(|step| step.at < end);
            flow.server = flow.server.map(|server| format!("{server}#{}", nth + 1));
            flows.push(flow);
        }
        if flows.len() > FLOWS_MAX {
            let what = format!("with all copies there are too many flows; at most {FLOWS_MAX}");
            return Err(copies.place.error(what));
        }
        made.push(Police {
            name: format!("{}-{}", police.name, nth + 1),
            flows: (first..flows.len()).collect(),
            ..police.clone()
        });
    }
    Ok(made)
}
