//! Edits of listeners, of what they show and trust, and of challenges.

use vestibule_stream::{Resource, ResourceKind as Kind, proto};

use super::{CLIENTS, FLIPPING, HOSTS, History, LISTENERS, SHOWN, TRUST};
use crate::edits::model::is_plain_resource;
use vestibule_proxy_testing::Authority;
use vestibule_proxy_testing::acme::http_challenge;
use vestibule_proxy_testing::{
    endpoint, gateway_settings, http, listener, needs_settings, validating,
};

use proto::resource::Resource as Wire;

impl History {
    pub(super) fn bundle(&mut self, name: &str, of: &[usize]) {
        let all = if name == TRUST {
            &self.props.authorities
        } else {
            &self.props.clients
        };
        let authorities: Vec<&Authority> = of.iter().map(|index| &all[*index]).collect();
        self.config.set(Authority::bundle(name, &authorities));
    }

    pub(super) fn trust(&mut self) {
        let name = *self.random.pick(&[TRUST, TRUST, CLIENTS]);
        let sets: [&[usize]; 4] = [&[0], &[1], &[0, 1], &[]];
        match *self.random.pick(&sets) {
            // Not often: nothing that relies on it is served then.
            [] if self.random.once_in(4) => self.config.remove(Kind::TrustBundle, name),
            [] => self.bundle(name, &[1, 0]),
            of => self.bundle(name, of),
        }
        if name == TRUST && !self.random.once_in(4) {
            self.follow_trust();
        }
    }

    /// Has the backends over TLS be where one is that is trusted now.
    pub(super) fn follow_trust(&mut self) {
        for name in self.names(Kind::Backend) {
            let speaks = self.trusted();
            let mut resource = self.config.get(Kind::Backend, &name).unwrap().clone();
            if let Some(Wire::Backend(backend)) = &mut resource.resource
                && backend.tls.is_some()
            {
                let endpoints = self.addresses(speaks);
                backend.endpoints = endpoints.iter().map(endpoint).collect();
                self.config.set(resource);
            }
        }
    }

    pub(super) fn certify(&mut self, name: &str, index: usize) {
        let leaves = if name == SHOWN {
            &self.props.shown
        } else {
            &self.props.leaves
        };
        self.config.set(leaves[index % leaves.len()].resource(name));
    }

    pub(super) fn certificate(&mut self) {
        let name = *self.random.pick(&["team-a/c0", "team-a/c1"]);
        if self.random.once_in(12) {
            self.config.remove(Kind::Certificate, name);
        } else {
            let index = self.random.below(100);
            self.certify(name, index);
        }
    }

    pub(super) fn gateway_certificate(&mut self) {
        match self.random.below(12) {
            0 => self.config.remove(Kind::Certificate, SHOWN),
            1..4 => {
                let shown = if self.random.once_in(2) { SHOWN } else { "" };
                self.show(shown);
            }
            n => self.certify(SHOWN, n),
        }
    }

    /// The Gateway shows this certificate to backends; empty: none.
    pub(super) fn show(&mut self, certificate: &str) {
        self.config.set(gateway_settings(proto::GatewaySettings {
            backend_certificate: certificate.into(),
            ..Default::default()
        }));
    }

    // ---- Listeners

    pub(super) fn add_listener(&mut self, index: usize) {
        let (name, hostname) = LISTENERS[index];
        let full = format!("ListenerSet/{name}/tls");
        let taken = self.holder(self.port_of(index), hostname);
        if taken.is_some_and(|holder| holder != full) {
            return;
        }
        let resource = if self.port_of(index) == self.ports.web {
            http(self.ports.web, "x", hostname, None)
        } else {
            self.secure(self.ports.tls, hostname)
        };
        self.config.set(needs_settings(named(resource, &full)));
    }

    pub(super) fn port_of(&self, index: usize) -> u16 {
        if index < 2 {
            self.ports.web
        } else {
            self.ports.tls
        }
    }

    pub(super) fn holder(&self, port: u16, hostname: &str) -> Option<String> {
        self.config.of(Kind::Listener).find_map(|(name, resource)| {
            let Some(Wire::Listener(listener)) = &resource.resource else {
                return None;
            };
            let here = listener.bind.as_ref()?.port == u32::from(port);
            (here && listener.hostname == hostname).then(|| name.to_owned())
        })
    }

    /// A listener of one of the three modes.
    pub(super) fn secure(&mut self, port: u16, hostname: &str) -> Resource {
        let certificate = *self.random.pick(&["team-a/c0", "team-a/c1"]);
        let resource = match self.random.below(5) {
            0 => return listener(port, "x", hostname, None),
            1..3 => listener(port, "x", hostname, Some(certificate)),
            _ => http(port, "x", hostname, Some(certificate)),
        };
        let validates = self.random.once_in(5);
        let strict = self.random.once_in(2);
        if !validates {
            return resource;
        }
        let mode = if strict {
            proto::ClientValidationMode::AllowValidOnly
        } else {
            proto::ClientValidationMode::AllowInsecureFallback
        };
        validating(resource, &[CLIENTS], mode)
    }

