//! What clients do: connections and requests that anybody might make.

use super::{HOSTS, Ports, Random};
use crate::edits::model::{Ask, Dial, Hello, TOKEN_PATH};
use vestibule_proxy_testing::acme::TOKEN;

/// A hostname that nobody serves.
const STRANGER: &str = "z.example.org";

/// The queries of requests; many requests have none. Rules look at the first value of `v`.
const QUERIES: [&str; 14] = [
    "",
    "",
    "",
    "",
    "",
    "",
    "v=1",
    "v=2",
    "v=1&v=2",
    "v=x&v=1",
    "w=1&v=%31",
    "v=1+1",
    "v",
    "w=1",
];

/// A connection.
pub(crate) fn dial(random: &mut Random, ports: Ports, tls: bool) -> Dial {
    let either = random.once_in(8);
    let port = match (either, tls) {
        (true, _) => ports.flip,
        (false, true) => ports.tls,
        (false, false) => ports.web,
    };
    let alpn: &[&[&'static str]] = &[&[], &["http/1.1"], &["h2", "http/1.1"]];
    let hello = tls.then(|| Hello {
        name: host(random).to_owned(),
        alpn: random.pick(alpn).to_vec(),
        shows: [None, None, Some(0), Some(1)][random.below(4)],
    });
    Dial { port, tls: hello }
}

fn host(random: &mut Random) -> &'static str {
    if random.once_in(16) {
        STRANGER
    } else {
        HOSTS[random.below(HOSTS.len())]
    }
}

/// A request; `of`: the name that the connection is for.
pub(crate) fn ask(random: &mut Random, of: &Dial) -> Ask {
    let own = of.tls.as_ref().map(|hello| hello.name.clone());
    let own = own.filter(|_| !random.once_in(6));
    let paths = ["/", "/x", "/x/y", "/x/y/z", "/other"];
    let path = if of.tls.is_none() && random.once_in(6) {
        format!("{TOKEN_PATH}{TOKEN}")
    } else {
        (*random.pick(&paths)).to_owned()
    };
    let method = if random.once_in(4) { "POST" } else { "GET" };
    Ask {
        host: own.unwrap_or_else(|| host(random).to_owned()),
        path,
        query: QUERIES[random.below(QUERIES.len())],
        method,
        variant: [
            None,
            None,
            None,
            None,
            Some("blue"),
            Some("green"),
            Some("red"),
        ][random.below(7)],
        upgrade: false,
        body: if method == "POST" {
            random.below(3) * 500
        } else {
            0
        },
    }
}
