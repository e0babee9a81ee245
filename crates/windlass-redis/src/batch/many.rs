//! Batches of one caller that has many decisions to take.

use redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::{
    BatchJob, BatchedDecision, Batcher, Target, answer_of, by_slot, reply_list, says_no_master,
    send, shut_down,
};
use crate::connection::MAX_SCRIPT_LOADS;
use crate::errors::CommandError;
use crate::router::Router;
use windlass_core::error::Result;
use windlass_core::join::join_all;

impl<D: BatchedDecision> Batcher<D> {
    /// Takes whole batches, each in one call, in their order and all sent at once: for a caller
    /// with many decisions. They do not wait for what is collected. One answer for each decision.
    pub(crate) async fn decide_many(&self, batches: Vec<Vec<D>>) -> Vec<Result<Value>> {
        let Target { router, script, .. } = &self.0.target;
        if let Router::Cluster(_) = &**router {
            return self.decide_many_by_slot(batches).await;
        }
        let keys = router.keys();
        let command = |batch: &Vec<D>| D::command(script, batch.iter(), keys, keys.fence());
        let commands: Vec<Cmd> = batches.iter().map(command).collect();
        let send = async |commands: &[&Cmd]| {
            let calls = commands
                .iter()
                .map(async |command| router.query::<Value>(command).await.and_then(reply_list));
            join_all(calls.map(Box::pin).collect()).await
        };
        let mut replies = send(&commands.iter().collect::<Vec<_>>()).await;
        // None of those was taken, and all are sent again together, so that their order is kept.
        let unknown =
            |reply: &Result<_, CommandError>| matches!(reply, Err(f) if f.is_unknown_script());
        for _ in 0..MAX_SCRIPT_LOADS {
            let again: Vec<usize> = (0..replies.len())
                .filter(|&i| unknown(&replies[i]))
                .collect();
            let Some(&first) = again.first() else {
                break;
            };
            if router.load(script, &commands[first]).await.is_err() {
                break;
            }
            let commands: Vec<&Cmd> = again.iter().map(|&i| &commands[i]).collect();
            for (i, reply) in again.into_iter().zip(send(&commands).await) {
                replies[i] = reply;
            }
        }
        for (batch, replies) in batches.iter().zip(&replies) {
            if let (Some(first), Ok(replies)) = (batch.first(), replies)
                && replies.iter().any(says_no_master)
            {
                router.find_new_master(first.name());
            }
        }
        let each = |(batch, replies): (Vec<D>, Result<Vec<Value>, CommandError>)| {
            let mut replies = replies.map(Vec::into_iter);
            batch.into_iter().map(move |_| answer_of(&mut replies))
        };
        batches.into_iter().zip(replies).flat_map(each).collect()
    }

    /// The same where a call is about one slot.
    async fn decide_many_by_slot(&self, batches: Vec<Vec<D>>) -> Vec<Result<Value>> {
        let (jobs, replies): (Vec<_>, Vec<_>) = batches
            .into_iter()
            .flatten()
            .map(|decision| {
                let (answer, reply) = oneshot::channel();
                (BatchJob { decision, answer }, reply)
            })
            .unzip();
        let calls = by_slot(self.0.target.router.keys(), jobs).into_iter();
        let calls = calls.map(|jobs| Box::pin(send(&self.0.target, jobs)));
        join_all(calls.collect()).await;
        let answer = |mut reply: oneshot::Receiver<_>| match reply.try_recv() {
            Ok(answer) => answer,
            Err(_) => Err(shut_down()),
        };
        replies.into_iter().map(answer).collect()
    }
}
