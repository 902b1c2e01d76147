//! Reads a cluster with the caller's own rights, and reads no more than the question needs. It lists the kinds that
//! decide about listeners and routes, and gets Secrets, Services and similar objects one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use vestibule_crds::watch::{ObjectReader, ReadError, Watched};
use vestibule_model::certificate::CertificateAnnotations;
use vestibule_model::condition::Address;
use vestibule_model::gateway::{Gateway, GatewayClass, Infrastructure, Listener, ListenerSet};
use vestibule_model::hostname::HostPattern;
use vestibule_model::issuer::IssuerAnnotations;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::parameters::ServiceParameters;
use vestibule_model::policy::Policy;
use vestibule_model::protocol::{Port, TransportPort};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{
    Assigned, Binds, Change, ClaimMode, ServiceSettings, Settings, Translator,
};

use super::cluster_state::{ClusterState, ServerState, Unread};
use super::need;
use super::release::{self, Release};
use crate::settings::PolicyArgs;

/// Most rounds of reading. Each round reads the objects to which those of the last round refer. A route refers to a
/// set, the set to a Gateway, and the Gateway to its class and parameters. A listener refers to a Secret, and a policy
/// to a ConfigMap.
const ROUNDS: usize = 8;
/// Most single objects that are read.
const MAX_SINGLE: usize = 2_000;
/// Name of the class that is assumed if the real one may not be read.
const ASSUMED: &str = "(not readable)";

/// Which cluster, and as whom: as kubectl has it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Path of the kubeconfig; by default that of kubectl
    #[arg(long, value_name = "FILE", conflicts_with = "directory")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "directory")]
    context: Option<String>,
    /// Cluster of the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "directory")]
    cluster: Option<String>,
    /// User of the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "directory")]
    user: Option<String>,
    /// User to act as
    #[arg(long = "as", value_name = "USER", conflicts_with = "directory")]
    act_as: Option<String>,
    /// Group to act as; may be given several times
    #[arg(
        long = "as-group",
        value_name = "GROUP",
        requires = "act_as",
        conflicts_with = "directory"
    )]
    act_as_group: Vec<String>,
    /// Namespace to look into where not all may be listed; by default that of the context
    #[arg(short, long, value_name = "NAME", conflicts_with = "directory")]
    pub(crate) namespace: Option<String>,
}

impl ClusterArgs {
    /// A client with the caller's rights, and the namespace.
    async fn connect(&self) -> anyhow::Result<(Client, String)> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let named = self.context.is_some() || self.cluster.is_some() || self.user.is_some();
        let mut config = match &self.kubeconfig {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path).context("cannot read --kubeconfig")?;
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .context("cannot use the kubeconfig")?
            }
            None if named => Config::from_kubeconfig(&options)
                .await
                .context("cannot use the kubeconfig")?,
            None => Config::infer().await.context(
                "cannot find a cluster: there is no usable kubeconfig; name one with --kubeconfig, \
                 or a directory of manifests",
            )?,
        };
        config.connect_timeout = Some(Duration::from_secs(10));
        config.read_timeout = Some(Duration::from_mins(1));
        if let Some(user) = &self.act_as {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups = Some(self.act_as_group.clone());
        }
        let namespace = self.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("cannot make a client")?;
        Ok((client, namespace))
    }
}

/// Whether objects of a kind are read only if something refers to them.
fn is_by_need(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Secret | Kind::ConfigMap | Kind::Service | Kind::EndpointSlice
    )
}

