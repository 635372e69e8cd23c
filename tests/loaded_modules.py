"""Callables that tell what their process has loaded. This file imports nothing that would count as theirs."""

import sys


def loaded_modules() -> list[str]:
    return sorted(sys.modules)


async def loaded_modules_in_a_loop() -> list[str]:
    return sorted(sys.modules)
