"""A client that lives longer than its daemon: restart.py CLIENT_DIRECTORY MOUNT

It prints what it has seen and then waits for a line, while the daemon is killed or started.
"""

import errno
import sys

sys.path.insert(0, sys.argv[1])

from kvfs import Kvfs, KvfsError  # noqa: E402

GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV)


def step(text):
    print(text, flush=True)
    if not sys.stdin.readline():
        sys.exit("the driver has gone")


def main():
    with Kvfs(sys.argv[2]) as kv:
        hashes = [b"\x01" * 8, b"\x02" * 8]
        assert kv.exists(hashes, group="g").states == "m."
        assert kv.exists(hashes, group="g", deadline=0).states == "m."
        events = kv.events()
        running = kv.start_prefetch(hashes, group="g")
        step("asked")  # killed and started again: nobody asked while it was dead

        assert len(kv.exists(hashes, group="g")) == 2
        assert len(kv.get_specs()) == 0
        for stream in (lambda: next(events), running.result):
            try:
                stream()
            except OSError as e:
                assert e.errno in GONE, e
            else:
                sys.exit("a stream of the daemon that was killed goes on")
        step("asked again")  # killed

        for call in (lambda: kv.exists(hashes, group="g"), kv.get_specs, kv.status, kv.events,
                     lambda: kv.prefetch(hashes, group="g")):
            try:
                call()
            except OSError as e:
                assert e.errno == errno.ENOTCONN, e
            else:
                sys.exit("an answer without a daemon")
        step("nobody there")  # started again

        assert len(kv.exists(hashes, group="g")) == 2
        events = kv.events()
        step("there again")  # stopped and started again

        try:
            next(events)
        except OSError as e:
            assert e.errno in GONE, e
        else:
            sys.exit("events after the end")
        assert len(kv.exists(hashes, group="g")) == 2
        try:
            kv.longest_hit("no such spec", hashes)
        except KvfsError:
            pass
        else:
            sys.exit("a hit without a spec")
        print("done", flush=True)


main()
