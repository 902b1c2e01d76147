//! Owns the HTTP routes and gRPC routes in force. A gRPC route has the same form, with its own kind of matches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::State;
use super::parse_http::{FilterSpec, HttpRouteSpec, RuleSpec};
use crate::concerned::TenantKey;
use crate::http_route::HttpRoute;
use crate::http_route::external_auth::ExternalAuth;
use crate::http_route::filter::Filter;
use crate::http_route::mirror::Mirror;
use crate::http_route::route::{Rule, RuleParts, WeightedTarget};
use crate::table::{Attachments, RouteKind};

pub(super) struct HeldHttpRoute {
    pub(super) attachments: Arc<Attachments>,
    pub(super) route: Arc<HttpRoute>,
}

impl State {
    pub(super) fn hold_http_route(
        &mut self,
        name: &str,
        spec: HttpRouteSpec,
        dirty: &mut BTreeSet<Arc<str>>,
    ) {
        // References to the new backends are made before the old ones are released. So a backend that both versions
        // have is not removed and built again in between.
        let rules = spec
            .rules
            .into_iter()
            .map(|rule| self.rule(rule))
            .collect::<Vec<_>>();
        self.drop_http_route((name, spec.grpc), dirty);
        let key: Arc<str> = name.into();
        let tenant = self.names.intern(&spec.tenant);
        let account = self.accounts.of(&tenant);
        let route = HttpRoute::new((Arc::clone(&key), spec.grpc), account, spec.created, rules);
        let route = Arc::new(route);
        let mut attachments = Vec::with_capacity(spec.attachments.len());
        for (listener, names) in spec.attachments {
            let listener = self.listener_name(&listener);
            let table = self.tables.entry(Arc::clone(&listener));
            let table = Arc::make_mut(table.or_default());
            table.http.insert(&names, &route);
            let tenant = TenantKey::of(&route.account);
            self.ordered
                .add_route(&listener, table, (&names.pattern, tenant));
            self.work.route_entries += 1;
            dirty.insert(Arc::clone(&listener));
            attachments.push((listener, names));
        }
        let attachments = Arc::new(Attachments {
            account: Arc::clone(&route.account),
            to: attachments.into(),
        });
        let id = (RouteKind::of_http(spec.grpc), Arc::clone(&key));
        self.snapshot.attach(id, Some(Arc::clone(&attachments)));
        let held = HeldHttpRoute { attachments, route };
        self.routes_of(spec.grpc).insert(key, held);
    }

    fn rule(&mut self, spec: RuleSpec) -> Rule {
        let backends = spec.backends.into_iter().map(|backend| WeightedTarget {
            weight: backend.weight,
            backend: backend.name.map(|name| self.refer(&name)),
            filters: self.filters(backend.filters).into(),
        });
        Rule::from(RuleParts {
            backends: backends.collect(),
            name: spec.name,
            matches: spec.matches,
            filters: self.filters(spec.filters),
            request_timeout: spec.request_timeout,
            backend_timeout: spec.backend_timeout,
            retry: spec.retry,
            session: spec.session,
        })
    }

    fn filters(&mut self, specs: Vec<FilterSpec>) -> Vec<Filter> {
        let one = |spec| match spec {
            FilterSpec::Itself(filter) => filter,
            FilterSpec::Mirror {
                backend,
                numerator,
                denominator,
            } => Filter::Mirror(Mirror {
                backend: self.refer(&backend),
                numerator,
                denominator,
            }),
            FilterSpec::Auth {
                backend,
                protocol,
                max_body,
            } => Filter::Auth(Arc::new(ExternalAuth {
                backend: self.refer(&backend),
                protocol,
                max_body,
            })),
        };
        specs.into_iter().map(one).collect()
    }

    fn routes_of(&mut self, grpc: bool) -> &mut BTreeMap<Arc<str>, HeldHttpRoute> {
        if grpc {
            &mut self.grpc_routes
        } else {
            &mut self.http_routes
        }
    }

    pub(super) fn drop_http_route(
        &mut self,
        (name, grpc): (&str, bool),
        dirty: &mut BTreeSet<Arc<str>>,
    ) {
        let Some(old) = self.routes_of(grpc).remove(name) else {
            return;
        };
        let id = (RouteKind::of_http(grpc), Arc::clone(&old.route.key));
        self.snapshot.attach(id, None);
        for (listener, names) in &old.attachments.to {
            if let Some(table) = self.tables.get_mut(listener) {
                let table = Arc::make_mut(table);
                table.http.remove(names, &old.route);
                self.ordered.remove_route(listener, table, &names.pattern);
                self.work.route_entries += 1;
                if table.is_empty() {
                    self.tables.remove(listener);
                }
            }
            dirty.insert(Arc::clone(listener));
        }
        for backend in old.route.rules().iter().flat_map(Rule::references) {
            self.release(Some(backend));
        }
    }
}

#[cfg(test)]
mod tests;
