"""etcdctl lock and etcdctl elect: each section is a process of its own, which is told to let go.

The first two arguments are the program, and "lock" or "elect".
"""

import signal
import subprocess
import sys

import section

program, verb = sys.argv[1:3]
del sys.argv[1:3]
endpoints, name, file, sections = section.arguments()
etcdctl = [program, "--endpoints", endpoints]
version = subprocess.run([program, "version"], check=True, capture_output=True, text=True).stdout
subprocess.run([*etcdctl, "endpoint", "health"], check=True, capture_output=True)
section.ready(version.split()[2])
words = {"lock": [name], "elect": [name, "theirs"]}[verb]
turns = 0
for _ in range(sections):
    with subprocess.Popen([*etcdctl, verb, "--", *words], stdout=subprocess.PIPE) as process:
        # etcdctl prints its key when it is granted the lock.
        if not process.stdout.readline():
            raise SystemExit(f"etcdctl {verb} ended without having been granted anything")
        turns += section.count(file)
        process.send_signal(signal.SIGINT)
        # Read all output: closing the pipe early would kill etcdctl before it releases.
        process.communicate()
    section.pause()
print("done", sections, turns)
