//! Internal ports of Gateways: allocated ([`allocation`]) and kept in a ConfigMap.

pub mod allocation;
