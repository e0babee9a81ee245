//! One sale: doors open, buyers buy, shops fall over, and the stock is counted afterwards.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::super::spoilt;
use super::Grounds;
use super::balancer::Balancer;
use super::crowd::{self, Served};
use super::outcome::{Outcome, Struck};
use super::plan::Plan;
use super::staff::{Fittings, News, Staff};
use super::warehouse::Warehouse;
use crate::failure::Failure;

/// For all buyers to find their way to a shop.
const GATHERING: Duration = Duration::from_secs(30);
/// How often somebody who watches is shown how it goes.
const GLANCE: Duration = Duration::from_millis(80);

/// Holds a sale; `glance` is told how many are sold, now and then.
pub(super) async fn hold(
    plan: &Plan,
    grounds: &Grounds<'_>,
    mut glance: impl FnMut(usize),
) -> Result<Outcome, Failure> {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let no_port = |e| Failure::internal(format!("no port can be had on this machine: {e}"));
    let warehouse = Warehouse::open(anywhere, grounds.stock, plan.faults(grounds.stock))
        .await
        .map_err(no_port)?;
    let sale = grounds.name_of(plan);
    let fittings = Fittings {
        store: grounds.url,
        namespace: grounds.namespace,
        sale: sale.clone(),
        guard: plan.guard,
        poll: plan.poll,
        foul: plan.is_foul(),
        ttl: plan.ttl(),
        warehouse: warehouse.addr(),
        keys: grounds.keys.as_deref(),
        ports: grounds.ports,
    };
    let (mut staff, addrs) = Staff::start(fittings, grounds.shops).await?;
    let listen = match grounds.ports {
        Some(ports) => SocketAddr::from((Ipv4Addr::LOCALHOST, ports.from)),
        None => anywhere,
    };
    let balancer = Balancer::open(listen, addrs)
        .await
        .map_err(|e| super::shop::taken(listen, &e))?;
    let mut crowd = crowd::gather(balancer.addr(), &sale, grounds.buyers);
    gathered(&mut staff, grounds.buyers).await?;

    let opened = Instant::now();
    staff.open_doors().await?;
    let (mut served, mut struck) = (Vec::new(), Vec::new());
    let mut ticks = interval(GLANCE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_answer = opened;
    let gave_up = loop {
        tokio::select! {
            answered = crowd.join_next() => match answered {
                Some(Ok(buyer)) => {
                    last_answer = buyer.at;
                    served.push(buyer);
                }
                Some(Err(e)) => return Err(Failure::internal(format!("a buyer failed: {e}"))),
                None => break false,
            },
            event = staff.next() => match event.news {
                News::Fault(kind) => struck.push(Struck {
                    kind,
                    shop: event.shop,
                    at: event.at.duration_since(opened),
                }),
                News::Ended => staff.replace(event.shop).await?,
                News::Listening(addr) => balancer.moved(event.shop, addr),
                News::AtTheDoor => {}
            },
            _ = ticks.tick() => {
                let (sold, last_sale) = {
                    let ledger = warehouse.ledger();
                    (ledger.sales().len(), ledger.sales().last().copied())
                };
                glance(sold);
                let last = last_answer.max(last_sale.unwrap_or(opened));
                if last.elapsed() > plan.patience() {
                    break true;
                }
            }
        }
    };
    let closed = Instant::now();
    drop(crowd);
    staff.dismiss().await;
    let counted = match plan.counts() {
        true => Some(grounds.store.counter(&sale).get().await?),
        false => None,
    };
    let ledger = warehouse.ledger();
    Ok(Outcome::new(
        &ledger,
        counted,
        served_times(&served, opened),
        struck,
        (opened, closed),
        gave_up,
    ))
}

async fn gathered(staff: &mut Staff<'_>, buyers: u32) -> Result<(), Failure> {
    let all = async {
        let mut here = 0;
        while here < buyers {
            match staff.next().await.news {
                News::AtTheDoor => here += 1,
                News::Ended => return Err(spoilt("a shop ended before the sale began")),
                News::Listening(_) | News::Fault(_) => {}
            }
        }
        Ok(())
    };
    timeout(GATHERING, all).await.unwrap_or_else(|_| {
        Err(spoilt(format!(
            "not all buyers were at the door after {GATHERING:?}"
        )))
    })
}

/// How long each buyer has waited for an answer, be it yes or no.
fn served_times(served: &[Served], opened: Instant) -> Vec<(Duration, bool)> {
    let time = |buyer: &Served| (buyer.at.duration_since(opened), buyer.got_one);
    served.iter().map(time).collect()
}
