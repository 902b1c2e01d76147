//! `lb`: plays the cloud's load balancer. It gives Services of type `LoadBalancer` an address of a pool.
//!
//! `spec.loadBalancerIP` is honoured where it is in the pool and free. Where it is not, the Service gets
//! no address at all, as with a cloud that cannot give what it is asked for. kube-proxy does the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

/// Arguments of `lb`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Addresses to give, as a CIDR. The first and the last one are not given.
    #[arg(long, env = "VESTIBULE_LB_POOL")]
    pool: Pool,
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pool {
    first: u32,
    last: u32,
}

impl FromStr for Pool {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (base, length) = text.split_once('/').context("not ADDRESS/LENGTH")?;
        let base = u32::from(base.parse::<Ipv4Addr>()?);
        let length: u32 = length.parse()?;
        if !(8..=30).contains(&length) {
            bail!("the length must be 8 to 30");
        }
        let size = 1_u32 << (32 - length);
        let base = base & !(size - 1);
        Ok(Self {
            first: base + 1,
            last: base + size - 2,
        })
    }
}

impl Pool {
    fn contains(self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&u32::from(address))
    }
}

/// What one Service wants and has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish {
    requested: Option<String>,
    held: Option<Ipv4Addr>,
}

/// Assigns addresses. A Service that holds an address keeps it unless it asks for another one. `next` moves on with
/// every address, so that one that was let go is not given again at once.
fn assign(
    pool: Pool,
    next: &mut u32,
    wishes: &BTreeMap<String, Wish>,
) -> BTreeMap<String, Option<Ipv4Addr>> {
    let mut given = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let parsed = |wish: &Wish| wish.requested.as_ref().map(|r| r.parse::<Ipv4Addr>().ok());
    for (name, wish) in wishes {
        let keeps = wish.held.filter(|&held| {
            pool.contains(held) && parsed(wish).is_none_or(|requested| requested == Some(held))
        });
        if let Some(held) = keeps
            && taken.insert(held)
        {
            given.insert(name.clone(), Some(held));
        }
    }
    for (name, wish) in wishes {
        if let Some(requested) = parsed(wish)
            && !given.contains_key(name)
        {
            let requested = requested.filter(|&r| pool.contains(r) && taken.insert(r));
            given.insert(name.clone(), requested);
        }
    }
    for name in wishes.keys() {
        if !given.contains_key(name) {
            let free = (0..=pool.last - pool.first)
                .map(|_| {
                    let address = Ipv4Addr::from((*next).clamp(pool.first, pool.last));
                    *next = if *next >= pool.last {
                        pool.first
                    } else {
                        *next + 1
                    };
                    address
                })
                .find(|&address| taken.insert(address));
            given.insert(name.clone(), free);
        }
    }
    given
}

/// Serves until it is told to stop.
pub(crate) async fn run(args: Args) -> Result<()> {
    let mut config = Config::infer().await?;
    config.connect_timeout = Some(AGAIN);
    let client = Client::try_from(config)?;
    let events = watcher(
        Api::<Service>::all(client.clone()),
        watcher::Config::default(),
    )
    .backoff(Steady);
    pin_mut!(events);
    let mut services = BTreeMap::<String, Service>::new();
    let mut next = args.pool.first;
    let mut given = Given::new();
    let mut synced = false;
    let mut terminated = signal(SignalKind::terminate())?;
    loop {
        let event = tokio::select! {
            event = events.next() => Some(event.context("the watch ended")?),
            // A write may have failed.
            () = tokio::time::sleep(AGAIN) => None,
            _ = terminated.recv() => return Ok(()),
        };
        let Some(event) = event else {
            if synced {
                settle(&client, args.pool, &mut next, &mut given, &services).await;
            }
            continue;
        };
        match event {
            Ok(watcher::Event::Init) => {
                services.clear();
                synced = false;
            }
            Ok(watcher::Event::InitApply(service) | watcher::Event::Apply(service)) => {
                services.insert(name_of(&service), service);
            }
            Ok(watcher::Event::InitDone) => synced = true,
            Ok(watcher::Event::Delete(service)) => {
                services.remove(&name_of(&service));
            }
            Err(error) => log(&format!("watch: {error}")),
        }
        // With a part of the list only, addresses in use would look free.
        if synced {
            settle(&client, args.pool, &mut next, &mut given, &services).await;
        }
    }
}

/// Addresses by UID of the Service that has them. This is what counts: a status is seen again only when the
/// watch has brought it.
type Given = BTreeMap<String, Ipv4Addr>;

