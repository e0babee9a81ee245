//! The fault proxy in front of a real Redis server.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually_blocking};

const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

struct ProxyFixture {
    server: RedisServer,
    proxy: FaultProxy,
}

impl ProxyFixture {
    fn new() -> io::Result<Self> {
        let server = RedisServer::start()?;
        let proxy = FaultProxy::start(server.addr())?;
        Ok(Self { server, proxy })
    }

    fn connect(&self) -> io::Result<RawClient> {
        let stream = TcpStream::connect(self.proxy.addr())?;
        stream.set_nodelay(true)?;
        Ok(RawClient(stream))
    }

    /// A client whose connection to the server is known to be up.
    fn connected(&self) -> io::Result<RawClient> {
        let mut client = self.connect()?;
        client.expect("PING", "+PONG\r\n")?;
        Ok(client)
    }

    fn server_has(&self, key: &str) -> bool {
        self.server
            .command(&["EXISTS", key])
            .is_ok_and(|count| count == "1")
    }

    fn wait_held(&self, direction: Direction, bytes: usize) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime without drivers can be built");
        runtime.block_on(self.proxy.wait_held(direction, bytes, SOON))
    }
}

struct RawClient(TcpStream);

impl RawClient {
    fn send(&mut self, command: &str) -> io::Result<()> {
        self.0.write_all(format!("{command}\r\n").as_bytes())
    }

    fn receive(&mut self, bytes: usize) -> io::Result<String> {
        self.0.set_read_timeout(Some(SOON))?;
        let mut reply = vec![0; bytes];
        self.0.read_exact(&mut reply)?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    fn expect(&mut self, command: &str, reply: &str) -> io::Result<()> {
        self.send(command)?;
        assert_eq!(self.receive(reply.len())?, reply);
        Ok(())
    }

    /// The connection is open and silent.
    fn receives_nothing(&mut self) -> bool {
        self.0
            .set_read_timeout(Some(SHORT))
            .expect("a timeout that is not zero can be set");
        let heard = self.0.read(&mut [0]);
        matches!(heard, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// The connection was reset rather than closed.
    fn is_reset(&mut self) -> bool {
        self.0
            .set_read_timeout(Some(SOON))
            .expect("a timeout that is not zero can be set");
        let heard = self.0.read(&mut [0]);
        matches!(heard, Err(error) if error.kind() == ErrorKind::ConnectionReset)
    }
}

#[test]
fn without_faults_bytes_pass_and_are_counted() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut client = fixture.connected()?;
    client.expect("SET key value", "+OK\r\n")?;
    assert_eq!(
        fixture.proxy.bytes_to_server(),
        "PING\r\nSET key value\r\n".len() as u64
    );
    assert_eq!(
        fixture.proxy.bytes_to_client(),
        "+PONG\r\n+OK\r\n".len() as u64
    );
    let _second = fixture.connected()?;
    assert_eq!(fixture.proxy.connections(), 2);
    assert_eq!(fixture.proxy.open_connections(), 2);
    drop(client);
    assert!(eventually_blocking(SOON, || fixture
        .proxy
        .open_connections()
        == 1));
    assert_eq!(fixture.proxy.connections(), 2);
    Ok(())
}

#[test]
fn large_transfers_arrive_whole_both_ways() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let value: Vec<u8> = (0..4_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut client = fixture.connect()?;
    let head = format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n${}\r\n", value.len());
    client.0.write_all(head.as_bytes())?;
    client.0.write_all(&value)?;
    client.expect("", "+OK\r\n")?;
    client.send("GET key")?;
    assert_eq!(client.receive(10)?, format!("${}\r\n", value.len()));
    let mut returned = vec![0; value.len()];
    client.0.read_exact(&mut returned)?;
    assert!(returned == value);
    Ok(())
}

#[test]
fn server_exit_reaches_the_client_and_a_restart_is_found() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut client = fixture.connected()?;
    fixture.server.kill()?;
    assert!(matches!(client.0.read(&mut [0]), Ok(0) | Err(_)));
    assert!(fixture.connect()?.is_reset());
    fixture.server.restart()?;
    fixture.connected()?;
    Ok(())
}

#[test]
fn delay_adds_latency_but_does_not_reduce_throughput() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut client = fixture.connected()?;
    fixture.proxy.delay(Direction::ToServer, 2 * SHORT);
    fixture.proxy.delay(Direction::ToClient, SHORT);
    let start = Instant::now();
    for number in 0..10 {
        client.send(&format!("ECHO {number}"))?;
        // Apart from each other, so that the proxy sees ten chunks rather than one.
        std::thread::sleep(Duration::from_millis(5));
    }
    let replies: String = (0..10)
        .map(|number| format!("$1\r\n{number}\r\n"))
        .collect();
    assert_eq!(client.receive(replies.len())?, replies);
    let took = start.elapsed();
    assert!(took >= 3 * SHORT, "{took:?} is shorter than the delay");
    assert!(took < 10 * SHORT, "{took:?}: delays add up");

