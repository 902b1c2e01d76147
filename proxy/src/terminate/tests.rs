use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConnection, SupportedProtocolVersion};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::session::MAX_CONTROL;
use super::*;
use crate::record::content;
use crate::side::over;

/// The ends of a tunnel that the proxy holds, and the blocking sockets at their other ends.
struct Rig {
    client: TcpStream,
    backend: TcpStream,
    session: Box<TlsSession>,
    moved: Moved,
    tls: ClientConnection,
    far_client: std::net::TcpStream,
    far_backend: std::net::TcpStream,
}

fn configs(version: &'static SupportedProtocolVersion) -> (Arc<ServerConfig>, ClientConnection) {
    let made = rcgen::generate_simple_self_signed(["a.example.com".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    prepare(&mut server);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("a.example.com").unwrap();
    let client = ClientConnection::new(Arc::new(client), name).unwrap();
    (Arc::new(server), client)
}

async fn connected() -> (TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await;
    (near.unwrap(), listener.accept().unwrap().0)
}

async fn rig(version: &'static SupportedProtocolVersion) -> Rig {
    let (config, mut tls) = configs(version);
    let (mut client, mut far_client) = connected().await;
    let (backend, far_backend) = connected().await;
    let shaking = std::thread::spawn(move || {
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut far_client).unwrap();
        }
        (tls, far_client)
    });
    let Handshaken { session, .. } = handshake(&mut client, config, Vec::new()).await.unwrap();
    let (tls, far_client) = shaking.join().unwrap();
    Rig {
        client,
        backend,
        session,
        moved: Moved::default(),
        tls,
        far_client,
        far_backend,
    }
}

impl Rig {
    fn tunnel(&mut self) -> Tunnel<'_> {
        Tunnel::new(
            &mut self.client,
            &mut self.backend,
            &mut self.moved,
            &mut self.session,
        )
    }
}

#[derive(Default)]
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn tunnel_that_always_has_data_waits_behind_the_driver() {
    const READ: usize = MAX_BATCH * MAX_PLAINTEXT;
    let mut rig = rig(&TLS13).await;
    let mut sends = rig.far_backend.try_clone().unwrap();
    let mut takes = rig.far_client.try_clone().unwrap();
    std::thread::spawn(move || {
        let bytes = vec![0; 1 << 18];
        while sends.write_all(&bytes).is_ok() {}
    });
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 18];
        while takes.read(&mut buffer).is_ok_and(|read| read > 0) {}
    });
    let mut tunnel = rig.tunnel();
    loop {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let before = tunnel.moved.down;
        let poll = Pin::new(&mut tunnel).poll(&mut Context::from_waker(&waker));
        let woken = count.0.load(Ordering::SeqCst);
        assert!(poll.is_pending());
        assert_eq!(woken, 0, "before the driver was looked at");
        tokio::task::yield_now().await;
        // Only all rounds together move this much.
        let moved = usize::try_from(tunnel.moved.down - before).unwrap();
        assert!(moved <= TURN, "{moved}");
        if moved > (ROUNDS_DOWN - 1) * READ {
            assert_ne!(count.0.load(Ordering::SeqCst), 0, "and then at once");
            return;
        }
    }
}

/// The kernel says whether it waits with acknowledgements until there are data to send along.
#[tokio::test]
async fn a_client_that_waits_for_an_acknowledgement_of_its_handshake_has_it_at_once() {
    let rig = rig(&TLS13).await;
    let socket = SockRef::from(&rig.client);
    assert!(socket.tcp_quickack().unwrap());
}

/// Polls the tunnel until the client has got something, and returns the number of tickets and the plaintext of all that
/// had arrived by then.
async fn first_arrival(rig: &mut Rig) -> (u32, Vec<u8>) {
    let mut far_client = rig.far_client.try_clone().unwrap();
    far_client.set_nonblocking(true).unwrap();
    let mut arrived = vec![0; 1 << 14];
    let nothing = far_client.read(&mut arrived).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    let mut tunnel = rig.tunnel();
    let length = std::future::poll_fn(|cx| {
        let _ = Pin::new(&mut tunnel).poll(cx);
        yield_now(cx);
        far_client
            .read(&mut arrived)
            .map_or(Poll::Pending, Poll::Ready)
    })
    .await;
    drop(tunnel);
    let mut bytes = &arrived[..length];
    while !bytes.is_empty() {
        rig.tls.read_tls(&mut bytes).unwrap();
        rig.tls.process_new_packets().unwrap();
    }
    let mut plaintext = vec![0; 1 << 14];
    let length = rig.tls.reader().read(&mut plaintext).unwrap_or_default();
    plaintext.truncate(length);
    (rig.tls.tls13_tickets_received(), plaintext)
}

#[tokio::test]
async fn tickets_go_with_the_first_data() {
    let mut rig = rig(&TLS13).await;
    rig.far_backend.write_all(b"hello").unwrap();
    assert_eq!(first_arrival(&mut rig).await, (2, b"hello".to_vec()));
}

