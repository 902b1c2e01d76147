//! Parses the arguments of `vestibule-operator` into its settings.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgAction, Parser};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vestibule_crds::gateway_api::selector_from_json;
use vestibule_crds::watch::{CopiedAnnotations, CopiedError};
use vestibule_model::certificate::AddressBlock;
use vestibule_model::endpoint::{AuthorityRules, EndpointArguments};
use vestibule_model::parameters::ServiceParameters;
use vestibule_model::policy::{
    CERTIFICATE_MIB, ConfigurationTotals, MAX_RSA_BITS, Policy, PolicyArguments, REGEX_MIB,
};
use vestibule_model::selector::{LabelSelector, Labels};
use vestibule_model::service::{IpFamily, IpFamilyPolicy, ServiceType, TrafficPolicy};
use vestibule_operator::certmanager::{self, Maker};
use vestibule_operator::claims;
use vestibule_operator::cluster::{self, lease, statuses};
use vestibule_operator::publish::auth::Fleets;
use vestibule_operator::translate::{self, Binds, CONTROLLER, ClaimMode, ServiceSettings};
use vestibule_serve::log_format::LogFormat;

/// The control plane of Vestibule: watches the cluster, configures the proxies, writes statuses.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
pub(crate) struct Arguments {
    /// Namespace of the release.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Name of this pod.
    #[arg(long, env = "POD_NAME", default_value = "vestibule-operator")]
    pod_name: String,
    /// Address of this pod, which proxies are told when it leads.
    #[arg(long, env = "POD_IP", default_value = "127.0.0.1")]
    pod_ip: IpAddr,
    /// Prefix of the names of everything that belongs to this release.
    #[arg(long, env = "VESTIBULE_RELEASE", default_value = "vestibule")]
    pub(crate) release: String,
    /// `GatewayClass`es with this controller name are Vestibule's.
    #[arg(long, env = "VESTIBULE_CONTROLLER", default_value = CONTROLLER)]
    controller: String,
    /// Address of the configuration stream (gRPC over TLS).
    #[arg(long, env = "VESTIBULE_STREAM", default_value = "[::]:9443")]
    pub(crate) stream: SocketAddr,
    /// Address of /healthz, /readyz and /metrics (plain HTTP).
    #[arg(long, env = "VESTIBULE_ADMIN", default_value = "[::]:8080")]
    pub(crate) admin: SocketAddr,
    #[command(flatten)]
    policy: PolicyArguments,
    /// Type of the Services in front of Gateways: `LoadBalancer`, `ClusterIP` or `NodePort`.
    #[arg(long, env = "VESTIBULE_SERVICE_TYPE")]
    service_type: Option<ServiceType>,
    /// Their `externalTrafficPolicy`: Local or Cluster.
    #[arg(long, env = "VESTIBULE_EXTERNAL_TRAFFIC_POLICY")]
    external_traffic_policy: Option<TrafficPolicy>,
    /// Their `ipFamilyPolicy`.
    #[arg(long, env = "VESTIBULE_IP_FAMILY_POLICY")]
    ip_family_policy: Option<IpFamilyPolicy>,
    /// Their `ipFamilies`.
    #[arg(long, env = "VESTIBULE_IP_FAMILIES", value_delimiter = ',')]
    ip_families: Vec<IpFamily>,
    /// Their `loadBalancerClass`.
    #[arg(long, env = "VESTIBULE_LOAD_BALANCER_CLASS")]
    load_balancer_class: Option<String>,
    /// Their `allocateLoadBalancerNodePorts`, for type `LoadBalancer`: whether each port has a `NodePort`.
    #[arg(long, env = "VESTIBULE_LOAD_BALANCER_NODE_PORTS")]
    load_balancer_node_ports: Option<bool>,
    /// An annotation on them, as KEY=VALUE; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    service_annotation: Vec<(String, String)>,
    /// Labels of the proxies' pods, as k=v,k=v.
    #[arg(long, env = "VESTIBULE_PROXY_SELECTOR", value_delimiter = ',', value_parser = pair, required = true)]
    proxy_selector: Vec<(String, String)>,
    /// Headless Service whose endpoints say which proxies are ready [default: RELEASE-proxy].
    #[arg(long, env = "VESTIBULE_PROXY_SERVICE")]
    proxy_service: Option<String>,
    /// `ServiceAccount` of the proxies [default: RELEASE-proxy].
    #[arg(long, env = "VESTIBULE_FLEET_SERVICE_ACCOUNT")]
    fleet_service_account: Option<String>,
    /// `ValidatingWebhookConfiguration` whose CA bundle is kept [default: none].
    #[arg(long, env = "VESTIBULE_WEBHOOK_CONFIGURATION")]
    webhook_configuration: Option<String>,
    /// Service of the webhook [default: RELEASE-webhook].
    #[arg(long, env = "VESTIBULE_WEBHOOK_SERVICE")]
    webhook_service: Option<String>,
    /// Domain of the cluster's DNS.
    #[arg(
        long,
        env = "VESTIBULE_CLUSTER_DOMAIN",
        default_value = "cluster.local"
    )]
    cluster_domain: String,
    /// `ClusterRole` that owns what is made, so that it goes with the release.
    #[arg(long, env = "VESTIBULE_OWNER_CLUSTER_ROLE", default_value = "")]
    pub(crate) owner_cluster_role: String,
    /// Whether the built-in ACME engine issues certificates.
    #[arg(long, env = "VESTIBULE_ACME", default_value_t = true, action = ArgAction::Set)]
    acme: bool,
    /// Most orders of the built-in engine of which something is asked or written at one time; those of one
    /// namespace, and of one issuer, are a quarter of them.
    #[arg(long, env = "VESTIBULE_ACME_IN_FLIGHT", default_value = "40")]
    acme_in_flight: NonZeroU32,
    /// Orders of the whole release in an hour.
    #[arg(long, env = "VESTIBULE_ACME_ORDERS_PER_HOUR", default_value = "300")]
    acme_orders_per_hour: NonZeroU32,
    /// Orders at one issuer in an hour.
    #[arg(
        long,
        env = "VESTIBULE_ACME_ORDERS_PER_HOUR_ISSUER",
        default_value = "100"
    )]
    acme_orders_per_hour_issuer: NonZeroU32,
    /// Orders for the listeners of one namespace in an hour.
    #[arg(
        long,
        env = "VESTIBULE_ACME_ORDERS_PER_HOUR_NAMESPACE",
        default_value = "20"
    )]
    acme_orders_per_hour_namespace: NonZeroU32,
    /// Accounts that `ACMEIssuer`s may register at one host of a CA in three hours; those of one namespace, a
    /// quarter of them.
    #[arg(
        long,
        env = "VESTIBULE_ACME_REGISTRATIONS_PER_HOST",
        default_value = "8"
    )]
    acme_registrations_per_host: NonZeroU32,
    /// Ranges of addresses that are not public and to which the operator connects for `ACMEIssuer`s all the same.
    #[arg(
        long,
        env = "VESTIBULE_ACME_ALLOW_CIDRS",
        value_name = "CIDRS",
        value_delimiter = ','
    )]
    acme_allow_cidrs: Vec<AddressBlock>,
    /// Labels of the `ACMEIssuer`s and `ClusterACMEIssuer`s that this release uses, as a label selector in
    /// JSON; the others are some other release's. By default all are used.
    #[arg(
        long,
        env = "VESTIBULE_ACME_ISSUER_SELECTOR",
        default_value = "{}",
        value_name = "JSON",
        value_parser = selector_from_json
    )]
    acme_issuer_selector: LabelSelector,
    /// For how many seconds a hostname stays with the namespace that let go of it, towards others.
    #[arg(
        long,
        env = "VESTIBULE_CLAIM_GRACE_SECONDS",
        value_name = "SECONDS",
        default_value = "60",
        value_parser = clap::value_parser!(u64).range(0..=claims::LONGEST_GRACE.as_secs())
    )]
    claim_grace_seconds: u64,
    #[command(flatten)]
    endpoints: EndpointArguments,
    /// Bits of the largest RSA key that a certificate may have.
    #[arg(
        long,
        env = "VESTIBULE_MAX_RSA_BITS",
        default_value_t = MAX_RSA_BITS,
        value_parser = clap::value_parser!(u16).range(2048..=8192)
    )]
    max_rsa_bits: u16,
    /// MiB that the regular expressions of all HTTPRoutes and GRPCRoutes of one namespace may take in each proxy.
    #[arg(
        long,
        env = "VESTIBULE_REGEX_MIB",
        default_value_t = REGEX_MIB,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    regex_mib: u16,
    /// MiB that the certificates, keys and CA certificates in use of one namespace may have in the configuration of each
    /// proxy. Namespaces with a Gateway have no such limit.
    #[arg(
        long,
        env = "VESTIBULE_CERTIFICATE_MIB",
        default_value_t = CERTIFICATE_MIB,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    certificate_mib: u16,
    #[command(flatten)]
    totals: ConfigurationTotals,
    /// Who makes cert-manager's Certificates for the listeners of `ListenerSet`s: vestibule or
    /// cert-manager.
    #[arg(
        long,
        env = "VESTIBULE_CERT_MANAGER_LISTENER_SETS",
        default_value = "vestibule",
        value_parser = maker
    )]
    cert_manager_listener_sets: Maker,
    /// The same for Gateways' own listeners.
    #[arg(
        long,
        env = "VESTIBULE_CERT_MANAGER_GATEWAYS",
        default_value = "cert-manager",
        value_parser = maker
    )]
    cert_manager_gateways: Maker,
    /// Keys of annotations that are copied from `Gateway`s and `ListenerSet`s to the Certificates that Vestibule
    /// makes for them, separated by commas; may be given several times. The same as cert-manager's option.
    #[arg(
        long,
        env = "VESTIBULE_EXTRA_CERTIFICATE_ANNOTATIONS",
        value_name = "KEYS",
        value_delimiter = ',',
        value_parser = copied
    )]
    extra_certificate_annotations: Vec<String>,
    /// A namespace whose Secrets may be used; may be given several times. Without it those of every
    /// namespace are. The release's own is always one.
    #[arg(long, env = "VESTIBULE_SECRET_NAMESPACE", value_delimiter = ',')]
    secret_namespace: Vec<String>,
    /// How to log, on standard output.
    #[arg(long, env = "VESTIBULE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub(crate) log_format: LogFormat,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

