//! The proxy's end of the configuration stream against operators that do not behave.

use std::io;

use hyper_util::rt::TokioIo;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, transport::Channel};
use vestibule_operator::publish;
use vestibule_operator_testing::stream::{BOUND, Proxy, backend};
use vestibule_stream::{
    Batch, Digest, Generation, PROTOCOL_VERSION,
    client::{Connect, ConnectError, endpoint},
    proto::{
        Ack, OperatorMessage, ProxyMessage, Upsert, Welcome,
        config_stream_server::{ConfigStream, ConfigStreamServer},
        operator_message::Message as FromOperator,
        proxy_message::Message as FromProxy,
    },
};

/// An operator that sends what the test says and hands over what comes back.
struct Script {
    messages: parking_lot::Mutex<Option<mpsc::Receiver<Result<OperatorMessage, Status>>>>,
    heard: mpsc::Sender<FromProxy>,
}

#[tonic::async_trait]
impl ConfigStream for Script {
    type SubscribeStream = ReceiverStream<Result<OperatorMessage, Status>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<ProxyMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let messages = self.messages.lock().take();
        let messages = messages.ok_or_else(|| Status::unavailable("only once"))?;
        let heard = self.heard.clone();
        let mut inbound = request.into_inner();
        tokio::spawn(async move {
            while let Some(Ok(ProxyMessage {
                message: Some(message),
            })) = inbound.next().await
            {
                let _ = heard.send(message).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

struct Pipe(parking_lot::Mutex<Option<tokio::io::DuplexStream>>);

impl Connect for Pipe {
    async fn connect(&self, _address: &str) -> Result<Channel, ConnectError> {
        let near = self.0.lock().take();
        let mut near = Some(near.ok_or("only once")?);
        let connector = tower::service_fn(move |_| {
            let near = near.take().ok_or(io::ErrorKind::NotConnected);
            async move { near.map(TokioIo::new).map_err(io::Error::from) }
        });
        Ok(endpoint("pipe.invalid:1")?
            .connect_with_connector(connector)
            .await?)
    }
}

struct Operator {
    messages: mpsc::Sender<Result<OperatorMessage, Status>>,
    heard: mpsc::Receiver<FromProxy>,
}

impl Operator {
    fn start() -> (Self, Pipe) {
        let (messages, script) = mpsc::channel(8);
        let (heard, from_proxy) = mpsc::channel(8);
        let (near, far) = tokio::io::duplex(1 << 16);
        let service = ConfigStreamServer::new(Script {
            messages: parking_lot::Mutex::new(Some(script)),
            heard,
        });
        let incoming = tokio_stream::once(Ok::<_, io::Error>(far));
        tokio::spawn(
            publish::server()
                .add_service(service)
                .serve_with_incoming(incoming),
        );
        let operator = Self {
            messages,
            heard: from_proxy,
        };
        (operator, Pipe(parking_lot::Mutex::new(Some(near))))
    }

    async fn send(&self, message: FromOperator) {
        let message = Some(message);
        self.messages
            .send(Ok(OperatorMessage { message }))
            .await
            .unwrap();
    }

    async fn welcome(&mut self) {
        assert!(matches!(self.hear().await, FromProxy::Hello(_)));
        let protocol = PROTOCOL_VERSION;
        self.send(FromOperator::Welcome(Welcome {
            protocol,
            ..Welcome::default()
        }))
        .await;
    }

    async fn hear(&mut self) -> FromProxy {
        timeout(BOUND, self.heard.recv()).await.unwrap().unwrap()
    }

    /// Sends a batch and returns the reason of its refusal, or "taken".
    async fn offer(&mut self, batch: Batch) -> String {
        self.send(FromOperator::Batch(batch)).await;
        match self.hear().await {
            FromProxy::Ack(Ack { refusal: None, .. }) => "taken".to_owned(),
            FromProxy::Ack(Ack {
                refusal: Some(refusal),
                ..
            }) => refusal.reason,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn corrupt_replayed_and_older_batches_are_refused_and_the_proxy_serves_on() {
    let (mut operator, pipe) = Operator::start();
    let mut proxy = Proxy::start("one", &["op:1".to_owned()], pipe);
    operator.welcome().await;
    let at = |counter| Generation::new(3, counter);
    let full = Batch::full(at(5), &[backend("a", 1)]).unwrap();
    let delta = |counter, base| {
        Batch::delta(at(counter), at(base), &[backend("b", 1)], Vec::new()).unwrap()
    };
    assert_eq!(operator.offer(delta(6, 5)).await, "NotFull");
    assert_eq!(operator.offer(full.clone()).await, "taken");
    assert_eq!(operator.offer(full).await, "StaleGeneration");
    let older = Batch::full(Generation::new(2, 9), &[]).unwrap();
    assert_eq!(operator.offer(older).await, "StaleGeneration");
    assert_eq!(operator.offer(delta(7, 6)).await, "BaseMismatch");
    let mut wrong = delta(6, 5);
    wrong.digest = Digest::default().to_vec();
    assert_eq!(operator.offer(wrong).await, "BaseMismatch");
    let mut corrupt = delta(6, 5);
    let resource = vec![0x0a, 0xff, 0xff, 0xff, 0xff].into();
    corrupt.upserts.push(Upsert { kind: 3, resource });
    assert_eq!(operator.offer(corrupt).await, "Malformed");
    assert_eq!(proxy.table.hashes().len(), 1);
    assert_eq!(proxy.table.generation(), Some(at(5)));
    {
        let state = proxy.state.borrow();
        assert_eq!(state.refusals["StaleGeneration"], 2);
        assert_eq!(state.last_refusal.as_ref().unwrap().reason, "Malformed");
        assert_eq!((state.held, state.welcomed), (Some(at(5)), 1));
    }
    assert_eq!(operator.offer(delta(6, 5)).await, "taken");
    assert_eq!(proxy.table.hashes().len(), 2);

    // The operator breaks off: what is in force stays.
    operator
        .messages
        .send(Err(Status::internal("gone")))
        .await
        .unwrap();
    proxy.until(|state| state.connected.is_none()).await;
    assert_eq!(proxy.table.hashes().len(), 2);
    assert_eq!(proxy.state.borrow().held, Some(at(6)));
}

#[tokio::test]
async fn an_operator_that_breaks_the_protocol_is_left() {
    let batch = Batch::full(Generation::new(1, 1), &[]).unwrap();
    let unspoken = Welcome {
        protocol: PROTOCOL_VERSION + 1,
        ..Welcome::default()
    };
    for message in [FromOperator::Batch(batch), FromOperator::Welcome(unspoken)] {
        let (mut operator, pipe) = Operator::start();
        let mut proxy = Proxy::start("one", &["op:1".to_owned()], pipe);
        operator.hear().await;
        operator.send(message).await;
        proxy
            .until(|state| state.refusals.contains_key("Protocol"))
            .await;
        assert_eq!(proxy.table.generation(), None);
    }
}

/// An `OperatorMessage` in which the batch is any bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct Damaged {
    #[prost(message, optional, tag = "1")]
    welcome: Option<Welcome>,
    #[prost(bytes = "vec", optional, tag = "5")]
    batch: Option<Vec<u8>>,
}

/// Answers every call with a welcome, a batch, and bytes that are none.
#[derive(Clone)]
struct Damaging;

impl tonic::server::NamedService for Damaging {
    const NAME: &'static str = "vestibule.stream.v1.ConfigStream";
}

impl tonic::server::StreamingService<ProxyMessage> for Damaging {
    type Response = Damaged;
    type ResponseStream = ReceiverStream<Result<Damaged, Status>>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<ProxyMessage>>) -> Self::Future {
        let mut inbound = request.into_inner();
        tokio::spawn(async move { while let Some(Ok(_)) = inbound.next().await {} });
        let welcome = Welcome {
            protocol: PROTOCOL_VERSION,
            ..Welcome::default()
        };
        let batch = Batch::full(Generation::new(1, 1), &[backend("a", 1)]).unwrap();
        let (messages, outbound) = mpsc::channel(3);
        for (welcome, batch) in [
            (Some(welcome), None),
            (None, Some(prost::Message::encode_to_vec(&batch))),
            (None, Some(vec![0xff; 9])),
        ] {
            messages.try_send(Ok(Damaged { welcome, batch })).unwrap();
        }
        std::future::ready(Ok(Response::new(ReceiverStream::new(outbound))))
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for Damaging {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::<Damaged, ProxyMessage>::default();
            Ok(tonic::server::Grpc::new(codec)
                .streaming(Damaging, request)
                .await)
        })
    }
}

#[tokio::test]
async fn a_message_that_does_not_decode_is_malformed_and_the_proxy_serves_on() {
    let (near, far) = tokio::io::duplex(1 << 16);
    let incoming = tokio_stream::once(Ok::<_, io::Error>(far));
    tokio::spawn(
        publish::server()
            .add_service(Damaging)
            .serve_with_incoming(incoming),
    );
    let pipe = Pipe(parking_lot::Mutex::new(Some(near)));
    let mut proxy = Proxy::start("one", &["op:1".to_owned()], pipe);
    proxy
        .until(|state| state.refusals.contains_key("Malformed"))
        .await;
    assert_eq!(proxy.state.borrow().held, Some(Generation::new(1, 1)));
    assert_eq!(proxy.table.hashes().len(), 1);
}
