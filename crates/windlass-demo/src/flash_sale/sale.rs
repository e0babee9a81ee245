//! Runs one sale: starts the shops and buyers, opens the sale, restarts crashed shops, and collects the result.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, timeout};
use windlass_term::Failure;

use super::SaleSetup;
use super::balancer::Balancer;
use super::buyers::{self, ServedBuyer};
use super::outcome::{InjectedFault, SaleOutcome};
use super::plan::SalePlan;
use super::shop_processes::{ShopEventKind, ShopProcesses, ShopSettings};
use super::warehouse::Warehouse;
use crate::invalid_run;

/// Time for all buyers to connect to a shop.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of progress updates.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(80);

/// Runs a sale; `progress` is called with the number of items sold.
pub(super) async fn run(
    plan: &SalePlan,
    setup: &SaleSetup<'_>,
    mut progress: impl FnMut(usize),
) -> Result<SaleOutcome, Failure> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let no_port = |e| Failure::internal(format!("cannot open a port: {e}"));
    let warehouse = Warehouse::open(any_port, setup.stock, plan.schedule(setup.stock))
        .await
        .map_err(no_port)?;
    let sale = setup.name_of(plan);
    let settings = ShopSettings {
        store: setup.url,
        namespace: setup.namespace,
        sale: sale.clone(),
        guard: plan.guard,
        poll: plan.poll,
        faults: plan.has_faults(),
        ttl: plan.ttl(),
        warehouse: warehouse.addr(),
        key_file: setup.key_file.as_deref(),
        ports: setup.ports,
    };
    let (mut shops, addrs) = ShopProcesses::start(settings, setup.shops).await?;
    let listen = match setup.ports {
        Some(ports) => SocketAddr::from((Ipv4Addr::LOCALHOST, ports.from)),
        None => any_port,
    };
    let balancer = Balancer::open(listen, addrs)
        .await
        .map_err(|e| super::shop::cannot_listen(listen, &e))?;
    let mut running = buyers::start(balancer.addr(), &sale, setup.buyers);
    await_buyers(&mut shops, setup.buyers).await?;

    let opened = Instant::now();
    shops.open_sale().await?;
    let (mut served, mut faults) = (Vec::new(), Vec::new());
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_answer = opened;
    let gave_up = loop {
        tokio::select! {
            answered = running.join_next() => match answered {
                Some(Ok(buyer)) => {
                    last_answer = buyer.at;
                    served.push(buyer);
                }
                Some(Err(e)) => return Err(Failure::internal(format!("a buyer failed: {e}"))),
                None => break false,
            },
            event = shops.next() => match event.kind {
                ShopEventKind::Fault(kind) => faults.push(InjectedFault {
                    kind,
                    shop: event.shop,
                    at: event.at.duration_since(opened),
                }),
                ShopEventKind::Ended => shops.restart(event.shop).await?,
                ShopEventKind::Listening(addr) => balancer.set_addr(event.shop, addr),
                ShopEventKind::BuyerWaiting => {}
            },
            _ = ticks.tick() => {
                let (sold, last_sale) = {
                    let ledger = warehouse.ledger();
                    (ledger.sales().len(), ledger.sales().last().copied())
                };
                progress(sold);
                let last = last_answer.max(last_sale.unwrap_or(opened));
                if last.elapsed() > plan.stuck_after() {
                    break true;
                }
            }
        }
    };
    let closed = Instant::now();
    drop(running);
    shops.stop().await;
    let counted = match plan.uses_counter() {
        true => Some(setup.store.counter(&sale).get().await?),
        false => None,
    };
    let ledger = warehouse.ledger();
    Ok(SaleOutcome::new(
        &ledger,
        counted,
        served_times(&served, opened),
        faults,
        (opened, closed),
        gave_up,
    ))
}

/// Waits until all buyers are connected to a shop.
async fn await_buyers(shops: &mut ShopProcesses<'_>, buyers: u32) -> Result<(), Failure> {
    let all = async {
        let mut connected = 0;
        while connected < buyers {
            match shops.next().await.kind {
                ShopEventKind::BuyerWaiting => connected += 1,
                ShopEventKind::Ended => {
                    return Err(invalid_run("a shop ended before the sale opened"));
                }
                ShopEventKind::Listening(_) | ShopEventKind::Fault(_) => {}
            }
        }
        Ok(())
    };
    timeout(CONNECT_TIMEOUT, all).await.unwrap_or_else(|_| {
        Err(invalid_run(format!(
            "not all buyers were connected after {CONNECT_TIMEOUT:?}"
        )))
    })
}

/// The time that each buyer waited for an answer.
fn served_times(served: &[ServedBuyer], opened: Instant) -> Vec<(Duration, bool)> {
    let time = |buyer: &ServedBuyer| (buyer.at.duration_since(opened), buyer.got_one);
    served.iter().map(time).collect()
}
