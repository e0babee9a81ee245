//! How a shop sells one, under each guard. This is the code that people write.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;
use windlass::{Coordinator, Lock, LockGuard};

use super::super::cleaning::is_one_redis;
use super::keys::Keys;
use super::ledger::Answer;
use super::stock::Stock;
use super::weather::Turn;
use crate::args::{Guard, ShopArgs};
use crate::failure::Failure;

/// How often those ask again who cannot wait in line.
pub(super) const POLL: Duration = Duration::from_millis(50);

const MINUTE: Duration = Duration::from_secs(60);

/// What a buyer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Yours,
    SoldOut,
}

/// One shop: its guard, and all that it sells with.
pub(super) struct Seller {
    guard: Guard,
    stock: Stock,
    size: i64,
    /// Whether it asks what befalls it. It costs a question, so not where time is taken.
    foul: bool,
    store: Coordinator,
    keys: Option<Keys>,
    mutex: Mutex<()>,
    key: String,
    ttl: Duration,
    think: Duration,
    poll: Option<Duration>,
}

impl Seller {
    pub(super) async fn new(
        args: &ShopArgs,
        store: Coordinator,
        url: &str,
    ) -> Result<Seller, Failure> {
        let own_made = [Guard::Setnx, Guard::SetnxExpire, Guard::SetPx, Guard::Owner];
        let keys = match &args.keys {
            _ if !own_made.contains(&args.guard) => None,
            Some(path) => Some(Keys::in_file(path)?),
            None if is_one_redis(url) => Some(Keys::on_redis(url).await?),
            None => Some(Keys::in_file(&PathBuf::from("flash-sale-keys.db"))?),
        };
        let stock = Stock::at(args.warehouse);
        let size = stock.size().await.map_err(unreachable)?;
        Ok(Seller {
            guard: args.guard,
            stock,
            size,
            foul: args.foul,
            store,
            keys,
            mutex: Mutex::new(()),
            key: args.sale.clone(),
            ttl: args.ttl,
            think: args.think,
            poll: args.poll,
        })
    }

    /// Sells one to that buyer, or finds that there is none left.
    pub(super) async fn sell(&self, buyer: &str) -> Result<Told, Failure> {
        loop {
            let told = match self.guard {
                Guard::None => self.unguarded().await,
                Guard::Mutex => {
                    let _guard = self.mutex.lock().await;
                    self.unguarded().await
                }
                Guard::Setnx | Guard::SetnxExpire | Guard::SetPx | Guard::Owner => {
                    self.under_key(buyer).await
                }
                Guard::Lock | Guard::Fence => self.under_lock().await,
                Guard::Counter => self.counted(buyer).await,
            }?;
            // Too late, by the lock's word or the fence's: the whole purchase begins again.
            if let Some(told) = told {
                return Ok(told);
            }
        }
    }

    async fn unguarded(&self) -> Result<Option<Told>, Failure> {
        let turn = self.turn().await?;
        self.purchase(&turn, None, None).await
    }

    async fn turn(&self) -> Result<Turn, Failure> {
        Ok(Turn::begin(match self.foul {
            true => self.stock.turn().await.map_err(unreachable)?,
            false => None,
        }))
    }

    /// Read, make out the bill, write: what any guard is there to protect. `None` if it came too late.
    async fn purchase(
        &self,
        turn: &Turn,
        held: Option<&LockGuard>,
        fence: Option<u64>,
    ) -> Result<Option<Told>, Failure> {
        let left = match self.stock.read(fence).await.map_err(unreachable)? {
            Answer::Left(left) => left,
            Answer::Sold | Answer::Stale => return Ok(None),
        };
        if left <= 0 {
            return Ok(Some(Told::SoldOut));
        }
        turn.between().await;
        sleep(self.think).await;
        if held.is_some_and(|held| !held.is_held()) {
            return Ok(None);
        }
        turn.last_moment();
        let written = self.stock.write(left - 1, fence).await;
        Ok((written.map_err(unreachable)? == Answer::Sold).then_some(Told::Yours))
    }

    /// The locks of many a tutorial.
    async fn under_key(&self, buyer: &str) -> Result<Option<Told>, Failure> {
        let keys = self.keys.as_ref().expect("opened for these guards");
        let ttl = match self.guard {
            Guard::Setnx | Guard::SetnxExpire => None,
            _ => Some(self.ttl),
        };
        while !keys.set_if_absent(&self.key, buyer, ttl).await? {
            sleep(self.poll.unwrap_or(POLL)).await;
        }
        let turn = self.turn().await?;
        if self.guard == Guard::SetnxExpire {
            keys.expire(&self.key, self.ttl).await?;
        }
        let told = self.purchase(&turn, None, None).await?;
        // What was sold stays sold, even if the key cannot be deleted.
        let _ = match self.guard {
            Guard::Owner => keys.delete_if(&self.key, buyer).await,
            _ => keys.delete(&self.key).await,
        };
        Ok(told)
    }

    async fn under_lock(&self) -> Result<Option<Told>, Failure> {
        let lock = self.store.lock(&self.key).ttl(self.ttl);
        let held = match self.poll {
            None => lock.acquire().await?,
            Some(pause) => polled(&lock, pause).await?,
        };
        let turn = self.turn().await?;
        let fence = (self.guard == Guard::Fence).then(|| held.fence().get());
        // Drops the purchase, should the lock be lost; the fence stops what cannot be dropped in time.
        let told = match held.run(self.purchase(&turn, Some(&held), fence)).await {
            Ok(told) => told?,
            Err(windlass::LeaseLost) => None,
        };
        // The warehouse has said yes or no: whether the lock was held until now changes nothing about that, and must
        // not make a buyer come again who has got one.
        let _ = held.release().await;
        Ok(told)
    }

    /// One step decides. A shop that dies after it has not cost anybody anything: the buyer who comes again gets
    /// the same answer.
    async fn counted(&self, buyer: &str) -> Result<Option<Told>, Failure> {
        let counter = self.store.counter(&self.key).max(self.size);
        // Long after the last buyer has come again.
        let counter = counter.expire(10 * MINUTE).remember(MINUTE);
        let reserved = counter.add_once(buyer, 1).await?;
        if !reserved.added {
            return Ok(Some(Told::SoldOut));
        }
        let turn = self.turn().await?;
        turn.between().await;
        sleep(self.think).await;
        turn.last_moment();
        self.stock.ship(buyer).await.map_err(unreachable)?;
        Ok(Some(Told::Yours))
    }
}

/// How one would wait for a lock that has no line.
async fn polled(lock: &Lock, pause: Duration) -> Result<LockGuard, Failure> {
    loop {
        if let Some(held) = lock.try_acquire().await?.acquired() {
            return Ok(held);
        }
        sleep(pause).await;
    }
}

fn unreachable(error: std::io::Error) -> Failure {
    Failure {
        message: format!("the warehouse cannot be reached: {error}"),
        advice: crate::failure::Advice::Hint("start it first: windlass demo warehouse".into()),
        exit: crate::exit::Exit::UNREACHABLE,
    }
}
