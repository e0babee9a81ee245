//! Counts under rslock's lock, on one server.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{Error as IoError, stdin};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rslock::LockManager;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, file, sections] = args.as_slice() else {
        return Err("usage: URL NAME FILE SECTIONS".into());
    };
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let sections: u64 = sections.parse()?;
    let mut manager = LockManager::new(vec![url.as_str()]);
    manager.set_retry(20_000, Duration::from_millis(2));
    println!("ready {}", version());
    stdin().read_line(&mut String::new())?;
    let mut turns = 0;
    for _ in 0..sections {
        let lock = manager.lock(name.as_bytes(), Duration::from_secs(30)).await;
        let lock = lock.map_err(|e| IoError::other(format!("{e:?}")))?;
        // 19 digits, and the letter of the side that wrote last.
        let mut seen = [0; 20];
        file.read_exact_at(&mut seen, 0)?;
        tokio::time::sleep(Duration::from_micros(500)).await;
        let number: u64 = std::str::from_utf8(&seen[..19])?.parse()?;
        file.write_all_at(format!("{:019}t", number + 1).as_bytes(), 0)?;
        turns += u64::from(seen[19] == b'o');
        manager.unlock(&lock).await;
        // Lets the others in; the file's own number is random enough.
        tokio::time::sleep(Duration::from_micros(number * 7919 % 4000)).await;
    }
    println!("done {sections} {turns}");
    Ok(())
}

/// The library version that this program was built with.
fn version() -> &'static str {
    let (_, after) = include_str!("../Cargo.lock")
        .split_once("name = \"rslock\"\nversion = \"")
        .expect("the lock file names what it locks");
    after
        .split('"')
        .next()
        .expect("there is always a first part")
}
