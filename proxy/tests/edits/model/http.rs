//! What a configuration says of a request.

use vestibule_stream::{ResourceKind as Kind, proto};

use super::{Ask, Failed, Model, OverTls, TOKEN_PATH, attached};
use crate::common::acme::{THUMBPRINT, TOKEN};
use crate::edits::servers::{ASKED, Speaks};

use proto::http_filter::Filter;
use proto::listener::Protocol;
use proto::resource::Resource as Wire;

impl<'a> Model<'a> {
    /// The answers that a request may get on a port, in plaintext or within TLS.
    pub(super) fn http(self, port: u16, tls: Option<OverTls<'_>>, ask: &Ask) -> Vec<String> {
        if self.layer(port) != Some(tls.is_none()) {
            return vec!["404".to_owned()];
        }
        if tls.is_none()
            && let Some(token) = self.token(port, ask)
        {
            return vec![token];
        }
        let Some((key, listener)) = self.listener(port, &ask.host) else {
            return vec!["404".to_owned()];
        };
        let http = match &listener.protocol {
            Some(Protocol::Http(http)) => http.terminate.as_ref(),
            _ => None,
        };
        if let Some(tls) = tls {
            // The connection is right if a new one for its name would get the listener.
            let anew = self.listener(port, tls.name).map(|(key, _)| key);
            let right = tls.listener == key || anew == Some(key);
            if !right || !http.is_some_and(|http| self.admits(http, tls.showed)) {
                return vec!["421".to_owned()];
            }
        }
        let Some((rule, prefix)) = self.rule(key, ask) else {
            return vec!["404".to_owned()];
        };
        let mut head = Head {
            path: ask.path.clone(),
            prefix,
            ..Head::default()
        };
        if let Some(answer) = head.filter(&rule.filters) {
            return vec![answer];
        }
        let weighted: Vec<_> = rule.backends.iter().filter(|of| of.weight > 0).collect();
        if weighted.is_empty() {
            return vec![head.own(500)];
        }
        let mut answers = Vec::new();
        for of in weighted {
            let mut head = head.clone();
            if of.backend.is_empty() {
                answers.push(head.own(500));
            } else if let Some(answer) = head.filter(&of.filters) {
                answers.push(answer);
            } else {
                let found = self.backend(&of.backend);
                let found = found.filter(|backend| !backend.endpoints.is_empty());
                match found {
                    None => answers.push(head.own(503)),
                    Some(backend) => answers.extend(self.forward(backend, listener, &head, ask)),
                }
            }
        }
        answers
    }

    fn token(self, port: u16, ask: &Ask) -> Option<String> {
        let token = ask.path.strip_prefix(TOKEN_PATH)?;
        let held = self.config.of(Kind::Challenge).any(|(_, resource)| {
            let Some(Wire::Challenge(of)) = &resource.resource else {
                return false;
            };
            let here = of
                .bind
                .as_ref()
                .is_some_and(|bind| bind.port == u32::from(port));
            let asked = matches!(&of.answer,
                Some(proto::challenge::Answer::Http01(of)) if of.token == token);
            here && asked && of.hostname == ask.host
        });
        held.then(|| match ask.method {
            "GET" => format!("200 {TOKEN}.{THUMBPRINT}"),
            _ => "405".to_owned(),
        })
    }

    /// The rule that takes a request, and the prefix that it took of the path.
    fn rule(self, listener: &str, ask: &Ask) -> Option<(&'a proto::HttpRule, String)> {
        use std::cmp::Reverse;
        let mut all = Vec::new();
        for (key, resource) in self.config.of(Kind::HttpRoute) {
            let Some(Wire::HttpRoute(route)) = &resource.resource else {
                continue;
            };
            let Some(rank) = attached(&route.attachments, listener, &ask.host) else {
                continue;
            };
            for (index, rule) in route.rules.iter().enumerate() {
                let everything = [proto::HttpMatch::default()];
                let matches = if rule.matches.is_empty() {
                    &everything[..]
                } else {
                    &rule.matches
                };
                for (place, of) in matches.iter().enumerate() {
                    let Some((path, prefix)) = holds(of, ask) else {
                        continue;
                    };
                    let rest = (!of.method.is_empty(), of.headers.len(), of.query.len());
                    let order = (
                        Reverse(rank),
                        Reverse(path),
                        Reverse(rest),
                        route.created,
                        key,
                        index,
                        place,
                    );
                    all.push((order, rule, prefix));
                }
            }
        }
        let best = all.into_iter().min_by(|a, b| a.0.cmp(&b.0))?;
        Some((best.1, best.2))
    }