fn maker(text: &str) -> Result<Maker, String> {
    let makers = [Maker::Vestibule, Maker::CertManager];
    let named = makers.into_iter().find(|maker| maker.as_str() == text);
    named.ok_or_else(|| "it is vestibule or cert-manager".to_owned())
}

/// A key of an annotation to copy; nothing at all is no key, so that a setting may be empty.
fn copied(text: &str) -> Result<String, CopiedError> {
    if !text.is_empty() {
        CopiedAnnotations::parse([text])?;
    }
    Ok(text.to_owned())
}

/// CAs are asked when to renew within this time after a start, not all at once.
const SPREAD: Duration = Duration::from_mins(5);
/// A new port is with every node within this time, mostly.
const REACH: Duration = Duration::from_secs(20);
/// Audience of the proxies' tokens.
const AUDIENCE: &str = "vestibule-config";

impl Arguments {
    /// The fleets whose tokens open the configuration stream.
    pub(crate) fn fleets(&self) -> Fleets {
        let account = self.fleet_service_account.clone();
        let account = account.unwrap_or_else(|| format!("{}-proxy", self.release));
        Fleets::one(&self.namespace, &account, AUDIENCE)
    }

    /// Settings of the internal authority.
    pub(crate) fn serving(&self, owner: Option<OwnerReference>) -> vestibule_internal_ca::Config {
        let mut config = vestibule_internal_ca::Config::new(&self.namespace, &self.release);
        config.cluster_domain.clone_from(&self.cluster_domain);
        config.webhook_configuration = self
            .webhook_configuration
            .clone()
            .filter(|name| !name.is_empty());
        if let Some(service) = &self.webhook_service {
            config.webhook.service.clone_from(service);
        }
        config.owner = owner;
        config
    }

