//! `fairweir isp`: polices the subscribers of an access network.

mod plan;
mod registry;
