//! HTTP proxying: requests in absolute form are carried, `CONNECT` becomes a tunnel.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::dial::{self, Tunnel};
use super::wire::{Line, Wire};
use super::{Asked, Behaviour, Form, OWN_PAGE, OwnAnswer, Shared};

/// Fields that concern one connection alone (RFC 9110 section 7.6.1), besides those that `Connection` names.
const OF_ONE_HOP: [&str; 7] =
    ["connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer", "upgrade"];

/// One connection of a client.
#[derive(Debug)]
struct Client {
    shared: Arc<Shared>,
    number: u64,
    line: Arc<Line>,
    /// The connection to the origin of the last request.
    origin: tokio::sync::Mutex<Option<(String, SendRequest<Incoming>)>>,
    /// The tunnel that this connection becomes.
    tunnel: Mutex<Option<(OnUpgrade, Tunnel)>>,
}

pub(super) async fn serve(stream: TcpStream, number: u64, shared: Arc<Shared>) {
    let line = Arc::<Line>::default();
    let wire = Wire::new(stream, Arc::clone(&line), shared.options.answers_per_connection);
    let (origin, tunnel) = (tokio::sync::Mutex::default(), Mutex::default());
    let client = Client { shared, number, line, origin, tunnel };
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(wire, service_fn(|request| client.answer(request)))
        .with_upgrades();
    if connection.await.is_err() {
        return; // a client that broke off, or a fault of ours
    }
    let Some((upgrade, tunnel)) = client.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        return;
    };
    if let Ok(upgraded) = upgrade.await {
        if matches!(tunnel, Tunnel::Reset) {
            client.line.reset();
        }
        dial::run(tunnel, TokioIo::new(upgraded)).await;
    }
}

impl Client {
    async fn answer(&self, mut request: Request<Incoming>) -> Result<Response<ReplyBody>, CutOff> {
        let connect = request.method() == Method::CONNECT;
        let Some(origin) = origin_of(request.uri(), connect) else {
            return Ok(self.own(OwnAnswer { status: 400, headers: Vec::new(), close: true }));
        };
        let (user, password) = login(request.headers()).unzip();
        let behaviour = self.shared.judge(Asked {
            at: Duration::ZERO,
            connection: self.number,
            form: if connect { Form::Connect } else { Form::Absolute },
            method: request.method().to_string(),
            origin: origin.clone(),
            path: request.uri().path_and_query().map_or_else(String::new, ToString::to_string),
            user,
            password,
            behaviour: Behaviour::Carry,
        });
        let tunnel = match behaviour {
            Behaviour::Carry if !connect => return Ok(self.carry(request, origin).await),
            Behaviour::ResetAfter if !connect => {
                let _ = self.carry(request, origin).await;
                self.line.reset();
                return Err(CutOff);
            }
            Behaviour::OwnPage if !connect => {
                return Ok(self.own(OwnAnswer { status: 200, headers: Vec::new(), close: true }));
            }
            Behaviour::Answer(answer) => return Ok(self.own(answer)),
            Behaviour::Reply(_) => return Ok(self.own(plain(502))),
            Behaviour::ResetBefore => {
                self.line.reset();
                return Err(CutOff);
            }
            Behaviour::CloseBefore => return Err(CutOff),
            Behaviour::Stall => return std::future::pending().await,
            Behaviour::StallAfter if !connect => return std::future::pending().await,
            Behaviour::StallAfter => Tunnel::Swallow,
            Behaviour::ResetAfter => Tunnel::Reset,
            Behaviour::OwnPage => Tunnel::OwnPage,
            Behaviour::Carry => match dial::dial(&origin, &self.shared.options).await {
                Ok(stream) => Tunnel::To(stream),
                Err(error) => return Ok(self.own(plain(gateway_status(&error)))),
            },
        };
        let upgrade = hyper::upgrade::on(&mut request);
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some((upgrade, tunnel));
        Ok(Response::new(self.reply(Either::Right(Full::default()))))
    }

