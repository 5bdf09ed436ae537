"""Several stages at once, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from threading import Thread
from typing import Any

import torch

from pamerge.errors import PamergeError
from pamerge.experiments.store import Event, Watch

_events: Any = None
"""In a worker: the queue that leads to the main process."""


def in_processes(work: Callable[..., None], arguments: Iterable[tuple[Any, ...]], jobs: int, watch: Watch) -> None:
    """Call ``work(*arguments, watch)`` for all arguments, ``jobs`` at a time, which share this process's threads.

    The first error stops everything, and workers never outlive this process, however it ends: nobody else writes what a
    restarted run writes.
    """
    context = multiprocessing.get_context("spawn")
    events = context.SimpleQueue()
    relay = Thread(target=_relay, args=(events, watch), daemon=True)
    relay.start()
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(jobs, context, _begin, (events, threads))
    try:
        for done in as_completed([pool.submit(_call, work, given) for given in arguments]):
            done.result()
    except BrokenProcessPool:
        raise PamergeError(
            f"One of {jobs} processes was killed, perhaps for want of memory. Give the same command again, or use "
            "fewer jobs."
        ) from None
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        events.put(None)
        relay.join()


def _relay(events: Any, watch: Watch) -> None:
    while (event := events.get()) is not None:
        watch(event)


def _begin(events: Any, threads: int) -> None:
    global _events
    _events = events
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process sees it, and ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _call(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    work(*arguments, _tell)


def _tell(event: Event) -> None:
    _events.put(event)
