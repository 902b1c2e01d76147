//! Owns the handshakes of a CA that checks a hostname, with and without a challenge to answer.

use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::accesslog::ConnectionRecord;
use crate::challenge::{Challenge, ChallengeOutcome, ChallengeQuery, ChallengeReply, TLS_ALPN_01};
use crate::close_reason::CloseReason;
use crate::cut::linger;
use crate::deadline::within;
use crate::gate::{self, HandshakeCost};
use crate::plane::DataPlane;
use crate::replayed::Replayed;
use crate::terminate::NegotiatedTls;

/// Cost of a CA's handshake at the gate. The operator makes its key, which is one of ECDSA on P-256.
const CHALLENGE_UNITS: u8 = 1;
/// How long the end of the connection may take after the handshake.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Most bytes that are read after the handshake before the connection is closed. There should be none.
const MAX_UNREAD: usize = 16 * 1024;
/// A fatal `no_application_protocol` before any handshake message (RFC 7301 section 3.2).
const NO_APPLICATION_PROTOCOL: [u8; 7] = [21, 3, 3, 0, 2, 2, 120];

/// Whether a CA asks, and the proxy has no answer for it. It is counted.
pub(super) fn is_unanswered(plane: &DataPlane, question: Option<&ChallengeQuery>) -> bool {
    if let Some(question) = question {
        plane
            .metrics
            .challenge(question.kind(), ChallengeOutcome::Absent);
    }
    question.is_some()
}

/// Answers a CA with the challenge.
pub(super) async fn answer(
    client: TcpStream,
    challenge: Arc<Challenge>,
    replay: Vec<u8>,
    record: &mut ConnectionRecord,
) {
    let plane = Arc::clone(record.plane());
    let answered = match &challenge.answer {
        ChallengeReply::Tls(config) => {
            let cost = HandshakeCost {
                account: Arc::clone(&challenge.account),
                units: CHALLENGE_UNITS,
            };
            answer_tls(client, Arc::clone(config), cost, replay, &plane).await
        }
        // A hello never asks for an HTTP challenge.
        ChallengeReply::Http(_) => Err(CloseReason::Internal),
    };
    record.challenge(challenge);
    let (reason, outcome) = match answered {
        Ok(negotiated) => {
            record.set_negotiated(negotiated);
            (CloseReason::ChallengeAnswered, ChallengeOutcome::Answered)
        }
        Err(CloseReason::HandshakeTimeout) => {
            (CloseReason::HandshakeTimeout, ChallengeOutcome::Timeout)
        }
        Err(reason) => (reason, ChallengeOutcome::Failed),
    };
    record.reason = reason;
    plane.metrics.challenge(TLS_ALPN_01, outcome);
}

/// Answers a handshake: completes it with the challenge's certificate and closes. The protocol carries
/// no data (RFC 8737 section 4).
async fn answer_tls(
    client: TcpStream,
    config: Arc<ServerConfig>,
    cost: HandshakeCost,
    replay: Vec<u8>,
    plane: &DataPlane,
) -> Result<NegotiatedTls, CloseReason> {
    let accept = TlsAcceptor::from(config).accept(Replayed::new(replay, client));
    let accept = gate::pass(cost, accept);
    let accepted = within(plane.limits.handshake_deadline, accept).await;
    let mut stream = accepted
        .map_err(|_| CloseReason::HandshakeTimeout)??
        .map_err(|error| {
            tracing::debug!(%error, "the handshake of a challenge failed");
            CloseReason::HandshakeFailed
        })?;
    let negotiated = NegotiatedTls::of(stream.get_ref().1);
    // An error does not matter here: the CA has its answer, and may have closed the connection.
    let _ = within(LAST_WORDS, end(&mut stream)).await;
    Ok(negotiated)
}

/// Ends the sending direction, and then reads and drops what the client still sends, within bounds. If a socket is
/// closed with unread bytes, the kernel sends a reset, which could overtake the certificate.
async fn end(stream: &mut TlsStream<Replayed>) {
    if stream.shutdown().await.is_ok() {
        let (mut unread, mut left) = ([0; 1024], MAX_UNREAD);
        while let Ok(read @ 1..) = stream.read(&mut unread).await
            && left > read
        {
            left -= read;
        }
    }
}

/// Tells a CA that there is no challenge, by the alert of RFC 7301 for a protocol that the server does not speak.
///
/// Without a challenge, an [`ACME_TLS`] client never gets the certificate of a listener that terminates TLS. A listener
/// that ignores ALPN would complete the handshake, and the CA could only report that the certificate is a wrong one.
pub(super) async fn refuse_tls(mut client: TcpStream) {
    let refusal = async {
        if client.write_all(&NO_APPLICATION_PROTOCOL).await.is_ok() {
            linger(client).await;
        }
    };
    let _ = within(LAST_WORDS, refusal).await;
}
