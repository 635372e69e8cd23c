"""The error tree: what each class is, what it carries, and that nothing of it is lost on the way."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
from collections.abc import Callable

import pytest

from tunewire import errors
from tunewire.errors import TunewireError

DRAWN = re.compile(r"^(?P<stem>[│├└─ ]*)(?P<name>\w+)(?: +\((?P<builtin>\w+)\))?(?: .*)?$")
"""One line of the drawing: its stem, the class, and the builtin that the class also is."""

SAMPLES: dict[str, object] = {
    "str": "some text",
    "int": 3,
    "float": 0.25,
    "Sequence[str]": ("first", "second"),
}


def descendants(cls: type[TunewireError]) -> list[type[TunewireError]]:
    return [each for child in cls.__subclasses__() for each in (child, *descendants(child))]


ALL = sorted(descendants(TunewireError), key=lambda cls: cls.__name__)
every_error = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)


def parameters(cls: type[TunewireError]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(cls).parameters)


def sample(cls: type[TunewireError]) -> TunewireError:
    """An instance with every datum given, each of its declared type."""
    return cls(
        **{
            name: SAMPLES[str(parameter.annotation).removesuffix(" | None")]
            for name, parameter in parameters(cls).items()
        }
    )


def drawing() -> list[tuple[str, str | None, str]]:
    """The tree in the module's docstring, as (class, builtin in parentheses or None, class above it)."""
    text = inspect.cleandoc(errors.__doc__ or "").split("```")[1]
    root, *lines = text.strip().splitlines()
    above = {0: root}
    drawn = []
    for line in lines:
        found = DRAWN.match(line)
        assert found is not None, f"not a line of the drawing: {line!r}"
        depth = len(found["stem"]) // len("├── ")
        above[depth] = found["name"]
        drawn.append((found["name"], found["builtin"], above[depth - 1]))
    return drawn


def test_the_drawing_is_the_tree() -> None:
    ours = {cls.__name__: cls.__bases__[0].__name__ for cls in ALL}
    assert {name: above for name, _, above in drawing()} == ours


@pytest.mark.parametrize(("name", "builtin", "above"), drawing())
def test_each_error_is_the_builtin_that_the_drawing_names(name: str, builtin: str | None, above: str) -> None:
    cls = getattr(errors, name)
    also = [base.__name__ for base in cls.__bases__ if not issubclass(base, TunewireError)]
    assert also == ([] if builtin is None else [builtin])
    assert all(issubclass(cls, getattr(builtins, each)) for each in also)


def test_the_whole_tree_lives_in_one_module() -> None:
    assert {cls.__module__ for cls in ALL} == {"tunewire.errors"}


def through_pickle(error: TunewireError) -> TunewireError:
    again: TunewireError = pickle.loads(pickle.dumps(error, protocol=5))
    return again


@every_error
@pytest.mark.parametrize("carry", [through_pickle, copy.copy, copy.deepcopy])
def test_an_error_survives_pickling_and_copying(
    cls: type[TunewireError], carry: Callable[[TunewireError], TunewireError]
) -> None:
    error = sample(cls)
    error.add_note("on the second try")
    error.__cause__ = ZeroDivisionError("division by zero")

    again = carry(error)

    assert type(again) is cls
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.__notes__ == ["on the second try"]
    assert isinstance(again.__cause__, ZeroDivisionError)
    assert again.__cause__.args == ("division by zero",)


@every_error
def test_a_chain_of_our_own_errors_survives_pickling(cls: type[TunewireError]) -> None:
    error = sample(cls)
    error.__cause__ = errors.RemoteTraceback(text="Traceback ...")
    error.__cause__.__cause__ = errors.DeviceFault(reason="an illegal address", device="cuda:0")

    cause = through_pickle(error).__cause__

    assert isinstance(cause, errors.RemoteTraceback)
    assert isinstance(cause.__cause__, errors.DeviceFault)
    assert cause.__cause__.device == "cuda:0"


@pytest.mark.parametrize("hidden", [False, True])
def test_what_was_being_handled_is_shown_or_hidden_as_before(hidden: bool) -> None:
    error = errors.PoolClosed()
    error.__suppress_context__ = hidden
    assert through_pickle(error).__suppress_context__ is hidden


@every_error
def test_an_error_is_made_from_keywords_and_holds_each_as_an_attribute(cls: type[TunewireError]) -> None:
    kinds = {parameter.kind for parameter in parameters(cls).values()}
    assert kinds <= {inspect.Parameter.KEYWORD_ONLY}
    error = sample(cls)
    for name, parameter in parameters(cls).items():
        assert getattr(error, name) == SAMPLES[str(parameter.annotation).removesuffix(" | None")]


@every_error
def test_an_error_can_be_made_from_what_it_must_have(cls: type[TunewireError]) -> None:
    required = {
        name: SAMPLES[str(parameter.annotation)]
        for name, parameter in parameters(cls).items()
        if parameter.default is inspect.Parameter.empty
    }
    error = cls(**required)
    assert str(error).strip()
    assert "None" not in str(error)


naming = pytest.mark.parametrize(
    ("cls", "datum"),
    [(cls, datum) for cls in ALL for datum in ("device", "limit") if datum in parameters(cls)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)


@naming
def test_the_sentence_names_limit_and_device(cls: type[TunewireError], datum: str) -> None:
    error = sample(cls)
    assert str(getattr(error, datum)) in str(error)


@every_error
def test_the_sentence_ends_with_what_to_try(cls: type[TunewireError]) -> None:
    assert str(sample(cls)).endswith(cls.advice)
    assert cls.advice == "" or cls.advice.endswith(".")


@pytest.mark.parametrize(
    ("driver", "remedy"),
    [
        (None, "apt install pocl-opencl-icd"),
        ("Portable Computing Language 3.0-rc2", "conda install -c conda-forge pocl"),
        ("NVIDIA CUDA 580.1", "Repair or update that OpenCL runtime"),
    ],
)
def test_a_broken_compiler_is_told_with_what_helps_its_own_platform(driver: str | None, remedy: str) -> None:
    error = errors.BrokenCompiler(device="opencl:0", reason="error: unknown target CPU", driver=driver)
    assert remedy in str(error)
    assert ("pocl" in str(error)) == ("pocl" in remedy)
