"""The signal with which a guard interrupts its worker."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # see runtime.guard, which imports this

#: A real-time signal: user code and libraries have their uses for all the others.
INTERRUPT_SIGNAL: int = signal.SIGRTMAX - 3
