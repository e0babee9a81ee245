//! The arguments of `windlass demo`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use windlass_term::duration;

/// The demo to run, and its options.
#[derive(Args, Debug)]
pub struct DemoArgs {
    #[command(subcommand)]
    pub(crate) command: DemoCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DemoCommand {
    /// Sell one stock from several shops under nine guards, without and with faults
    FlashSale(FlashSaleArgs),
    /// Trade under WATCH, coarse and fine locks, and a script; then audit money and goods
    Marketplace(MarketplaceArgs),
    /// Run one shop of the flash sale
    #[command(hide = true)]
    Shop(ShopArgs),
    /// Run the warehouse of the flash sale, which keeps the stock
    #[command(hide = true)]
    Warehouse(WarehouseArgs),
}

/// What keeps two shops from selling the same item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Guard {
    /// Nothing
    None,
    /// A mutex inside each shop
    Mutex,
    /// SETNX, without an expiry
    Setnx,
    /// SETNX, then EXPIRE
    SetnxExpire,
    /// SET NX PX, deleted by any client
    SetPx,
    /// SET NX PX, deleted by its owner only, not renewed
    Owner,
    /// The Windlass lock
    Lock,
    /// The Windlass lock, with its fencing token checked by the warehouse
    Fence,
    /// A bounded counter, without a lock
    Counter,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass demo flash-sale
  windlass demo flash-sale --guard none --guard lock --html sale.html
  windlass demo flash-sale --store redis://127.0.0.1 --stock 200 --shops 8

No server is needed: without --store, locks are kept in a temporary file.")]
pub(crate) struct FlashSaleArgs {
    /// Guard to try; can be given several times [default: all nine]
    #[arg(long, value_name = "GUARD")]
    pub(crate) guard: Vec<Guard>,

    /// Number of items to sell
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) stock: u32,

    /// Number of shops, each a process of its own
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) shops: u32,

    /// Number of buyers, who want one item each [default: twice the stock]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) buyers: Option<u32>,

    /// Ports of the load balancer and the shops [default: free ports]
    #[arg(long, value_name = "FROM-TO")]
    pub(crate) ports: Option<Ports>,

    /// Also write the report as an HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// What keeps the steps of a trade together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum TradeGuard {
    /// Nothing
    None,
    /// WATCH, MULTI, EXEC, retried after a conflict
    Watch,
    /// One lock for the whole market
    Coarse,
    /// One lock per item
    Fine,
    /// One Lua script per step
    Script,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass demo marketplace --store redis://127.0.0.1
  windlass demo marketplace --store redis://127.0.0.1 --guard fine --guard watch --seconds 10
  windlass demo marketplace --store memory:

Without --store, locks are kept in a temporary file.")]
pub(crate) struct MarketplaceArgs {
    /// Guard to try; can be given several times [default: all that the store supports]
    #[arg(long, value_name = "GUARD")]
    pub(crate) guard: Vec<TradeGuard>,

    /// Number of listers and buyers, as in 5+1; can be given several times [default: 1+1, 5+1, 5+5]
    #[arg(long, value_name = "L+B")]
    pub(crate) traders: Vec<Traders>,

    /// Time to trade, for each guard and number of traders
    #[arg(long, value_name = "S", default_value = "2", value_parser = duration::parse_seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct ShopArgs {
    /// Guard of each purchase
    #[arg(long, value_name = "GUARD", default_value = "none")]
    pub(crate) guard: Guard,

    /// Address of the warehouse
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) warehouse: SocketAddr,

    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// Name of the lock or counter, the same for all shops of one sale
    #[arg(long, value_name = "NAME", default_value = "flash-sale")]
    pub(crate) sale: String,

    /// TTL of the lock
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// Think time between reading the stock and writing it
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = duration::parse)]
    pub(crate) think: Duration,

    /// Poll for the lock at this interval, instead of waiting in its queue
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) poll: Option<Duration>,

    /// Ask the warehouse for a fault to inject, before each purchase
    #[arg(long, alias = "foul")]
    pub(crate) faults: bool,

    /// File for the keys of SETNX and SET NX PX, if the store is not Redis
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,

    /// Wait for the line "open" on stdin, and end when stdin is closed
    #[arg(long, alias = "doors")]
    pub(crate) wait_for_open: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WarehouseArgs {
    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// Number of items to sell
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) stock: u32,
}