    // A new connection is delayed too, and taking the delay away frees what is under way.
    let start = Instant::now();
    fixture.connected()?;
    assert!(start.elapsed() >= 3 * SHORT);
    fixture.proxy.delay(Direction::ToServer, 10 * SOON);
    client.send("PING")?;
    assert!(client.receives_nothing());
    fixture.proxy.delay(Direction::Both, Duration::ZERO);
    assert_eq!(client.receive(7)?, "+PONG\r\n");
    Ok(())
}

#[test]
fn held_command_reaches_the_server_only_when_released() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut client = fixture.connected()?;
    fixture.proxy.hold(Direction::ToServer);
    client.send("SET one 1")?;
    assert!(fixture.wait_held(Direction::ToServer, "SET one 1\r\n".len()));
    client.send("SET two 2")?;
    assert!(fixture.wait_held(Direction::ToServer, "SET one 1\r\nSET two 2\r\n".len()));
    assert_eq!(fixture.proxy.held(Direction::ToClient), 0);
    assert!(!fixture.server_has("one"));
    fixture.proxy.release_held();
    assert_eq!(client.receive(10)?, "+OK\r\n+OK\r\n");
    assert!(fixture.server_has("one") && fixture.server_has("two"));
    assert_eq!(fixture.proxy.held(Direction::Both), 0);
    Ok(())
}

#[test]
fn held_reply_reaches_the_client_only_when_healed() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    fixture.proxy.hold(Direction::ToClient);
    let mut client = fixture.connect()?;
    client.send("SET key value")?;
    assert!(fixture.wait_held(Direction::ToClient, "+OK\r\n".len()));
    assert!(fixture.server_has("key"));
    assert!(client.receives_nothing());
    fixture.proxy.heal();
    assert_eq!(client.receive(5)?, "+OK\r\n");
    Ok(())
}

#[test]
fn hold_also_holds_the_end_of_a_connection() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut client = fixture.connected()?;
    fixture.proxy.hold(Direction::ToClient);
    client.send("ECHO last")?;
    assert!(fixture.wait_held(Direction::ToClient, "$4\r\nlast\r\n".len()));
    fixture.server.kill()?;
    assert!(client.receives_nothing());
    fixture.proxy.release_held();
    assert_eq!(client.receive(10)?, "$4\r\nlast\r\n");
    assert_eq!(client.0.read(&mut [0])?, 0);
    Ok(())
}

#[test]
fn bytes_of_a_closed_connection_are_no_longer_held() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut client = fixture.connected()?;
    fixture.proxy.hold(Direction::ToServer);
    client.send("SET key value")?;
    assert!(fixture.wait_held(Direction::Both, 1));
    fixture.proxy.reset_all();
    assert_eq!(fixture.proxy.held(Direction::Both), 0);
    assert!(!fixture.server_has("key"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waiting_for_held_bytes_takes_real_time_on_a_paused_clock() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    fixture.proxy.hold(Direction::ToServer);
    let start = Instant::now();
    assert!(!fixture.proxy.wait_held(Direction::ToServer, 1, SHORT).await);
    assert!(start.elapsed() >= SHORT);
    let mut client = fixture.connect()?;
    let sender = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        client.send("PING").map(|()| client)
    });
    assert!(fixture.proxy.wait_held(Direction::ToServer, 6, SOON).await);
    sender.join().expect("the sender does not panic")?;
    Ok(())
}

#[test]
fn blackhole_to_the_server_swallows_commands_for_ever() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut client = fixture.connected()?;
    let mut bystander = fixture.connected()?;
    fixture.proxy.blackhole(Direction::ToServer);
    client.send("SET key value")?;
    assert!(client.receives_nothing());
    fixture.proxy.release_held();
    assert!(client.receives_nothing());
    assert!(!fixture.server_has("key"));

    // What lost bytes is reset; what lost none goes on.
    fixture.proxy.heal();
    assert!(client.is_reset());
    bystander.expect("EXISTS key", ":0\r\n")?;
    fixture.connected()?;
    Ok(())
}