/// How soon something is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// No longer and longer waits: scenarios take the API server away, and go on when it is back.
struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(AGAIN)
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}

async fn settle(
    client: &Client,
    pool: Pool,
    next: &mut u32,
    given: &mut Given,
    services: &BTreeMap<String, Service>,
) {
    let balanced: BTreeMap<&String, &Service> = services
        .iter()
        .filter(|(_, service)| is_balanced(service))
        .collect();
    given.retain(|uid, _| {
        balanced
            .values()
            .any(|service| service.uid().as_ref() == Some(uid))
    });
    let wishes = balanced
        .iter()
        .map(|(name, service)| ((*name).clone(), wish_of(service, given)))
        .collect();
    for (name, address) in assign(pool, next, &wishes) {
        let Some(service) = balanced.get(&name) else {
            continue;
        };
        let uid = service.uid().unwrap_or_default();
        match address {
            Some(address) => given.insert(uid, address),
            None => given.remove(&uid),
        };
        if shown(service) == address {
            continue;
        }
        let ingress = address.map(|ip| json!([{"ip": ip, "ipMode": "VIP"}]));
        let patch = json!({"status": {"loadBalancer": {"ingress": ingress}}});
        let namespace = service.namespace().unwrap_or_default();
        let api = Api::<Service>::namespaced(client.clone(), &namespace);
        let patched = api
            .patch_status(
                &service.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        match patched {
            Ok(_) => log(&format!("{name}: {address:?}")),
            // The watch brings the Service again when it changes; a deleted one is gone anyway.
            Err(error) => log(&format!("{name}: {error}")),
        }
    }
}

fn name_of(service: &Service) -> String {
    format!(
        "{}/{}",
        service.namespace().unwrap_or_default(),
        service.name_any()
    )
}

fn is_balanced(service: &Service) -> bool {
    service.metadata.deletion_timestamp.is_none()
        && service.spec.as_ref().is_some_and(|spec| {
            spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none()
        })
}

/// The address in a Service's status.
fn shown(service: &Service) -> Option<Ipv4Addr> {
    let balancer = service.status.as_ref()?.load_balancer.as_ref()?;
    balancer
        .ingress
        .as_ref()?
        .first()?
        .ip
        .as_ref()?
        .parse()
        .ok()
}

fn wish_of(service: &Service, given: &Given) -> Wish {
    let uid = service.uid().unwrap_or_default();
    let requested = service
        .spec
        .as_ref()
        .and_then(|spec| spec.load_balancer_ip.clone());
    Wish {
        requested: requested.filter(|ip| !ip.is_empty()),
        held: given.get(&uid).copied().or_else(|| shown(service)),
    }
}

#[expect(clippy::print_stdout, reason = "the log of a test's helper")]
fn log(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(requested: Option<&str>, held: Option<&str>) -> Wish {
        Wish {
            requested: requested.map(str::to_owned),
            held: held.map(|h| h.parse().unwrap()),
        }
    }

    fn given(wishes: &[(&str, Wish)]) -> BTreeMap<String, Option<String>> {
        let pool: Pool = "10.9.8.0/29".parse().unwrap();
        let wishes = wishes
            .iter()
            .map(|(n, w)| ((*n).to_owned(), w.clone()))
            .collect();
        assign(pool, &mut pool.first.clone(), &wishes)
            .into_iter()
            .map(|(name, address)| (name, address.map(|a| a.to_string())))
            .collect()
    }

    #[test]
    fn held_addresses_are_kept_and_requested_ones_are_given_when_free() {
        let given = given(&[
            ("a", wish(None, Some("10.9.8.1"))),
            ("b", wish(Some("10.9.8.1"), None)),
            ("c", wish(Some("10.9.8.6"), Some("10.9.8.2"))),
            ("d", wish(None, None)),
            ("e", wish(Some("192.0.2.1"), None)),
        ]);
        assert_eq!(given["a"].as_deref(), Some("10.9.8.1"));
        assert_eq!(given["b"], None);
        assert_eq!(given["c"].as_deref(), Some("10.9.8.6"));
        assert_eq!(given["d"].as_deref(), Some("10.9.8.2"));
        assert_eq!(given["e"], None);
    }

    #[test]
    fn a_full_pool_gives_nothing() {
        let names: Vec<String> = (0..7).map(|n| format!("s{n}")).collect();
        let wishes: Vec<_> = names
            .iter()
            .map(|n| (n.as_str(), wish(None, None)))
            .collect();
        assert_eq!(given(&wishes).values().filter(|a| a.is_none()).count(), 1);
    }
}
