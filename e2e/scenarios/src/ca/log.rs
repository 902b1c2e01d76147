//! What Pebble's log says that was asked of it.

use std::collections::BTreeMap;

/// The log of one authority, from its start.
#[derive(Debug)]
pub(crate) struct Log {
    text: String,
}

impl Log {
    /// Of this text.
    pub(crate) fn new(text: String) -> Self {
        Self { text }
    }

    fn count(&self, part: &str) -> usize {
        self.text.lines().filter(|line| line.contains(part)).count()
    }

    /// Orders that were made.
    pub(crate) fn orders(&self) -> usize {
        self.count("Added order ")
    }

    /// Certificates that were issued.
    pub(crate) fn issued(&self) -> usize {
        self.count("Issued certificate serial ")
    }

    /// Authorizations that failed.
    pub(crate) fn invalid(&self) -> usize {
        self.count(" set INVALID by completed challenge ")
    }

    /// Challenges that were declared ready.
    pub(crate) fn declared_ready(&self) -> usize {
        self.count("POST /chalZ/ -> ")
    }

    /// All requests.
    pub(crate) fn requests(&self) -> usize {
        self.count(" -> calling handler()")
    }

    /// Requests by what was asked.
    pub(crate) fn by_kind(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for line in self.text.lines() {
            let asked = line.split_once(" -> calling handler()");
            // Before it: date, time and "METHOD PATTERN".
            if let Some(kind) = asked.and_then(|(head, _)| head.rsplit(' ').next()) {
                *counts.entry(kind).or_default() += 1;
            }
        }
        counts
    }

    /// Whether a hostname was validated by HTTP.
    pub(crate) fn asked_by_http(&self, hostname: &str) -> bool {
        self.count(&format!(
            "Attempting to validate w/ HTTP: http://{hostname}:"
        )) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_orders_are_counted() {
        let log = Log::new(
            "Pebble 2026/11/21 18:00:00 Listening on: 0.0.0.0:14000\n\
             Pebble 2026/11/21 18:00:01 POST /order-plz -> calling handler()\n\
             Pebble 2026/11/21 18:00:01 Added order \"a\" to the db\n\
             Pebble 2026/11/21 18:00:01 There are now 1 orders in the db\n\
             Pebble 2026/11/21 18:00:02 POST /chalZ/ -> calling handler()\n\
             Pebble 2026/11/21 18:00:03 Attempting to validate w/ HTTP: http://a.test:80/x\n"
                .to_owned(),
        );
        assert_eq!(
            (log.orders(), log.requests(), log.declared_ready()),
            (1, 2, 1)
        );
        assert_eq!(log.by_kind()["/order-plz"], 1);
        assert!(log.asked_by_http("a.test") && !log.asked_by_http("b.test"));
    }
}
