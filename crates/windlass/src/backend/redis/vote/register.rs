//! What one server keeps of a value that a majority agrees on.

use redis::{Cmd, Value};

use super::super::claims::SCAN_STEP;
use super::super::translate::strange_answer;
use super::super::{Redis, bytes, keys, millis, script, time_left};
use crate::backend::quorum::{Accept, Kept, Promise, Writer};
use crate::backend::{Channel, matches};
use crate::error::Result;
use crate::lease::Fence;

fn command(of: &Channel) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script::VOTE_REGISTER.digest()).arg(3);
    command.arg(keys::register(of));
    command.arg(keys::FENCE).arg(keys::JOINED);
    command
}

async fn run(redis: &Redis, command: &Cmd) -> Result<Value> {
    Ok(redis.link.run(&script::VOTE_REGISTER, command).await?)
}

pub(super) async fn promise(
    redis: Redis,
    of: Channel,
    proposal: Fence,
    writer: Writer,
) -> Result<Option<Promise>> {
    let mut command = command(&of);
    command.arg("promise").arg(proposal.get());
    command.arg(writer.who).arg(millis(writer.turn));
    let answer = run(&redis, &command).await?;
    match &answer {
        Value::Array(parts) => match parts.as_slice() {
            [] => Ok(None),
            [Value::Int(number), rest @ ..] => Ok(Some(Promise {
                number: *number as u64,
                kept: read(rest).ok_or_else(|| strange_answer(&answer))?,
            })),
            _ => Err(strange_answer(&answer)),
        },
        _ => Err(strange_answer(&answer)),
    }
}

pub(super) async fn let_go(redis: Redis, of: Channel, who: u64) -> Result<()> {
    let mut command = command(&of);
    command.arg("let_go").arg(who);
    run(&redis, &command).await.map(drop)
}

pub(super) async fn accept(redis: Redis, of: Channel, accept: Accept) -> Result<bool> {
    let channel = match accept.news {
        true => keys::news(&of),
        false => String::new(),
    };
    let mut command = command(&of);
    command.arg("accept").arg(accept.number);
    command
        .arg(&*accept.value)
        .arg(millis(accept.keep))
        .arg(channel)
        .arg(accept.floor);
    let answer = run(&redis, &command).await?;
    match answer {
        Value::Int(done) => Ok(done == 1),
        other => Err(strange_answer(&other)),
    }
}

pub(super) async fn kept(redis: Redis, of: Channel) -> Result<Option<Kept>> {
    let mut command = command(&of);
    command.arg("kept");
    let answer = run(&redis, &command).await?;
    match &answer {
        Value::Array(parts) => read(parts).ok_or_else(|| strange_answer(&answer)),
        _ => Err(strange_answer(&answer)),
    }
}

/// The names of all registers of a kind that match the pattern.
pub(super) async fn names(
    redis: Redis,
    kind: &'static str,
    pattern: String,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (_, master) in redis.link.masters() {
        let mut cursor = 0u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(keys::all_registers(kind));
            scan.arg("COUNT").arg(SCAN_STEP);
            let (next, keys): (u64, Vec<Vec<u8>>) = master.query(&scan).await?;
            // Keys that are no text are not of our making.
            let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
            let names = keys.filter_map(|key| keys::registered(kind, key));
            found.extend(names.filter(|n| matches(&pattern, n)).map(str::to_owned));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(found)
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
