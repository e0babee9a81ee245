"""redis-py's lock."""

import redis

import section

url, name, file, sections = section.arguments()
client = redis.Redis.from_url(url)
client.ping()
section.ready(redis.__version__)
turns = 0
for _ in range(sections):
    with client.lock(name, timeout=30, sleep=0.002, blocking_timeout=60):
        turns += section.count(file)
    section.pause()
print("done", sections, turns)
