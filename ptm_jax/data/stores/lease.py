"""The writer of a folder of a store: an object `.lock` names it.

A store ends no lock with its process. The last one that begins to write therefore has the folder,
and the one before it ends at its next check.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

from ptm_jax.core.errors import UserError
from ptm_jax.data.stores import objects

SECONDS = 10.0
"""Seconds between two checks, which read an object."""


class Lease:
    """The right of this process to write below a URL, taken at once. Raises UserError."""

    def __init__(self, url: str):
        self.url, self._lock = url, objects.joined(url, ".lock")
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        self._checked = time.monotonic()
        objects.write(self._lock, self._name.encode())

    def check(self) -> None:
        """Raises UserError if another process has begun to write there.
        A store that does not answer is no reason: the next save is."""
        if time.monotonic() - self._checked < SECONDS:
            return
        self._checked = time.monotonic()
        try:
            name = self._holder()
        except UserError:
            return
        if name != self._name:
            host = "no process" if name is None else f"a process on {name.split(':')[0]}"
            raise UserError(
                f"{self.url} was removed, or another run writes there now ({host}); this one ends: "
                "choose another workdir"
            )

    def release(self) -> None:
        """Ends the right."""
        if self._holder() == self._name:
            objects.delete([self._lock])

    def _holder(self) -> str | None:
        try:
            return objects.read(self._lock).decode(errors="replace")
        except FileNotFoundError:
            return None
