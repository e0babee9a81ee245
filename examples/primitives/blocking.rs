//! A lock in a program without async code.

fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::blocking::connect(&url)?;
    let guard = w.run(w.lock("report").acquire())?;
    // Renewed by a thread in the background, however long this takes.
    println!("write the report under fence {}", guard.fence());
    println!("released: {:?}", w.run(guard.release())?);
    Ok(())
}