    /// Settings of the cluster side.
    pub(crate) fn settings(
        &self,
        owner: Option<OwnerReference>,
    ) -> anyhow::Result<cluster::OperatorSettings> {
        if self.release.is_empty() || self.namespace.is_empty() {
            bail!("--release and --namespace must not be empty");
        }
        self.totals.check()?;
        let selector: Labels = self.proxy_selector.iter().cloned().collect();
        let defaults = ServiceParameters {
            service_type: self.service_type,
            annotations: self
                .service_annotation
                .iter()
                .cloned()
                .collect::<BTreeMap<_, _>>(),
            external_traffic_policy: self.external_traffic_policy,
            ip_family_policy: self.ip_family_policy,
            ip_families: self.ip_families.clone(),
            load_balancer_class: self.load_balancer_class.as_deref().map(Into::into),
            load_balancer_node_ports: self.load_balancer_node_ports,
        };
        let services = ServiceSettings {
            release: self.release.as_str().into(),
            namespace: self.namespace.as_str().into(),
            cluster_domain: self.cluster_domain.as_str().into(),
            selector,
            components: self.components(),
            defaults,
        };
        let translation = translate::Settings {
            controller: self.controller.as_str().into(),
            policy: Policy {
                endpoints: self.endpoints.rules(),
                max_rsa_bits: self.max_rsa_bits,
                regex_mib: self.regex_mib,
                certificate_mib: self.certificate_mib,
                totals: self.totals,
                ..self.policy.policy()
            },
            claims: ClaimMode::Recorded,
            shim_for_sets: self.cert_manager_listener_sets == Maker::CertManager,
            binds: Binds::Allocated {
                address: Ipv6Addr::UNSPECIFIED.into(),
                services,
            },
        };
        let lease = lease::Config {
            namespace: self.namespace.clone(),
            name: format!("{}-operator", self.release),
            // A container that is started anew in the same pod is another candidate.
            identity: format!(
                "{}_{:016x}",
                self.pod_name,
                RandomState::new().build_hasher().finish()
            ),
            address: SocketAddr::new(self.pod_ip, self.stream.port()).to_string(),
            owner: owner.clone(),
            timing: lease::elector::ElectionTiming::default(),
        };
        let certmanager = cluster::certmanager::Config {
            settings: certmanager::CertManagerSettings {
                listener_sets: self.cert_manager_listener_sets,
                gateways: self.cert_manager_gateways,
                identity: format!("{}/{}", self.namespace, self.release),
            },
            manager: self.release.clone(),
        };
        let copied = self.extra_certificate_annotations.iter();
        let copied = copied.map(String::as_str).filter(|key| !key.is_empty());
        let copied_annotations =
            CopiedAnnotations::parse(copied).context("--extra-certificate-annotations")?;
        let namespaces = self.secret_namespace.iter().map(String::as_str);
        let namespaces = namespaces.filter(|name| !name.is_empty()).map(Arc::from);
        let mut namespaces: BTreeSet<Arc<str>> = namespaces.collect();
        if !namespaces.is_empty() {
            namespaces.insert(self.namespace.as_str().into());
        }
        Ok(cluster::OperatorSettings {
            namespace: self.namespace.clone(),
            release: self.release.clone(),
            translation,
            lease,
            proxy_service: self.service(self.proxy_service.as_ref(), "proxy"),
            owner,
            statuses: statuses::plan::StatusTiming::default(),
            acme: self.acme.then(|| self.acme_settings()),
            certmanager,
            copied_annotations,
            secret_namespaces: (!namespaces.is_empty()).then(|| Arc::new(namespaces)),
            claim_grace: Duration::from_secs(self.claim_grace_seconds),
            instance: self.pod_name.clone(),
        })
    }

