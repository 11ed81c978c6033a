//! nginx as an origin for proxies: the same pages by http, by https, and by https with HTTP/2, and a log of who asked.

use std::fs;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use super::{Nginx, Server as _};

/// Where each of its sites listens, on the same port: an address for each, so that they are three origins.
const TLS: &str = "127.0.0.250";
const H2: &str = "127.0.0.251";

/// One request, by nginx's own log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Seen {
    /// When it was answered, in Unix time.
    pub(crate) at: Duration,
    /// The address that it came from.
    pub(crate) client: String,
    /// The status of the answer.
    pub(crate) status: u16,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub(crate) protocol: String,
    /// The path.
    pub(crate) path: String,
}

/// A running one.
pub(crate) struct Origin {
    nginx: Nginx,
    keys: TempDir,
}

impl Origin {
    pub(crate) fn start() -> Origin {
        let keys = TempDir::new().unwrap();
        let pair = KeyPair::generate().unwrap();
        let names = [TLS, H2].map(str::to_owned);
        let certificate = CertificateParams::new(names).unwrap().self_signed(&pair).unwrap();
        fs::write(keys.path().join("ca.pem"), certificate.pem()).unwrap();
        fs::write(keys.path().join("key.pem"), pair.serialize_pem()).unwrap();
        let keys_dir = keys.path().display();
        let site = |listen: &str| {
            format!(
                "server {{ listen {listen}; root @DIR@/www; \
                 ssl_certificate {keys_dir}/ca.pem; ssl_certificate_key {keys_dir}/key.pem; \
                 location /p/ {{ access_log @DIR@/seen.log seen; try_files /page.txt =404; }} }}\n"
            )
        };
        let http = format!(
            "log_format seen \"$msec $remote_addr $status $server_protocol $request_uri\";\n{}{}",
            site(&format!("{TLS}:@PORT@ ssl")),
            site(&format!("{H2}:@PORT@ ssl http2"))
        );
        let nginx = Nginx::start(&http, "access_log @DIR@/seen.log seen;");
        Origin { nginx, keys }
    }

    pub(crate) fn port(&self) -> u16 {
        self.nginx.port
    }

    /// The pages `1` to `pages` of a folder, by plain http.
    pub(crate) fn http(&self, folder: &str, pages: u32) -> Vec<String> {
        urls(&self.nginx.base(), folder, pages)
    }

    /// By https with HTTP/1.1.
    pub(crate) fn https(&self, folder: &str, pages: u32) -> Vec<String> {
        urls(&format!("https://{TLS}:{}", self.port()), folder, pages)
    }

    /// By https with HTTP/2.
    pub(crate) fn h2(&self, folder: &str, pages: u32) -> Vec<String> {
        urls(&format!("https://{H2}:{}", self.port()), folder, pages)
    }

    /// The file that says its certificate can be trusted.
    pub(crate) fn ca(&self) -> String {
        self.keys.path().join("ca.pem").display().to_string()
    }

    /// Every request for a page so far, in the order of their ends.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let log = fs::read_to_string(self.nginx.dir.path().join("seen.log")).unwrap_or_default();
        log.lines()
            .map(|line| {
                let [at, client, status, protocol, path] = line.split(' ').collect::<Vec<_>>()[..] else {
                    panic!("nginx wrote {line}");
                };
                let (at, status) = (Duration::from_secs_f64(at.parse().unwrap()), status.parse().unwrap());
                Seen { at, client: client.into(), status, protocol: protocol.into(), path: path.into() }
            })
            .collect()
    }
}

fn urls(base: &str, folder: &str, pages: u32) -> Vec<String> {
    (1..=pages).map(|page| format!("{base}/p/{folder}/{page}")).collect()
}