    fn forward(
        self,
        backend: &proto::Backend,
        listener: &proto::Listener,
        head: &Head,
        ask: &Ask,
    ) -> Vec<String> {
        let Ok(way) = self.way(backend, listener) else {
            return vec![head.own(500)];
        };
        let protocol = backend.protocol();
        let upgrade = ask.upgrade && protocol != proto::BackendProtocol::H2c;
        let broken = || Some(Said::Broken);
        let said = self.endpoints(backend, |speaks, name| {
            let (layer, two) = match (&way, speaks) {
                (Some(way), Speaks::Tls(authority)) if way.reaches(authority) => {
                    let two = match protocol {
                        proto::BackendProtocol::H2c => true,
                        proto::BackendProtocol::Websocket => false,
                        proto::BackendProtocol::Unspecified => !upgrade,
                    };
                    (way.layer(), two)
                }
                (Some(_), _) => return None,
                (None, Speaks::One) if protocol != proto::BackendProtocol::H2c => {
                    ("tls=- cert=-".to_owned(), false)
                }
                (None, Speaks::Two) if protocol == proto::BackendProtocol::H2c => {
                    ("tls=- cert=-".to_owned(), true)
                }
                (None, _) => return broken(),
            };
            let version = if two { 2 } else { 1 };
            let status = if upgrade { 101 } else { 200 };
            Some(Said::Answer(format!(
                "{status} srv={name} {layer} v={version} host={} path={} asked={} body={}",
                ask.host,
                head.path,
                head.asked.join(","),
                ask.body,
            )))
        });
        let answers = said.into_iter().flat_map(|said| match said {
            Said::Answer(text) => vec![head.answered(text)],
            Said::Failed => vec![head.own(503)],
            // Whether it had begun with the request by then is as it comes.
            Said::Broken => vec![head.own(502), head.own(503)],
        });
        answers.collect()
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Answer(String),
    Failed,
    Broken,
}

impl From<Failed> for Said {
    fn from(_: Failed) -> Self {
        Self::Failed
    }
}

/// A request's and an answer's head as filters make them.
#[derive(Clone, Default)]
struct Head {
    path: String,
    prefix: String,
    asked: Vec<String>,
    answered: Vec<String>,
}

impl Head {
    /// `Some`: the filters answer by themselves.
    fn filter(&mut self, filters: &[proto::HttpFilter]) -> Option<String> {
        for filter in filters {
            if let Some(Filter::ResponseHeaders(of)) = &filter.filter {
                self.answered
                    .extend(of.add.iter().map(|field| field.value.clone()));
            }
        }
        for filter in filters {
            match filter.filter.as_ref().unwrap() {
                Filter::ResponseHeaders(_) => {}
                Filter::RequestHeaders(of) => {
                    assert!(of.add.iter().all(|field| field.name == ASKED));
                    self.asked
                        .extend(of.add.iter().map(|field| field.value.clone()));
                }
                Filter::Rewrite(of) => {
                    let path = of.path.as_ref().unwrap().path.as_ref().unwrap();
                    let proto::path_modifier::Path::Prefix(with) = path else {
                        panic!("the model has prefixes only");
                    };
                    let rest = &self.path[self.prefix.len()..];
                    self.path = format!("{with}{rest}");
                }
                Filter::Redirect(of) => {
                    return Some(self.answered(format!("{} to={}", of.status, of.hostname)));
                }
                Filter::Fail(status) => return Some(self.answered(status.to_string())),
            }
        }
        None
    }

    fn own(&self, status: u16) -> String {
        self.answered(status.to_string())
    }

    fn answered(&self, mut text: String) -> String {
        if !self.answered.is_empty() {
            text.push_str(" answered=");
            text.push_str(&self.answered.join(","));
        }
        text
    }
}

/// How well a match takes a request: the rank of its path, and the prefix.
fn holds(of: &proto::HttpMatch, ask: &Ask) -> Option<((u8, usize), String)> {
    use proto::http_match::Path;
    let path = &*ask.path;
    let found = match &of.path {
        None => ((1, 0), String::new()),
        Some(Path::Exact(exact)) => (exact == path).then(|| ((3, exact.len()), String::new()))?,
        Some(Path::Prefix(prefix)) => {
            let prefix = prefix.trim_end_matches('/');
            let rest = path.strip_prefix(prefix)?;
            let whole = rest.is_empty() || rest.starts_with('/');
            whole.then(|| ((1, prefix.len()), prefix.to_owned()))?
        }
        Some(Path::Regex(_)) => panic!("the model has no regular expressions"),
    };
    let method = of.method.is_empty() || of.method == ask.method;
    let headers = of.headers.iter().all(|header| {
        let Some(proto::http_value_match::Value::Exact(exact)) = &header.value else {
            panic!("the model has exact values only");
        };
        ask.variant.is_some_and(|variant| variant == exact)
    });
    (method && headers).then_some(found)
}
