//! The market in Redis: a sorted set of offers, a hash for each user, a set of each user's goods.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Script, Value};
use windlass_term::{Failure, raw_redis};

use super::market::{CommitOutcome, FUNDS, Inventory, Offer, OfferView};

/// Expiry of all keys, in case the demo is killed.
const EXPIRY_SECONDS: i64 = 3600;

static LIST: LazyLock<Script> = LazyLock::new(|| {
    // KEYS: market, the seller's goods. ARGV: member, price, item.
    Script::new(
        "if redis.call('SREM', KEYS[2], ARGV[3]) == 0 then return 0 end
         redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
         return 1",
    )
});

static BUY: LazyLock<Script> = LazyLock::new(|| {
    // KEYS: market, buyer, seller, the buyer's goods. ARGV: member, item.
    Script::new(
        "local price = redis.call('ZSCORE', KEYS[1], ARGV[1])
         if not price then return 0 end
         if tonumber(redis.call('HGET', KEYS[2], 'funds')) < tonumber(price) then return 0 end
         redis.call('HINCRBY', KEYS[2], 'funds', -price)
         redis.call('HINCRBY', KEYS[3], 'funds', price)
         redis.call('SADD', KEYS[4], ARGV[2])
         redis.call('ZREM', KEYS[1], ARGV[1])
         return 1",
    )
});

/// A client with a connection of its own, as WATCH requires.
#[derive(Clone)]
pub(super) struct RedisMarket {
    connection: MultiplexedConnection,
    prefix: String,
}

impl RedisMarket {
    pub(super) async fn connect(url: &str, prefix: String) -> Result<RedisMarket, Failure> {
        let mut connection = raw_redis::connect(url).await?;
        for script in [&LIST, &BUY] {
            let loading = script.prepare_invoke();
            loading
                .load_async(&mut connection)
                .await
                .map_err(raw_redis::failure)?;
        }
        Ok(RedisMarket { connection, prefix })
    }

    fn market(&self) -> String {
        format!("{}:market", self.prefix)
    }

    fn user(&self, user: &str) -> String {
        format!("{}:user:{user}", self.prefix)
    }

    fn goods(&self, user: &str) -> String {
        format!("{}:goods:{user}", self.prefix)
    }

    /// Writes the initial money of all users.
    pub(super) async fn set_up(&mut self, users: &[String]) -> Result<(), Failure> {
        let mut pipe = redis::pipe();
        for user in users {
            pipe.hset(self.user(user), "funds", FUNDS).ignore();
            pipe.expire(self.user(user), EXPIRY_SECONDS).ignore();
        }
        self.run(&pipe).await
    }

    /// Removes all keys.
    pub(super) async fn tear_down(&mut self, users: &[String]) -> Result<(), Failure> {
        let mut command = redis::cmd("UNLINK");
        command.arg(self.market());
        for user in users {
            command.arg(self.user(user)).arg(self.goods(user));
        }
        let done = command.query_async(&mut self.connection).await;
        done.map_err(raw_redis::failure)
    }

    pub(super) async fn make(&mut self, seller: &str, items: &[String]) -> Result<(), Failure> {
        let mut pipe = redis::pipe();
        pipe.sadd(self.goods(seller), items).ignore();
        pipe.expire(self.goods(seller), EXPIRY_SECONDS).ignore();
        pipe.expire(self.market(), EXPIRY_SECONDS).ignore();
        self.run(&pipe).await
    }

    pub(super) async fn has(&mut self, offer: &Offer) -> Result<bool, Failure> {
        let mut command = redis::cmd("SISMEMBER");
        command.arg(self.goods(&offer.seller)).arg(&offer.item);
        let answer = command.query_async(&mut self.connection).await;
        answer.map_err(raw_redis::failure)
    }

    pub(super) async fn list(&mut self, offer: &Offer, price: i64) -> Result<(), Failure> {
        self.run(&self.listing(offer, price)).await
    }

    pub(super) async fn list_in_steps(&mut self, offer: &Offer, price: i64) -> Result<(), Failure> {
        let mut first = redis::pipe();
        first.zadd(self.market(), offer.member(), price).ignore();
        self.run(&first).await?;
        let mut second = redis::pipe();
        second.srem(self.goods(&offer.seller), &offer.item).ignore();
        self.run(&second).await
    }

    pub(super) async fn offers(&mut self, most: usize) -> Result<Vec<Offer>, Failure> {
        let mut command = redis::cmd("ZRANDMEMBER");
        command.arg(self.market()).arg(most);
        let found: Vec<String> = command
            .query_async(&mut self.connection)
            .await
            .map_err(raw_redis::failure)?;
        Ok(found.iter().filter_map(|m| Offer::parse(m)).collect())
    }

    pub(super) async fn inspect(
        &mut self,
        offer: &Offer,
        buyer: &str,
    ) -> Result<OfferView, Failure> {
        let mut pipe = redis::pipe();
        pipe.zscore(self.market(), offer.member());
        pipe.hget(self.user(buyer), "funds");
        pipe.hget(self.user(&offer.seller), "funds");
        let (price, buyer_has, seller_has): (Option<f64>, i64, i64) = pipe
            .query_async(&mut self.connection)
            .await
            .map_err(raw_redis::failure)?;
        Ok(OfferView {
            price: price.map(|price| price as i64),
            buyer_has,
            seller_has,
        })
    }

