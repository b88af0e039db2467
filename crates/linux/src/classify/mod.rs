//! Turns a policy into the tables that the classifier looks up; the hook where it runs.

pub(crate) mod census;
pub(crate) mod cgroup;
pub(crate) mod ingress;
pub(crate) mod leaf;
pub(crate) mod ports;
pub(crate) mod rules;
pub(crate) mod site;
