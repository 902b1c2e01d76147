//! `openssl s_client`: what a client sees that says exactly what it wants to say.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use crate::tools::run;

/// What one handshake came to.
#[derive(Debug)]
pub(crate) struct Shown {
    text: String,
}

impl Shown {
    /// Connects with these further arguments, such as `-servername`.
    pub(crate) async fn of(address: SocketAddr, arguments: &[&str]) -> Result<Self> {
        let connect = address.to_string();
        let all = [&["s_client", "-connect", &connect], arguments].concat();
        let done = run("openssl".as_ref(), &all, &[], "").await?;
        Ok(Self {
            text: done.stdout + &done.stderr,
        })
    }

    /// Checks that a certificate of this issuer was shown.
    pub(crate) fn issued_by(&self, issuer: &str) -> Result<()> {
        let issuer = format!("issuer=CN = {issuer}");
        ensure!(self.text.contains(&issuer), "no {issuer}: {}", self.text);
        Ok(())
    }

    /// Checks that the first certificate of this PEM was shown.
    pub(crate) fn shows(&self, pem: &str) -> Result<()> {
        const END: &str = "-----END CERTIFICATE-----";
        let first = pem.split_inclusive(END).next().unwrap_or_default().trim();
        ensure!(
            first.ends_with(END) && self.text.contains(first),
            "another certificate: {}",
            self.text
        );
        Ok(())
    }

    /// Checks that ALPN agreed on this, or on nothing.
    pub(crate) fn agreed_on(&self, protocol: Option<&str>) -> Result<()> {
        let line = match protocol {
            Some(protocol) => format!("ALPN protocol: {protocol}\n"),
            None => "No ALPN negotiated\n".to_owned(),
        };
        ensure!(self.text.contains(&line), "no {line}: {}", self.text);
        Ok(())
    }

    /// Whether a session was taken up again.
    pub(crate) fn resumed(&self) -> bool {
        self.text.contains("\nReused, ")
    }

    /// Whether the handshake came to its end.
    pub(crate) fn finished(&self) -> bool {
        self.text.contains("Session-ID: ") && !self.text.contains("alert")
    }

    /// Checks that the connection was closed before any TLS was sent: no certificate, no alert.
    pub(crate) fn closed_silently(&self) -> Result<()> {
        let text = &self.text;
        ensure!(text.contains("no peer certificate available"), "{text}");
        ensure!(text.contains("read 0 bytes"), "{text}");
        Ok(())
    }
}
