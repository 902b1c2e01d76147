//! Groups of a proxy that speaks HTTP, with and without TLS.

use anyhow::{Result, bail};

use super::{Bench, REQUEST_CONNECTIONS, Trial, Work, with_options};
use crate::h2load::{Requests, Version};
use crate::metric::{Group, Load};
use crate::peers::Peer;
use crate::tls;

/// Connections of HTTP/2, and streams on each.
pub(super) const HTTP2: (usize, usize) = (16, 8);
/// Connections of bodies of 10 MB, with one request at a time on each.
const BODIES: usize = 4;
/// What a browser sends, with a cookie that makes the head 700 bytes long in HTTP/1.1.
const FIELDS: &[&str] = &[
    "user-agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    "accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
    "accept-encoding: gzip, deflate, br, zstd",
    "accept-language: en-GB,en;q=0.9,de;q=0.8",
    "cache-control: max-age=0",
    "referer: https://h0.bench.test/a/page/that/links/to/this/one",
    "sec-fetch-dest: document",
    "sec-fetch-mode: navigate",
    "sec-fetch-site: same-origin",
    "cookie: session=0123456789abcdef0123456789abcdef; theme=dark; consent=all; visit=1700000000; cart=0123456789abcdef0123456789ab; basket=0123456789abcdef0123456789abcdef0123456789abcdef01234567",
];

impl Bench {
    pub(super) fn http(&mut self, trial: Trial) -> Result<()> {
        let group = trial.group;
        let running = self.start_one(trial)?;
        for load in group.loads() {
            if !self.wants(group, *load) {
                continue;
            }
            let work = match load {
                Load::Http1
                | Load::Http1Heads
                | Load::Http1Body10k
                | Load::Http1Down
                | Load::Http1Up
                | Load::Http2
                | Load::Http2Body10k
                | Load::Http2Down
                | Load::Http2Up => Work::Requests(self.requests(group, *load)?),
                Load::WebSocket => self.sockets(group),
                Load::NewConnection => {
                    let count = self.plan.sizes.handshakes;
                    let cost = self.connections(&running, group, count, &[])?;
                    let made = cost.outcome.connections as f64;
                    self.record(trial, *load, &cost, made)?;
                    continue;
                }
                _ => continue,
            };
            // What one peer does not do must not hide what it does.
            let result = self
                .cost(&running, &work)
                .and_then(|cost| self.record(trial, *load, &cost, cost.outcome.answered as f64));
            if let Err(error) = result {
                self.fail(trial, &error.context(load.title()));
            }
        }
        self.at_full_speed(trial, &running)?;
        drop(running);
        if trial.peer != Peer::Direct && self.wants(group, Load::Idle) {
            self.idle(trial)?;
        }
        Ok(())
    }

    /// The requests of a load.
    pub(super) fn requests(&self, group: Group, load: Load) -> Result<Requests> {
        let small = self.plan.sizes.requests;
        let bodies = self.plan.sizes.bodies;
        let (path, count) = match load {
            Load::Http1 | Load::Http1Heads | Load::Http2 => ("/tiny", small),
            Load::Http1Body10k | Load::Http2Body10k => ("/10k", small),
            Load::Http1Down | Load::Http2Down => ("/file", bodies),
            Load::Http1Up | Load::Http2Up => ("/tiny", bodies),
            other => bail!("{other:?} is not made of requests"),
        };
        let version = match load {
            Load::Http2 | Load::Http2Body10k | Load::Http2Down | Load::Http2Up => Version::Http2,
            _ => Version::Http1,
        };
        let (connections, streams) = match (load, version) {
            (Load::Http1Down | Load::Http2Down | Load::Http1Up | Load::Http2Up, _) => (BODIES, 1),
            (_, Version::Http1) => (REQUEST_CONNECTIONS, 1),
            (_, Version::Http2) => HTTP2,
        };
        let upload = matches!(load, Load::Http1Up | Load::Http2Up);
        Ok(Requests {
            version,
            tls: group == Group::Https,
            connections,
            streams,
            count,
            host: tls::host(0),
            path,
            fields: match load {
                Load::Http1Heads => FIELDS,
                _ => &[],
            },
            body: upload.then(|| self.folder.0.join("body")),
        })
    }

    fn sockets(&self, group: Group) -> Work {
        let (connections, seconds) = (
            REQUEST_CONNECTIONS.to_string(),
            self.plan.sizes.seconds.to_string(),
        );
        with_options(group, &["paced", "socket", &connections, &seconds])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browsers_head_has_700_bytes() {
        let line = "GET /tiny HTTP/1.1\r\nHost: h0.bench.test\r\n";
        let fields: usize = FIELDS.iter().map(|field| field.len() + 2).sum();
        let length = line.len() + fields + 2;
        assert!((690..=710).contains(&length), "{length}");
    }
}
