//! Free ports for servers that must be told theirs before they start, and must find it free again when they are
//! restarted.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

use crate::names::random;

// Below the range from which the kernel gives ports to outgoing connections (32768 and up), so that none of those takes
// the port of a server that is down for a moment.
const FIRST: u16 = 20_000;
const BLOCKS: u16 = 750;
const BLOCK_SIZE: u16 = 16;
const ATTEMPTS: usize = 200;

/// Ports that are ours alone among all test processes of the machine.
struct Block {
    next: u16,
    end: u16,
    /// A name in the abstract socket namespace, which only one process can have and which goes when that process goes.
    _claim: UnixListener,
}

/// All blocks this process has taken. They are kept to its end: a test that was given a port may still use it.
static BLOCKS_TAKEN: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// A port of 127.0.0.1 on which nothing listens, and which no other test is given.
pub(crate) fn free() -> Result<u16> {
    let mut blocks = BLOCKS_TAKEN.lock();
    for _ in 0..ATTEMPTS {
        if let Some(block) = blocks.last_mut() {
            while block.next < block.end {
                let port = block.next;
                block.next += 1;
                if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                    return Ok(port);
                }
            }
        }
        if let Some(block) = claim(u16::try_from(random() % u64::from(BLOCKS))?)? {
            blocks.push(block);
        }
    }
    bail!("no free port from {FIRST} on after {ATTEMPTS} attempts")
}

/// Blocks for registries. Their ports are known before any of them starts.
const REGISTRY_BLOCKS: usize = 30;

static REGISTRY_PORTS: LazyLock<Mutex<Vec<Block>>> = LazyLock::new(|| {
    let mut blocks = Vec::new();
    for _ in 0..ATTEMPTS {
        if blocks.len() == REGISTRY_BLOCKS {
            break;
        }
        let number = u16::try_from(random() % u64::from(BLOCKS)).unwrap_or_default();
        blocks.extend(claim(number).ok().flatten());
    }
    Mutex::new(blocks)
});

/// The same for a registry: one of [`of_registries`] while there are any left.
pub(crate) fn registry() -> Result<u16> {
    let mut blocks = REGISTRY_PORTS.lock();
    for block in blocks.iter_mut() {
        while block.next < block.end {
            let port = block.next;
            block.next += 1;
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
        }
    }
    free()
}

/// The ports that the first few hundred registries of this process have or will have.
pub(crate) fn of_registries() -> Vec<u16> {
    let blocks = REGISTRY_PORTS.lock();
    blocks.iter().flat_map(|block| block.end - BLOCK_SIZE..block.end).collect()
}

fn claim(number: u16) -> Result<Option<Block>> {
    let next = FIRST + number * BLOCK_SIZE;
    let name = SocketAddr::from_abstract_name(format!("fairlead-testkit-ports-{next}"))
        .context("abstract sockets")?;
    let claim = UnixListener::bind_addr(&name).ok();
    Ok(claim.map(|claim| Block { next, end: next + BLOCK_SIZE, _claim: claim }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() -> Result<()> {
        let mut ports = Vec::new();
        for _ in 0..3 * BLOCK_SIZE {
            ports.push(free()?);
        }
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        Ok(())
    }

    #[test]
    fn a_block_has_one_owner() -> Result<()> {
        let number = BLOCKS;
        let owner = claim(number)?;
        assert!(owner.is_some());
        assert!(claim(number)?.is_none());
        drop(owner);
        assert!(claim(number)?.is_some());
        Ok(())
    }
}
