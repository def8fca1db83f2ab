//! Classes of addresses.
//!
//! An answer may name other hosts: storage in a redirect, a token server in a challenge. It must not make the operator
//! contact the machine it runs on, the cloud's metadata service or the inside of the network. A host that an answer
//! names is contacted only if its address is public, or of the class in which the registry itself was reached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    Public,
    /// RFC 1918, shared carrier space (100.64/10), unique local IPv6.
    Private,
    /// 169.254/16 and `fe80::/10`, where cloud metadata services live.
    LinkLocal,
    /// This machine, including the unspecified address, which connects to it.
    Loopback,
    /// Multicast, broadcast, reserved and documentation ranges.
    Unusable,
}

impl Reach {
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }

    /// Whether an answer from this class may lead to an address of class `target`.
    pub fn may_lead_to(self, target: Self) -> bool {
        match target {
            Self::Public => true,
            Self::Unusable => false,
            Self::Private | Self::LinkLocal | Self::Loopback => self == target,
        }
    }

    /// Whether tenants must not cause connections to it.
    pub fn is_off_limits(self) -> bool {
        matches!(self, Self::Loopback | Self::LinkLocal)
    }

    pub fn described(self) -> &'static str {
        match self {
            Self::Public => "a public address",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Loopback => "a loopback address",
            Self::Unusable => "no address of a host",
        }
    }
}

fn of_v4(address: Ipv4Addr) -> Reach {
    let [first, second, third, _] = address.octets();
    match (first, second) {
        (127 | 0, _) => Reach::Loopback,
        (169, 254) => Reach::LinkLocal,
        // 198.18/15 is for benchmark networks and proxies with synthetic addresses.
        (10, _) | (192, 168) | (172, 16..=31) | (100, 64..=127) | (198, 18..=19) => Reach::Private,
        (192, 0) if third == 0 || third == 2 => Reach::Unusable,
        (198, 51) if third == 100 => Reach::Unusable,
        (203, 0) if third == 113 => Reach::Unusable,
        (224.., _) => Reach::Unusable,
        _ => Reach::Public,
    }
}

fn of_v6(address: Ipv6Addr) -> Reach {
    if let Some(embedded) = embedded_v4(address) {
        return of_v4(embedded);
    }
    let [first, second, ..] = address.segments();
    match first {
        _ if address.is_loopback() || address.is_unspecified() => Reach::Loopback,
        0xfe80..=0xfebf => Reach::LinkLocal,
        // fec0::/10 was site-local before unique local addresses replaced it.
        0xfc00..=0xfdff | 0xfec0..=0xfeff => Reach::Private,
        // Local-use NAT64 (RFC 8215): the embedded address is unknown.
        0x0064 if second == 0xff9b => Reach::Private,
        0xff00..=0xffff => Reach::Unusable,
        0x2001 if second == 0x0db8 => Reach::Unusable,
        _ => Reach::Public,
    }
}

/// The IPv4 address embedded in an IPv6 one: mapped, compatible, translated (NAT64) or tunnelled (6to4). Connections
/// reach the embedded address, so it decides about the class.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        // ::1 and :: have a meaning of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(join(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reach(address: &str) -> Reach {
        Reach::of(address.parse().unwrap())
    }

    #[test]
    fn addresses_are_sorted() {
        let cases = [
            ("1.1.1.1", Reach::Public),
            ("172.15.0.1", Reach::Public),
            ("172.32.0.1", Reach::Public),
            ("100.63.0.1", Reach::Public),
            ("2606:4700::1111", Reach::Public),
            ("10.0.0.1", Reach::Private),
            ("172.16.0.1", Reach::Private),
            ("172.31.255.255", Reach::Private),
            ("192.168.1.1", Reach::Private),
            ("100.64.0.1", Reach::Private),
            ("198.19.0.1", Reach::Private),
            ("fd00::1", Reach::Private),
            ("64:ff9b:1::1", Reach::Private),
            ("169.254.169.254", Reach::LinkLocal),
            ("fe80::1", Reach::LinkLocal),
            ("127.0.0.1", Reach::Loopback),
            ("127.8.9.1", Reach::Loopback),
            ("0.0.0.0", Reach::Loopback),
            ("::1", Reach::Loopback),
            ("::", Reach::Loopback),
            ("::ffff:127.0.0.1", Reach::Loopback),
            ("::ffff:169.254.169.254", Reach::LinkLocal),
            ("::ffff:1.1.1.1", Reach::Public),
            ("64:ff9b::10.0.0.1", Reach::Private),
            ("64:ff9b::169.254.169.254", Reach::LinkLocal),
            ("2002:7f00:1::", Reach::Loopback),
            ("224.0.0.1", Reach::Unusable),
            ("255.255.255.255", Reach::Unusable),
            ("ff02::1", Reach::Unusable),
            ("2001:db8::1", Reach::Unusable),
        ];
        for (address, expected) in cases {
            assert_eq!(reach(address), expected, "{address}");
        }
    }

    #[test]
    fn answers_lead_to_the_public_or_to_their_own_neighbourhood() {
        let all = [Reach::Public, Reach::Private, Reach::LinkLocal, Reach::Loopback, Reach::Unusable];
        for from in all {
            for to in all {
                let expected = to != Reach::Unusable && (to == Reach::Public || to == from);
                assert_eq!(from.may_lead_to(to), expected, "{from:?} to {to:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_mapped_address_is_judged_as_what_it_stands_for(bits: u32) {
            let plain = Ipv4Addr::from(bits);
            prop_assert_eq!(Reach::of(plain.to_ipv6_mapped().into()), Reach::of(plain.into()));
        }

        #[test]
        fn nothing_the_standard_library_calls_local_is_public(bits: u32) {
            let address = Ipv4Addr::from(bits);
            if address.is_loopback() || address.is_private() || address.is_link_local() || address.is_unspecified() {
                prop_assert_ne!(Reach::of(address.into()), Reach::Public);
            }
        }
    }
}
