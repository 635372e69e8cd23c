"""The guard: the process above a worker, which sees to it that nothing of the worker stays behind.

It is a program of its own, `python -I -S -c "... main()" command...`: a bare interpreter, which runs nothing of a user's
(no `.pth` file, no `sitecustomize`, no variable that Python reads). It forks, the child executes the command, and the guard
keeps four promises:

1. When the worker ends, in whatever way, every descendant of it is killed and reaped, and then the guard ends in the
   same way (same exit code, same signal). So whoever waits for the guard learns the worker's end, and knows that its
   tree is gone.
2. When the process that started us ends, SIGKILL included, the same happens: at once, or, for a process that notices it
   too and has something to close (a service's), when that has ended by itself or its `linger` is over.
3. On SIGTERM the same happens. On SIGUSR1 it passes SIGTERM on to the worker, on SIGUSR2 the soft interrupt's signal: it
   alone knows the worker's pid for certain (what the worker says of itself is not to be signalled). Where SIGTERM would
   change nothing, since the worker ignores it or is stopped, SIGUSR1 does what SIGTERM does: no grace is waited out.
4. Until then it sleeps: a pidfd in one poll, and SIGCHLD.

How nothing escapes: the guard is a child subreaper, so a descendant whose parent ends becomes the guard's own child,
whether it called setsid, forked twice or emptied its environment. Killing "all children, and theirs" until waitpid
says that there are none left therefore ends only when the tree is gone. A process group cannot promise that (setsid
leaves it), nor a pipe's end of file (any fork holds it open), nor a parent-death signal (it follows the spawning
*thread*, and a fork loses it).

Races. The parent may end before its pidfd is open: the pid it told us is compared with getppid() after opening. An
orphan is reaped by the guard alone: exit codes that the worker waits for itself stay the worker's. A fork in the
moment of the kill is caught by the next round, since its new process is a child of a child, or already ours.

What was tried: a fork in the first lines of the runtime. That saves a bare interpreter's start (8 ms) and some of its
memory, but a process whose own start hangs, in a `sitecustomize` say, had no guard, and outlived a parent that was killed.

What it refuses to know: the protocol, Python code of users, timeouts. A process in an uninterruptible system call
cannot be killed; the guard then waits, and it is the parent's business to stop waiting.

What is imported here is a part of what each worker costs, so it is little: no typing and no contextlib, and of signal only
its C half, whose numbers are plain ones (the other half makes enumerations of them, with 0.8 MB and 3 ms).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # it has no stubs
import ctypes
import os
import select
import sys
import time

from tunewire.runtime.claim import VARIABLE
from tunewire.runtime.signals import INTERRUPT_SIGNAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HANDLED = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD})
_PASSED_ON: dict[int, int] = {signal.SIGUSR1: signal.SIGTERM, signal.SIGUSR2: INTERRUPT_SIGNAL}
#: In the flight recorder's page: wire.record, which is too much to import here.
_PEAK_OFFSET = 24
#: Between two rounds of killing. A killed process is reapable within a fraction of this.
_ROUND_MS = 1


def main(linger: float = 0.0) -> NoReturn:
    """Run the command that the arguments are, and stay until its whole tree is gone; then end as it did. A parent's end
    leaves the command `linger` seconds."""
    _, _, parent, recorder, *_ = os.environ[VARIABLE].split(":")
    parent_pid = int(parent)
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent ended while this interpreter started; there is nobody to work for
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent_pidfd = os.pidfd_open(parent_pid)
    if os.getppid() != parent_pid:
        os._exit(1)
    # No signal must slip in between fork and handler; the worker gets its own mask back.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    guard_pid = os.getpid()
    worker_pid = os.fork()
    if worker_pid == 0:
        _become_worker(guard_pid, mask, sys.argv[1:])
    try:
        _stand(parent_pidfd, _Worker(worker_pid, int(recorder) if recorder else None), linger)
    finally:
        os._exit(1)


class _Worker:
    """The process that is watched."""

    def __init__(self, pid: int, recorder_fd: int | None) -> None:
        self.pid = pid
        self.recorder_fd = recorder_fd
        #: As waitpid told it, once it has been reaped.
        self.status: int | None = None

    def has_ended(self, status: int, peak_kib: int) -> None:
        """Note how, and leave the most memory that it held in the flight recorder: the kernel tells its parent alone."""
        self.status = status
        if self.recorder_fd is not None:
            os.pwrite(self.recorder_fd, (peak_kib * 1024).to_bytes(8, "little"), _PEAK_OFFSET)


def _become_worker(guard_pid: int, mask: set[int], command: list[str]) -> NoReturn:
    try:
        signal.signal(INTERRUPT_SIGNAL, signal.SIG_IGN)  # until the runtime has its own handler
        # Where the parent ignores SIGCHLD, so would every process here, and exit codes would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _die_with(guard_pid)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be run: {error.strerror}\n".encode(errors="surrogateescape"))
    finally:
        os._exit(127)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}) failed: {os.strerror(error)}")


def _die_with(guard_pid: int) -> None:
    """The worker's: a guard that is killed itself takes its worker along. The signal follows the forking thread, and
    the guard has only one; and it outlives the exec."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard_pid:
        os._exit(1)


