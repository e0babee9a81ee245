//! The Windlass side: the library, as a program would use it.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use windlass::{Coordinator, Lease, Released};

use crate::section::{SharedCounter, THINK};

/// Longer than any wait, unless something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one process does.
#[derive(Debug, Args)]
pub(crate) struct Work {
    url: String,
    name: String,
    file: PathBuf,
    sections: u64,
    /// What keeps the others out
    #[arg(long, value_enum, default_value_t = By::Lock)]
    by: By,
}

/// The primitive that provides exclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// A lock.
    Lock,
    /// A leader election.
    Election,
}

/// Reports that it is ready, waits for the start signal, and runs its sections.
pub(crate) fn run(work: &Work) -> Result<(), String> {
    work.all_sections()
        .map_err(|error| format!("ours: {error}"))
}

impl Work {
    #[tokio::main(flavor = "current_thread")]
    async fn all_sections(&self) -> Result<(), Box<dyn Error>> {
        let w = windlass::connect(&self.url).await?;
        let counter = SharedCounter::open(&self.file)?;
        println!("ready {}", env!("CARGO_PKG_VERSION"));
        io::stdin().read_line(&mut String::new())?;
        let mut turns = 0;
        let mut highest = 0;
        for _ in 0..self.sections {
            let fence = self.section(&w, &counter, &mut turns).await?;
            if fence <= highest {
                return Err(format!("fence {fence} came after {highest}").into());
            }
            highest = fence;
            // Only Windlass clients queue, and the lock is never free for polling clients while one
            // of them waits: let the others in.
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..6000))).await;
        }
        println!("done {} {turns}", self.sections);
        Ok(())
    }

    async fn section(
        &self,
        w: &Coordinator,
        counter: &SharedCounter,
        turns: &mut u64,
    ) -> Result<u64, Box<dyn Error>> {
        let (fence, released) = match self.by {
            By::Lock => {
                let guard = w.lock(&self.name).wait(PATIENCE).acquire().await?;
                (count(&guard, counter, turns).await?, guard.release().await?)
            }
            By::Election => {
                let election = w.election(&self.name).wait(PATIENCE);
                let leadership = election.campaign("ours").await?;
                let fence = count(&leadership, counter, turns).await?;
                (fence, leadership.resign().await?)
            }
        };
        match released {
            Released::WasHeld => Ok(fence),
            other => Err(format!("another client took what this one held: {other:?}").into()),
        }
    }
}

/// One section; returns the fence of its grant.
async fn count(
    lease: &Lease,
    counter: &SharedCounter,
    turns: &mut u64,
) -> Result<u64, Box<dyn Error>> {
    let (number, side) = counter.read()?;
    *turns += u64::from(side == b't');
    tokio::time::sleep(THINK).await;
    counter.write(number + 1, 'o')?;
    match lease.is_held() {
        true => Ok(lease.fence().get()),
        false => Err("the lease was lost within a section".into()),
    }
}
