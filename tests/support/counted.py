"""`ptm` with a line on stderr for each program, in place of JAX's event: `python -m support.counted
train ...`."""

import sys

import jax

from ptm_jax.cli.main import main

COMPILED, READ = "program compiled", "program read"
EVENTS = {"cache_misses": COMPILED, "cache_hits": READ}


def tell(event, **more):
    if line := EVENTS.get(event.rpartition("/")[2]):
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    jax.monitoring.register_event_listener(tell)
    sys.exit(main(sys.argv[1:]))