#[tokio::test]
async fn tickets_go_with_the_end_if_there_are_no_data() {
    let mut rig = rig(&TLS13).await;
    rig.far_backend.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(first_arrival(&mut rig).await, (2, Vec::new()));
}

/// The client's bytes wait, so the reset is met by a write before it is met by a read.
#[tokio::test]
async fn a_reset_that_a_write_has_met_is_no_end() {
    for version in [&TLS12, &TLS13] {
        for ends_before in [false, true] {
            let Rig {
                mut client,
                mut backend,
                mut session,
                mut moved,
                mut tls,
                mut far_client,
                mut far_backend,
            } = rig(version).await;
            far_backend.write_all(b"half an answer").unwrap();
            if ends_before {
                far_backend.shutdown(std::net::Shutdown::Write).unwrap();
            }
            let linger = SockRef::from(&far_backend).set_linger(Some(Duration::ZERO));
            linger.unwrap();
            drop(far_backend);
            over(&backend).await;
            // As the worker sets it: a reset throws away what the socket still holds back.
            client.set_nodelay(true).unwrap();
            let mut tunnel = Tunnel::new(&mut client, &mut backend, &mut moved, &mut session);
            tunnel.up.rest = Rest::new(Box::from(b"a request".as_slice()));
            assert_eq!(tunnel.await, TunnelEnd::Broken(Side::Backend));
            drop((client, backend));
            let mut arrived = Vec::new();
            let end = far_client.read_to_end(&mut arrived);
            // After an end, whether the reset is seen depends on who is first.
            assert!(end.is_err() || ends_before);
            let mut arrived = arrived.as_slice();
            while tls.read_tls(&mut arrived).unwrap() != 0 {
                tls.process_new_packets().unwrap();
            }
            let mut got = Vec::new();
            let read = tls.reader().read_to_end(&mut got);
            assert_eq!(got, b"half an answer");
            assert_eq!(read.is_ok(), ends_before, "{read:?}");
        }
    }
}

#[tokio::test]
async fn answers_to_a_client_that_does_not_read_do_not_pile_up() {
    for (version, message) in [(&TLS13, &[24, 0, 0, 1, 1][..]), (&TLS12, &[1, 0, 0, 0])] {
        let mut rig = rig(version).await;
        let session = &mut rig.session;
        let mut one = None;
        for _ in 0..MAX_CONTROL {
            let answered = session.control_record(content::HANDSHAKE, message);
            assert!(matches!(answered, Ok(false)));
            let pending = session.queued.len();
            assert_ne!(pending, 0);
            assert_eq!(*one.get_or_insert(pending), pending, "{version:?}");
        }
        let more = session.control_record(content::HANDSHAKE, message);
        assert!(matches!(more, Err(Unreadable::Protocol(_))));
    }
}

