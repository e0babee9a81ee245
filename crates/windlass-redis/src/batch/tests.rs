//! Somebody of a batch gives up while it cannot be decided on.

use std::sync::Weak;
use std::time::Duration;

use windlass_testkit::{RedisCluster, eventually_blocking};

use super::*;
use crate::cluster::Cluster;
use crate::script;
use windlass_core::Fence;
use windlass_core::store::GrantListener;

const SOON: Duration = Duration::from_secs(20);

struct Deaf;

impl GrantListener for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}
    fn missed(&self) {}
}

/// Something to be written down.
#[derive(Debug)]
struct Word(Name, &'static str);

impl Decision for Word {
    fn script() -> &'static Script {
        &script::LOCK
    }

    fn name(&self) -> &Name {
        &self.0
    }

    fn draws(&self) -> FenceUse {
        FenceUse::None
    }

    fn command<'a>(batch: impl ExactSizeIterator<Item = &'a Word> + Clone, _: &str) -> Cmd {
        let mut command = redis::cmd("EVAL");
        let write = "local said = {} for i = 1, #ARGV do said[i] = redis.call('RPUSH', KEYS[2], ARGV[i]) end \
                     return said";
        // Not to be decided on while its slot moves: one of the two is here, and one might be there.
        command
            .arg(write)
            .arg(2)
            .arg("{stock}here")
            .arg("{stock}said");
        for Word(_, word) in batch {
            command.arg(word);
        }
        command
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_gave_up_is_not_sent_again_and_the_others_are() {
    let nodes = RedisCluster::start().unwrap();
    let (url, nobody): (_, Weak<Deaf>) = (nodes.url(), Weak::new());
    let cluster = Cluster::open(&url, 3 * SOON, 7, nobody).await.unwrap().0;
    let link = Arc::new(Router::Cluster(cluster));
    let from = nodes.master_of("stock").unwrap();
    from.command(&["SET", "{stock}here", "1"]).unwrap();
    let moving = nodes.begin_move("stock").unwrap();
    let job = |word| {
        let (answer, reply) = oneshot::channel();
        let name = Name::new("test", None, "stock").unwrap();
        let decision = Word(name, word);
        (Job { decision, answer }, reply)
    };
    let ((one, given_up), (other, waiting)) = (job("one"), job("other"));
    let sent = tokio::spawn(async move { send(&link, vec![one, other]).await });
    let told_to_wait = || {
        let stats = from.command(&["INFO", "commandstats"]).unwrap();
        let evals = stats.lines().find(|line| line.starts_with("cmdstat_eval:"));
        evals.is_some_and(|evals| !evals.trim().contains("rejected_calls=0"))
    };
    assert!(eventually_blocking(SOON, told_to_wait));
    drop(given_up);
    moving.finish().unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), Value::Int(1));
    sent.await.unwrap();
    let said = ["LRANGE", "{stock}said", "0", "-1"];
    let said = nodes.master_of("stock").unwrap().command(&said).unwrap();
    assert_eq!(said, "other");
}
