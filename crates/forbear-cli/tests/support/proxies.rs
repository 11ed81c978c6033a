//! Proxies that nobody here wrote: tinyproxy, squid and microsocks, each on a loopback address of its own, from which it
//! also dials out. `./test --prepare` installs them.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::{PATIENCE, end, pause, root};

/// A user name and a password, as they are.
pub(crate) type Login<'a> = Option<(&'a str, &'a str)>;

/// A proxy that a test started, ended when dropped.
pub(crate) struct RealProxy {
    child: Child,
    dir: TempDir,
    ip: Ipv4Addr,
    port: u16,
}

impl RealProxy {
    /// tinyproxy on 127.0.0.`last`. It ends a connection after each request, and takes letters, digits, `-`, `.` and `_`
    /// in a password.
    pub(crate) fn tinyproxy(last: u8, login: Login<'_>) -> RealProxy {
        let users = login.map_or_else(String::new, |(user, password)| format!("BasicAuth {user} {password}"));
        RealProxy::start(last, "tinyproxy", |dir, ip, port| {
            let conf = fill("tinyproxy/tinyproxy.conf", dir, ip, port).replace("@USERS@", &users);
            fs::write(dir.join("tinyproxy.conf"), conf).unwrap();
            let mut command = Command::new("tinyproxy");
            command.arg("-d").arg("-c").arg(dir.join("tinyproxy.conf"));
            command
        })
    }

    /// squid on 127.0.0.`last`, which lets `CONNECT` reach these ports and no others.
    pub(crate) fn squid(last: u8, login: Login<'_>, tunnels: &[u16]) -> RealProxy {
        let tunnels: Vec<String> = tunnels.iter().map(u16::to_string).collect();
        RealProxy::start(last, "squid", |dir, ip, port| {
            let mut users = String::new();
            if let Some((user, password)) = login {
                fs::write(dir.join("users"), format!("{user}:{}\n", hashed(password))).unwrap();
                users = format!(
                    "auth_param basic program /usr/lib/squid/basic_ncsa_auth {}/users\n\
                     auth_param basic children 2 startup=1 idle=1\nauth_param basic realm squid\n\
                     acl known proxy_auth REQUIRED\nhttp_access deny !known",
                    dir.display()
                );
            }
            let conf = fill("squid/squid.conf", dir, ip, port)
                .replace("@TUNNELS@", &tunnels.join(" "))
                .replace("@USERS@", &users);
            fs::write(dir.join("squid.conf"), conf).unwrap();
            let mut command = Command::new("squid");
            command.arg("-N").arg("-f").arg(dir.join("squid.conf"));
            command
        })
    }

    /// microsocks on 127.0.0.`last`: SOCKS5 and nothing else.
    pub(crate) fn microsocks(last: u8, login: Login<'_>) -> RealProxy {
        RealProxy::start(last, "microsocks", |_, ip, port| {
            let mut command = Command::new("microsocks");
            let (ip, port) = (ip.to_string(), port.to_string());
            command.args(["-i", &ip, "-b", &ip, "-p", &port]);
            if let Some((user, password)) = login {
                command.args(["-u", user, "-P", password]);
            }
            command
        })
    }

    fn start(last: u8, name: &str, command: impl Fn(&Path, Ipv4Addr, u16) -> Command) -> RealProxy {
        let ip = Ipv4Addr::new(127, 0, 0, last);
        // Another process may take the port between our look and the proxy's bind: then it leaves, and we try another.
        let mut said = String::new();
        for _ in 0..10 {
            let dir = TempDir::new().unwrap();
            open_to_all(dir.path());
            let port = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap().port();
            let child = command(dir.path(), ip, port)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(dir.path().join("stderr.log")).unwrap())
                .spawn()
                .unwrap_or_else(|error| {
                    panic!("{name} does not start ({error}); `./test --prepare` installs it")
                });
            let mut proxy = RealProxy { child, dir, ip, port };
            if proxy.is_up() {
                return proxy;
            }
            said = proxy.said();
        }
        panic!("{name} did not start in ten tries:\n{said}");
    }

    /// Waits until it listens, or until it has given up.
    fn is_up(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE && self.child.try_wait().unwrap().is_none() {
            if TcpStream::connect((self.ip, self.port)).is_ok() {
                return self.child.try_wait().unwrap().is_none();
            }
            pause();
        }
        false
    }

    /// `IP:PORT`.
    pub(crate) fn addr(&self) -> String {
        format!("{}:{}", self.ip, self.port)
    }

    /// Its URL, with `user:password` as they are written in one, or without where that is empty.
    pub(crate) fn url(&self, scheme: &str, login: &str) -> String {
        let at = if login.is_empty() { "" } else { "@" };
        format!("{scheme}://{login}{at}{}", self.addr())
    }

    /// The address from which its origins are asked.
    pub(crate) fn ip(&self) -> String {
        self.ip.to_string()
    }

    /// Its own log, and what it complained of.
    pub(crate) fn said(&self) -> String {
        let read = |name| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        [read("access.log"), read("stderr.log")].concat()
    }

    /// SIGKILL: it answers nobody any more, and whoever dials is refused.
    pub(crate) fn kill(&mut self) {
        end(&mut self.child);
    }
}

impl Drop for RealProxy {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn fill(template: &str, dir: &Path, ip: Ipv4Addr, port: u16) -> String {
    fs::read_to_string(root().join("tests/servers").join(template))
        .unwrap()
        .replace("@DIR@", dir.to_str().unwrap())
        .replace("@IP@", &ip.to_string())
        .replace("@PORT@", &port.to_string())
}

/// squid, started as root, writes its logs as a user of its own.
fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
}

/// The form in which squid's helper keeps passwords, from the program whose manual squid's refers to.
fn hashed(password: &str) -> String {
    let mut child = Command::new("openssl")
        .args(["passwd", "-apr1", "-stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("openssl does not start ({error}); `./test --prepare` installs it"));
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}
