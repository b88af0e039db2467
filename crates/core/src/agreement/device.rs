//! The classes of clients behind a router, as groups beneath their devices, as if the router's user had written them.
//!
//! A device that has groups is divided by these. The default device, which may be many hosts, belongs to no single
//! client. Devices and groups of the configuration take precedence over clients' classes if room is short.

use super::{Classes, Together};
use crate::policy::{Branch, DEFAULT_GROUP, Group, Match, Policy};
use crate::share::Weight;

/// Whether a client may divide the share of the device with this name.
pub fn is_offered(policy: &Policy, device: &str) -> bool {
    let is_it = |branch: &&Branch| branch.group.name == device && branch.beneath.is_empty();
    device != DEFAULT_GROUP && policy.branches().iter().any(|branch| is_it(&branch))
}

/// `policy` with the classes of these clients beneath their devices, if offered and if there is room.
pub fn with_clients<'c>(
    policy: &Policy,
    clients: impl IntoIterator<Item = (&'c str, &'c Classes)>,
) -> Policy {
    clients.into_iter().fold(policy.clone(), |policy, (device, classes)| {
        with_client(&policy, device, classes).unwrap_or(policy)
    })
}

/// `None` if the device is not offered, or there is no room.
pub fn with_client(policy: &Policy, device: &str, classes: &Classes) -> Option<Policy> {
    if !is_offered(policy, device) {
        return None;
    }
    let mut branches = policy.branches().to_vec();
    let weight = |weight: u16| Weight::new(weight.into()).unwrap_or_default();
    let class = |number: usize| {
        let (of, number) = (weight(classes.weights()[number]), number as u8);
        Branch::from(if number == classes.default() {
            Group::new(DEFAULT_GROUP, of, Vec::new())
        } else {
            Group::new(format!("class-{number}"), of, vec![Match::Class(number)])
        })
    };
    let together = |one: &Together, beneath| {
        let name = format!("from-class-{}", one.first);
        Branch { group: Group::new(name, weight(one.weight), Vec::new()), beneath }
    };
    Branch::find_mut(&mut branches, device)?.beneath = classes.nested(class, together);
    Policy::nested(branches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::GROUPS_MAX;
    use crate::share::Claims;
    use crate::units::Rate;

    fn device(name: &str) -> Branch {
        Group::new(name, Weight::ONE, vec!["mac:02:00:5e:00:53:01".parse().unwrap()]).into()
    }

    fn names(policy: &Policy) -> Vec<&str> {
        policy.groups().iter().map(|group| group.name.as_str()).collect()
    }

    #[test]
    fn classes_divide_what_the_device_has() {
        let policy = Policy::nested(vec![device("desk"), device("tv")]).unwrap();
        let classes = Classes::new(vec![4, 1, 5], 2).unwrap();
        let divided = with_clients(&policy, [("desk", &classes)]);
        assert_eq!(
            names(&divided),
            ["desk/class-0", "desk/class-1", "desk/default", "tv", "default"]
        );
        assert_eq!(divided.groups()[2].matches, policy.groups()[0].matches);
        let demands = [None, None, Some(Rate::ZERO), None, Some(Rate::ZERO)];
        let claims = Claims { demands: &demands, taken: &[Rate::ZERO; 5] };
        let parts = divided.weights().divide(Rate::mbit(20), claims);
        assert_eq!(parts, [8, 2, 0, 10, 0].map(Rate::mbit), "the tv's part is what it was");
        assert_eq!(with_clients(&policy, []), policy);
    }

    #[test]
    fn what_the_router_s_user_has_said_comes_first() {
        let with_groups = Branch {
            beneath: vec![Group::new("video", Weight::ONE, Vec::new()).into()],
            ..device("tv")
        };
        let rest: Vec<Branch> = (0..GROUPS_MAX - 20)
            .map(|i| Group::new(format!("d{i}"), Weight::ONE, Vec::new()).into())
            .collect();
        let all = [vec![with_groups, device("a"), device("b")], rest].concat();
        let policy = Policy::nested(all).unwrap();
        for (name, offered) in [("tv", false), ("default", false), ("gone", false), ("a", true)] {
            assert_eq!(is_offered(&policy, name), offered, "{name}");
        }
        let classes = Classes::new(vec![1; 16], 0).unwrap();
        let divided = with_clients(&policy, [("tv", &classes), ("a", &classes), ("b", &classes)]);
        assert_eq!(divided.groups().len(), policy.groups().len() + 15);
        assert!(with_client(&divided, "b", &classes).is_none(), "no room");
        assert!(with_client(&divided, "a", &classes).is_none(), "no second client");
    }
}
