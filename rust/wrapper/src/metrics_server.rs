//! Metrics over HTTP/1.1, when the environment asks for them.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

const MAX_CONNECTIONS: usize = 16;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where to serve them: `OTEL_METRICS_EXPORTER=prometheus` turns it on.
pub fn address(variable: impl Fn(&str) -> Option<String>) -> Result<Option<SocketAddr>, String> {
    let exporters = variable("OTEL_METRICS_EXPORTER").unwrap_or_default();
    if !exporters.split(',').any(|exporter| exporter.trim() == "prometheus") {
        return Ok(None);
    }
    let set = |name: &str, default: &str| variable(name).filter(|value| !value.is_empty()).unwrap_or(default.into());
    let host = set("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost");
    let port = set("OTEL_EXPORTER_PROMETHEUS_PORT", "9464");
    // An image may have no resolver: a name other than this one is not looked up.
    let host = if host == "localhost" {
        Some(IpAddr::from(Ipv4Addr::LOCALHOST))
    } else {
        host.trim_matches(['[', ']']).parse().ok()
    };
    let host = host.ok_or("OTEL_EXPORTER_PROMETHEUS_HOST must be localhost or an address such as 0.0.0.0")?;
    let port = port.parse().map_err(|_| format!("OTEL_EXPORTER_PROMETHEUS_PORT={port} is no port"))?;
    Ok(Some(SocketAddr::new(host, port)))
}

/// Serve what `render` says at that moment; never returns.
pub async fn serve(listener: TcpListener, render: impl Fn() -> String + Send + Sync + 'static) {
    let render = Arc::new(render);
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = Arc::clone(&connections).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let render = Arc::clone(&render);
        tokio::spawn(async move {
            let _permit = permit;
            let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, &*render))));
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(request: &Request<Incoming>, render: &dyn Fn() -> String) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics" | "/") => (StatusCode::OK, render()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, "metrics are at /metrics\n".into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET is known here\n".into()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::address;

    fn with(variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        address(variable).map(|address| address.map(|address| address.to_string()))
    }

    #[test]
    fn off_unless_asked_for() {
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&[("OTEL_METRICS_EXPORTER", "otlp")]), Ok(None));
    }

    #[test]
    fn where_the_environment_says() {
        let on = ("OTEL_METRICS_EXPORTER", "otlp, prometheus");
        let host = |host| ("OTEL_EXPORTER_PROMETHEUS_HOST", host);
        assert_eq!(with(&[on]), Ok(Some("127.0.0.1:9464".into())));
        assert_eq!(with(&[on, host("0.0.0.0"), ("OTEL_EXPORTER_PROMETHEUS_PORT", "1")]), Ok(Some("0.0.0.0:1".into())));
        assert_eq!(with(&[on, host("[::]")]), Ok(Some("[::]:9464".into())));
        assert!(with(&[on, host("example.com")]).is_err());
        assert!(with(&[on, ("OTEL_EXPORTER_PROMETHEUS_PORT", "x")]).is_err());
    }
}
