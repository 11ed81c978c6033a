//! A forward proxy by hand: `cargo run -p forbear-zoo --example proxy`, then `curl -x http://127.0.0.2:PORT ...`, or
//! `socks5h://` in place of `http://`. It prints where it listens, and runs until it is ended.

use std::io::Write as _;

use forbear_zoo::proxy::{Proxy, ProxyOptions};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    // Nobody reads its log.
    let proxy = Proxy::start(ProxyOptions { asked_max: 0, ..ProxyOptions::default() }).await?;
    writeln!(std::io::stdout(), "{}", proxy.addr())?;
    std::future::pending().await
}
