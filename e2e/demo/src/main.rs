//! What the demo needs besides Vestibule: backends of its tenants, free ports, and a look at a
//! certificate. Everything is on loopback.

mod backends;
mod certificate;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "vestibule-demo")]
enum Arguments {
    /// Runs the tenants' backends until it is killed
    Backends(backends::Backends),
    /// Prints ports of 127.0.0.1 that are free now, the wanted one first if it is
    FreePorts {
        /// How many
        count: usize,
        /// The first, if it is free
        #[arg(long)]
        wanted: Option<u16>,
    },
    /// Makes a CA and a certificate of its own for a host, and prints it as a Secret
    Secret {
        /// namespace/name of the Secret
        name: String,
        /// The hostname
        host: String,
        /// Where to write the CA's certificate
        #[arg(long)]
        ca: PathBuf,
    },
    /// Prints subject, issuer and SHA-256 fingerprint of the first certificate (PEM) on its input
    #[command(subcommand)]
    Show(Show),
}

#[derive(Debug, Clone, Subcommand)]
enum Show {
    /// For people, on three lines
    Text,
    /// Only the fingerprint
    Fingerprint,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse() {
        Arguments::Backends(args) => args.run(),
        Arguments::FreePorts { count, wanted } => {
            // All are held until the last is found, so they differ.
            let mut held = Vec::new();
            held.extend(
                wanted.and_then(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()),
            );
            // Below those that outgoing connections take.
            let start = std::process::id() % 10_000;
            for offset in (start..10_000).chain(0..start) {
                if held.len() >= count {
                    break;
                }
                let port = u16::try_from(20_000 + offset)?;
                held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
            }
            anyhow::ensure!(held.len() >= count, "no {count} free ports");
            let ports: Vec<String> = held
                .iter()
                .map(|listener| Ok(listener.local_addr()?.port().to_string()))
                .collect::<io::Result<_>>()?;
            Ok(writeln!(io::stdout(), "{}", ports.join(" "))?)
        }
        Arguments::Secret { name, host, ca } => {
            let made = certificate::Made::new(&host, &format!("{name} demo CA"))?;
            std::fs::write(ca, &made.ca_pem)?;
            Ok(write!(io::stdout(), "{}", made.secret(&name)?)?)
        }
        Arguments::Show(what) => {
            let mut text = Vec::new();
            io::stdin().lock().take(1 << 20).read_to_end(&mut text)?;
            let seen = certificate::Seen::of_pem(&text)?;
            match what {
                Show::Text => writeln!(io::stdout(), "{seen}")?,
                Show::Fingerprint => writeln!(io::stdout(), "{}", seen.fingerprint)?,
            }
            Ok(())
        }
    }
}