/// Reads a cluster. With `query`, it reads the objects that are needed to explain that name, and otherwise those that
/// have a status.
pub(crate) fn read(
    args: &ClusterArgs,
    controller: &Arc<str>,
    policy: &PolicyArgs,
    query: Option<&HostPattern>,
) -> anyhow::Result<ClusterState> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let (client, namespace) = args.connect().await?;
        let release = release::read(&client, controller).await;
        let live = ServerState {
            release_hidden: release == Release::Hidden && !policy.is_said(),
            ..ServerState::default()
        };
        let policy = match release {
            Release::Known(release) => policy.policy_over(release),
            Release::Absent | Release::Hidden => policy.policy(),
        };
        let settings = settings(controller.clone(), policy);
        let mut reading = Reading {
            reader: ObjectReader::new(client),
            namespace,
            is_named: args.namespace.is_some(),
            translator: Translator::new(settings),
            live,
            tried: BTreeSet::new(),
        };
        reading.apply(vec![super::time()]);
        reading.lists().await?;
        for _ in 0..ROUNDS {
            let missing = need::missing(&reading.translator, &reading.live, query);
            if !reading.singles(missing).await? {
                break;
            }
            reading.open_selectors();
        }
        Ok(ClusterState {
            translator: reading.translator,
            controller: controller.clone(),
            live: Some(reading.live),
        })
    })
}

/// The settings with which the operator of a cluster translates. Only the operator knows the internal ports, so here
/// all that are needed are assumed to exist.
fn settings(controller: Arc<str>, policy: Policy) -> Settings {
    Settings {
        controller,
        policy,
        claims: ClaimMode::Assumed,
        shim_for_sets: false,
        binds: Binds::Allocated {
            address: Ipv6Addr::UNSPECIFIED.into(),
            services: ServiceSettings {
                release: "vestibule".into(),
                namespace: "vestibule".into(),
                cluster_domain: "cluster.local".into(),
                selector: BTreeMap::new(),
                components: BTreeSet::new(),
                defaults: ServiceParameters::default(),
            },
        },
    }
}

struct Reading {
    reader: ObjectReader,
    namespace: String,
    /// Whether the caller named the namespace. Otherwise it is that of the context.
    is_named: bool,
    translator: Translator,
    live: ServerState,
    tried: BTreeSet<need::Need>,
}

impl Reading {
    /// Reads the kinds that are listed.
    async fn lists(&mut self) -> anyhow::Result<()> {
        let mut denied = None;
        let mut any = false;
        for kind in Kind::ALL.into_iter().filter(|kind| !is_by_need(*kind)) {
            let objects = match self.reader.list(kind, None, "").await {
                Ok(objects) => objects,
                Err(ReadError::NotInstalled(_)) => continue,
                Err(ReadError::Failed(why)) => bail!("cannot read kind {kind}: {why}"),
                Err(ReadError::Denied(why)) => {
                    let within = if kind.is_namespaced() {
                        self.reader.list(kind, Some(&self.namespace), "").await
                    } else {
                        Err(ReadError::Denied(why.clone()))
                    };
                    match within {
                        Ok(objects) => {
                            let unread = Unread::Elsewhere(self.namespace.clone());
                            self.live.unread.insert(kind, unread);
                            objects
                        }
                        Err(ReadError::Failed(why)) => bail!("cannot read kind {kind}: {why}"),
                        Err(_) => {
                            self.live.unread.insert(kind, Unread::Everywhere);
                            denied.get_or_insert(why);
                            continue;
                        }
                    }
                }
            };
            any = true;
            self.put(objects);
        }
        match denied {
            Some(why) if !any && self.is_named => bail!("nothing may be read: {why}"),
            Some(why) if !any => {
                bail!("nothing may be read: {why}; name your namespace with --namespace")
            }
            _ => Ok(()),
        }
    }

