//! What gateway-api-bench published of others: its README (part 1, May 2025) and README-v2 (part 2, autumn 2025), as of
//! commit 141add6.

/// A method, and what it gave.
pub(super) struct Method {
    /// Name of the file with our figure.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// What is done and counted.
    pub(super) what: &'static str,
    /// Whose figure, and the figure.
    pub(super) others: &'static [(&'static str, &'static str)],
}

/// What the figures of others were got on.
pub(super) const WHERE: &str = "The others' figures are those that gateway-api-bench published: kind with one node on 16 cores (AMD 9950X, 96 GB), \
     nothing else running. Ours are of this machine and this run.";

pub(super) const METHODS: &[Method] = &[
    Method {
        name: "attached",
        title: "Attached routes",
        what: "from the last of 1,000 routes made until attachedRoutes says so; from the last one deleted until 0; \
               writes of the Gateway's status",
        others: &[
            ("Cilium (1)", "1 s, 18 s, 193 writes"),
            ("Istio (1)", "2 s, 20 s, 311 writes"),
            ("Kgateway (1)", "12 s, 16 s, 323 writes"),
            ("Envoy Gateway (1)", "23 s, 45 s, 1383 writes"),
            ("NGINX (1)", "29 s, 15 s, 82 writes"),
            (
                "Traefik (1)",
                "180 s, 16 s, 73 writes; wrong counts at times",
            ),
        ],
    },
    Method {
        name: "probe",
        title: "Probe",
        what: "from a new route until it answers 200, one route after another; answers other than 404 and 200 are errors",
        others: &[
            (
                "agentgateway (2)",
                "10 to 30 ms up to 3,000 routes, 0 errors",
            ),
            ("Istio (2)", "120 to 300 ms, 0 errors"),
            (
                "Envoy Gateway (2)",
                "about 600 ms at 3,000 routes, 14,808 errors",
            ),
            ("NGINX (2)", "about 800 ms at 3,000 routes, 0 errors"),
            ("Traefik (1)", "about 2 s, 0 errors"),
            (
                "Cilium (1)",
                "errors at the first route; no updates above 1.5 MB of configuration",
            ),
            ("Kgateway (1)", "0 errors; times in a graph only"),
        ],
    },
    Method {
        name: "changes",
        title: "Route changes",
        what: "a live route is edited every 200 ms",
        others: &[
            ("agentgateway (2)", "no errors"),
            ("Istio (2)", "no errors"),
            ("Kgateway (1)", "no errors"),
            ("Traefik (1)", "no errors"),
            ("Envoy Gateway (2)", "503 during changes"),
            ("NGINX (2)", "500 during changes"),
            ("Cilium (1)", "503 during changes"),
        ],
    },
    Method {
        name: "routes",
        title: "Route scale",
        what: "memory of a proxy and of the control plane with many routes (published: 5,000)",
        others: &[
            ("agentgateway (2)", "proxy 40 MB (4 MB before)"),
            (
                "Istio (2)",
                "proxy 1 to 2 GB; 44 × the resources of agentgateway",
            ),
            (
                "Envoy Gateway (2)",
                "proxy 1 to 2 GB; 108 × the resources of agentgateway",
            ),
            (
                "NGINX (2)",
                "proxy 1 to 2 GB; 295 × the resources of agentgateway",
            ),
            ("Kgateway (1)", "proxy 1 to 1.8 GB"),
            ("Cilium (1)", "proxy 1 to 1.8 GB; a hard limit"),
            ("Traefik (1)", "served as few as a tenth of the routes"),
        ],
    },
    Method {
        name: "sets",
        title: "ListenerSet scale",
        what: "ListenerSets with a certificate and 16 routes each (published: 2,500 with 40,000, as ratios only)",
        others: &[
            ("agentgateway (2)", "1"),
            (
                "Istio (2)",
                "control plane 1.3 × memory, 2.8 × CPU, 30 × network; proxy 15 × memory, 50 × CPU",
            ),
            ("Envoy Gateway (2)", "not supported"),
            ("NGINX (2)", "not supported"),
        ],
    },
    Method {
        name: "failover",
        title: "Backend failover",
        what: "one of four pods refuses every now and then; retries off",
        others: &[
            (
                "agentgateway (2)",
                "errors at about 25 % of the others' rate",
            ),
            (
                "Istio (2)",
                "a pod's whole share lost; with outlier detection few errors, hardly used again",
            ),
            (
                "Envoy Gateway (2)",
                "a pod's whole share lost; the same with passive health checks",
            ),
            (
                "NGINX (2)",
                "no errors (it retries although told not to); used again after up to 10 s",
            ),
        ],
    },
];
