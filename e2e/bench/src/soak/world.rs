//! The manifests of the soak: tenants with a hostname for each kind of traffic, and the edits that are made to
//! them. Every edit leads from a configuration that serves what the clients ask for to another one that does.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::backends::Ports;
use crate::tls::Authority;

/// What a tenant's hostnames are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Site {
    /// HTTPS, with HTTP/1.1, HTTP/2 and upgraded connections.
    Web,
    /// TLS that the backend ends.
    Pass,
    /// TLS that the proxy ends, with bytes behind it.
    Term,
    /// HTTPS, with gRPC calls.
    Grpc,
}

/// The port of plain TCP.
pub(super) const TCP_PORT: u16 = 5432;
/// The tenant that has the port. Plain TCP names no host, so a port is for one tenant.
const TCP_TENANT: usize = 0;
/// The service of the gRPC calls, and its method.
const SERVICE: &str = "soak.Tenants";
pub(super) const METHOD: &str = "/soak.Tenants/Name";

impl Site {
    /// The hostname of a tenant.
    pub(super) fn hostname(self, tenant: usize) -> String {
        let label = match self {
            Self::Web => "web",
            Self::Pass => "pass",
            Self::Term => "term",
            Self::Grpc => "grpc",
        };
        format!("{label}.t{tenant}.soak.test")
    }
}

/// Which Services a route leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leads {
    A,
    B,
    Both,
}

/// What edits change of a tenant.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    leads: Leads,
    has_extra: bool,
    version: u32,
    swapped: bool,
}

/// Kinds of edits, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Edit {
    /// The route leads to other Services.
    Route,
    /// A listener comes or goes beside the others.
    Listener,
    /// The route's filter sets another value.
    Filter,
    /// The order of endpoints changes.
    Endpoints,
    /// The certificate is another one.
    Certificate,
}

pub(super) const EDITS: [Edit; 5] = [
    Edit::Route,
    Edit::Listener,
    Edit::Filter,
    Edit::Endpoints,
    Edit::Certificate,
];

/// The directory that is served.
pub(super) struct World {
    folder: PathBuf,
    authority: Authority,
    ports: Ports,
    tenants: Vec<Tenant>,
}

