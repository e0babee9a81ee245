//! `windlass limit …`

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use windlass::{Algorithm, Costs, Quota};
use windlass_term::{Advice, Failure, duration};

use super::LsArgs;
use super::rate::{self, Rate};

#[derive(Debug, Subcommand)]
pub(crate) enum LimitCommand {
    /// Consume from a rate limit: exit 0 if allowed, 75 if denied
    Take(LimitTakeArgs),
    /// Check a rate limit without consuming
    Peek(LimitPeekArgs),
    /// Charge an estimate, to be settled when the cost is known: exit 0 if allowed, 75 if denied
    Hold(LimitHoldArgs),
    /// Replace the estimate of a hold by the true cost; exit 75 if it is settled or not found
    Settle(LimitSettleArgs),
    /// Show what is left of a rate limit, whatever its rates; exit 75 if it is not in use
    Show(LimitResetArgs),
    /// Reset a rate limit to unused
    Reset(LimitResetArgs),
    /// List rate limits in use
    Ls(LsArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass limit take mail/ann --rate 10/h && sendmail ann
  windlass limit take login --key ann --rate 5/m     # one user of a program
  windlass limit take api --rate 10/s --rate 5000/d --wait 5s && curl https://example.com")]
pub(crate) struct LimitTakeArgs {
    /// Name of the rate limit
    pub(crate) name: String,

    /// Key in the rate limit, for a program that has one limit for each user, address, …
    #[arg(
        long,
        value_name = "KEY",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) quotas: QuotaArgs,

    /// Number of units to consume, all or nothing
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub(crate) cost: u64,

    /// Wait for at most this long; a longer wait is denied at once [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct LimitPeekArgs {
    /// Name of the rate limit
    pub(crate) name: String,

    /// Key in the rate limit, for a program that has one limit for each user, address, …
    #[arg(
        long,
        value_name = "KEY",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) quotas: QuotaArgs,

    /// Number of units to check for
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub(crate) cost: u64,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass limit hold llm --key ann --rate 60/m --rate 100000/m --cost 1 --cost 4000 --owner req-1
  windlass limit settle llm --key ann --rate 60/m --rate 100000/m --cost 1 --cost 1250 --owner req-1")]
pub(crate) struct LimitHoldArgs {
    /// Name of the rate limit
    pub(crate) name: String,

    /// Key in the rate limit, for a program that has one limit for each user, address, …
    #[arg(
        long,
        value_name = "KEY",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) quotas: QuotaArgs,

    /// Estimated number of units; once for all rates, or once per --rate
    #[arg(long, value_name = "N", required = true, allow_negative_numbers = true)]
    pub(crate) cost: Vec<u64>,

    /// How long the hold can be settled; after that, the estimate stays charged
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// Identity of the hold [default: a new one, which is printed]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct LimitSettleArgs {
    /// Name of the rate limit
    pub(crate) name: String,

    /// Key in the rate limit, for a program that has one limit for each user, address, …
    #[arg(
        long,
        value_name = "KEY",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) key: String,

    /// The quotas that the hold was made with
    #[command(flatten)]
    pub(crate) quotas: QuotaArgs,

    /// True number of units; once for all rates, or once per --rate
    #[arg(long, value_name = "N", required = true, allow_negative_numbers = true)]
    pub(crate) cost: Vec<u64>,

    /// Identity of the hold
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,
}

#[derive(Args, Debug)]
pub(crate) struct LimitResetArgs {
    /// Name of the rate limit
    pub(crate) name: String,

    /// Key in the rate limit, for a program that has one limit for each user, address, …
    #[arg(
        long,
        value_name = "KEY",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) key: String,
}

#[derive(Args, Debug)]
pub(crate) struct QuotaArgs {
    /// Rate: 10/s, 100/m, 5000/h, 1/d, 5/250ms; can be given several times, all must allow
    #[arg(long, value_name = "RATE", required = true, value_parser = rate::parse)]
    rate: Vec<Rate>,

    /// Burst capacity of a token bucket; once per --rate [default: the amount of the rate]
    #[arg(long, value_name = "N")]
    burst: Vec<u64>,

    /// Algorithm; once for all rates, or once per --rate
    #[arg(long, value_name = "NAME", default_value = "token-bucket")]
    algorithm: Vec<AlgorithmName>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AlgorithmName {
    /// Steady rate, with a burst after a pause
    TokenBucket,
    /// A count that starts again with each window
    FixedWindow,
    /// A fixed window that also weighs the previous one
    SlidingWindow,
    /// Never more in any interval: exact, for at most 10,000 units
    SlidingLog,
}

impl QuotaArgs {
    /// Whether all quotas are token buckets.
    pub(crate) fn are_buckets(&self) -> bool {
        let mut names = self.algorithm.iter();
        names.all(|name| matches!(name, AlgorithmName::TokenBucket))
    }

    /// The costs of these options: one for all quotas, or one for each.
    pub(crate) fn costs(&self, cost: &[u64]) -> Result<Costs, Failure> {
        match cost {
            [all] => Ok(Costs::from(*all)),
            each if each.len() == self.rate.len() => Ok(Costs::from(each)),
            _ => Err(Failure::usage(
                "the number of --cost options does not match the number of --rate options",
                Advice::Hint(
                    "give --cost once for all rates, or once for each --rate, in the same order"
                        .into(),
                ),
            )),
        }
    }

    /// The quotas of these options.
    pub(crate) fn quotas(&self) -> Result<Vec<Quota>, Failure> {
        let rates = self.rate.len();
        let mismatch = |option: &str| {
            Failure::usage(
                format!(
                    "the number of {option} options does not match the number of --rate options"
                ),
                Advice::Hint(format!(
                    "give {option} once for each --rate, in the same order"
                )),
            )
        };
        if !self.burst.is_empty() && self.burst.len() != rates {
            return Err(mismatch("--burst"));
        }
        if self.algorithm.len() != 1 && self.algorithm.len() != rates {
            return Err(mismatch("--algorithm"));
        }
        let quota = |(i, rate): (usize, &Rate)| {
            let name = self.algorithm.get(i).unwrap_or(&self.algorithm[0]);
            let quota = Quota::new(rate.amount, rate.period).algorithm(match name {
                AlgorithmName::TokenBucket => Algorithm::TokenBucket,
                AlgorithmName::FixedWindow => Algorithm::FixedWindow,
                AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
                AlgorithmName::SlidingLog => Algorithm::SlidingLog,
            });
            match self.burst.get(i) {
                Some(burst) => quota.burst(*burst),
                None => quota,
            }
        };
        Ok(self.rate.iter().enumerate().map(quota).collect())
    }
}
