//! The proxy over a real socket: what a client sees, what the origin sees, and what the log says.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use forbear_zoo::proxy::{Asked, Behaviour, Form, OWN_PAGE, Proxy, ProxyOptions};
use forbear_zoo::{Server, ServerOptions, Spec};

/// A client's connection to a proxy.
struct Client(TcpStream);

impl Client {
    fn to(proxy: &Proxy) -> Client {
        let stream = TcpStream::connect(proxy.addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Client(stream)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// One answer with a length: its head and its body.
    fn answer(&mut self) -> (String, String) {
        let head = self.until(b"\r\n\r\n");
        let length = head.to_lowercase();
        let length = length.split("content-length: ").nth(1).map_or("0", |rest| rest.lines().next().unwrap());
        let mut body = vec![0; length.parse().unwrap()];
        self.0.read_exact(&mut body).unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    fn until(&mut self, end: &[u8]) -> String {
        let (mut bytes, mut byte) = (Vec::new(), [0]);
        while !bytes.ends_with(end) {
            self.0.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        String::from_utf8(bytes).unwrap()
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// All that comes until the end, and how it ends.
    fn rest(mut self) -> (Vec<u8>, Result<(), ErrorKind>) {
        let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            match self.0.read(&mut chunk) {
                Ok(0) => return (bytes, Ok(())),
                Ok(read) => bytes.extend_from_slice(&chunk[..read]),
                Err(error) => return (bytes, Err(error.kind())),
            }
        }
    }

    /// Nothing has come within a moment.
    fn says_nothing(mut self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        self.0.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    fn socks(&mut self, login: Option<(&[u8], &[u8])>) -> u8 {
        let Some((user, password)) = login else {
            self.send(&[5, 1, 0]);
            return self.take::<2>()[1];
        };
        self.send(&[5, 2, 0, 2]);
        assert_eq!(self.take(), [5, 2]);
        let length = |bytes: &[u8]| vec![u8::try_from(bytes.len()).unwrap()];
        self.send(&[vec![1], length(user), user.into(), length(password), password.into()].concat());
        self.take::<2>()[1]
    }

    /// Asks for a tunnel by name; the reply's code.
    fn socks_connect(&mut self, host: &str, port: u16) -> u8 {
        let head = [5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
        self.send(&[&head[..], host.as_bytes(), &port.to_be_bytes()].concat());
        self.take::<10>()[1]
    }
}

fn basic(user: &[u8], password: &[u8]) -> String {
    let encoded = base64::engine::general_purpose::STANDARD.encode([user, b":", password].concat());
    format!("Proxy-Authorization: Basic {encoded}\r\n")
}

fn absolute(server: &Server, path: &str, headers: &str) -> Vec<u8> {
    format!("GET {} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", server.url(path), server.addr()).into_bytes()
}

fn connect(server: &Server, headers: &str) -> Vec<u8> {
    format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n{headers}\r\n", server.addr()).into_bytes()
}

fn inner(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: zoo\r\n\r\n").into_bytes()
}

async fn pair(options: ProxyOptions) -> (Proxy, Server) {
    let server = Server::start(Spec::open(), ServerOptions::default()).await.unwrap();
    (Proxy::start(options).await.unwrap(), server)
}

/// Runs blocking client code beside the servers.
async fn client<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn forms(asked: &[Asked]) -> Vec<Form> {
    asked.iter().map(|asked| asked.form).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_reaches_the_origin_from_the_proxys_own_address() {
    let (proxy, server) = pair(ProxyOptions::at(7)).await;
    let (proxy, server) = client(move || {
        let mut plain = Client::to(&proxy);
        plain.send(&absolute(&server, "/a?b=1", "Connection: x-hop\r\nX-Hop: 1\r\n"));
        assert!(plain.answer().0.starts_with("HTTP/1.1 200"));
        plain.send(&absolute(&server, "/b", ""));
        assert_eq!(plain.answer().1, "xx");

        let mut tunnel = Client::to(&proxy);
        tunnel.send(&connect(&server, ""));
        assert!(tunnel.answer().0.starts_with("HTTP/1.1 200"));
        tunnel.send(&inner("/c"));
        assert_eq!(tunnel.answer().1, "xx");

        let mut socks = Client::to(&proxy);
        assert_eq!(socks.socks(None), 0);
        assert_eq!(socks.socks_connect("127.0.0.1", server.addr().port()), 0);
        socks.send(&inner("/d"));
        assert_eq!(socks.answer().1, "xx");
        (proxy, server)
    })
    .await;
    let (asked, log) = (proxy.stop().await, server.stop().await);
    assert_eq!(forms(&asked), [Form::Absolute, Form::Absolute, Form::Connect, Form::Socks]);
    assert_eq!(asked.iter().map(|asked| asked.connection).collect::<Vec<_>>(), [1, 1, 2, 3]);
    assert_eq!((asked[0].method.as_str(), asked[0].path.as_str()), ("GET", "/a?b=1"));
    let paths: Vec<&str> = log.hits().iter().map(|hit| hit.path.as_str()).collect();
    assert_eq!(paths, ["/a?b=1", "/b", "/c", "/d"]);
    assert!(log.hits().iter().all(|hit| hit.client == IpAddr::from([127, 0, 0, 7])));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_are_two_clients_to_a_limiter() {
    let spec: Spec = "fixed-window:limit=2/1h,scope=client".parse().unwrap();
    let server = Server::start(spec, ServerOptions::default()).await.unwrap();
    let mut proxies = Vec::new();
    for last in [2, 3] {
        proxies.push(Proxy::start(ProxyOptions::at(last)).await.unwrap());
    }
    let (server, statuses) = client(move || {
        let mut statuses = Vec::new();
        for proxy in proxies.iter().cycle().take(6) {
            let mut client = Client::to(proxy);
            client.send(&absolute(&server, "/", ""));
            statuses.push(client.answer().0[9..12].to_owned());
        }
        (server, statuses)
    })
    .await;
    assert_eq!(statuses, ["200", "200", "200", "200", "429", "429"]);
    assert_eq!(server.stop().await.refused().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_compared_byte_for_byte() {
    let (user, password): (&[u8], &[u8]) = ("jürgen".as_bytes(), b"a:b@/%#\xff");
    let (proxy, server) = pair(ProxyOptions::at(2).login(user, password)).await;
    let (proxy, server) = client(move || {
        for (user, password, expected) in [(user, password, "200"), (user, b"a:b", "407"), (b"", b"", "407")]
        {
            let mut client = Client::to(&proxy);
            client.send(&absolute(&server, "/", &basic(user, password)));
            let head = client.answer().0;
            assert_eq!(&head[9..12], expected);
            assert_eq!(head.contains("proxy-authenticate: Basic"), expected == "407", "{head}");
        }
        let mut client = Client::to(&proxy);
        client.send(&connect(&server, ""));
        assert!(client.answer().0.starts_with("HTTP/1.1 407"));
        client.send(&connect(&server, &basic(user, password)));
        assert!(client.answer().0.starts_with("HTTP/1.1 200"), "the same connection may try again");

        let mut client = Client::to(&proxy);
        assert_eq!(client.socks(None), 0xff);
        assert_ne!(Client::to(&proxy).socks(Some((user, b"x"))), 0);
        let mut client = Client::to(&proxy);
        assert_eq!(client.socks(Some((user, password))), 0);
        assert_eq!(client.socks_connect("localhost", server.addr().port()), 0);
        (proxy, server)
    })
    .await;
    let asked = proxy.stop().await;
    assert_eq!(asked[0].user.as_deref(), Some(user));
    assert_eq!(asked[0].password.as_deref(), Some(password));
    assert_eq!(asked[3].user, None);
    let turned_away = asked.iter().filter(|asked| asked.behaviour == Behaviour::status(407)).count();
    assert_eq!((asked.len(), turned_away), (8, 5), "{asked:#?}");
    assert_eq!(server.stop().await.hits().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_its_own_and_origins_that_are_not_there() {
    let server = Server::start(Spec::open(), ServerOptions::default()).await.unwrap();
    let options = ProxyOptions::at(2).name("only.test", server.addr());
    let proxy = Proxy::start(options).await.unwrap();
    let asked = client(move || {
        let mut client = Client::to(&proxy);
        client.send(b"GET http://only.test/ HTTP/1.1\r\nHost: only.test\r\n\r\n");
        assert!(client.answer().0.starts_with("HTTP/1.1 200"));
        client.send(b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(client.answer().0.starts_with("HTTP/1.1 502"));
        client.send(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(client.answer().0.starts_with("HTTP/1.1 502"));
        client.send(b"GET /no-origin HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(client.answer().0.starts_with("HTTP/1.1 400"));
        let mut client = Client::to(&proxy);
        client.socks(None);
        assert_eq!(client.socks_connect("only.test", 80), 0);
        let mut client = Client::to(&proxy);
        client.socks(None);
        assert_eq!(client.socks_connect("127.0.0.1", 1), 5);
        proxy.asked()
    })
    .await;
    let origins: Vec<&str> = asked.iter().map(|asked| asked.origin.as_str()).collect();
    assert_eq!(origins, ["only.test:80", "127.0.0.1:1", "127.0.0.1:1", "only.test:80", "127.0.0.1:1"]);
    assert!(asked.iter().all(|asked| asked.behaviour == Behaviour::Carry));
}

/// What a client sees of one behaviour: in place of an answer, and in place of a tunnel by CONNECT and by SOCKS.
#[tokio::test(flavor = "multi_thread")]
async fn faults_to_order() {
    let (proxy, server) = pair(ProxyOptions::at(2)).await;
    let reset = Err(ErrorKind::ConnectionReset);
    let page = |text: &[u8]| String::from_utf8_lossy(text).contains(OWN_PAGE);
    let (proxy, server) = client(move || {
        // An answer of its own, with and without the end of the connection.
        proxy.behave(|_| Behaviour::status(429).header("retry-after", "7"));
        let mut client = Client::to(&proxy);
        for request in [absolute(&server, "/", ""), connect(&server, ""), absolute(&server, "/", "")] {
            client.send(&request);
            let (head, body) = client.answer();
            assert!(head.starts_with("HTTP/1.1 429") && head.contains("retry-after: 7"), "{head}");
            assert_eq!(body, OWN_PAGE);
        }
        for status in [502, 503, 504] {
            proxy.behave(move |_| Behaviour::status(status).closing());
            for request in [absolute(&server, "/", ""), connect(&server, "")] {
                let mut client = Client::to(&proxy);
                client.send(&request);
                let (bytes, end) = client.rest();
                let text = String::from_utf8(bytes).unwrap();
                assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
                assert!(text.contains("connection: close") && end.is_ok(), "{text}");
            }
        }
        for (behaviour, code) in
            [(Behaviour::status(403), 2), (Behaviour::status(503), 1), (Behaviour::Reply(4), 4)]
        {
            proxy.behave(move |_| behaviour.clone());
            let mut client = Client::to(&proxy);
            client.socks(None);
            assert_eq!(client.socks_connect("127.0.0.1", server.addr().port()), code);
        }

        // Ends before an answer.
        for (behaviour, expected) in [(Behaviour::ResetBefore, reset), (Behaviour::CloseBefore, Ok(()))] {
            proxy.behave(move |_| behaviour.clone());
            for request in [absolute(&server, "/", ""), connect(&server, "")] {
                let mut client = Client::to(&proxy);
                client.send(&request);
                assert_eq!(client.rest(), (vec![], expected));
            }
            let mut client = Client::to(&proxy);
            client.socks(None);
            client.send(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 9]);
            assert_eq!(client.rest(), (vec![], expected));
        }
        assert!(server.log().hits().is_empty(), "nothing of all that reached the origin");

        // After the tunnel stands.
        proxy.behave(|_| Behaviour::ResetAfter);
        let mut client = Client::to(&proxy);
        client.send(&absolute(&server, "/read", ""));
        assert_eq!(client.rest(), (vec![], reset));
        let mut client = Client::to(&proxy);
        client.send(&connect(&server, ""));
        client.answer();
        client.send(&inner("/unread"));
        assert_eq!(client.rest(), (vec![], reset));
        let mut client = Client::to(&proxy);
        client.socks(None);
        assert_eq!(client.socks_connect("127.0.0.1", server.addr().port()), 0);
        client.send(&inner("/unread"));
        assert_eq!(client.rest(), (vec![], reset));
        assert_eq!(server.log().hits().len(), 1);

        // A page of its own.
        proxy.behave(|_| Behaviour::OwnPage);
        let mut client = Client::to(&proxy);
        client.send(&absolute(&server, "/", ""));
        assert!(page(&client.rest().0));
        let mut client = Client::to(&proxy);
        client.send(&connect(&server, ""));
        assert!(page(&client.rest().0));

        // Silence.
        for behaviour in [Behaviour::Stall, Behaviour::StallAfter] {
            let expected = if behaviour == Behaviour::Stall { "" } else { "HTTP/1.1 200" };
            proxy.behave(move |_| behaviour.clone());
            let mut client = Client::to(&proxy);
            client.send(&absolute(&server, "/", ""));
            assert!(client.says_nothing());
            let mut client = Client::to(&proxy);
            client.send(&connect(&server, ""));
            if !expected.is_empty() {
                assert!(client.answer().0.starts_with(expected));
                client.send(&inner("/"));
            }
            assert!(client.says_nothing());
        }
        assert_eq!(server.log().hits().len(), 1);
        (proxy, server)
    })
    .await;
    drop(server);
    assert_eq!(proxy.count(), proxy.stop().await.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_without_a_word_after_so_many_answers() {
    let (proxy, server) = pair(ProxyOptions { answers_per_connection: Some(2), ..ProxyOptions::at(2) }).await;
    let server = client(move || {
        let mut client = Client::to(&proxy);
        for _ in 0..2 {
            client.send(&absolute(&server, "/", ""));
            let (head, body) = client.answer();
            assert!(!head.contains("close") && body == "xx", "{head}");
        }
        assert_eq!(client.rest(), (vec![], Ok(())));
        server
    })
    .await;
    assert_eq!(server.stop().await.hits().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_refuses_connections_while_it_is_shut() {
    let (proxy, server) = pair(ProxyOptions::at(2)).await;
    let addr = proxy.addr();
    let refused =
        || TcpStream::connect(addr).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let mut before = Client::to(&proxy);
    before.send(&absolute(&server, "/", ""));
    let before = client(move || (before.answer(), before).1).await;
    proxy.shut();
    assert_eq!(client(move || before.rest()).await.0, b"", "what stood is cut");
    assert!(refused());
    proxy.reopen();
    for _ in 0..1000 {
        if !refused() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut after = Client::to(&proxy);
    after.send(&absolute(&server, "/", ""));
    client(move || after.answer()).await;
    assert_eq!(proxy.stop().await.len(), 2);
    assert!(refused());
    assert_eq!(server.stop().await.hits().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_full_log_goes_on_counting() {
    let (proxy, server) = pair(ProxyOptions { asked_max: 1, ..ProxyOptions::at(2) }).await;
    let proxy = client(move || {
        let mut client = Client::to(&proxy);
        for _ in 0..3 {
            client.send(&absolute(&server, "/", ""));
            client.answer();
        }
        proxy
    })
    .await;
    assert_eq!(proxy.count(), 3);
    assert_eq!(proxy.stop().await.len(), 1);
}
