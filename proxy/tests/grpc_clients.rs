//! gRPC with what others wrote: the interop client and server of grpc-go, tonic, grpcurl, and h2spec, which sends what
//! HTTP/2 forbids.
//!
//! Ignored where they cannot be built: `e2e/tools/get grpc-interop-client grpc-interop-server grpcurl h2spec` builds
//! them, with Go.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use futures::SinkExt;
use futures::channel::mpsc;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use proto::BackendProtocol;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;

const HOST: &str = "api.example.com";
const BACKEND: &str = "team-a/one:80";
const CERTIFICATE: &str = "team-a/own";

/// The cases of grpc-go's interop client that a proxy can carry. The others are about credentials of Google's cloud,
/// about load that is balanced by the client, and about reports of a backend's load.
const CASES: [&str; 14] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
];

/// What grpcurl has to know of the interop server.
const SCHEMA: &str = r#"
syntax = "proto3";
package grpc.testing;
service TestService {
  rpc UnaryCall(SimpleRequest) returns (SimpleResponse);
}
message SimpleRequest { int32 response_size = 2; }
message SimpleResponse { Payload payload = 1; }
message Payload { bytes body = 2; }
"#;

fn tool(name: &str) -> PathBuf {
    let get = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/tools/get");
    let found = Command::new(get).arg(name).output().unwrap();
    let said = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "{name}: {said}");
    String::from_utf8(found.stdout).unwrap().trim().into()
}

/// A file that only one test writes.
fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs a tool to its end.
async fn run(name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(tool(name));
    command.args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output());
    within(name, output).await.unwrap().unwrap()
}

/// Both of a tool's outputs.
fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr];
    parts.map(|part| String::from_utf8_lossy(part)).concat()
}