    /// Another mode, another certificate, client validation on and off.
    pub(super) fn set_listener(&mut self) {
        let index = 2 + self.random.below(LISTENERS.len() - 2);
        let (name, hostname) = LISTENERS[index];
        let full = format!("ListenerSet/{name}/tls");
        let Some(Wire::Listener(old)) = self
            .config
            .get(Kind::Listener, &full)
            .and_then(|resource| resource.resource.clone())
        else {
            return self.add_listener(index);
        };
        let hostname = if old.hostname.is_empty() {
            hostname.to_owned()
        } else {
            old.hostname
        };
        let resource = named(self.secure(self.ports.tls, &hostname), &full);
        self.config.set(needs_settings(resource));
    }

    pub(super) fn toggle_listener(&mut self) {
        let index = self.random.below(LISTENERS.len());
        let name = format!("ListenerSet/{}/tls", LISTENERS[index].0);
        if self.config.get(Kind::Listener, &name).is_some() && self.random.once_in(2) {
            self.config.remove(Kind::Listener, &name);
        } else {
            self.add_listener(index);
        }
    }

    /// Two listeners swap their hostnames.
    pub(super) fn swap(&mut self) {
        let name = |index: usize| format!("ListenerSet/{}/tls", LISTENERS[index].0);
        let first = 2 + self.random.below(LISTENERS.len() - 2);
        let second = 2 + self.random.below(LISTENERS.len() - 2);
        let both = [name(first), name(second)];
        let held = both
            .iter()
            .map(|name| self.config.get(Kind::Listener, name).cloned());
        let held: Vec<_> = held.collect();
        let [Some(one), Some(other)] = &held[..] else {
            return;
        };
        let (mut one, mut other) = (one.clone(), other.clone());
        if let (Some(Wire::Listener(one)), Some(Wire::Listener(other))) =
            (&mut one.resource, &mut other.resource)
        {
            std::mem::swap(&mut one.hostname, &mut other.hostname);
        }
        self.config.set(one);
        self.config.set(other);
    }

    /// A listener goes, and one of another object takes its place with all that it has.
    pub(super) fn rename(&mut self) {
        let names = self.names(Kind::Listener);
        let old = self.random.pick(&names).clone();
        let new = match old.strip_suffix("-moved") {
            Some(name) => name.to_owned(),
            None => format!("{old}-moved"),
        };
        if old.starts_with("Gateway") || old == FLIPPING || names.contains(&new) {
            return;
        }
        let listener = self.config.get(Kind::Listener, &old).unwrap().clone();
        self.config.remove(Kind::Listener, &old);
        self.config.set(named(listener, &new));
        for kind in [Kind::HttpRoute, Kind::TlsRoute] {
            for name in self.names(kind) {
                let mut resource = self.config.get(kind, &name).unwrap().clone();
                let attachments = match &mut resource.resource {
                    Some(Wire::HttpRoute(route)) => &mut route.attachments,
                    Some(Wire::TlsRoute(route)) => &mut route.attachments,
                    _ => continue,
                };
                attachments.retain(|attachment| attachment.listener != new);
                for attachment in attachments {
                    if attachment.listener == old {
                        attachment.listener.clone_from(&new);
                    }
                }
                self.config.set(resource);
            }
        }
    }

    /// The third port is of the other layer, or of none.
    pub(super) fn flip(&mut self) {
        let held = self.config.get(Kind::Listener, FLIPPING);
        let plain = held.is_some_and(is_plain_resource);
        if held.is_some() && self.random.once_in(3) {
            return self.config.remove(Kind::Listener, FLIPPING);
        }
        let resource = if plain {
            self.secure(self.ports.flip, "")
        } else {
            http(self.ports.flip, "x", "", None)
        };
        self.config.set(needs_settings(named(resource, FLIPPING)));
    }

    // ---- Challenges and rejects

    pub(super) fn challenge(&mut self) {
        let host = *self.random.pick(&HOSTS);
        let resource = if self.random.once_in(2) {
            http_challenge(self.ports.web, host)
        } else {
            let all = self.props.challenges.iter();
            let (_, certificate) = all.clone().find(|(name, _)| name == host).unwrap();
            certificate.resource(self.ports.tls, host)
        };
        let key = resource.key().unwrap();
        if self.config.get(Kind::Challenge, &key.name).is_some() {
            self.config.remove(Kind::Challenge, &key.name);
        } else {
            self.config.set(resource);
        }
    }

    /// Resources that are rejected, and leave everything as it is.
    pub(super) fn reject(&mut self) {
        let resource = match self.random.below(3) {
            0 => {
                let key = Wire::Certificate(proto::Certificate {
                    chain: vec![vec![1, 2, 3].into()],
                    private_key: vec![1, 2, 3],
                    secret_uid: String::new(),
                });
                Resource::new("team-a/broken", key)
            }
            1 => {
                let taken = http(self.ports.web, "taken", "", None);
                named(taken, "ListenerSet/team-z/taken/tls")
            }
            _ => {
                let other = listener(self.ports.web, "other", "q.example.com", None);
                named(other, "ListenerSet/team-z/other/tls")
            }
        };
        self.bad.retain(|other| other.name != resource.name);
        self.bad.push(resource);
    }
}

/// Gives a resource another name. A listener then also is of the namespace in it.
pub(super) fn named(mut resource: Resource, name: &str) -> Resource {
    name.clone_into(&mut resource.name);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        let namespace = name.split('/').nth(1).unwrap();
        namespace.clone_into(&mut listener.tenant);
    }
    resource
}
