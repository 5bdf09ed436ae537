"""Several schemes and seeds at once, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from threading import Event as Flag
from threading import Thread
from typing import Any

import torch

from pamerge.errors import PamergeError
from pamerge.experiments.store import Event, Watch

_tell: Callable[[Event | Warning], None]
"""In a worker: sends something to the main process."""


def in_processes(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]], jobs: int, watch: Watch) -> None:
    """Call ``work(*arguments, watch)`` for all arguments, ``jobs`` at a time, which share this process's threads.

    The first error ends all workers at once; what they were doing goes on from its checkpoint in the next run. Workers
    never outlive this process, however it ends, so that a restarted run is the only one that writes its stages.
    """
    jobs = min(jobs, len(arguments))
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    threads = max(1, torch.get_num_threads() // jobs)
    others = set(multiprocessing.active_children())
    with _relayed(reader, watch):
        pool = ProcessPoolExecutor(jobs, context, _begin, (writer, context.Lock(), threads))
        try:
            for done in as_completed([pool.submit(_call, work, given) for given in arguments]):
                done.result()
        except BrokenProcessPool as error:
            raise PamergeError(
                f"One of {jobs} processes ended by itself, perhaps for want of memory. Give the same command again, or "
                'use fewer jobs. (In a script of your own, start it under if __name__ == "__main__":.)'
            ) from error
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _relayed(reader: Connection, watch: Watch) -> Iterator[None]:
    """What workers send is told here while it lasts; an error in the telling is raised at the end."""
    over = Flag()
    errors: list[BaseException] = []

    def relay() -> None:
        while reader.poll(0.1) or not over.is_set():
            if not reader.poll():
                continue
            found = reader.recv()
            try:
                if isinstance(found, Warning):
                    warnings.warn(found, stacklevel=1)
                else:
                    watch(found)
            except Exception as error:  # workers must not wait for a reader
                errors.append(error)

    thread = Thread(target=relay, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def _begin(writer: Connection, lock: Any, threads: int) -> None:
    global _tell

    def tell(what: Event | Warning) -> None:
        with lock:
            writer.send(what)

    def pass_on(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        tell(message if isinstance(message, Warning) else category(message))

    _tell = tell
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process sees it, and ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    warnings.simplefilter("always", UserWarning)
    warnings.showwarning = pass_on


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _call(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    work(*arguments, _tell)