    /// Reads the single objects that are needed and were not tried yet. Returns whether there were any.
    async fn singles(&mut self, needs: BTreeSet<need::Need>) -> anyhow::Result<bool> {
        let mut news = false;
        for need in needs {
            if self.tried.len() >= MAX_SINGLE || !self.tried.insert(need.clone()) {
                continue;
            }
            news = true;
            match need {
                need::Need::Object(key) => match self.reader.get(key.kind, &key.name).await {
                    Ok(Some(found)) => self.put(vec![found]),
                    Ok(None) => {
                        self.live.absent.insert(key);
                    }
                    Err(ReadError::NotInstalled(_)) => {}
                    Err(ReadError::Failed(why)) => bail!("cannot read {key}: {why}"),
                    Err(ReadError::Denied(_)) => self.deny(key),
                },
                need::Need::Endpoints(service) => {
                    let kind = Kind::EndpointSlice;
                    let labels = format!("kubernetes.io/service-name={}", service.name);
                    let namespace = Some(&*service.namespace);
                    match self.reader.list(kind, namespace, &labels).await {
                        Ok(slices) => self.put(slices),
                        Err(ReadError::NotInstalled(_)) => {}
                        Err(ReadError::Failed(why)) => {
                            bail!("cannot read endpoints of {service}: {why}")
                        }
                        Err(ReadError::Denied(_)) => {
                            let name = service;
                            self.live.denied.insert(ObjectKey { kind, name });
                        }
                    }
                }
                need::Need::Beside(kind, namespace) => {
                    match self.reader.list(kind, Some(&namespace), "").await {
                        Ok(objects) => {
                            self.put(objects);
                            self.live.read_in.insert((kind, namespace));
                        }
                        // It is already known that not everything may be listed.
                        Err(ReadError::NotInstalled(_) | ReadError::Denied(_)) => {}
                        Err(ReadError::Failed(why)) => bail!("cannot read kind {kind}: {why}"),
                    }
                }
                need::Need::Grants(namespace) => {
                    let kind = Kind::ReferenceGrant;
                    match self.reader.list(kind, Some(&namespace), "").await {
                        Ok(grants) => self.put(grants),
                        Err(ReadError::NotInstalled(_)) => {}
                        Err(ReadError::Failed(why)) => bail!("cannot read kind {kind}: {why}"),
                        Err(ReadError::Denied(_)) => {
                            let key = ObjectKey::new(kind, namespace, "");
                            self.live.denied.insert(key);
                        }
                    }
                }
            }
        }
        Ok(news)
    }

    /// Records that an object may not be read. A Gateway or class is assumed to exist, so that the report can show
    /// everything that does not depend on its content.
    fn deny(&mut self, key: ObjectKey) {
        let class = |name: &Arc<str>| {
            Object::GatewayClass(GatewayClass {
                name: name.clone(),
                meta: Meta::default(),
                controller: self.translator.merge().controller().into(),
                parameters: None,
                findings: Vec::new(),
            })
        };
        let mut assumed = Vec::new();
        match key.kind {
            Kind::GatewayClass => assumed.push(class(&key.name.name)),
            Kind::Gateway => {
                assumed.push(class(&ASSUMED.into()));
                assumed.push(Object::Gateway(Arc::new(assumed_gateway(&key.name))));
            }
            _ => {}
        }
        self.live.denied.insert(key);
        for object in &assumed {
            self.live.assumed.insert(object.key());
        }
        self.apply(assumed.into_iter().map(Change::Put).collect());
    }

    /// Lets every namespace in where a Gateway or ListenerSet selects namespaces by labels, if the labels of a namespace
    /// may not be read. Otherwise translation would refuse the caller's own objects, and their names would seem to
    /// belong to others. The statuses of the objects say which of them are really refused.
    fn open_selectors(&mut self) {
        let mut denied = self.live.denied.iter();
        if !denied.any(|key| key.kind == Kind::Namespace) {
            return;
        }
        let objects = self.translator.objects();
        let opened = objects.filter_map(|(_, object)| without_selectors(object));
        let changes: Vec<Change> = opened.map(Change::Put).collect();
        if !changes.is_empty() {
            self.apply(changes);
        }
    }

    fn put(&mut self, objects: Vec<Watched>) {
        let mut changes = Vec::with_capacity(objects.len());
        for watched in objects {
            if let Object::Gateway(gateway) = &watched.object {
                let addresses = addresses(&watched.status);
                let assigned = Assigned {
                    sockets: sockets(gateway, &addresses),
                    addresses,
                    problem: None,
                };
                changes.push(Change::Addresses(gateway.meta.uid.clone(), Some(assigned)));
            }
            if !watched.status.is_null() && !is_by_need(watched.key.kind) {
                self.live.statuses.insert(watched.key, watched.status);
            }
            changes.push(Change::Put(watched.object));
        }
        self.apply(changes);
    }