#[test]
fn blackhole_to_the_client_swallows_replies_but_not_commands() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    fixture.proxy.blackhole(Direction::ToClient);
    let mut client = fixture.connect()?;
    client.send("SET key value")?;
    assert!(eventually_blocking(SOON, || fixture.server_has("key")));
    assert!(client.receives_nothing());
    assert_eq!(fixture.proxy.bytes_to_client(), 0);
    fixture.proxy.heal();
    assert!(client.is_reset());
    Ok(())
}

#[test]
fn blackhole_swallows_the_end_of_a_connection() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut subscriber = fixture.connect()?;
    subscriber.send("SUBSCRIBE news")?;
    subscriber.receive(1)?;
    fixture.proxy.blackhole(Direction::ToServer);
    drop(subscriber);
    // Publishing makes the server write to the dead client, which must not give it away either.
    for _ in 0..5 {
        assert_eq!(fixture.server.command(&["PUBLISH", "news", "x"])?, "1");
        std::thread::sleep(Duration::from_millis(20));
    }
    fixture.proxy.heal();
    assert_eq!(fixture.proxy.open_connections(), 0);
    assert!(eventually_blocking(SOON, || {
        fixture
            .server
            .command(&["PUBLISH", "news", "x"])
            .is_ok_and(|count| count == "0")
    }));
    Ok(())
}

#[test]
fn reset_resets_all_connections_once() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut connected = fixture.connected()?;
    // This one may not have been accepted yet, which must make no difference.
    let mut just_connected = fixture.connect()?;
    fixture.proxy.reset_all();
    assert_eq!(fixture.proxy.open_connections(), 0);
    assert_eq!(fixture.proxy.connections(), 2);
    assert!(connected.is_reset());
    assert!(just_connected.is_reset());
    fixture.connected()?;
    Ok(())
}

#[test]
fn refusing_affects_only_new_connections() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut open = fixture.connected()?;
    let mut just_connected = fixture.connect()?;
    fixture.proxy.refuse(true);
    assert!(fixture.connect()?.is_reset());
    open.expect("PING", "+PONG\r\n")?;
    just_connected.expect("PING", "+PONG\r\n")?;
    fixture.proxy.refuse(false);
    fixture.connected()?;
    fixture.proxy.refuse(true);
    fixture.proxy.heal();
    fixture.connected()?;
    assert_eq!(fixture.proxy.connections(), 5);
    Ok(())
}

#[test]
fn half_open_connections_are_forgotten_by_the_server_alone() -> io::Result<()> {
    let fixture = ProxyFixture::new()?;
    let mut subscriber = fixture.connect()?;
    subscriber.send("SUBSCRIBE news")?;
    let confirmation = "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n";
    assert_eq!(subscriber.receive(confirmation.len())?, confirmation);
    fixture.proxy.half_open();
    assert!(eventually_blocking(SOON, || {
        fixture
            .server
            .command(&["PUBLISH", "news", "x"])
            .is_ok_and(|count| count == "0")
    }));
    subscriber.send("PING")?;
    assert!(subscriber.receives_nothing());

    // New connections work, until the next time.
    let mut second = fixture.connected()?;
    second.expect("PING", "+PONG\r\n")?;
    assert_eq!(fixture.proxy.open_connections(), 2);
    fixture.proxy.half_open();
    second.send("SET key value")?;
    assert!(second.receives_nothing());
    assert!(!fixture.server_has("key"));

    drop(second);
    assert!(eventually_blocking(SOON, || fixture
        .proxy
        .open_connections()
        == 1));
    fixture.proxy.heal();
    assert!(subscriber.is_reset());
    Ok(())
}

#[test]
fn dropping_the_proxy_closes_everything() -> io::Result<()> {
    let ProxyFixture { server, proxy } = ProxyFixture::new()?;
    let mut client = TcpStream::connect(proxy.addr())?;
    let addr = proxy.addr();
    proxy.hold(Direction::Both);
    client.write_all(b"PING\r\n")?;
    drop(proxy);
    client.set_read_timeout(Some(SOON))?;
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    let refused = TcpStream::connect(addr).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(server.command(&["PING"])?, "PONG");
    Ok(())
}
