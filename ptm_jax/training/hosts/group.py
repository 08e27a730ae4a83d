"""Messages between the processes of a run: values, a stop at an agreed step, the loss of a process.

Every process has a connection to process 0, which forwards messages. Collectives on devices cannot
replace them: if a process is gone, they hang or abort in C++, and waits may be long (process 0 may
prepare a corpus for hours). The connection of a killed process closes at once. A process on a
machine that is gone is silent; it counts as lost after PTM_PEER_SECONDS. The process that notices a
loss prints one line and exits with the status `LOST`, because the main thread may hang in a
collective. Files are written atomically, so an exit at any time leaves none half written.

A run of one process has a group of one, without threads or connections. All processes call the
functions in the same order:

    chosen(make)     returns the value (JSON) of `make()`, which process 0 calls
    gathered(value)  returns the values of all processes at process 0, and nothing elsewhere
    stop(done)       whether the run ends before the next step: true at the same step everywhere,
                     after `ask()` anywhere
"""

from __future__ import annotations

import contextlib
import itertools
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
from ptm_jax.training.hosts import hosts
from ptm_jax.training.hosts.arrivals import Arrivals, Delay, Mark, last_of

LOST = 75
"""Exit status of a process that ends because another one is gone: EX_TEMPFAIL, the run can be
started again."""
PEER_SECONDS = 60.0
"""Seconds after which a silent process counts as lost; PTM_PEER_SECONDS overrides it."""

_TICK = 0.2  # seconds between two checks for requests of the main thread
_SETTLE = 3.0  # seconds to wait for the reason of a failure


class Group:
    """The processes of a run.
    This class is a group of one process; `_Several` has the same methods."""

    index, count = 0, 1
    received = signal.SIGTERM
    """The signal that this process received, SIGTERM where another one did."""

    def __init__(self):
        self._wanted, self.arrivals = False, Arrivals()

    def chosen(self, make: Callable[[], Any]) -> Any:
        return make()

    def gathered(self, value: Any) -> list[Any]:
        return [value]

    def ask(self, number: int = signal.SIGTERM) -> None:
        """Requests an early end, after a signal.
        Only sets flags, because a signal handler calls it."""
        self.received, self._wanted = signal.Signals(number), True

    def stop(self, done: int) -> bool:
        self.arrivals.begin(done)
        return self._wanted

    def marks(self) -> dict[str, Mark]:
        """Returns {process: its place}, at process 0 of several."""
        return {}

    def slowest(self) -> Delay | None:
        """Returns the process whose rows come last, at process 0 of several. All call it."""
        return None

    def fail(self, error: BaseException) -> None:
        """Sends the error of this process to the others."""

    def close(self) -> None:
        """Waits until all processes have finished, then closes the connections."""