    fn apply(&mut self, changes: Vec<Change>) {
        let output = self.translator.apply(changes);
        let wanted = output.ports.into_iter().filter(|(_, wanted)| *wanted);
        // The number does not matter. It only says that there is a port.
        let ports: BTreeMap<_, _> = wanted.map(|(wish, _)| (wish, Some(Port::MAX))).collect();
        if !ports.is_empty() {
            self.translator.apply([Change::Ports(ports)]);
        }
    }
}

/// The substitute for a Gateway that may not be read. It allows every namespace. If the status of an object says
/// something else, the status counts.
fn assumed_gateway(name: &ObjectName) -> Gateway {
    Gateway {
        name: name.clone(),
        meta: Meta {
            uid: format!("{ASSUMED} {name}").into(),
            ..Meta::default()
        },
        class: ASSUMED.into(),
        listeners: Vec::new(),
        allowed_listeners: NamespaceScope::All,
        addresses: Vec::new(),
        infrastructure: Box::<Infrastructure>::default(),
        tls: Box::default(),
        issuers: IssuerAnnotations::default(),
        findings: Vec::new(),
        certificates: CertificateAnnotations::default(),
    }
}

/// A copy of a Gateway or ListenerSet in which every selector of namespaces allows all of them. It is `None` if the
/// object has no such selector.
fn without_selectors(object: &Object) -> Option<Object> {
    let selects = |scope: &NamespaceScope| matches!(scope, NamespaceScope::Selector(_));
    let any_selects = |listeners: &[Listener]| {
        let mut listeners = listeners.iter();
        listeners.any(|listener| selects(&listener.allowed_namespaces))
    };
    let open = |listeners: &mut [Listener]| {
        for listener in listeners {
            if selects(&listener.allowed_namespaces) {
                listener.allowed_namespaces = NamespaceScope::All;
            }
        }
    };
    match object {
        Object::Gateway(gateway)
            if selects(&gateway.allowed_listeners) || any_selects(&gateway.listeners) =>
        {
            let mut gateway = Gateway::clone(gateway);
            if selects(&gateway.allowed_listeners) {
                gateway.allowed_listeners = NamespaceScope::All;
            }
            open(&mut gateway.listeners);
            Some(Object::Gateway(Arc::new(gateway)))
        }
        Object::ListenerSet(set) if any_selects(&set.listeners) => {
            let mut set = ListenerSet::clone(set);
            open(&mut set.listeners);
            Some(Object::ListenerSet(Arc::new(set)))
        }
        _ => None,
    }
}

/// `status.addresses`, as the operator wrote them.
fn addresses(status: &Value) -> Vec<Address> {
    let written = status.get("addresses").and_then(Value::as_array);
    let values = written.into_iter().flatten();
    values
        .filter_map(|one| one.get("value")?.as_str())
        .map(|text| match text.parse() {
            Ok(ip) => Address::Ip(ip),
            Err(_) => Address::Hostname(text.into()),
        })
        .collect()
}

/// The sockets of a Gateway: its addresses with the ports of its own listeners.
fn sockets(gateway: &Gateway, addresses: &[Address]) -> BTreeSet<(IpAddr, TransportPort)> {
    let ips = addresses.iter().filter_map(|address| match address {
        Address::Ip(ip) => Some(*ip),
        Address::Hostname(_) => None,
    });
    let ports = || {
        let listeners = gateway.listeners.iter();
        listeners.filter_map(|listener| Some((listener.port?, listener.protocol.transport()?)))
    };
    ips.flat_map(|ip| ports().map(move |port| (ip, port)))
        .collect()
}

#[cfg(test)]
mod tests {
    use vestibule_model::selector::LabelSelector;

    use super::*;

    #[test]
    fn a_gateway_without_selectors_differs_in_nothing_else() {
        let open = assumed_gateway(&ObjectName::new("platform", "edge"));
        let object = |gateway: &Gateway| Object::Gateway(Arc::new(gateway.clone()));
        assert_eq!(without_selectors(&object(&open)), None);
        let mut selects = open.clone();
        selects.allowed_listeners = NamespaceScope::Selector(LabelSelector::default());
        assert_eq!(without_selectors(&object(&selects)), Some(object(&open)));
        selects.allowed_listeners = NamespaceScope::Same;
        assert_eq!(without_selectors(&object(&selects)), None);
    }
}