def _stand(parent_pidfd: int, worker: _Worker, linger: float) -> NoReturn:
    alarm, bell = os.pipe()
    os.set_blocking(bell, False)
    _close_all_but({parent_pidfd, alarm, bell, worker.recorder_fd})
    asked: list[int] = []
    for number in _HANDLED:
        # Only noted: a handler may run between a process's reaping and the moment at which that is known.
        signal.signal(number, lambda number, _frame: asked.append(number))
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)

    try:
        _watch(parent_pidfd, alarm, worker, asked, linger)
    finally:  # whatever went wrong here, the tree must not outlive it
        _end_like(_kill_descendants(worker))


def _watch(parent_pidfd: int, alarm: int, worker: _Worker, asked: list[int], linger: float) -> None:
    """Sleep until the worker has ended, or its end is due."""
    poll = select.poll()
    poll.register(parent_pidfd, select.POLLIN)
    poll.register(alarm, select.POLLIN)
    last: float | None = None  # the moment at which a worker without a parent is ended
    while True:
        woken = [fd for fd, _ in poll.poll(None if last is None else _milliseconds_until(last))]
        if alarm in woken:
            os.read(alarm, 4096)
        _reap(worker)
        if parent_pidfd in woken:
            poll.unregister(parent_pidfd)  # from now on it would always be ready
            last = time.monotonic() + linger
        if worker.status is not None or (last is not None and time.monotonic() >= last):
            return
        while asked:
            number = asked.pop(0)
            if number == signal.SIGTERM or (number == signal.SIGUSR1 and _is_deaf(worker.pid)):
                return
            if number in _PASSED_ON:  # the worker was not reaped just now, so the pid is still its
                os.kill(worker.pid, _PASSED_ON[number])


def _milliseconds_until(moment: float) -> int:
    # Up: a wait that ends too early would be one that turns round and round.
    return max(0, int((moment - time.monotonic()) * 1000) + 1)


def _is_deaf(pid: int) -> bool:
    """Whether SIGTERM would change nothing: the process ignores it, or is stopped. One that blocks it may have a thread
    that waits for it, and a handler in Python may come to run when a long call in C returns: these are given their time."""
    for line in _content(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(b":")
        if name == b"State" and value.split()[0] == b"T":
            return True
        if name == b"SigIgn":
            return bool(int(value, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _close_all_but(kept: set[int | None]) -> None:
    """The worker's pipes must have one holder each, or nobody would see them close."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd not in kept:
                os.close(fd)
        except OSError:  # the listing's own descriptor
            continue


def _reap(worker: _Worker) -> bool:
    """Reap whatever has ended; whether there are children left."""
    try:
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return True
            if pid == worker.pid:
                worker.has_ended(status, usage.ru_maxrss)
    except ChildProcessError:
        return False


def _content(path: str) -> bytes:
    """What a file of /proc says; nothing where its process has ended meanwhile."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _entries(path: str) -> list[str]:
    """The names in a directory of /proc; none where its process has ended meanwhile."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def _children(pid: int) -> Iterator[int]:
    for task in _entries(f"/proc/{pid}/task"):
        yield from map(int, _content(f"/proc/{pid}/task/{task}/children").split())


def _children_by_scan(pid: int) -> Iterator[int]:
    """The same, where the kernel was built without CONFIG_PROC_CHILDREN: every process's parent is asked."""
    for name in _entries("/proc"):
        if name.isdigit():
            # The command, in parentheses, may itself hold parentheses and spaces.
            fields = _content(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if fields and int(fields[1]) == pid:
                yield int(name)


def _descendants(pid: int) -> list[int]:
    known = os.path.exists(f"/proc/{pid}/task/{pid}/children")
    children = _children if known else _children_by_scan
    found = list(children(pid))
    for child in found:
        found.extend(children(child))
    return found


def _kill_descendants(worker: _Worker) -> int:
    """Round by round, until none is left; how the worker ended."""
    pause = select.poll()
    me = os.getpid()
    while True:
        for pid in _descendants(me):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not _reap(worker):
            return signal.SIGKILL if worker.status is None else worker.status
        pause.poll(_ROUND_MS)


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        import resource

        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker's core, if any, has been written
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
