//! Makes gRPC calls with tonic's client. If one of them does not end with status 0, the load fails.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use futures::stream;
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use super::{ClientArgs, LoadOutcome};
use crate::grpc::{DOWN, Raw, STREAM, UNARY};
use crate::wire::MESSAGE;

/// Options of the load.
#[derive(Args, Clone, Debug)]
pub(crate) struct CallArgs {
    /// Which method.
    #[arg(value_enum)]
    method: Method,
    /// Connections.
    connections: usize,
    /// Calls under way on each.
    calls: usize,
    /// How long, or for `down` how many messages in each call.
    amount: f64,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Method {
    /// One call after the other, with one message there and back.
    Unary,
    /// One call, with one message after the other there and back.
    Stream,
    /// One call, with so many messages from the server.
    Down,
}

/// Makes the load.
pub(super) async fn run(args: &ClientArgs, load: &CallArgs) -> Result<LoadOutcome> {
    let mut channels = Vec::new();
    for _ in 0..load.connections {
        let origin = format!("http://{}", args.name).parse()?;
        let endpoint = Endpoint::from_shared(format!("http://{}", args.target))?.origin(origin);
        let channel = endpoint.connect().await.context("connecting")?;
        // After this call both ends have exchanged their settings, and the proxy is connected to the backend.
        unary(&mut tonic::client::Grpc::new(channel.clone())).await?;
        channels.push(channel);
    }
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for channel in channels {
        for _ in 0..load.calls {
            let client = tonic::client::Grpc::new(channel.clone());
            tasks.spawn(lane(client, load.method, load.amount, begin));
        }
    }
    let mut answered = 0;
    while let Some(lane) = tasks.join_next().await {
        answered += lane??;
    }
    Ok(LoadOutcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections: load.connections,
        answered,
        ..LoadOutcome::default()
    })
}

type Client = tonic::client::Grpc<Channel>;

/// Makes calls one after the other, and returns how many messages came back.
async fn lane(mut client: Client, method: Method, amount: f64, begin: Instant) -> Result<usize> {
    let goes_on = || begin.elapsed() < Duration::from_secs_f64(amount);
    let mut count = 0;
    match method {
        Method::Unary => loop {
            unary(&mut client).await?;
            count += 1;
            if !goes_on() {
                break;
            }
        },
        Method::Stream => {
            let (sender, receiver) = mpsc::channel(1);
            let messages = stream::unfold(receiver, async |mut receiver| {
                Some((receiver.recv().await?, receiver))
            });
            sender.send(message()).await?;
            client.ready().await?;
            let request = Request::new(messages);
            let path = PathAndQuery::from_static(STREAM);
            let answer = client.streaming(request, path, Raw).await?;
            let mut answers = answer.into_inner();
            loop {
                let answer = answers.message().await?.context("the stream ended")?;
                ensure!(answer.len() == MESSAGE, "an answer of another length");
                count += 1;
                if !goes_on() {
                    break;
                }
                sender.send(message()).await?;
            }
            drop(sender);
            ensure!(answers.message().await?.is_none(), "a message too many");
        }
        Method::Down => {
            client.ready().await?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is a count"
            )]
            let wanted = amount as u64;
            let request = Request::new(Bytes::copy_from_slice(&wanted.to_be_bytes()));
            let path = PathAndQuery::from_static(DOWN);
            let answer = client.server_streaming(request, path, Raw).await?;
            let mut answers = answer.into_inner();
            while answers.message().await?.is_some() {
                count += 1;
            }
            ensure!(count as u64 == wanted, "{count} of {wanted} messages");
        }
    }
    Ok(count)
}

/// What is sent.
fn message() -> Bytes {
    Bytes::from_static(&[b'm'; MESSAGE])
}

async fn unary(client: &mut Client) -> Result<()> {
    client.ready().await?;
    let path = PathAndQuery::from_static(UNARY);
    let answer = client.unary(Request::new(message()), path, Raw).await?;
    ensure!(answer.into_inner() == message(), "the echo differs");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::net::{Ipv4Addr, SocketAddr};

    use clap::Parser;

    use super::*;
    use crate::backend::{accept, listen};
    use crate::client::Load;
    use crate::grpc;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ClientArgs,
    }

    async fn outcome(target: SocketAddr, load: &[&str]) -> Result<LoadOutcome> {
        let target = target.to_string();
        let words = ["client", "--target", &target, "--name", "a.test", "calls"];
        let args = Cli::try_parse_from(words.iter().chain(load))?.args;
        let Load::Calls(load) = args.load.clone() else {
            anyhow::bail!("not calls")
        };
        run(&args, &load).await
    }

    #[tokio::test]
    async fn messages_come_back_by_every_method() {
        let listener = listen(Ipv4Addr::LOCALHOST.into()).unwrap();
        let target = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, grpc::serve));
        // A call of no time makes one exchange.
        let exchanges = [
            (["unary", "2", "3", "0"], 6),
            (["stream", "2", "3", "0"], 6),
            (["down", "2", "1", "500"], 1_000),
        ];
        for (load, answered) in exchanges {
            assert_eq!(outcome(target, &load).await.unwrap().answered, answered);
        }
        // A server of something else has no messages to count.
        let listener = listen(Ipv4Addr::LOCALHOST.into()).unwrap();
        let target = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, |stream| {
            drop(stream);
            ready(Ok(()))
        }));
        outcome(target, &["unary", "1", "1", "0"])
            .await
            .unwrap_err();
    }
}
