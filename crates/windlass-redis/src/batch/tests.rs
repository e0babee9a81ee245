//! A caller of a batch gives up while the batch cannot be decided.

use std::time::Duration;

use windlass_testkit::{RedisCluster, eventually_blocking};

use super::*;
use crate::cluster::Cluster;
use crate::script;
use windlass_core::store::NoListener;

const SOON: Duration = Duration::from_secs(20);

/// A word to append to a list.
#[derive(Debug)]
struct Append(Name, &'static str);

impl BatchedDecision for Append {
    fn name(&self) -> &Name {
        &self.0
    }

    fn fence_use(&self) -> FenceUse {
        FenceUse::None
    }

    fn command<'a>(
        _: &Script,
        batch: impl ExactSizeIterator<Item = &'a Append> + Clone,
        _: &Keys,
        _: &str,
    ) -> Cmd {
        let append = "local lengths = {} \
                      for i = 1, #ARGV do lengths[i] = redis.call('RPUSH', KEYS[2], ARGV[i]) end \
                      return lengths";
        let mut command = redis::cmd("EVAL");
        command.arg(append).arg(2);
        // One of the keys exists and one does not, so the call must wait while their slot migrates.
        command.arg("{stock}here").arg("{stock}words");
        for Append(_, word) in batch {
            command.arg(word);
        }
        command
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_decision_is_not_sent_again_and_the_others_are() {
    let nodes = RedisCluster::start().unwrap();
    let url = nodes.url();
    let cluster = Cluster::open(&url, 3 * SOON, 7, NoListener::weak());
    let target = Target {
        router: Arc::new(Router::Cluster(cluster.await.unwrap().0)),
        script: &script::LOCK,
        checks_fences: true,
    };
    let from = nodes.master_of("stock").unwrap();
    from.command(&["SET", "{stock}here", "1"]).unwrap();
    let moving = nodes.begin_move("stock").unwrap();
    let job = |word| {
        let (answer, reply) = oneshot::channel();
        let name = Name::new("test", None, "stock").unwrap();
        let decision = Append(name, word);
        (BatchJob { decision, answer }, reply)
    };
    let ((one, cancelled), (other, waiting)) = (job("one"), job("other"));
    let sent = tokio::spawn(async move { send(&target, vec![one, other]).await });
    let was_refused = || {
        let stats = from.command(&["INFO", "commandstats"]).unwrap();
        let evals = stats.lines().find(|line| line.starts_with("cmdstat_eval:"));
        evals.is_some_and(|evals| !evals.trim().contains("rejected_calls=0"))
    };
    assert!(eventually_blocking(SOON, was_refused));
    drop(cancelled);
    moving.finish().unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), Value::Int(1));
    sent.await.unwrap();
    let read = ["LRANGE", "{stock}words", "0", "-1"];
    let words = nodes.master_of("stock").unwrap().command(&read).unwrap();
    assert_eq!(words, "other");
}