#[tokio::test]
async fn keys_that_cannot_be_updated_end_with_close_notify() {
    let mut rig = rig(&TLS12).await;
    rig.session.sealing.exhaust();
    assert_eq!(rig.tunnel().await, TunnelEnd::Exhausted);
    drop((rig.client, rig.backend));
    let mut stream = rustls::Stream::new(&mut rig.tls, &mut rig.far_client);
    // An end without close_notify would be an error here.
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    let error = rig.far_backend.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_handshake_holds_no_more_than_its_limit() {
    let (config, mut tls) = configs(&TLS12);
    let (mut client, mut far) = connected().await;
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    let shaking = std::thread::spawn(move || {
        // This message announces more bytes than ever follow.
        let mut sent = vec![16, 0, 0xff, 0xf0];
        sent.resize(32 * 1024, 0);
        far.write_all(&hello).unwrap();
        for fragment in sent.chunks(1 << 14) {
            let length = u16::try_from(fragment.len()).unwrap().to_be_bytes();
            far.write_all(&[&[22, 3, 3], &length[..], fragment].concat())
                .unwrap();
        }
        far.shutdown(std::net::Shutdown::Write).unwrap();
        far
    });
    let result = handshake(&mut client, config, Vec::new()).await;
    assert!(matches!(result, Err(HandshakeError::TooLarge)));
    shaking.join().unwrap();
}

#[test]
fn unread_bytes_of_a_closed_client_are_discarded_in_a_limited_number_of_reads() {
    let mut reads = 0;
    discard_unread(|_| {
        reads += 1;
        Ok(1)
    });
    assert_eq!(reads, MAX_DISCARDS);
}

/// What the client sends, through `stream`, until it ends.
async fn read_all(stream: &mut TlsStream, room: usize) -> std::io::Result<Vec<u8>> {
    let (mut all, mut piece) = (Vec::new(), vec![0; room]);
    loop {
        match stream.read(&mut piece).await? {
            0 => return Ok(all),
            read => all.extend_from_slice(&piece[..read]),
        }
    }
}

/// Bytes of which no two pieces look alike.
fn counted(length: usize) -> Vec<u8> {
    let byte = |n: usize| u8::try_from((n / 7 + n / 1000) % 251).unwrap();
    (0..length).map(byte).collect()
}

#[tokio::test]
async fn a_stream_is_whole_whatever_is_read_and_written_at_once() {
    for version in [&TLS12, &TLS13] {
        for room in [1, 1000, 100_000] {
            let Rig {
                client,
                session,
                mut tls,
                mut far_client,
                ..
            } = rig(version).await;
            let length = if room == 1 { 40_000 } else { 400_000 };
            let tls13 = version.version == ProtocolVersion::TLSv1_3;
            let peer = std::thread::spawn(move || {
                let mut stream = rustls::Stream::new(&mut tls, &mut far_client);
                let mut got = vec![0; length];
                stream.read_exact(&mut got).unwrap();
                stream.write_all(&got).unwrap();
                if tls13 {
                    stream.conn.refresh_traffic_keys().unwrap();
                    stream.write_all(&got).unwrap();
                }
                stream.conn.send_close_notify();
                stream.flush().unwrap();
                // The end comes with close_notify, or this would be an error.
                assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
            });
            let mut stream = TlsStream::new(client, session);
            let all = counted(length);
            for (number, piece) in all.chunks(room * 3 + 1).enumerate() {
                if number % 2 == 0 {
                    stream.write_all(piece).await.unwrap();
                } else {
                    let (one, two) = piece.split_at(piece.len() / 3);
                    let pieces = [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(two)];
                    let written = stream.write_vectored(&pieces).await.unwrap();
                    stream.write_all(&piece[written..]).await.unwrap();
                }
            }
            stream.flush().await.unwrap();
            let back = read_all(&mut stream, room).await.unwrap();
            let times = if tls13 { 2 } else { 1 };
            assert!(back == all.repeat(times), "{version:?} {room}");
            stream.shutdown().await.unwrap();
            peer.join().unwrap();
        }
    }
}

#[tokio::test]
async fn a_stream_begins_with_what_the_handshake_left_over() {
    let mut rig = rig(&TLS13).await;
    let all = counted(30_000);
    let mut records = Vec::new();
    rig.tls.writer().write_all(&all).unwrap();
    while rig.tls.wants_write() {
        rig.tls.write_tls(&mut records).unwrap();
    }
    (rig.session.partial, rig.session.fresh) = (records.into(), true);
    rig.tls.send_close_notify();
    rig.tls.write_tls(&mut rig.far_client).unwrap();
    let mut stream = TlsStream::new(rig.client, rig.session);
    let read = read_all(&mut stream, 100).await.unwrap();
    assert!(read == all, "{}", read.len());
}

#[tokio::test]
async fn a_stream_that_the_client_ends_without_close_notify_is_not_whole() {
    let mut rig = rig(&TLS13).await;
    let mut peer = rustls::Stream::new(&mut rig.tls, &mut rig.far_client);
    peer.write_all(b"half").unwrap();
    rig.far_client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut stream = TlsStream::new(rig.client, rig.session);
    let error = read_all(&mut stream, 100).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_stream_answers_a_damaged_record_with_an_alert() {
    let mut rig = rig(&TLS13).await;
    let mut record = vec![content::DATA, 3, 3, 0, 100];
    record.resize(105, 7);
    rig.far_client.write_all(&record).unwrap();
    let mut stream = TlsStream::new(rig.client, rig.session);
    let error = read_all(&mut stream, 100).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    drop(stream);
    let mut peer = rustls::Stream::new(&mut rig.tls, &mut rig.far_client);
    let error = peer.read(&mut [0; 1]).unwrap_err();
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
}

#[tokio::test]
async fn a_stream_holds_little_for_a_client_that_does_not_read() {
    let rig = rig(&TLS13).await;
    let mut stream = TlsStream::new(rig.client, rig.session);
    let bytes = vec![0; 1 << 18];
    let mut cx = Context::from_waker(Waker::noop());
    let mut taken = 0;
    // The driver is asked in between, because only it sees that the socket has room again.
    for _ in 0..1000 {
        if let Poll::Ready(written) = Pin::new(&mut stream).poll_write(&mut cx, &bytes) {
            taken += written.unwrap();
        }
        tokio::task::yield_now().await;
    }
    assert!(taken > 0);
    let room = MAX_BATCH * (MAX_PLAINTEXT + MAX_OVERHEAD);
    assert!(stream.session.held() <= room);
}

#[tokio::test]
async fn a_stream_whose_keys_cannot_be_updated_ends() {
    for (version, goes_on) in [(&TLS12, false), (&TLS13, true)] {
        let mut rig = rig(version).await;
        rig.session.sealing.exhaust();
        let mut stream = TlsStream::new(rig.client, rig.session);
        let written = stream.write_all(b"more").await;
        assert_eq!(written.is_ok(), goes_on);
        if goes_on {
            let mut peer = rustls::Stream::new(&mut rig.tls, &mut rig.far_client);
            let mut got = [0; 4];
            peer.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"more");
        }
    }
}
