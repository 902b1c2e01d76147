//! Each proxy by itself: where it serves a port of a Gateway, past the Service that spreads connections over all.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::api::{self, items, name, text};
use crate::tools::run;
use crate::world::{NAMESPACE, PROXY, World, is_ready};

/// The port of a proxy that has its metrics.
const METRICS: u16 = 15021;

/// A proxy's pod, and its address for a port of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Door {
    /// The pod's name.
    pub(crate) pod: String,
    /// The pod's own address, with the internal port.
    pub(crate) address: SocketAddr,
}

impl Door {
    /// The value of one of the proxy's metrics without labels.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let address = SocketAddr::new(self.address.ip(), METRICS);
        let url = format!("http://{address}/metrics");
        let arguments = ["--silent", "--show-error", "--fail", &url];
        let metrics = run("curl".as_ref(), &arguments, &[], "").await?.must()?;
        let value = value_of(&metrics, name);
        value.with_context(|| format!("{} has no metric {name}", self.pod))
    }
}

fn value_of(metrics: &str, name: &str) -> Option<f64> {
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// Those of all proxies that are ready.
pub(crate) async fn doors(world: &World, gateway: (&str, &str), port: u16) -> Result<Vec<Door>> {
    let internal = internal_port(world, gateway, port).await?;
    let mut doors = Vec::new();
    for pod in world.pods(PROXY).await? {
        if is_ready(&pod) {
            let ip: IpAddr = text(&pod, "/status/podIP").parse().context("podIP")?;
            doors.push(Door {
                pod: name(&pod).to_owned(),
                address: SocketAddr::new(ip, internal),
            });
        }
    }
    ensure!(!doors.is_empty(), "no proxy is ready");
    Ok(doors)
}

/// The port of the proxies that stands for a port of the Gateway.
async fn internal_port(world: &World, gateway: (&str, &str), port: u16) -> Result<u16> {
    let object = world
        .api
        .must_get(api::GATEWAY, gateway.0, gateway.1)
        .await?;
    let uid = text(&object, "/metadata/uid");
    let selector = format!("vestibule.dev/gateway-uid={uid}");
    let services = world.api.list(api::SERVICE, NAMESPACE, &selector).await?;
    let [service] = services.as_slice() else {
        bail!("{} Services for one Gateway", services.len());
    };
    let number = |entry: &Value, field: &str| entry.get(field).and_then(Value::as_u64);
    let internal = items(service, "/spec/ports")
        .iter()
        .find(|entry| number(entry, "port") == Some(port.into()))
        .and_then(|entry| number(entry, "targetPort"))
        .with_context(|| format!("the Service has no port {port}"))?;
    Ok(u16::try_from(internal)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let metrics = "# HELP a_step Of a.\n# TYPE a_step gauge\na_step_more 3\na_step 2\n";
        assert_eq!(value_of(metrics, "a_step"), Some(2.0));
        assert_eq!(value_of(metrics, "a"), None);
    }
}