/// A range of ports: the first one is that of the load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl Ports {
    pub(crate) fn count(self) -> u32 {
        u32::from(self.to - self.from) + 1
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| {
            let port: u16 = text
                .parse()
                .map_err(|_| format!("{text:?} is not a port; write 8050-8060"))?;
            match port {
                0 => Err("port 0 cannot be used; omit --ports for free ports".to_owned()),
                port => Ok(port),
            }
        };
        let (from, to) = (number(from)?, number(to)?);
        if from > to {
            return Err(format!("{from} is after {to}; write {to}-{from}"));
        }
        Ok(Ports { from, to })
    }
}

/// Numbers of listers and buyers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traders {
    pub(crate) listers: u32,
    pub(crate) buyers: u32,
}

impl FromStr for Traders {
    type Err = String;

    fn from_str(text: &str) -> Result<Traders, String> {
        let parts = text.split_once('+');
        let parsed = parts.and_then(|(l, b)| Some((l.parse().ok()?, b.parse().ok()?)));
        match parsed {
            Some((listers @ 1..=100, buyers @ 1..=100)) => Ok(Traders { listers, buyers }),
            Some(_) => Err("from 1 to 100 of each".to_owned()),
            None => Err("write 5+1: listers+buyers".to_owned()),
        }
    }
}

impl fmt::Display for Traders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.listers, self.buyers)
    }
}

/// A fault that can be injected into a shop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FaultKind {
    /// The process is killed right after it has acquired the lock
    Crash,
    /// A slow step between reading the stock and writing it; the rest of the shop keeps running
    Slow,
    /// The whole process is suspended between reading and writing
    Freeze,
    /// The whole process is suspended after its last check of the lock, before the write
    Late,
}

/// A fault, and the purchase (counted over all shops) at which it is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFault {
    pub(crate) kind: FaultKind,
    pub(crate) purchase: u32,
    pub(crate) lasts: Duration,
}

impl FromStr for PlannedFault {
    type Err = String;

    fn from_str(text: &str) -> Result<PlannedFault, String> {
        let wrong = || format!("{text:?} is not a fault; write slow@4=800ms");
        let (kind, rest) = text.split_once('@').ok_or_else(wrong)?;
        let (purchase, lasts) = rest.split_once('=').ok_or_else(wrong)?;
        Ok(PlannedFault {
            kind: FaultKind::from_str(kind, false).map_err(|_| wrong())?,
            purchase: purchase.parse().map_err(|_| wrong())?,
            lasts: duration::parse(lasts)?,
        })
    }
}

impl fmt::Display for PlannedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = value_name(&self.kind);
        write!(f, "{kind}@{}={}ms", self.purchase, self.lasts.as_millis())
    }
}

/// The name of a value on the command line.
pub(crate) fn value_name<V: ValueEnum>(value: &V) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed_as_a_range() {
        assert_eq!("8050-8052".parse::<Ports>().unwrap().count(), 3);
        assert_eq!("8050".parse::<Ports>().unwrap().count(), 1);
        for bad in ["", "0-5", "8052-8050", "http", "1-70000", "-5"] {
            assert!(bad.parse::<Ports>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn traders_are_parsed_as_a_sum() {
        let traders: Traders = "5+1".parse().unwrap();
        assert_eq!((traders.listers, traders.buyers), (5, 1));
        assert_eq!(traders.to_string(), "5+1");
        for bad in ["", "5", "0+1", "1+0", "101+1", "a+b", "1+2+3"] {
            assert!(bad.parse::<Traders>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn faults_parse_what_they_display() {
        let fault: PlannedFault = "freeze@4=800ms".parse().unwrap();
        assert_eq!(fault.kind, FaultKind::Freeze);
        assert_eq!(fault.to_string(), "freeze@4=800ms");
        for bad in ["", "slow", "slow@4", "slow@x=1s", "fast@4=1s", "slow@4=800"] {
            assert!(bad.parse::<PlannedFault>().is_err(), "{bad:?}");
        }
    }
}