    /// The origin's answer, or a 502 or 504 of the proxy's own.
    async fn carry(&self, mut request: Request<Incoming>, origin: String) -> Response<ReplyBody> {
        strip(request.headers_mut());
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = Uri::try_from(path).unwrap_or_default();
        let mut held = self.origin.lock().await;
        let mut kept = held.take().filter(|(to, _)| *to == origin).map(|(_, sender)| sender);
        if let Some(sender) = &mut kept
            && sender.ready().await.is_err()
        {
            kept = None; // the origin has closed it meanwhile
        }
        let sender = match kept {
            Some(sender) => Ok(sender),
            None => self.connect(&origin).await,
        };
        let mut sender = match sender {
            Ok(sender) => sender,
            Err(error) => return self.own(plain(gateway_status(&error))),
        };
        let Ok(response) = sender.send_request(request).await else { return self.own(plain(502)) };
        *held = Some((origin, sender));
        let (mut head, body) = response.into_parts();
        strip(&mut head.headers);
        head.version = hyper::Version::HTTP_11; // ours, whatever the origin speaks
        Response::from_parts(head, self.reply(Either::Left(body)))
    }

    async fn connect(&self, origin: &str) -> std::io::Result<SendRequest<Incoming>> {
        let stream = dial::dial(origin, &self.shared.options).await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(std::io::Error::other)?;
        // It ends when its sender is dropped, which is with this connection of the client.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn own(&self, answer: OwnAnswer) -> Response<ReplyBody> {
        let mut response = Response::new(self.reply(Either::Right(Full::from(OWN_PAGE))));
        *response.status_mut() =
            StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("text/html"));
        if answer.status == 407 {
            headers.insert(PROXY_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"zoo\""));
        }
        if answer.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        for (name, value) in answer.headers {
            // A test may ask for what no header can hold; such a one is left out.
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        response
    }

    fn reply(&self, inner: Either<Incoming, Full<Bytes>>) -> ReplyBody {
        ReplyBody { inner, line: Arc::clone(&self.line), over: false }
    }
}

fn plain(status: u16) -> OwnAnswer {
    OwnAnswer { status, headers: Vec::new(), close: false }
}

fn gateway_status(error: &std::io::Error) -> u16 {
    if error.kind() == std::io::ErrorKind::TimedOut { 504 } else { 502 }
}

/// `host:port`, or nothing where the request names no origin.
fn origin_of(uri: &Uri, connect: bool) -> Option<String> {
    let authority = uri.authority()?;
    let port = authority.port_u16().or(if connect { None } else { Some(80) })?;
    Some(format!("{}:{port}", authority.host()))
}

/// User name and password of `Basic` credentials (RFC 7617), split at the first colon.
fn login(headers: &HeaderMap) -> Option<(Vec<u8>, Vec<u8>)> {
    let value = headers.get(PROXY_AUTHORIZATION)?.as_bytes();
    let (scheme, encoded) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let mut user = base64::engine::general_purpose::STANDARD.decode(encoded.trim_ascii()).ok()?;
    let colon = user.iter().position(|byte| *byte == b':')?;
    let password = user.split_off(colon + 1);
    user.truncate(colon);
    Some((user, password))
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    for name in OF_ONE_HOP.into_iter().chain(named.iter().map(String::as_str)) {
        headers.remove(name);
    }
}

/// An answer's body, which tells the line when its last byte has been handed over.
#[derive(Debug)]
struct ReplyBody {
    inner: Either<Incoming, Full<Bytes>>,
    line: Arc<Line>,
    over: bool,
}

impl ReplyBody {
    fn end(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.line.finish();
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none() || self.inner.is_end_stream() {
            self.end();
        }
        // An origin that breaks off in the middle is passed on as just that.
        Poll::Ready(frame.map(|frame| frame.map_err(|_| CutOff)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        self.end(); // a body that is empty from the start is never polled
    }
}

/// A connection ends before its answer does.
#[derive(Debug)]
struct CutOff;

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cut off on purpose")
    }
}

impl std::error::Error for CutOff {}
