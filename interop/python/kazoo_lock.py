"""kazoo's lock."""

import kazoo
from kazoo.client import KazooClient

import section

hosts, path, file, sections = section.arguments()
client = KazooClient(hosts=hosts)
client.start(timeout=30)
section.ready(kazoo.__version__)
turns = 0
lock = client.Lock("/" + path, "theirs")
for _ in range(sections):
    if not lock.acquire(timeout=60):
        raise SystemExit("not granted within a minute")
    turns += section.count(file)
    lock.release()
    section.pause()
print("done", sections, turns)
client.stop()
