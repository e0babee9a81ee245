//! `windlass help stores`

/// Every kind of store, with one line each.
pub(crate) const STORES: &str = "\
Stores (--store URL, or WINDLASS_STORE):
  file:PATH                            one machine: a SQLite file, no server; the default
  memory:                              this process alone, for tests
  redis://HOST:PORT/DB                 one Redis (6.2 or later) or Valkey server
  rediss://HOST                        the same over TLS; ?tls_ca=FILE for a private CA
  redis+unix:///PATH/SOCKET            the same over a Unix socket
  redis+sentinel://HOST,HOST/SERVICE   the master that sentinels name; rediss+sentinel:// for TLS
  redis+cluster://HOST,HOST            a Redis Cluster; rediss+cluster:// for TLS
  redlock://HOST,HOST,HOST             a majority of independent servers; redlock+tls:// for TLS
  etcd://HOST:PORT,HOST:PORT           an etcd cluster; etcds:// for TLS
  postgres://USER@HOST:PORT/DATABASE   a PostgreSQL database (14 or later); ?schema=NAME
  zookeeper://HOST:PORT,HOST/CHROOT    a ZooKeeper ensemble; zookeeper+tls:// needs a feature

A password goes before the host: redis://:PASSWORD@HOST or redis://USER:PASSWORD@HOST. Other users
can read a command line: put such a URL into a file and give --store-file PATH.

file:, memory:, Redis and PostgreSQL support every command. redlock://, etcd:// and zookeeper://
support coordination: run, elect, lock, rw and gate; etcd and ZooKeeper also sem, latch and barrier.

Examples:
  windlass --store redis://127.0.0.1 doctor        what the store is, and what it guarantees
  WINDLASS_STORE=file:/var/lib/app/locks.db windlass run backup -- ./backup.sh";