class _Several(Group):
    """A group of several processes. Process 0 has a connection to every other process.

    links  {process: (connection, name of its machine)}
    """

    def __init__(self, index: int, count: int, links: dict[int, tuple[socket.socket, str]]):
        super().__init__()
        self.index, self.count = index, count
        self._links = {k: link for k, (link, _) in links.items()}
        self._hosts = {index: socket.gethostname()} | {k: host for k, (_, host) in links.items()}
        self._sending, self._changed = threading.Lock(), threading.Condition()
        self._values: dict[tuple[int, int], Any] = {}
        self._rounds, self._done = itertools.count(), 0
        self._steps, self._reached = dict[int, int](), dict[int, Mark]()
        self._agreeing, self._end = False, None
        self._closing, self._leaving = False, threading.Lock()
        self._heard, self._sent = dict.fromkeys(links, time.monotonic()), 0.0
        self._patience = patience()
        self._abort = hosts.on_abort(lambda: time.sleep(_SETTLE))
        self._thread = threading.Thread(target=self._watch, name="group", daemon=True)
        self._thread.start()

    def chosen(self, make):
        number = next(self._rounds)
        if self.index:
            return self._receive(number, 0)
        value = json.loads(json.dumps(make()))
        self._send(kind="value", round=number, value=value)
        return value

    def gathered(self, value):
        number = next(self._rounds)
        if not self.index:
            return [value, *(self._receive(number, peer) for peer in range(1, self.count))]
        self._send(kind="value", round=number, value=value)
        return []

    def stop(self, done):
        """Waits until the processes agree on the last step.
        It is the next step of the most advanced process."""
        super().stop(done)
        with self._changed:
            self._changed.wait_for(lambda: not self._agreeing or self._end is not None)
            self._done = done
            return self._end is not None and done >= self._end

    def marks(self):
        now, late = time.monotonic(), self._patience / 4  # twice the time between two messages
        marks = {0: self.arrivals.mark(), **self._reached}
        silent = {peer: now - heard for peer, heard in self._heard.items() if now - heard > late}
        return {
            self._name(peer): mark._replace(silent=silent.get(peer, 0.0))
            for peer, mark in marks.items()
        }

    def slowest(self):
        records = enumerate(self.gathered(self.arrivals.record()))
        return last_of({self._name(peer): one for peer, one in records}, self.arrivals.elapsed())

    def fail(self, error):
        if not isinstance(error, UserError | KeyboardInterrupt):
            time.sleep(_SETTLE)  # if another process is gone, this process exits meanwhile
        self._leaving.acquire()
        known = isinstance(error, UserError)
        self._send(
            kind="failed",
            text=str(error) if known else f"{type(error).__name__}: {error}".strip(" :"),
        )
        time.sleep(_TICK)

    def close(self):
        self.gathered(None)
        if self.index:
            with self._changed:
                self._changed.wait_for(lambda: self._closing)
        else:
            self._closing = True
            self._send(kind="bye")
        self._thread.join()
        for link in self._links.values():
            link.close()
        hosts.on_abort(None)

    def _receive(self, number: int, peer: int) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: (number, peer) in self._values)
            return self._values.pop((number, peer))

    def _send(self, **message: Any) -> None:
        """Sends a message to every connection. A broken connection is detected when it is read."""
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            for link in self._links.values():
                with contextlib.suppress(OSError):
                    link.sendall(data)

    def _watch(self) -> None:
        """The thread that reads the connections until the group closes."""
        unread = dict.fromkeys(self._links, b"")
        with selectors.DefaultSelector() as selector:
            for peer, link in self._links.items():
                selector.register(link, selectors.EVENT_READ, peer)
            while not self._closing:
                for key, _ in selector.select(_TICK):
                    peer = key.data
                    *lines, unread[peer] = (unread[peer] + self._read(peer)).split(b"\n")
                    for line in lines:
                        self._hear(peer, json.loads(line))
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
        if now - self._sent > self._patience / 8:
            self._sent = now
            self._send(kind="alive", mark=self.arrivals.mark())
        for peer, heard in self._heard.items():
            if now - heard > self._patience and not self._closing:
                self._gone(peer, f"silent for {self._patience:.0f} s")

    def _hear(self, peer: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        with self._changed:
            if kind == "value":
                self._values[message["round"], peer] = message["value"]
            elif kind == "alive":
                self._reached[peer] = Mark(*message["mark"])
            elif kind == "stop":
                self._wanted = True
            elif kind == "step?":
                self._agreeing = True
                self._send(kind="step", step=self._done)
            elif kind == "step":
                self._steps[peer] = message["step"]
                if len(self._steps) == self.count:
                    self._end = max(self._steps.values()) + 1
                    self._send(kind="end", step=self._end)
            elif kind == "end":
                self._end = message["step"]
            elif kind == "bye":
                self._closing = True
            self._changed.notify_all()
        if kind == "gone":
            self._leave(message["text"], LOST)
        if kind == "failed":
            self._leave(
                f"{self._name(peer)} has stopped: {message['text']}" if peer else message["text"], 1
            )

    def _begin_agreement(self) -> None:
        """Process 0 asks every process for its step after a request to stop."""
        with self._changed:
            if not self._wanted or self._agreeing:
                return
            if self.index:
                self._wanted = False
                self._send(kind="stop")
            else:
                self._agreeing, self._steps = True, {0: self._done}
                self._send(kind="step?")

    def _name(self, peer: int) -> str:
        return f"process {peer} of {self.count} on {self._hosts[peer]}"

    def _gone(self, peer: int, how: str) -> None:
        advice = (
            "run the same command again, with as many processes as there are: it goes on "
            "from the last checkpoint"
        )
        self._leave(f"{self._name(peer)} is gone ({how}), so all stop; {advice}", LOST)

    def _leave(self, text: str, status: int) -> None:
        """Ends this process, even if its main thread hangs.
        Process 0 sends the reason to the others."""
        self._leaving.acquire()  # once: a second thread waits here until the process is gone
        if not self.index:
            self._send(kind="gone" if status == LOST else "failed", text=text)
            time.sleep(_TICK)
        quit_with(text, status)


def current() -> Group:
    """Returns the group of the run in this process."""
    return _current


_current = Group()


@contextlib.contextmanager
def together() -> Iterator[Group]:
    """Context manager with a group of the processes of `jax.distributed`, or a group of one."""
    global _current
    if isinstance(_current, _Several):  # the caller's
        yield _current
        return
    if jax.process_count() > 1 and not jax.distributed.is_initialized():
        raise UserError(
            "this machine is one of several; set PTM_HOSTS=auto on all of them and start all"
        )
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
    """Returns the seconds after which a silent process counts as lost."""
    return float(os.environ.get("PTM_PEER_SECONDS") or PEER_SECONDS)


def quit_with(text: str, status: int) -> None:
    """Prints one line with the number of this process, and ends it at once."""
    name = (
        f"process {jax.process_index()} of {jax.process_count()}: " if jax.process_index() else ""
    )
    hosts.quit_with(name + text, status)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Context manager in which SIGTERM or Ctrl-C (SIGINT) to any process stops the group.
    A second Ctrl-C ends it at once. It has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(number, frame):
        _current.ask(number)
        again = b"; Ctrl-C again ends at once" if number == signal.SIGINT else b""
        if again:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.write(2, b"\nfinishing this step and saving" + again + b"\n")

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as in a background job of a shell
    numbers = (signal.SIGTERM,) if ignored else (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, asked) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _opened() -> Group:
    """Opens the connections.
    Process 0 listens, and broadcasts its port, address and a password over the devices."""
    from jax.experimental import multihost_utils

    index, count, words = jax.process_index(), jax.process_count(), [0] * 21
    if not index:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=count)
        words = [server.getsockname()[1], *hosts.own_address(), *secrets.token_bytes(16)]
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
        missed = (
            f"cannot reach {host}, port {port}"
            if index
            else f"got no answer of all others in {patience():.0f} s"
        )
        raise UserError(
            f"process {index} of {count} {missed}: {error}; let the machines reach each other"
        ) from error


def _welcomed(
    server: socket.socket, count: int, password: str
) -> dict[int, tuple[socket.socket, str]]:
    """Returns {process: (connection, machine)} of all others.
    A connection without the password is dropped."""
    links, end = {}, time.monotonic() + patience()
    while len(links) < count - 1:
        server.settimeout(max(0.1, end - time.monotonic()))
        link, _ = server.accept()
        link.settimeout(5.0)
        with contextlib.suppress(OSError, ValueError, TypeError):
            word, index, host = json.loads(link.makefile("rb").readline(1024))
            if secrets.compare_digest(word, password):
                link.settimeout(None)
                links[index] = link, host
    return links
