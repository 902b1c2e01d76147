//! Owns connecting to one endpoint of a backend.
//!
//! If that fails, nothing was sent yet. So the caller can try another endpoint, whatever the connection is for, within
//! one deadline for all attempts. Failures after the connection is open are not handled here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::SockRef;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use crate::acknowledgement;
use crate::backend::{Backend, Target};
use crate::close_reason::CloseReason;
use crate::deadline::within;
use crate::health::EndpointFailure;
use crate::keepalive::set_keepalive;
use crate::plane::DataPlane;
use crate::proxy_header::write::{self, ClientConnection};
use crate::upstream::{Alpn, Credentials, Meter, Metered, Stream};

/// The traffic that a connection to a backend carries.
#[derive(Clone, Copy)]
pub(crate) enum Carries<'a> {
    /// The bytes of the client, which are already TLS.
    Passthrough,
    /// Plain bytes, for instance those from within a client's TLS. They are sent over TLS if the backend's policy says
    /// so.
    Terminated(&'a Credentials),
}

/// Connects to one endpoint of `backend` for the connection of a client, and records whether that succeeded.
pub(crate) async fn connect(
    plane: &DataPlane,
    backend: &Backend,
    endpoint: SocketAddr,
    carries: Carries<'_>,
    client: Option<&ClientConnection<'_>>,
    allowed: Duration,
) -> Result<Stream, CloseReason> {
    let target = &backend.target;
    let result = match carries {
        Carries::Passthrough => {
            let begun = begin(plane, target, endpoint, FirstBytes::Ours, client, allowed).await;
            begun.map(|tcp| Stream::Plain(Metered::new(tcp, meter(plane, endpoint))))
        }
        Carries::Terminated(credentials) => {
            let alpn = Alpn::None;
            open(plane, target, credentials, endpoint, alpn, client, allowed).await
        }
    };
    match &result {
        Ok(_) => plane.endpoint_succeeded(backend, endpoint),
        // These fail for every endpoint alike.
        Err(CloseReason::BackendTlsInvalid) => {}
        Err(reason @ CloseReason::OutOfSockets) => plane.metrics.connect_failed(reason.reason()),
        Err(reason) => {
            let reason = reason.reason();
            plane.metrics.connect_failed(reason);
            plane.endpoint_failed(backend, endpoint, EndpointFailure::Connect, reason);
        }
    }
    result
}

/// A meter for a new connection to `endpoint`.
fn meter(plane: &DataPlane, endpoint: SocketAddr) -> Arc<Meter> {
    let lines = plane.limits.access_log_lines_per_second;
    Meter::new(&plane.metrics, lines, endpoint)
}

/// The side that sends the first bytes on a connection to a backend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// This proxy, as soon as the connection is open.
    Ours,
    /// Perhaps the backend: some protocols begin with a greeting of the server.
    Unknown,
}

/// Connects to one endpoint of `target` over TCP, and sends the PROXY header that it expects, if it does. Nothing else is
/// sent before it, whatever the connection is for.
async fn begin(
    plane: &DataPlane,
    target: &Target,
    endpoint: SocketAddr,
    first: FirstBytes,
    client: Option<&ClientConnection<'_>>,
    allowed: Duration,
) -> Result<TcpStream, CloseReason> {
    let begun = Instant::now();
    let mut tcp = attempt(plane, endpoint, first, allowed).await?;
    if let Some(version) = target.send_proxy {
        let header = write::header(version, client);
        let left = allowed.saturating_sub(begun.elapsed());
        // In a box, because most connections have no header.
        let sent = Box::pin(introduce(&mut tcp, &header, first));
        let sent = within(left, sent).await;
        let sent = sent.map_err(|_| CloseReason::BackendConnectTimeout)?;
        sent.map_err(|error| {
            tracing::debug!(%endpoint, %error, "the PROXY header could not be sent");
            CloseReason::BackendConnectFailed
        })?;
    }
    Ok(tcp)
}

