//! What one server keeps of a value that a majority agrees on.

use redis::{Cmd, Value};

use super::super::translate::strange_answer;
use super::super::{Redis, bytes, keys, millis, script, time_left};
use crate::backend::Channel;
use crate::backend::quorum::{Accept, Kept, Promise};
use crate::error::Result;
use crate::lease::Fence;
use crate::name::Name;

fn command(name: &Name) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script::VOTE_REGISTER.digest()).arg(3);
    command.arg(keys::register(name));
    command.arg(keys::FENCE).arg(keys::JOINED);
    command
}

async fn run(redis: &Redis, command: &Cmd) -> Result<Value> {
    Ok(redis.link.run(&script::VOTE_REGISTER, command).await?)
}

pub(super) async fn promise(redis: Redis, name: Name, proposal: Fence) -> Result<Promise> {
    let mut command = command(&name);
    command.arg("promise").arg(proposal.get());
    let answer = run(&redis, &command).await?;
    match &answer {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(number), rest @ ..] => Ok(Promise {
                number: *number as u64,
                kept: read(rest).ok_or_else(|| strange_answer(&answer))?,
            }),
            _ => Err(strange_answer(&answer)),
        },
        _ => Err(strange_answer(&answer)),
    }
}

pub(super) async fn accept(redis: Redis, name: Name, accept: Accept) -> Result<bool> {
    let channel = match accept.news {
        Some(kind) => keys::news(&Channel {
            kind,
            name: name.clone(),
        }),
        None => String::new(),
    };
    let mut command = command(&name);
    command.arg("accept").arg(accept.number);
    command
        .arg(&*accept.value)
        .arg(millis(accept.keep))
        .arg(channel);
    let answer = run(&redis, &command).await?;
    match answer {
        Value::Int(done) => Ok(done == 1),
        other => Err(strange_answer(&other)),
    }
}

pub(super) async fn kept(redis: Redis, name: Name) -> Result<Option<Kept>> {
    let mut command = command(&name);
    command.arg("kept");
    let answer = run(&redis, &command).await?;
    match &answer {
        Value::Array(parts) => read(parts).ok_or_else(|| strange_answer(&answer)),
        _ => Err(strange_answer(&answer)),
    }
}

fn read(parts: &[Value]) -> Option<Option<Kept>> {
    match parts {
        [] => Some(None),
        [
            Value::Int(ballot),
            value,
            Value::Int(left),
            Value::Int(this_run),
        ] => Some(Some(Kept {
            ballot: *ballot as u64,
            value: bytes(value)?.into(),
            left: time_left(*left).unwrap_or_default(),
            this_run: *this_run == 1,
        })),
        _ => None,
    }
}
