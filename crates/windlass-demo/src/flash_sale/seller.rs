//! Sells one item under each guard: the code that an application would contain.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;
use windlass::{Coordinator, Lock, LockGuard};
use windlass_term::Failure;

use super::faults::PurchaseFault;
use super::ledger::WarehouseReply;
use super::raw_keys::RawKeys;
use super::warehouse_client::WarehouseClient;
use crate::args::{Guard, ShopArgs};
use crate::demo_store::is_one_redis;

/// Poll interval of guards without a wait queue.
pub(super) const POLL: Duration = Duration::from_millis(50);

const MINUTE: Duration = Duration::from_secs(60);

/// The answer to a buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuyerAnswer {
    Yours,
    SoldOut,
}

/// A shop's guard and its connections.
pub(super) struct Seller {
    guard: Guard,
    warehouse: WarehouseClient,
    stock: i64,
    /// Whether it asks for faults. That costs a round trip, so it is off when the sale is timed.
    faults: bool,
    store: Coordinator,
    keys: Option<RawKeys>,
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
        let home_made = [Guard::Setnx, Guard::SetnxExpire, Guard::SetPx, Guard::Owner];
        let keys = match &args.keys {
            _ if !home_made.contains(&args.guard) => None,
            Some(path) => Some(RawKeys::in_file(path)?),
            None if is_one_redis(url) => Some(RawKeys::on_redis(url).await?),
            None => Some(RawKeys::in_file(&PathBuf::from("flash-sale-keys.db"))?),
        };
        let warehouse = WarehouseClient::new(args.warehouse);
        let stock = warehouse.stock().await.map_err(unreachable)?;
        Ok(Seller {
            guard: args.guard,
            warehouse,
            stock,
            faults: args.faults,
            store,
            keys,
            mutex: Mutex::new(()),
            key: args.sale.clone(),
            ttl: args.ttl,
            think: args.think,
            poll: args.poll,
        })
    }

    /// Sells one item to the buyer, or finds that none is left.
    pub(super) async fn sell(&self, buyer: &str) -> Result<BuyerAnswer, Failure> {
        loop {
            let answer = match self.guard {
                Guard::None => self.unguarded().await,
                Guard::Mutex => {
                    let _guard = self.mutex.lock().await;
                    self.unguarded().await
                }
                Guard::Setnx | Guard::SetnxExpire | Guard::SetPx | Guard::Owner => {
                    self.with_raw_key(buyer).await
                }
                Guard::Lock | Guard::Fence => self.with_lock().await,
                Guard::Counter => self.with_counter(buyer).await,
            }?;
            // `None`: the lock was lost or the fencing token was stale, so the purchase starts again.
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }

    async fn unguarded(&self) -> Result<Option<BuyerAnswer>, Failure> {
        let fault = self.next_fault().await?;
        self.purchase(&fault, None, None).await
    }

    async fn next_fault(&self) -> Result<PurchaseFault, Failure> {
        Ok(PurchaseFault::begin(match self.faults {
            true => self.warehouse.begin_purchase().await.map_err(unreachable)?,
            false => None,
        }))
    }

    /// Read, prepare the bill, write: the critical section. `None` if the lock was lost or the fencing token stale.
    async fn purchase(
        &self,
        fault: &PurchaseFault,
        held: Option<&LockGuard>,
        fence: Option<u64>,
    ) -> Result<Option<BuyerAnswer>, Failure> {
        let left = match self.warehouse.read(fence).await.map_err(unreachable)? {
            WarehouseReply::Left(left) => left,
            WarehouseReply::Sold | WarehouseReply::Stale => return Ok(None),
        };
        if left <= 0 {
            return Ok(Some(BuyerAnswer::SoldOut));
        }
        fault.before_write().await;
        sleep(self.think).await;
        if held.is_some_and(|held| !held.is_held()) {
            return Ok(None);
        }
        fault.at_last_moment();
        let written = self.warehouse.write(left - 1, fence).await;
        Ok((written.map_err(unreachable)? == WarehouseReply::Sold).then_some(BuyerAnswer::Yours))
    }

    /// The locks of many tutorials.
    async fn with_raw_key(&self, buyer: &str) -> Result<Option<BuyerAnswer>, Failure> {
        let keys = self.keys.as_ref().expect("opened for these guards");
        let ttl = match self.guard {
            Guard::Setnx | Guard::SetnxExpire => None,
            _ => Some(self.ttl),
        };
        while !keys.set_if_absent(&self.key, buyer, ttl).await? {
            sleep(self.poll.unwrap_or(POLL)).await;
        }
        let fault = self.next_fault().await?;
        if self.guard == Guard::SetnxExpire {
            keys.expire(&self.key, self.ttl).await?;
        }
        let answer = self.purchase(&fault, None, None).await?;
        // The sale stands even if the key cannot be deleted.
        let _ = match self.guard {
            Guard::Owner => keys.delete_if(&self.key, buyer).await,
            _ => keys.delete(&self.key).await,
        };
        Ok(answer)
    }

    async fn with_lock(&self) -> Result<Option<BuyerAnswer>, Failure> {
        let lock = self.store.lock(&self.key).ttl(self.ttl);
        let held = match self.poll {
            None => lock.acquire().await?,
            Some(pause) => poll_lock(&lock, pause).await?,
        };
        let fault = self.next_fault().await?;
        let fence = (self.guard == Guard::Fence).then(|| held.fence().get());
        // Losing the lock drops the purchase; the fencing token stops a write that is already on its way.
        let answer = match held.run(self.purchase(&fault, Some(&held), fence)).await {
            Ok(answer) => answer?,
            Err(windlass::LeaseLost) => None,
        };
        // The warehouse has decided. A failed release does not change that, and must not make a buyer who got an item
        // retry.
        let _ = held.release().await;
        Ok(answer)
    }

    /// One atomic step decides. If the shop crashes after it, the buyer retries and gets the same answer.
    async fn with_counter(&self, buyer: &str) -> Result<Option<BuyerAnswer>, Failure> {
        let counter = self.store.counter(&self.key).max(self.stock);
        // Longer than any buyer retries.
        let counter = counter.expire(10 * MINUTE).retention(MINUTE);
        let reserved = counter.add_once(buyer, 1).await?;
        if !reserved.added {
            return Ok(Some(BuyerAnswer::SoldOut));
        }
        let fault = self.next_fault().await?;
        fault.before_write().await;
        sleep(self.think).await;
        fault.at_last_moment();
        self.warehouse.ship(buyer).await.map_err(unreachable)?;
        Ok(Some(BuyerAnswer::Yours))
    }
}

/// Waits for a lock by polling.
async fn poll_lock(lock: &Lock, pause: Duration) -> Result<LockGuard, Failure> {
    loop {
        if let Some(held) = lock.try_acquire().await?.acquired() {
            return Ok(held);
        }
        sleep(pause).await;
    }
}

fn unreachable(error: std::io::Error) -> Failure {
    Failure {
        kind: "unreachable",
        name: None,
        message: format!("cannot reach the warehouse: {error}"),
        advice: windlass_term::Advice::Hint("start it first: windlass demo warehouse".into()),
        exit: windlass_term::Exit::UNREACHABLE,
    }
}
