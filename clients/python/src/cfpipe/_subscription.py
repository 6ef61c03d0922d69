"""What both rings' subscriptions have in common: connecting, waiting, following, ending."""

import time

from . import _control
from .errors import EndedError, FaultError, MountError, NoPublisherError, NotAvailableError, ProtocolError, RefusedError

_RETURN = 5.0  # seconds that a publisher may take from one generation of its frames to the next


class Subscription:
    """One key, read by one thread. Iterating ends with the publisher, or never with follow."""

    _flags = 0
    _mode = _control.NEWEST_ONLY

    def __init__(self, key, follow, wait, timeout, runtime_dir, name, device=0):
        self.key = key
        self.generation = 0  # rises when another publisher (or another generation of its frames) took over
        self._follow, self._timeout = follow, timeout
        self._how = dict(key=key, flags=self._flags, mode=self._mode, runtime_dir=runtime_dir, name=name, device=device)
        self._connection, self._closed, self._fruitless, self._end = None, False, 0, None
        deadline = None if wait is None else time.monotonic() + wait
        while self._connection is None:
            self._attach(deadline, None)

    def _attach(self, deadline, timeout_error):
        """Connects and opens the ring. A publisher that ends meanwhile leaves self._connection None, to be tried again."""
        c = _control.connect(deadline, timeout_error, **self._how)
        try:
            self._install(c)
        except (EndedError, FaultError) as e:
            c.close()
            if deadline is not None and time.monotonic() >= deadline:
                raise timeout_error(e) if timeout_error else e
            time.sleep(0.01)
            return
        except BaseException:
            c.close()
            raise
        self._connection = c

    def _reattach(self, deadline, late):
        if self._follow:
            self._attach(deadline, late)
            return
        # Another generation of a publisher that is there: not for long.
        try:
            self._attach(time.monotonic() + _RETURN, None)
        except (NoPublisherError, NotAvailableError) as e:
            self._end = EndedError(str(e))

    @staticmethod
    def _open_file(connection, opening):
        """Opens a file of a publisher. One that is missing because its publisher is about to end is no fault of the mounts."""
        for _ in range(20):
            try:
                return opening()
            except MountError as e:
                last = e
            if connection.poll():
                raise EndedError("key %s: the publisher has ended" % connection.key)
            time.sleep(0.01)
        raise last

    def _disconnect(self, cause):
        """Leaves the publisher. Without follow this is the end."""
        c = self._connection
        ended = c.ended
        c.close()
        self._connection = None
        if not self._follow and not (isinstance(ended, EndedError) and ended.reason == 2 and self._same_publisher()):
            if isinstance(ended, (RefusedError, ProtocolError)):
                self._end = ended
            elif cause is not None and ended is None:
                self._end = cause
            else:
                self._end = ended or EndedError("key %s: the publisher has ended" % self.key)

    def _same_publisher(self):
        """Whether an end with reason "upgrade" is one of a generation only."""
        return False

    def next(self, timeout=None):
        """The next item. Blocks for at most timeout seconds (None: the subscription's timeout) and raises TimeoutError then,
        EndedError when the publisher has ended (without follow)."""
        timeout = self._timeout if timeout is None else timeout
        deadline = None if timeout is None else time.monotonic() + timeout

        def late(last=None):
            return TimeoutError("key %s: nothing new within %g s" % (self.key, timeout))

        while True:
            if self._closed:
                raise ValueError("key %s: the subscription is closed" % self.key)
            if self._end:
                raise self._end
            if self._connection is None:
                # A publisher that lets subscribers in and ends them at once must not keep this process busy.
                if self._fruitless:
                    time.sleep(min(0.001 * 2 ** min(self._fruitless, 8), 0.25))
                self._fruitless += 1
                self._reattach(deadline, late)
                continue
            item = self._step()
            if item is not None:
                self._fruitless = 0
                return item
            if self._connection is None:
                continue
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise late()
            try:
                self._idle(left)
            except FaultError as e:
                self._lost(e)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.next()
        except EndedError:
            raise StopIteration from None

    def close(self):
        """Ends the subscription and gives everything back. May be called twice."""
        if not self._closed:
            self._closed = True
            self._forget()
            if self._connection:
                self._connection.close()
                self._connection = None

    def __del__(self):
        if not getattr(self, "_closed", True):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
