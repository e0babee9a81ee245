//! What can be asked of `windlass demo`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum DemoCommand {
    /// Sell a stock in several shops to a crowd, under nine guards, in fair and foul weather
    FlashSale(FlashSaleArgs),
    /// Trade under WATCH, locks coarse and fine, and a script; then count the money
    Marketplace(MarketplaceArgs),
    /// One shop of the flash sale
    #[command(hide = true)]
    Shop(ShopArgs),
    /// The stock of the flash sale
    #[command(hide = true)]
    Warehouse(WarehouseArgs),
}

/// What keeps two shops from selling the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Guard {
    /// Nothing
    None,
    /// A mutex inside each shop
    Mutex,
    /// SETNX, without an expiry
    Setnx,
    /// SETNX, and then EXPIRE
    SetnxExpire,
    /// SET NX PX, deleted by anybody
    SetPx,
    /// Deleted by its owner alone, and not renewed
    Owner,
    /// The Windlass lock
    Lock,
    /// The Windlass lock, and its fence checked where the stock is
    Fence,
    /// A bounded counter, and no lock at all
    Counter,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass demo flash-sale
  windlass demo flash-sale --guard none --guard lock --html sale.html
  windlass demo flash-sale --store redis://127.0.0.1 --stock 200 --shops 8

It needs no server: without --store, the locks are kept in a temporary file.")]
pub(crate) struct FlashSaleArgs {
    /// Only this guard; can be given several times [default: all nine]
    #[arg(long, value_name = "GUARD")]
    pub(crate) guard: Vec<Guard>,

    /// How many there are to sell
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) stock: u32,

    /// How many shops sell them, each a process of its own
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) shops: u32,

    /// How many people want one [default: twice the stock]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) buyers: Option<u32>,

    /// The ports of the balancer and the shops [default: free ones]
    #[arg(long, value_name = "FROM-TO")]
    pub(crate) ports: Option<Ports>,

    /// Also write the report as a page for a browser
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// How a trade is kept from being torn apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Trading {
    /// Nothing
    None,
    /// WATCH, MULTI, EXEC, and again if somebody came between
    Watch,
    /// One lock for the whole market
    Coarse,
    /// A lock for each thing on offer
    Fine,
    /// One Lua script for each step
    Script,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass demo marketplace --store redis://127.0.0.1
  windlass demo marketplace --store redis://127.0.0.1 --guard fine --guard watch --seconds 10
  windlass demo marketplace --store memory:

Without --store, the locks are kept in a temporary file.")]
pub(crate) struct MarketplaceArgs {
    /// Only this way; can be given several times [default: all that the store can do]
    #[arg(long, value_name = "GUARD")]
    pub(crate) guard: Vec<Trading>,

    /// Listers and buyers, as in 5+1; can be given several times [default: 1+1, 5+1, 5+5]
    #[arg(long, value_name = "L+B")]
    pub(crate) traders: Vec<Traders>,

    /// How long each of them trades
    #[arg(long, value_name = "S", default_value = "2", value_parser = super::bench::seconds)]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct ShopArgs {
    /// What keeps it from selling what another shop sells
    #[arg(long, value_name = "GUARD", default_value = "none")]
    pub(crate) guard: Guard,

    /// Where the stock is
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) warehouse: SocketAddr,

    /// Where it sells
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// The name that all shops of one sale share
    #[arg(long, value_name = "NAME", default_value = "flash-sale")]
    pub(crate) sale: String,

    /// The life of a claim
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// How long it takes to make out a bill, between reading the stock and writing it
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = duration::parse)]
    pub(crate) think: Duration,

    /// Ask for the lock again and again, instead of waiting in line
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) poll: Option<Duration>,

    /// Ask the warehouse what befalls it
    #[arg(long)]
    pub(crate) foul: bool,

    /// Where SETNX and its kin keep their keys, if not in Redis
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,

    /// Wait for "open" on stdin, and end when stdin does
    #[arg(long)]
    pub(crate) doors: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WarehouseArgs {
    /// Where it answers
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// How many there are to sell
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) stock: u32,
}

/// A range of ports: the first is the balancer's.
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
                .map_err(|_| format!("{text:?} is no port; write 8050-8060"))?;
            match port {
                0 => Err("port 0 is no port; leave --ports out for free ones".to_owned()),
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

/// So many who list, and so many who buy.
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
            None => Err("write 5+1: listers, plus, buyers".to_owned()),
        }
    }
}

impl fmt::Display for Traders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.listers, self.buyers)
    }
}

/// What can befall a shop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FaultKind {
    /// Killed right after it was given the lock
    Crash,
    /// A slow step between reading the stock and writing it; the rest of the shop runs on
    Slow,
    /// The whole process stands still between reading and writing
    Freeze,
    /// The whole process stands still after its last look at the lock, before it writes
    Late,
}

/// A fault, and the turn of all shops together at which it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) turn: u32,
    pub(crate) lasts: Duration,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let wrong = || format!("{text:?} is no fault; write slow@4=800ms");
        let (kind, rest) = text.split_once('@').ok_or_else(wrong)?;
        let (turn, lasts) = rest.split_once('=').ok_or_else(wrong)?;
        Ok(Fault {
            kind: FaultKind::from_str(kind, false).map_err(|_| wrong())?,
            turn: turn.parse().map_err(|_| wrong())?,
            lasts: duration::parse(lasts)?,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = word(&self.kind);
        write!(f, "{kind}@{}={}ms", self.turn, self.lasts.as_millis())
    }
}

/// The word by which a value is asked for.
pub(crate) fn word<V: ValueEnum>(value: &V) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_a_range() {
        assert_eq!("8050-8052".parse::<Ports>().unwrap().count(), 3);
        assert_eq!("8050".parse::<Ports>().unwrap().count(), 1);
        for bad in ["", "0-5", "8052-8050", "http", "1-70000", "-5"] {
            assert!(bad.parse::<Ports>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn traders_are_a_sum() {
        let traders: Traders = "5+1".parse().unwrap();
        assert_eq!((traders.listers, traders.buyers), (5, 1));
        assert_eq!(traders.to_string(), "5+1");
        for bad in ["", "5", "0+1", "1+0", "101+1", "a+b", "1+2+3"] {
            assert!(bad.parse::<Traders>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn faults_read_as_they_are_written() {
        let fault: Fault = "freeze@4=800ms".parse().unwrap();
        assert_eq!(fault.kind, FaultKind::Freeze);
        assert_eq!(fault.to_string(), "freeze@4=800ms");
        for bad in ["", "slow", "slow@4", "slow@x=1s", "fast@4=1s", "slow@4=800"] {
            assert!(bad.parse::<Fault>().is_err(), "{bad:?}");
        }
    }
}