    pub(super) async fn settle(
        &mut self,
        offer: &Offer,
        buyer: &str,
        price: i64,
    ) -> Result<(), Failure> {
        self.run(&self.settlement(offer, buyer, price)).await
    }

    pub(super) async fn settle_in_steps(
        &mut self,
        offer: &Offer,
        buyer: &str,
        view: OfferView,
        price: i64,
    ) -> Result<(), Failure> {
        let mut steps = [redis::pipe(), redis::pipe(), redis::pipe(), redis::pipe()];
        steps[0].hset(self.user(buyer), "funds", view.buyer_has - price);
        steps[1].hset(self.user(&offer.seller), "funds", view.seller_has + price);
        steps[2].sadd(self.goods(buyer), &offer.item);
        steps[3].zrem(self.market(), offer.member());
        for step in &mut steps {
            self.run(step.ignore()).await?;
        }
        Ok(())
    }

    /// WATCH, read, MULTI, EXEC.
    pub(super) async fn list_watching(
        &mut self,
        offer: &Offer,
        price: i64,
    ) -> Result<CommitOutcome, Failure> {
        self.watch(&[self.goods(&offer.seller)]).await?;
        if !self.has(offer).await? {
            return self.unwatch().await;
        }
        self.exec(&self.listing(offer, price)).await
    }

    /// WATCH the whole market and the buyer's money, read, MULTI, EXEC.
    pub(super) async fn buy_watching(
        &mut self,
        offer: &Offer,
        buyer: &str,
    ) -> Result<CommitOutcome, Failure> {
        self.watch(&[self.market(), self.user(buyer)]).await?;
        let view = self.inspect(offer, buyer).await?;
        match view.price {
            Some(price) if price <= view.buyer_has => {
                self.exec(&self.settlement(offer, buyer, price)).await
            }
            _ => self.unwatch().await,
        }
    }

    pub(super) async fn list_scripted(
        &mut self,
        offer: &Offer,
        price: i64,
    ) -> Result<bool, Failure> {
        let mut script = LIST.prepare_invoke();
        script.key(self.market()).key(self.goods(&offer.seller));
        script.arg(offer.member()).arg(price).arg(&offer.item);
        let done = script.invoke_async(&mut self.connection).await;
        done.map_err(raw_redis::failure)
    }

    pub(super) async fn buy_scripted(
        &mut self,
        offer: &Offer,
        buyer: &str,
    ) -> Result<bool, Failure> {
        let mut script = BUY.prepare_invoke();
        script.key(self.market()).key(self.user(buyer));
        script.key(self.user(&offer.seller)).key(self.goods(buyer));
        script.arg(offer.member()).arg(&offer.item);
        let done = script.invoke_async(&mut self.connection).await;
        done.map_err(raw_redis::failure)
    }

    pub(super) async fn count(&mut self, users: &[String]) -> Result<Inventory, Failure> {
        let mut all = Inventory::default();
        for user in users {
            let mut pipe = redis::pipe();
            pipe.hget(self.user(user), "funds");
            pipe.smembers(self.goods(user));
            let (funds, goods): (i64, Vec<String>) = pipe
                .query_async(&mut self.connection)
                .await
                .map_err(raw_redis::failure)?;
            all.money += funds;
            all.items.extend(goods);
        }
        let mut command = redis::cmd("ZRANGE");
        command.arg(self.market()).arg(0).arg(-1);
        let offered: Vec<String> = command
            .query_async(&mut self.connection)
            .await
            .map_err(raw_redis::failure)?;
        let offered = offered.iter().filter_map(|member| Offer::parse(member));
        all.items.extend(offered.map(|offer| offer.item));
        Ok(all)
    }

    fn listing(&self, offer: &Offer, price: i64) -> Pipeline {
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.zadd(self.market(), offer.member(), price);
        pipe.srem(self.goods(&offer.seller), &offer.item);
        pipe
    }

    fn settlement(&self, offer: &Offer, buyer: &str, price: i64) -> Pipeline {
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.hincr(self.user(buyer), "funds", -price);
        pipe.hincr(self.user(&offer.seller), "funds", price);
        pipe.sadd(self.goods(buyer), &offer.item);
        pipe.zrem(self.market(), offer.member());
        pipe
    }

    async fn watch(&mut self, keys: &[String]) -> Result<(), Failure> {
        let mut command = redis::cmd("WATCH");
        command.arg(keys);
        let done = command.query_async(&mut self.connection).await;
        done.map_err(raw_redis::failure)
    }

    async fn unwatch(&mut self) -> Result<CommitOutcome, Failure> {
        let done: Result<(), _> = redis::cmd("UNWATCH")
            .query_async(&mut self.connection)
            .await;
        done.map_err(raw_redis::failure)?;
        Ok(CommitOutcome::Gone)
    }

    /// EXEC returns nil if a watched key has changed.
    async fn exec(&mut self, pipe: &Pipeline) -> Result<CommitOutcome, Failure> {
        let answer: Value = pipe
            .query_async(&mut self.connection)
            .await
            .map_err(raw_redis::failure)?;
        Ok(match answer {
            Value::Nil => CommitOutcome::Conflict,
            _ => CommitOutcome::Committed,
        })
    }

    async fn run(&mut self, pipe: &Pipeline) -> Result<(), Failure> {
        let done: Result<Value, _> = pipe.query_async(&mut self.connection).await;
        done.map(drop).map_err(raw_redis::failure)
    }
}
