//! The PostgreSQL test server and its pooler.

use std::io;

use windlass_testkit::{PgBouncer, PoolMode, PostgresServer};

#[test]
fn server_keeps_its_data_and_port_over_kill_and_restart() -> io::Result<()> {
    let server = PostgresServer::start()?;
    let port = server.port();
    server.sql("CREATE TABLE greeting AS SELECT 'hello'::text AS word")?;
    server.kill()?;
    assert!(server.sql("SELECT 1").is_err(), "a killed server answers");
    server.restart()?;
    assert_eq!(server.sql("SELECT word FROM greeting")?, "hello");
    server.stop()?;
    server.restart()?;
    assert_eq!(server.sql("SELECT word FROM greeting")?, "hello");
    assert_eq!(server.port(), port);
    let error = server.sql("SELECT 1/0").unwrap_err();
    assert!(error.to_string().contains("division by zero"), "{error}");
    Ok(())
}

#[test]
fn standby_follows_and_can_be_promoted() -> io::Result<()> {
    let primary = PostgresServer::start()?;
    primary.sql("CREATE TABLE greeting AS SELECT 'hello'::text AS word")?;
    let standby = PostgresServer::standby_of(&primary)?;
    assert_eq!(standby.sql("SELECT word FROM greeting")?, "hello");
    assert!(standby.sql("DELETE FROM greeting").is_err());
    primary.kill()?;
    standby.promote()?;
    standby.sql("DELETE FROM greeting")?;
    Ok(())
}

#[test]
fn pooler_listens_until_it_is_dropped() -> io::Result<()> {
    let server = PostgresServer::start()?;
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 2)?;
    pooler.restart()?;
    let address = pooler.url();
    let address = address.split(['@', '/']).nth(3).unwrap().to_owned();
    assert!(std::net::TcpStream::connect(&address).is_ok(), "{address}");
    drop(pooler);
    assert!(std::net::TcpStream::connect(&address).is_err());
    Ok(())
}