    /// The name of a component's Service.
    fn service(&self, named: Option<&String>, component: &str) -> String {
        let default = || format!("{}-{component}", self.release);
        named.cloned().unwrap_or_else(default)
    }

    /// Services whose endpoints are pods of the release.
    fn components(&self) -> BTreeSet<Arc<str>> {
        let proxies = self.service(self.proxy_service.as_ref(), "proxy");
        let webhooks = self.service(self.webhook_service.as_ref(), "webhook");
        let operators = self.service(None, "operator");
        [proxies, webhooks, operators].map(Arc::from).into()
    }

    fn acme_settings(&self) -> vestibule_acme::EngineSettings {
        vestibule_acme::EngineSettings {
            namespace: self.namespace.as_str().into(),
            issuers: self.acme_issuer_selector.clone(),
            budgets: vestibule_acme::Budgets {
                per_hour: self.acme_orders_per_hour,
                per_issuer: self.acme_orders_per_hour_issuer,
                per_namespace: self.acme_orders_per_hour_namespace,
            },
            in_flight: usize::try_from(self.acme_in_flight.get()).unwrap_or(usize::MAX),
            registrations: self.acme_registrations_per_host,
            authorities: AuthorityRules::Public {
                allowed: self.acme_allow_cidrs.clone(),
            },
            reach: REACH,
            spread: SPREAD,
            // Jitter is not to be the same in every replica.
            seed: RandomState::new().build_hasher().finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(more: &[&str]) -> Result<Arguments, clap::Error> {
        let needed = ["operator", "--namespace=n", "--proxy-selector=app=proxy"];
        Arguments::try_parse_from(needed.iter().chain(more))
    }

    #[test]
    fn a_grace_is_no_longer_than_a_day() {
        for (seconds, good) in [
            (0, true),
            (86_400, true),
            (86_401, false),
            (u64::MAX, false),
        ] {
            let option = format!("--claim-grace-seconds={seconds}");
            let parsed = parsed(&[&option]);
            assert_eq!(parsed.is_ok(), good, "{seconds}");
            if let Err(error) = parsed {
                let message = error.to_string();
                assert!(message.contains("--claim-grace-seconds"), "{message}");
                assert!(message.contains("0..=86400"), "{message}");
            }
        }
    }

    #[test]
    fn annotations_to_copy_are_checked_at_the_start() {
        let keys = |option: &str| Ok(parsed(&[option])?.extra_certificate_annotations);
        let read = |option: &str| keys(option).map_err(|error: clap::Error| error.to_string());
        assert_eq!(
            read("--extra-certificate-annotations=a.example/x,b.example/y"),
            Ok(vec!["a.example/x".to_owned(), "b.example/y".to_owned()])
        );
        for wrong in ["a b", "vestibule.dev/managed-by", "a.example/x,/"] {
            let option = format!("--extra-certificate-annotations={wrong}");
            let error = read(&option).expect_err("an error");
            assert!(error.contains("--extra-certificate-annotations"), "{error}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("k{n}")).collect();
        let option = format!("--extra-certificate-annotations={}", many.join(","));
        let error = parsed(&[&option])
            .unwrap()
            .settings(None)
            .map(|_| ())
            .expect_err("an error");
        assert!(format!("{error:#}").contains("32 is the most"), "{error:#}");
    }

    #[test]
    fn issuers_of_tenants_lead_to_public_addresses_unless_the_admin_allows_others() {
        let settings = |more: &[&str]| parsed(more).map(|arguments| arguments.acme_settings());
        let private = "10.20.0.7".parse().expect("an address");
        let default = settings(&[]).expect("settings");
        assert!(default.authorities.denies(private).is_some());
        assert_eq!(default.registrations.get(), 8);
        let allowed = settings(&["--acme-allow-cidrs=10.20.0.0/16,fd00:20::/32"]);
        assert_eq!(allowed.expect("settings").authorities.denies(private), None);
        assert!(settings(&["--acme-allow-cidrs=10.20.0.1/16"]).is_err());
        assert!(settings(&["--acme-registrations-per-host=0"]).is_err());
    }
}
