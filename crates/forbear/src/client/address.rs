//! Which addresses a request may reach. Judged on the address itself, after the name was resolved and right before the
//! socket is opened, so a name that changes its mind in between gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a hop comes from: from us, or from a server that sent us on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Hop {
    /// The item's own URL: somebody chose it.
    #[default]
    First,
    /// A redirect: a stranger chose it. Link-local addresses and cloud metadata services are always refused.
    Redirect,
}

/// Whether a request may connect to `address`.
pub(super) fn allowed(address: IpAddr, public_only: bool, hop: Hop) -> bool {
    let refused =
        public_only && !is_public(address) || hop == Hop::Redirect && is_local_link_or_metadata(address);
    !refused
}

/// Whether an address belongs to the public internet, by the registries of special-purpose addresses that IANA keeps
/// ([IPv4], [IPv6]).
///
/// [IPv4]: https://www.iana.org/assignments/iana-ipv4-special-registry/
/// [IPv6]: https://www.iana.org/assignments/iana-ipv6-special-registry/
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => match embedded_v4(v6) {
            Some(v4) => is_public_v4(v4),
            None => is_public_v6(v6),
        },
    }
}

fn is_public_v4(v4: Ipv4Addr) -> bool {
    let special = match v4.octets() {
        [0 | 10 | 127, ..] => true,              // this network, private, loopback
        [100, 64..=127, ..] => true,             // carrier-grade NAT
        [169, 254, ..] => true,                  // link-local
        [172, 16..=31, ..] => true,              // private
        [192, 0, 0, _] | [192, 0, 2, _] => true, // protocol assignments, documentation
        [192, 31, 196, _] | [192, 52, 193, _] | [192, 175, 48, _] => true, // AS112, AMT
        [192, 88, 99, _] => true,                // 6to4 relay, withdrawn
        [192, 168, ..] => true,                  // private
        [198, 18 | 19, ..] => true,              // benchmarks
        [198, 51, 100, _] | [203, 0, 113, _] => true, // documentation
        [224..=255, ..] => true,                 // multicast, reserved, broadcast
        _ => false,
    };
    !special
}

fn is_public_v6(v6: Ipv6Addr) -> bool {
    // Global unicast is 2000::/3 and nothing else; unspecified, loopback, discard, unique local, link-local, site-local
    // and multicast all lie outside.
    let special = match v6.segments() {
        [0x2001, 0..=0x01ff, ..] => true, // IETF protocol assignments: Teredo, benchmarks, ORCHID
        [0x2001, 0x0db8, ..] => true,     // documentation
        [0x2620, 0x4f, 0x8000, ..] => true, // AS112
        [0x3fff, 0..=0x0fff, ..] => true, // documentation
        [first, ..] => first & 0xe000 != 0x2000,
    };
    !special
}

/// The IPv4 address that an IPv6 address leads to, where it is only a wrapping: mapped (`::ffff:0:0/96`), compatible
/// (`::/96`), translated (`64:ff9b::/96`), 6to4 (`2002::/16`).
fn embedded_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let low = |high: u16, low: u16| Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => low(a, b),
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None, // unspecified and loopback are IPv6's own
        [0, 0, 0, 0, 0, 0, a, b] | [0x2002, a, b, ..] => low(a, b),
        _ => None,
    }
}

/// `169.254.0.0/16` and `fe80::/10`, where clouds keep their metadata services, and the two such services that lie
/// elsewhere: `fd00:ec2::254` (Amazon) and `100.100.100.200` (Alibaba).
fn is_local_link_or_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4 == Ipv4Addr::new(100, 100, 100, 200),
        IpAddr::V6(v6) => match embedded_v4(v6) {
            Some(v4) => is_local_link_or_metadata(IpAddr::V4(v4)),
            None => v6.is_unicast_link_local() || v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_public_addresses_are_told_from_all_others() {
        for (text, public) in [
            ("1.1.1.1", true),
            ("9.255.255.255", true),
            ("100.63.255.255", true),
            ("100.128.0.1", true),
            ("172.15.0.1", true),
            ("172.32.0.1", true),
            ("192.167.1.1", true),
            ("198.17.0.1", true),
            ("223.255.255.255", true),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("10.0.0.1", false),
            ("100.64.0.1", false),
            ("127.0.0.1", false),
            ("127.255.255.255", false),
            ("169.254.169.254", false),
            ("172.16.0.1", false),
            ("172.31.255.255", false),
            ("192.0.0.8", false),
            ("192.0.2.1", false),
            ("192.168.1.1", false),
            ("198.18.0.1", false),
            ("198.51.100.7", false),
            ("203.0.113.9", false),
            ("224.0.0.1", false),
            ("240.0.0.1", false),
            ("255.255.255.255", false),
            ("2606:4700::1111", true),
            ("2a00::1", true),
            ("::", false),
            ("::1", false),
            ("::7f00:1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("::ffff:8.8.8.8", true),
            ("64:ff9b::10.0.0.1", false),
            ("64:ff9b::8.8.8.8", true),
            ("64:ff9b:1::1", false),
            ("100::1", false),
            ("2001:db8::1", false),
            ("2001::1", false),
            ("2001:200::1", true),
            ("2002:7f00:1::", false),
            ("2002:808:808::", true),
            ("fc00::1", false),
            ("fd12::1", false),
            ("fe80::1", false),
            ("fec0::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(text.parse().unwrap()), public, "{text}");
        }
    }

    #[test]
    fn k2_a_redirect_never_reaches_link_local_or_metadata() {
        for (text, redirect) in [
            ("169.254.169.254", false),
            ("169.254.0.1", false),
            ("fe80::1", false),
            ("febf::1", false),
            ("::ffff:169.254.169.254", false),
            ("fd00:ec2::254", false),
            ("100.100.100.200", false),
            ("127.0.0.1", true),
            ("10.0.0.1", true),
            ("8.8.8.8", true),
        ] {
            let address = text.parse().unwrap();
            assert_eq!(allowed(address, false, Hop::Redirect), redirect, "{text}");
            assert!(allowed(address, false, Hop::First), "{text}");
            assert_eq!(allowed(address, true, Hop::First), is_public(address), "{text}");
        }
    }
}
