//! `windlass limit …`

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use windlass::{Algorithm, Quota};

use super::duration;
use super::rate::{self, Rate};
use crate::failure::{Advice, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum LimitCommand {
    /// Take from a limiter: exit 0 if allowed, 75 if denied
    Take(TakeArgs),
    /// Tell how a limiter stands, and take nothing
    Peek(PeekArgs),
    /// Forget all that was used
    Reset(ResetArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass limit take mail/ann --rate 10/h && sendmail ann
  windlass limit take api --rate 10/s --rate 5000/d --wait 5s && curl https://example.com")]
pub(crate) struct TakeArgs {
    /// The limiter's name
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) quotas: QuotaArgs,

    /// How many units to take, all or nothing
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub(crate) cost: u64,

    /// Wait for this long at most; if that is not enough, the answer comes at once [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct PeekArgs {
    /// The limiter's name
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) quotas: QuotaArgs,

    /// How many units to ask about
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub(crate) cost: u64,
}

#[derive(Args, Debug)]
pub(crate) struct ResetArgs {
    /// The limiter's name
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct QuotaArgs {
    /// How much is allowed: 10/s, 100/m, 5000/h, 1/d, 5/250ms; given several times, all must allow
    #[arg(long, value_name = "RATE", required = true, value_parser = rate::parse)]
    rate: Vec<Rate>,

    /// How much can be saved for later, in a token bucket; once for each rate [default: as the rate]
    #[arg(long, value_name = "N")]
    burst: Vec<u64>,

    /// How it is counted; once for all rates, or once for each
    #[arg(long, value_name = "NAME", default_value = "token-bucket")]
    algorithm: Vec<AlgorithmName>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AlgorithmName {
    /// A steady rate, and a burst after a pause
    TokenBucket,
    /// All at once, then nothing until the window ends
    FixedWindow,
    /// As a fixed window, but the last one fades bit by bit
    SlidingWindow,
}

impl QuotaArgs {
    /// Whether all of them are token buckets.
    pub(crate) fn are_buckets(&self) -> bool {
        let mut names = self.algorithm.iter();
        names.all(|name| matches!(name, AlgorithmName::TokenBucket))
    }

    /// The quotas that are meant.
    pub(crate) fn quotas(&self) -> Result<Vec<Quota>, Failure> {
        let rates = self.rate.len();
        let unclear = |option: &str| {
            Failure::usage(
                format!("it is not clear which --rate each {option} belongs to"),
                Advice::Hint(format!(
                    "give {option} once for each --rate, in the same order"
                )),
            )
        };
        if !self.burst.is_empty() && self.burst.len() != rates {
            return Err(unclear("--burst"));
        }
        if self.algorithm.len() != 1 && self.algorithm.len() != rates {
            return Err(unclear("--algorithm"));
        }
        let quota = |(i, rate): (usize, &Rate)| {
            let name = self.algorithm.get(i).unwrap_or(&self.algorithm[0]);
            let quota = Quota::new(rate.amount, rate.period).algorithm(match name {
                AlgorithmName::TokenBucket => Algorithm::TokenBucket,
                AlgorithmName::FixedWindow => Algorithm::FixedWindow,
                AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
            });
            match self.burst.get(i) {
                Some(burst) => quota.burst(*burst),
                None => quota,
            }
        };
        Ok(self.rate.iter().enumerate().map(quota).collect())
    }
}