/// grpc-go's server, until this is dropped.
struct Server {
    address: SocketAddr,
    child: Child,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(tool("grpc-interop-server"))
            .args(["--port", "0"])
            .env("GRPC_GO_LOG_SEVERITY_LEVEL", "info")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = lines.by_ref().find_map(|line| {
            let line = line.unwrap();
            let (_, port) = line.split_once("listening on [::]:")?;
            Some(port.trim().parse::<u16>().unwrap())
        });
        // Whatever else it says is read, so that it is never kept from saying it.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], port.expect("a port"))),
            child,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gRPC route to the server on one listener: with TLS if there is an identity.
fn rig(server: &Server, identity: Option<&Identity>) -> Rig {
    Rig::start(&quiet(), |port| {
        let certificate = identity.map(|identity| identity.resource(CERTIFICATE));
        let resources = [
            http(port, "web", "", identity.map(|_| CERTIFICATE)),
            grpc_route("web", "", vec![calls("", "", BACKEND)]),
            backend_of(BACKEND, &[server.address], BackendProtocol::Unspecified),
        ];
        certificate.into_iter().chain(resources).collect()
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs grpc-go's interop programs, which e2e/tools/get builds"]
async fn grpc_go_s_client_and_server_understand_each_other() {
    let server = Server::start();
    let identity = Identity::new(HOST);
    let authority = temporary("interop-ca.pem");
    let pem = pem::Pem::new("CERTIFICATE", identity.chain[0].to_vec());
    std::fs::write(&authority, pem::encode(&pem)).unwrap();
    let ca_file = format!("--ca_file={}", authority.display());
    let override_name = format!("--server_host_override={HOST}");
    let secured = ["--use_tls", "--use_test_ca", &ca_file, &override_name];
    for (identity, with) in [(None, &[][..]), (Some(&identity), &secured[..])] {
        let rig = rig(&server, identity);
        let port = format!("--server_port={}", rig.address.port());
        for case in CASES {
            let case = format!("--test_case={case}");
            let arguments = [&["--server_host=127.0.0.1", &port, &case][..], with].concat();
            let output = run("grpc-interop-client", &arguments).await;
            assert!(
                output.status.success(),
                "{case} {with:?}:\n{}",
                text(&output)
            );
        }
    }
}

/// The messages of the interop server that are used here, as tonic reads them.
mod messages {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Payload {
        #[prost(bytes = "vec", tag = "2")]
        pub(super) body: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct EchoStatus {
        #[prost(int32, tag = "1")]
        pub(super) code: i32,
        #[prost(string, tag = "2")]
        pub(super) message: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct SimpleRequest {
        #[prost(int32, tag = "2")]
        pub(super) response_size: i32,
        #[prost(message, optional, tag = "7")]
        pub(super) response_status: Option<EchoStatus>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ResponseParameters {
        #[prost(int32, tag = "1")]
        pub(super) size: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct StreamingRequest {
        #[prost(message, repeated, tag = "2")]
        pub(super) response_parameters: Vec<ResponseParameters>,
    }

    /// An answer of `UnaryCall` and of the calls with a stream of answers.
    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Answer {
        #[prost(message, optional, tag = "1")]
        pub(super) payload: Option<Payload>,
    }

    impl Answer {
        pub(super) fn length(self) -> usize {
            self.payload.unwrap_or_default().body.len()
        }
    }

    /// A question of `StreamingInputCall`.
    #[derive(Clone, PartialEq, Message)]
    pub(super) struct InputRequest {
        #[prost(message, optional, tag = "1")]
        pub(super) payload: Option<Payload>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct InputAnswer {
        #[prost(int32, tag = "1")]
        pub(super) aggregated_payload_size: i32,
    }
}

use messages::{
    Answer, EchoStatus, InputAnswer, InputRequest, Payload, ResponseParameters, SimpleRequest,
    StreamingRequest,
};

type Tonic = tonic::client::Grpc<Channel>;

/// A client of tonic, over TLS if there is an identity.
async fn tonic_client(address: SocketAddr, identity: Option<&Identity>) -> Tonic {
    let channel = if let Some(identity) = identity {
        let mut config = client_config(identity);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let endpoint = Endpoint::from_shared(format!("http://{HOST}")).unwrap();
        let connector = tower::service_fn(move |_| {
            let config = config.clone();
            async move {
                let stream = tokio::net::TcpStream::connect(address).await?;
                tls(stream, config, HOST).await.map(TokioIo::new)
            }
        });
        within("a channel", endpoint.connect_with_connector(connector)).await
    } else {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        within("a channel", endpoint.connect()).await
    };
    Tonic::new(channel.unwrap())
}

fn method(name: &str) -> PathAndQuery {
    format!("/grpc.testing.TestService/{name}")
        .try_into()
        .unwrap()
}

async fn unary(client: &mut Tonic, request: SimpleRequest) -> Result<usize, Status> {
    within("readiness", client.ready()).await.unwrap();
    let codec = ProstCodec::<SimpleRequest, Answer>::default();
    let call = client.unary(tonic::Request::new(request), method("UnaryCall"), codec);
    let answer = within("an answer", call).await?;
    Ok(answer.into_inner().length())
}

fn sizes(sizes: &[i32]) -> StreamingRequest {
    let parameters = sizes.iter().map(|size| ResponseParameters { size: *size });
    StreamingRequest {
        response_parameters: parameters.collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs grpc-go's interop server, which e2e/tools/get builds"]
async fn tonic_calls_and_streams_and_a_stream_outlives_its_route() {
    let server = Server::start();
    let identity = Identity::new(HOST);
    for identity in [None, Some(&identity)] {
        let mut rig = rig(&server, identity);
        let mut client = tonic_client(rig.address, identity).await;
        let length = |response_size| SimpleRequest {
            response_size,
            ..SimpleRequest::default()
        };
        assert_eq!(unary(&mut client, length(100_000)).await.unwrap(), 100_000);
        let status = SimpleRequest {
            response_status: Some(EchoStatus {
                code: Code::DataLoss.into(),
                message: "lost, ü and all".into(),
            }),
            ..SimpleRequest::default()
        };
        let status = unary(&mut client, status).await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::DataLoss, "lost, ü and all")
        );

        within("readiness", client.ready()).await.unwrap();
        let call = client.server_streaming(
            tonic::Request::new(sizes(&[3, 70_000, 0])),
            method("StreamingOutputCall"),
            ProstCodec::<StreamingRequest, Answer>::default(),
        );
        let mut answers = within("a stream", call).await.unwrap().into_inner();
        let mut lengths = Vec::new();
        while let Some(answer) = within("a message", answers.message()).await.unwrap() {
            lengths.push(answer.length());
        }
        assert_eq!(lengths, [3, 70_000, 0]);

        within("readiness", client.ready()).await.unwrap();
        let questions = [1, 20_000, 300].map(|length| InputRequest {
            payload: Some(Payload {
                body: vec![0; length],
            }),
        });
        let call = client.client_streaming(
            tonic::Request::new(futures::stream::iter(questions)),
            method("StreamingInputCall"),
            ProstCodec::<InputRequest, InputAnswer>::default(),
        );
        let sum = within("a sum", call).await.unwrap().into_inner();
        assert_eq!(sum.aggregated_payload_size, 20_301);

        // A stream in both directions goes on after its route is gone. What is asked then has none.
        within("readiness", client.ready()).await.unwrap();
        let (mut questions, asked) = mpsc::channel(1);
        let call = client.streaming(
            tonic::Request::new(asked),
            method("FullDuplexCall"),
            ProstCodec::<StreamingRequest, Answer>::default(),
        );
        questions.send(sizes(&[5])).await.unwrap();
        let mut answers = within("a stream", call).await.unwrap().into_inner();
        let answer = within("a message", answers.message()).await.unwrap();
        assert_eq!(answer.unwrap().length(), 5);
        let other = calls("grpc.testing.Other", "", BACKEND);
        assert_eq!(
            rig.apply(vec![grpc_route("web", "", vec![other])]),
            Vec::<String>::new()
        );
        let status = unary(&mut client, length(1)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        questions.send(sizes(&[7])).await.unwrap();
        let answer = within("a message", answers.message()).await.unwrap();
        assert_eq!(answer.unwrap().length(), 7);
        drop(questions);
        assert!(
            within("the end", answers.message())
                .await
                .unwrap()
                .is_none()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs grpcurl, which e2e/tools/get builds"]
async fn grpcurl_gets_answers_and_is_told_in_its_words_what_is_not_served() {
    let server = Server::start();
    std::fs::write(temporary("interop.proto"), SCHEMA).unwrap();
    let mut rig = rig(&server, None);
    let address = rig.address.to_string();
    let call = [
        "-plaintext",
        "-import-path",
        env!("CARGO_TARGET_TMPDIR"),
        "-proto",
        "interop.proto",
        "-d",
        r#"{"responseSize": 3}"#,
        &address,
        "grpc.testing.TestService/UnaryCall",
    ];
    let output = run("grpcurl", &call).await;
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(r#""body": "AAAA""#), "{output:?}");

    // A backend without endpoints.
    rig.apply(vec![backend_of(BACKEND, &[], BackendProtocol::Unspecified)]);
    let said = text(&run("grpcurl", &call).await);
    assert!(said.contains("Code: Unavailable"), "{said}");

    // No rule for the method.
    let other = calls("grpc.testing.Other", "", BACKEND);
    rig.apply(vec![grpc_route("web", "", vec![other])]);
    let said = text(&run("grpcurl", &call).await);
    assert!(said.contains("Code: Unimplemented"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs h2spec, which e2e/tools/get builds"]
async fn h2spec_finds_nothing_wrong_with_a_grpc_host() {
    let server = Server::start();
    let identity = Identity::new(HOST);
    // What is no call of gRPC goes to this one. It reads a request to its end before it answers: an answer that is faster
    // than what h2spec does wrong would leave nothing to find fault with.
    let web = serve(|stream| {
        serve_http(stream, false, |request: Request<Incoming>| async {
            let _ = request.into_body().collect().await;
            Response::new(Full::new(Bytes::from_static(b"whole")))
        })
    });
    let web = web.await;
    for identity in [Some(&identity), None] {
        let mut rig = rig(&server, identity);
        let rules = vec![rule("/", "team-a/web:80")];
        let backend = backend("team-a/web:80", &[web]);
        rig.apply(vec![http_route("web", "", rules), backend]);
        let port = rig.address.port().to_string();
        let with = identity.map_or(&[][..], |_| &["-t", "-k"]);
        let arguments = [&["-h", "127.0.0.1", "-p", &port, "-o", "20"][..], with].concat();
        let output = run("h2spec", &arguments).await;
        let said = text(&output);
        if identity.is_some() {
            assert!(said.contains("145 tests, 145 passed"), "{said}");
        } else {
            // A port without TLS speaks HTTP/1.1 as well, and answers what is neither in HTTP/1.1. h2spec wants no answer.
            assert!(said.contains("145 tests, 144 passed"), "{said}");
            assert!(
                said.contains("2: Sends invalid connection preface"),
                "{said}"
            );
        }
    }
}