/// Sends a PROXY header. If bytes of this proxy follow at once, the kernel keeps it until then, so that both are in one
/// packet.
async fn introduce(tcp: &mut TcpStream, header: &[u8], first: FirstBytes) -> io::Result<()> {
    let mut rest = header;
    if first == FirstBytes::Ours {
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        let sent = tcp.try_io(Interest::WRITABLE, || {
            rustix::net::send(&*tcp, header, flags).map_err(io::Error::from)
        });
        match sent {
            Ok(sent) => rest = header.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    tcp.write_all(rest).await
}

/// Connects to one endpoint over TCP, unless it is a socket of this proxy itself.
async fn attempt(
    plane: &DataPlane,
    endpoint: SocketAddr,
    first: FirstBytes,
    allowed: Duration,
) -> Result<TcpStream, CloseReason> {
    if plane.own_sockets.contain(endpoint) {
        tracing::debug!(%endpoint, "a backend is this proxy itself");
        return Err(CloseReason::BackendLoop);
    }
    let begun = Instant::now();
    match within(allowed, dial(endpoint, first, plane.limits.keepalive)).await {
        Ok(Ok(stream)) => {
            let took = begun.elapsed().as_secs_f64();
            plane.metrics.connect_seconds.observe(took);
            Ok(stream)
        }
        Ok(Err(error)) if is_used_up(&error) => {
            if plane.may_warn(Instant::now()) {
                tracing::warn!(%endpoint, %error, "cannot open sockets for connections to backends");
            }
            Err(CloseReason::OutOfSockets)
        }
        Ok(Err(error)) => {
            tracing::debug!(%endpoint, %error, "a connection to a backend failed");
            Err(CloseReason::BackendConnectFailed)
        }
        Err(_) => {
            tracing::debug!(%endpoint, ?allowed, "a connection to a backend timed out");
            Err(CloseReason::BackendConnectTimeout)
        }
    }
}

/// Whether descriptors, ports or memory for sockets are used up on this side.
fn is_used_up(error: &io::Error) -> bool {
    let used_up = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::ADDRNOTAVAIL,
        Errno::NOBUFS,
        Errno::NOMEM,
    ];
    Errno::from_io_error(error).is_some_and(|errno| used_up.contains(&errno))
}

async fn dial(
    endpoint: SocketAddr,
    first: FirstBytes,
    keepalive: Duration,
) -> io::Result<TcpStream> {
    let socket = match endpoint {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_nodelay(true)?;
    let options = SockRef::from(&socket);
    set_keepalive(&options, keepalive)?;
    if first == FirstBytes::Ours {
        // Then the last packet of the handshake of TCP carries these bytes.
        acknowledgement::with_reply(&socket)?;
    }
    socket.connect(endpoint).await
}

/// Connects to one endpoint of `target`, once. `client` is the connection whose bytes are to be carried; `None` if the
/// connection is for requests, which may be those of several clients.
pub(crate) async fn open(
    plane: &DataPlane,
    target: &Target,
    credentials: &Credentials,
    endpoint: SocketAddr,
    alpn: Alpn,
    client: Option<&ClientConnection<'_>>,
    allowed: Duration,
) -> Result<Stream, CloseReason> {
    // This is checked before anything is sent: without valid settings no connection is made.
    let settings = match &target.tls {
        None => None,
        Some(tls) => Some((tls.config(credentials, alpn)?, tls.name.clone())),
    };
    let first = match alpn {
        Alpn::None if settings.is_none() => FirstBytes::Unknown,
        _ => FirstBytes::Ours,
    };
    let begun = Instant::now();
    let tcp = begin(plane, target, endpoint, first, client, allowed).await?;
    let tcp = Metered::new(tcp, meter(plane, endpoint));
    let Some((config, name)) = settings else {
        return Ok(Stream::Plain(tcp));
    };
    let left = allowed.saturating_sub(begun.elapsed());
    let handshake = TlsConnector::from(config).connect(name, tcp);
    match within(left, Box::pin(handshake)).await {
        Ok(Ok(stream)) => {
            if matches!(credentials, Credentials::Withheld) {
                plane.metrics.backend_certificates_withheld.inc();
            }
            Ok(Stream::tls(stream))
        }
        Ok(Err(error)) => {
            tracing::debug!(%endpoint, %error, "the TLS handshake with a backend failed");
            Err(CloseReason::BackendTlsFailed)
        }
        Err(_) => {
            tracing::debug!(%endpoint, ?allowed, "the TLS handshake with a backend timed out");
            Err(CloseReason::BackendConnectTimeout)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_not_to_blame_for_what_is_used_up_here() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL] {
            assert!(is_used_up(&errno.into()), "{errno:?}");
        }
        for errno in [Errno::CONNREFUSED, Errno::NETUNREACH, Errno::TIMEDOUT] {
            assert!(!is_used_up(&errno.into()), "{errno:?}");
        }
    }
}
