"""What the processes of a run tell each other beside the arrays: values, an end at an agreed step, and that one is gone.

Every process has a connection to process 0, which passes on. Collectives on devices cannot do this: they hang, or end the
process in C++, when a process is gone, and what they wait for is not always a step (process 0 prepares a corpus for
hours). A connection ends with its process, so that a killed one is noticed at once; one whose machine is gone is silent,
and given up after PTM_PEER_SECONDS. Whoever notices prints one line and ends with the status `LOST`: the main thread may
hang in a collective, and nothing on the disk is ever half written.

A run that is alone has a group of one, without threads or connections. The functions are called by all processes in the
same order:

    chosen(make)     the value (JSON) of `make()`, which process 0 calls
    gathered(value)  the values of all processes, at process 0; nothing elsewhere
    stop(done)       whether the run ends before the next step: true at the same step everywhere, after `ask()` anywhere
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.train import hosts

LOST = 75
"""Exit status of a process that ends because another one is gone: EX_TEMPFAIL, run it again."""
PEER_SECONDS = 60.0
"""After how long a silent process counts as gone; PTM_PEER_SECONDS overrides it."""

_TICK = 0.2  # seconds between two looks at what the main thread wants
_SETTLE = 3.0  # seconds in which the reason for a failure arrives


class Group:
    """The processes of a run. This class is the group of one; `_Several` has the same methods."""

    index, count = 0, 1

    def __init__(self):
        self._wanted = False

    def chosen(self, make: Callable[[], Any]) -> Any:
        return make()

    def gathered(self, value: Any) -> list[Any]:
        return [value]

    def ask(self) -> None:
        """SIGTERM came: end soon. Does nothing but remember it, as befits a signal handler."""
        self._wanted = True

    def stop(self, done: int) -> bool:
        return self._wanted

    def fail(self, error: BaseException) -> None:
        """This process ends with an error: tell the others."""

    def close(self) -> None:
        """All have finished."""


class _Several(Group):
    """Every process but the first has one connection, to process 0; process 0 has one to every other.

    links  {process: (its connection, the name of its machine)}
    """

    def __init__(self, index: int, count: int, links: dict[int, tuple[socket.socket, str]]):
        super().__init__()
        self.index, self.count = index, count
        self._links, self._hosts = {k: link for k, (link, _) in links.items()}, {k: host for k, (_, host) in links.items()}
        self._sending, self._changed = threading.Lock(), threading.Condition()
        self._values: dict[tuple[int, int], Any] = {}
        self._round = self._done = 0
        self._steps: dict[int, int] = {}
        self._agreeing, self._end = False, None
        self._closing = self._leaving = False
        self._heard, self._told = dict.fromkeys(links, time.monotonic()), 0.0
        self._patience = patience()
        self._abort = hosts.on_abort(lambda: time.sleep(_SETTLE))
        self._thread = threading.Thread(target=self._watch, name="group", daemon=True)
        self._thread.start()

    def chosen(self, make):
        number = self._next()
        if self.index:
            return self._receive(number, 0)
        value = json.loads(json.dumps(make()))
        self._tell(kind="value", round=number, value=value)
        return value

    def gathered(self, value):
        number = self._next()
        if not self.index:
            return [value, *(self._receive(number, peer) for peer in range(1, self.count))]
        self._tell(kind="value", round=number, value=value)
        return []

    def stop(self, done):
        """While the processes agree nobody goes further; all end at the step after that of the furthest."""
        with self._changed:
            self._changed.wait_for(lambda: not self._agreeing or self._end is not None)
            self._done = done
            return self._end is not None and done >= self._end

    def fail(self, error):
        if not isinstance(error, UserError | KeyboardInterrupt):
            time.sleep(_SETTLE)  # where it comes from another process that is gone, this does not return
        self._leaving = True
        said = isinstance(error, UserError)
        self._tell(kind="failed", text=str(error) if said else f"{type(error).__name__}: {error}".strip(" :"))
        time.sleep(_TICK)

    def close(self):
        self.gathered(None)
        if self.index:
            with self._changed:
                self._changed.wait_for(lambda: self._closing)
        else:
            self._closing = True
            self._tell(kind="bye")
        self._thread.join()
        for link in self._links.values():
            link.close()
        hosts.on_abort(None)

    def _next(self) -> int:
        self._round += 1
        return self._round

    def _receive(self, number: int, peer: int) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: (number, peer) in self._values)
            return self._values.pop((number, peer))

    def _tell(self, **message: Any) -> None:
        """To everybody with a connection. One that is broken is noticed where it is read."""
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            for link in self._links.values():
                with contextlib.suppress(OSError):
                    link.sendall(data)

    def _watch(self) -> None:
        """The thread that listens, as long as the group is together."""
        rest = dict.fromkeys(self._links, b"")
        with selectors.DefaultSelector() as selector:
            for peer, link in self._links.items():
                selector.register(link, selectors.EVENT_READ, peer)
            while not self._closing:
                for key, _ in selector.select(_TICK):
                    *lines, rest[key.data] = (rest[key.data] + self._read(key.data)).split(b"\n")
                    for line in lines:
                        self._hear(key.data, json.loads(line))
                self._begin_agreement()
                self._mind_silence()

    def _read(self, peer: int) -> bytes:
        try:
            data = self._links[peer].recv(1 << 16)
        except OSError:
            data = b""
        if not data and not self._closing:
            self._gone(peer, "killed, or out of memory")
        self._heard[peer] = time.monotonic()
        return data

    def _mind_silence(self) -> None:
        now = time.monotonic()
        if now - self._told > self._patience / 8:
            self._told = now
            self._tell(kind="alive")
        for peer, heard in self._heard.items():
            if now - heard > self._patience and not self._closing:
                self._gone(peer, f"silent for {self._patience:.0f} s")

    def _hear(self, peer: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        with self._changed:
            if kind == "value":
                self._values[message["round"], peer] = message["value"]
            elif kind == "stop":
                self._wanted = True
            elif kind == "step?":
                self._agreeing = True
                self._tell(kind="step", step=self._done)
            elif kind == "step":
                self._steps[peer] = message["step"]
                if len(self._steps) == self.count:
                    self._end = max(self._steps.values()) + 1
                    self._tell(kind="end", step=self._end)
            elif kind == "end":
                self._end = message["step"]
            elif kind == "bye":
                self._closing = True
            self._changed.notify_all()
        if kind == "gone":
            self._leave(message["text"], LOST)
        if kind == "failed":
            self._leave(f"{self._name(peer)} has stopped: {message['text']}" if peer else message["text"], 1)

    def _begin_agreement(self) -> None:
        """Somebody was asked to stop: process 0 asks everybody how far they are."""
        with self._changed:
            if not self._wanted or self._agreeing:
                return
            if self.index:
                self._wanted = False
                self._tell(kind="stop")
            else:
                self._agreeing, self._steps = True, {0: self._done}
                self._tell(kind="step?")

    def _name(self, peer: int) -> str:
        return f"process {peer} of {self.count} on {self._hosts[peer]}"

    def _gone(self, peer: int, how: str) -> None:
        advice = "run the same command again, with as many processes as there are: it goes on from the last checkpoint"
        self._leave(f"{self._name(peer)} is gone ({how}), so all stop; {advice}", LOST)

    def _leave(self, text: str, status: int) -> None:
        """End this process, whatever its main thread does; process 0 tells the others why."""
        if self._leaving:  # it ends by itself, with an error of its own
            threading.Event().wait()
        self._leaving = True
        if not self.index:
            self._tell(kind="gone" if status == LOST else "failed", text=text)
            time.sleep(_TICK)
        quit_with(text, status)


def current() -> Group:
    """The group of the run in this process."""
    return _current


_current = Group()


@contextlib.contextmanager
def together() -> Iterator[Group]:
    """The processes of `jax.distributed` as a group, or a group of one."""
    global _current
    if isinstance(_current, _Several):  # the caller's
        yield _current
        return
    if jax.process_count() > 1 and not jax.distributed.is_initialized():
        raise UserError("this machine is one of several; set PTM_HOSTS=auto on all of them and start all")
    before, _current = _current, _opened() if jax.process_count() > 1 else Group()
    try:
        yield _current
        _current.close()
    except BaseException as error:
        _current.fail(error)
        raise
    finally:
        _current = before


def patience() -> float:
    """Seconds after which a silent process is given up."""
    return float(os.environ.get("PTM_PEER_SECONDS") or PEER_SECONDS)


def quit_with(text: str, status: int) -> None:
    """Print one line, with the process that says it, and end this process at once."""
    name = f"process {jax.process_index()} of {jax.process_count()}: " if jax.process_index() else ""
    hosts.quit_with(name + text, status)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """SIGTERM to one of the processes asks the group to stop (in the main thread; elsewhere nothing does)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: _current.ask())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _opened() -> Group:
    """The connections. Process 0 listens, and tells its port, address and a password by the devices."""
    from jax.experimental import multihost_utils

    index, count, words = jax.process_index(), jax.process_count(), [0] * 21
    if not index:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=count)
        words = [server.getsockname()[1], *_own_address(), *secrets.token_bytes(16)]
    port, *words = multihost_utils.broadcast_one_to_all(np.array(words, np.int32)).tolist()
    host, password = hosts.coordinator() or ".".join(map(str, words[:4])), bytes(words[4:]).hex()
    try:
        if not index:
            with server:
                return _Several(0, count, _welcomed(server, count, password))
        link = socket.create_connection((host, port), timeout=patience())
        link.sendall(json.dumps([password, index, socket.gethostname()]).encode() + b"\n")
        link.settimeout(None)
        return _Several(index, count, {0: (link, host)})
    except OSError as error:
        missed = f"did not hear of all others in {patience():.0f} s" if not index else f"cannot reach {host}, port {port}"
        raise UserError(f"process {index} of {count} {missed}: {error}; let the machines reach each other") from error


def _welcomed(server: socket.socket, count: int, password: str) -> dict[int, tuple[socket.socket, str]]:
    """{process: (connection, machine)} of all others; strangers are turned away."""
    links, end = {}, time.monotonic() + patience()
    while len(links) < count - 1:
        server.settimeout(max(0.1, end - time.monotonic()))
        link, _ = server.accept()
        link.settimeout(5.0)
        with contextlib.suppress(OSError, ValueError, TypeError):
            said, index, host = json.loads(link.makefile("rb").readline(1024))
            if secrets.compare_digest(said, password):
                link.settimeout(None)
                links[index] = link, host
    return links


def _own_address() -> list[int]:
    """The four numbers of the address by which this machine reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    return [int(part) for part in address.split(".")]
