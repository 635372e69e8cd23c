"""Every example in a docstring runs, and every public class and function has one.

An example is a doctest: `>>>` lines, with `...` for what may differ. Async ones define `main` and end with
`>>> asyncio.run(main())`, so that the same lines work in a file.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import tunewire
from opencl_here import opencl_problem


def modules() -> Iterator[ModuleType]:
    """Every module of the package; `__main__` is a program, which importing it would run."""
    yield tunewire
    for found in pkgutil.walk_packages(tunewire.__path__, "tunewire."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


MODULES = list(modules())


def doctests() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for module in MODULES for test in finder.find(module, module.__name__)]
    return [test for test in found if test.examples]


@pytest.mark.parametrize("test", doctests(), ids=lambda test: test.name)
def test_an_example_does_what_it_shows(test: doctest.DocTest) -> None:
    if any('Pool(devices=["opencl:' in example.source for example in test.examples) and (
        problem := opencl_problem()
    ):
        pytest.skip(problem)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.failed == 0, "".join(report)


def public() -> list[Any]:
    """The classes and functions that `__all__` of tunewire and of each package in it names, each once."""
    named = {
        f"{value.__module__}.{value.__qualname__}": value
        for module in MODULES
        if hasattr(module, "__path__")
        for name in getattr(module, "__all__", ())
        if inspect.isclass(value := getattr(module, name)) or inspect.isfunction(value)
    }
    return [pytest.param(value, id=name) for name, value in sorted(named.items())]


@pytest.mark.parametrize("value", public())
def test_what_is_public_shows_how_it_is_used(value: object) -> None:
    documentation = inspect.getdoc(value)
    assert documentation, "there is no docstring"
    if isinstance(value, type) and issubclass(value, BaseException):
        return  # made by tunewire and caught by its user: the tree's own docstring shows how
    examples = doctest.DocTestParser().get_examples(documentation)
    assert any(doctest.SKIP not in each.options for each in examples), "no example runs"


def test_the_package_names_what_it_gives() -> None:
    assert sorted(tunewire.__all__) == sorted(set(tunewire.__all__))
    assert all(hasattr(tunewire, name) for name in tunewire.__all__)
    assert set(tunewire.__all__) <= set(dir(tunewire))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = tunewire.nothing_of_this_name