impl World {
    /// Writes everything.
    pub(super) fn new(
        folder: &Path,
        authority: Authority,
        ports: Ports,
        tenants: usize,
    ) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let begin = Tenant {
            leads: Leads::A,
            has_extra: false,
            version: 0,
            swapped: false,
        };
        let world = Self {
            folder: folder.to_owned(),
            authority,
            ports,
            tenants: vec![begin; tenants],
        };
        world.write("platform", PLATFORM)?;
        for tenant in 0..tenants {
            world.write_routes(tenant)?;
            world.write_services(tenant)?;
            world.write_secret(tenant)?;
        }
        Ok(world)
    }

    /// Makes an edit to a tenant's objects.
    pub(super) fn edit(&mut self, tenant: usize, edit: Edit) -> Result<()> {
        let of = self.tenants.get_mut(tenant).context("no such tenant")?;
        match edit {
            Edit::Route => {
                of.leads = match of.leads {
                    Leads::A => Leads::Both,
                    Leads::Both => Leads::B,
                    Leads::B => Leads::A,
                };
            }
            Edit::Listener => of.has_extra = !of.has_extra,
            Edit::Filter => of.version += 1,
            Edit::Endpoints => {
                of.swapped = !of.swapped;
                return self.write_services(tenant);
            }
            Edit::Certificate => return self.write_secret(tenant),
        }
        self.write_routes(tenant)
    }

    /// A file is there whole or not at all, as when an editor saves it.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let hidden = self.folder.join(format!(".{name}"));
        fs::write(&hidden, text)?;
        fs::rename(&hidden, self.folder.join(format!("{name}.yaml")))?;
        Ok(())
    }

    fn write_routes(&self, tenant: usize) -> Result<()> {
        let of = self.tenants.get(tenant).context("no such tenant")?;
        let [web, pass, term, grpc] =
            [Site::Web, Site::Pass, Site::Term, Site::Grpc].map(|site| site.hostname(tenant));
        let mut text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: t{tenant}}}\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{namespace: t{tenant}, name: set}}\n\
             spec:\n  parentRef: {{namespace: platform, name: edge}}\n  listeners:\n  \
             - {{name: web, protocol: HTTPS, port: 443, hostname: {web}, tls: {{certificateRefs: [{{name: tls}}]}}}}\n  \
             - {{name: pass, protocol: TLS, port: 443, hostname: {pass}, tls: {{mode: Passthrough}}}}\n  \
             - {{name: term, protocol: TLS, port: 443, hostname: {term}, tls: {{mode: Terminate, certificateRefs: [{{name: tls}}]}}}}\n  \
             - {{name: grpc, protocol: HTTPS, port: 443, hostname: {grpc}, tls: {{certificateRefs: [{{name: tls}}]}}}}\n"
        );
        if tenant == TCP_TENANT {
            writeln!(text, "  - {{name: tcp, protocol: TCP, port: {TCP_PORT}}}")?;
        }
        if of.has_extra {
            writeln!(
                text,
                "  - {{name: extra, protocol: HTTPS, port: 443, hostname: extra.t{tenant}.soak.test, \
                 tls: {{certificateRefs: [{{name: tls}}]}}}}"
            )?;
        }
        let to = match of.leads {
            Leads::A => "[{name: web-a, port: 80}]",
            Leads::B => "[{name: web-b, port: 80}]",
            Leads::Both => {
                "[{name: web-a, port: 80, weight: 3}, {name: web-b, port: 80, weight: 1}]"
            }
        };
        let filters = format!(
            "[{{type: RequestHeaderModifier, requestHeaderModifier: {{set: [{{name: x-tenant, value: t{tenant}}}, \
             {{name: x-version, value: v{}}}]}}}}]",
            of.version
        );
        write!(
            text,
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
             metadata: {{namespace: t{tenant}, name: web}}\nspec:\n  \
             parentRefs: [{{kind: ListenerSet, group: gateway.networking.k8s.io, name: set, sectionName: web}}]\n  \
             hostnames: [{web}]\n  rules:\n  \
             - matches: [{{path: {{type: PathPrefix, value: /ws}}}}]\n    backendRefs: [{{name: ws, port: 80}}]\n  \
             - matches: [{{path: {{type: PathPrefix, value: /upload}}}}]\n    filters: {filters}\n    \
             backendRefs: [{{name: upload, port: 80}}]\n  \
             - filters: {filters}\n    backendRefs: {to}\n\
             ---\napiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\n\
             metadata: {{namespace: t{tenant}, name: grpc}}\nspec:\n  \
             parentRefs: [{{kind: ListenerSet, group: gateway.networking.k8s.io, name: set, sectionName: grpc}}]\n  \
             hostnames: [{grpc}]\n  rules:\n  \
             - matches: [{{method: {{service: {SERVICE}}}}}]\n    filters: {filters}\n    \
             backendRefs: [{{name: grpc, port: 80}}]\n"
        )?;
        for (name, hostname) in [("pass", pass), ("term", term)] {
            write!(
                text,
                "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute\n\
                 metadata: {{namespace: t{tenant}, name: {name}}}\nspec:\n  \
                 parentRefs: [{{kind: ListenerSet, group: gateway.networking.k8s.io, name: set, sectionName: {name}}}]\n  \
                 hostnames: [{hostname}]\n  rules: [{{backendRefs: [{{name: {name}, port: 443}}]}}]\n"
            )?;
        }
        if tenant == TCP_TENANT {
            write!(
                text,
                "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\n\
                 metadata: {{namespace: t{tenant}, name: tcp}}\nspec:\n  \
                 parentRefs: [{{kind: ListenerSet, group: gateway.networking.k8s.io, name: set, sectionName: tcp}}]\n  \
                 rules: [{{backendRefs: [{{name: tcp, port: {TCP_PORT}}}]}}]\n"
            )?;
        }
        self.write(&format!("t{tenant}"), &text)
    }

    fn write_services(&self, tenant: usize) -> Result<()> {
        let of = self.tenants.get(tenant).context("no such tenant")?;
        let [first, second, third] = self.ports.web;
        let mut services = vec![
            ("web-a", 80, vec![first, second]),
            ("web-b", 80, vec![second, third]),
            ("ws", 80, self.ports.ws.to_vec()),
            ("pass", 443, self.ports.pass.to_vec()),
            ("term", 443, self.ports.term.to_vec()),
            ("grpc", 80, self.ports.grpc.to_vec()),
            ("upload", 80, self.ports.upload.to_vec()),
        ];
        if tenant == TCP_TENANT {
            services.push(("tcp", TCP_PORT, self.ports.tcp.to_vec()));
        }
        let mut text = String::new();
        for (name, port, mut endpoints) in services {
            if of.swapped {
                endpoints.reverse();
            }
            write!(
                text,
                "---\napiVersion: v1\nkind: Service\nmetadata: {{namespace: t{tenant}, name: {name}}}\n\
                 spec: {{ports: [{{port: {port}}}]}}\n"
            )?;
            // The endpoints of a slice share its port.
            for endpoint in endpoints {
                write!(
                    text,
                    "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                     metadata: {{namespace: t{tenant}, name: {name}-{endpoint}, \
                     labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\n\
                     ports: [{{port: {endpoint}}}]\nendpoints: [{{addresses: [\"127.0.0.1\"]}}]\n"
                )?;
            }
        }
        self.write(&format!("t{tenant}-services"), &text)
    }

    fn write_secret(&self, tenant: usize) -> Result<()> {
        let names = [
            Site::Web.hostname(tenant),
            Site::Term.hostname(tenant),
            Site::Grpc.hostname(tenant),
            format!("extra.t{tenant}.soak.test"),
        ];
        let (certificate, key) = self.authority.pair(&names)?;
        let text = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{namespace: t{tenant}, name: tls}}\n\
             type: kubernetes.io/tls\ndata: {{tls.crt: {}, tls.key: {}}}\n",
            BASE64_STANDARD.encode(certificate),
            BASE64_STANDARD.encode(key)
        );
        self.write(&format!("t{tenant}-secret"), &text)
    }
}

const PLATFORM: &str = "apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vestibule}
spec: {controllerName: vestibule.dev/gateway-controller}
---
apiVersion: v1
kind: Namespace
metadata: {name: platform}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: platform, name: edge}
spec:
  gatewayClassName: vestibule
  allowedListeners: {namespaces: {from: All}}
  listeners:
  - {name: own, protocol: TLS, port: 443, hostname: edge.platform.test, tls: {mode: Passthrough}}
";
