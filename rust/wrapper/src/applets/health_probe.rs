//! `grpc-health-probe`: asks a server's health once, with the flags and exit codes of the well-known tool.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, header};
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::flags::{Flag, Flags, Refusal, help};
use engine::rpc::messages::{HealthCheckRequest, HealthCheckResponse, ServingStatus};

const INVALID_ARGUMENTS: u8 = 1;
const CONNECTION_FAILURE: u8 = 2;
const RPC_FAILURE: u8 = 3;
const UNHEALTHY: u8 = 4;

const FLAGS: &[Flag] = &[
    Flag { name: "addr", default: "", meaning: "address of the server, HOST:PORT; localhost needs no resolver" },
    Flag { name: "service", default: "", meaning: "service to ask about; empty: the whole server" },
    Flag { name: "connect-timeout", default: "1s", meaning: "how long to wait for a connection" },
    Flag { name: "rpc-timeout", default: "1s", meaning: "how long to wait for the answer" },
    Flag { name: "user-agent", default: "grpc-health-probe", meaning: "what to call itself" },
];

const MAX_ANSWER: usize = 64 * 1024;

struct Failure(u8, String);

struct Probe {
    address: String,
    service: String,
    connect_timeout: Duration,
    rpc_timeout: Duration,
    user_agent: String,
}

pub fn main(arguments: &[OsString]) -> ExitCode {
    let outcome = Probe::read(arguments).and_then(|probe| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failure(CONNECTION_FAILURE, error.to_string()))?.block_on(probe.run())
    });
    match outcome {
        Ok(()) => {
            eprintln!("status: SERVING");
            ExitCode::SUCCESS
        }
        Err(Failure(code, why)) => {
            eprintln!("{why}");
            ExitCode::from(code)
        }
    }
}

impl Probe {
    fn read(arguments: &[OsString]) -> Result<Self, Failure> {
        let refused = |refusal| match refusal {
            Refusal::Help => Failure(0, format!("usage: grpc-health-probe -addr HOST:PORT\n{}", help(FLAGS))),
            Refusal::Wrong(why) => Failure(INVALID_ARGUMENTS, format!("error: {why}")),
        };
        let flags = Flags::parse(FLAGS, arguments).map_err(refused)?;
        let positive = |name: &str| match flags.duration(name) {
            Ok(Duration::ZERO) => Err(Failure(INVALID_ARGUMENTS, format!("error: -{name} must be greater than zero"))),
            other => other.map_err(refused),
        };
        let address = flags.text("addr").to_owned();
        if address.is_empty() {
            return Err(Failure(INVALID_ARGUMENTS, "error: -addr not specified".into()));
        }
        if let Some(extra) = flags.rest.first() {
            return Err(Failure(INVALID_ARGUMENTS, format!("error: unexpected argument {}", extra.display())));
        }
        Ok(Self {
            address,
            service: flags.text("service").to_owned(),
            connect_timeout: positive("connect-timeout")?,
            rpc_timeout: positive("rpc-timeout")?,
            user_agent: flags.text("user-agent").to_owned(),
        })
    }

    async fn run(self) -> Result<(), Failure> {
        let addresses = addresses(&self.address)?;
        let connection = timeout(self.connect_timeout, connect(&addresses)).await.map_err(|_| {
            Failure(
                CONNECTION_FAILURE,
                format!("timeout: failed to connect service \"{}\" within {:?}", self.address, self.connect_timeout),
            )
        })?;
        let stream = connection.map_err(|error| {
            Failure(CONNECTION_FAILURE, format!("error: failed to connect service \"{}\": {error}", self.address))
        })?;
        let answer = timeout(self.rpc_timeout, self.ask(stream)).await.map_err(|_| {
            Failure(RPC_FAILURE, format!("timeout: health rpc did not complete within {:?}", self.rpc_timeout))
        })?;
        let status = answer.map_err(|why| Failure(RPC_FAILURE, format!("error: health rpc failed: {why}")))?;
        if status == ServingStatus::Serving {
            return Ok(());
        }
        Err(Failure(UNHEALTHY, format!("service unhealthy (responded with \"{}\")", status.name())))
    }

    async fn ask(&self, stream: TcpStream) -> Result<ServingStatus, String> {
        let text = |error: h2::Error| error.to_string();
        let (client, connection) = h2::client::handshake(stream).await.map_err(text)?;
        tokio::spawn(connection);
        let mut client = client.ready().await.map_err(text)?;
        let request = Request::post(format!("http://{}/grpc.health.v1.Health/Check", self.address))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(header::USER_AGENT, &self.user_agent)
            .header("grpc-timeout", format!("{}m", self.rpc_timeout.as_millis().clamp(1, 99_999_999)))
            .body(())
            .map_err(|error| error.to_string())?;
        let (response, mut body) = client.send_request(request, false).map_err(text)?;
        body.send_data(framed(&HealthCheckRequest { service: self.service.clone() }), true).map_err(text)?;
        let response = response.await.map_err(text)?;
        refused(response.headers())?;
        let mut body = response.into_body();
        let mut data = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(text)?;
            let _ = body.flow_control().release_capacity(chunk.len());
            data.extend_from_slice(&chunk);
            if data.len() > MAX_ANSWER {
                return Err("the answer is too large".into());
            }
        }
        if let Some(trailers) = body.trailers().await.map_err(text)? {
            refused(&trailers)?;
        }
        let message = data.get(5..).ok_or("the answer is empty")?;
        let answer = HealthCheckResponse::decode(message).map_err(|error| error.to_string())?;
        ServingStatus::try_from(answer.status).map_err(|_| format!("unknown status {}", answer.status))
    }
}

/// The flag for no compression, the length, the message.
fn framed(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len()).unwrap_or(0));
    frame.put_slice(&message.encode_to_vec());
    frame.freeze()
}

/// Headers or trailers that carry an error.
fn refused(headers: &http::HeaderMap) -> Result<(), String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status") {
        None | Some("0") => Ok(()),
        Some("12") => Err("this server does not implement the grpc health protocol (grpc.health.v1.Health)".into()),
        Some(code) => Err(format!("code {code}: {}", text("grpc-message").unwrap_or_default())),
    }
}

/// Literal addresses and `localhost` are known without a resolver: an image may have none.
fn addresses(address: &str) -> Result<Vec<SocketAddr>, Failure> {
    let invalid = || Failure(INVALID_ARGUMENTS, format!("error: -addr \"{address}\" is not HOST:PORT"));
    let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
    let port: u16 = port.parse().map_err(|_| invalid())?;
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    if host == "localhost" || host.is_empty() {
        let both = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        return Ok(both.map(|host| SocketAddr::new(host, port)).to_vec());
    }
    if let Ok(host) = literal.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(host, port)]);
    }
    let found = (host, port).to_socket_addrs();
    found.map(Iterator::collect).map_err(|error| Failure(CONNECTION_FAILURE, format!("error: {host}: {error}")))
}

async fn connect(addresses: &[SocketAddr]) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            // The first address is the one that people mean.
            Err(error) if failure.kind() == std::io::ErrorKind::AddrNotAvailable => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}
