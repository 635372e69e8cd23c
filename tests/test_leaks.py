"""The check of conftest.py sees what it is there to see, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

LEAKING = {
    "process": """
        def test_leaks(request):
            child = subprocess.Popen(["sleep", "30"])
            request.config.kept = child
    """,
    "zombie": """
        def test_leaks():
            os.spawnlp(os.P_NOWAIT, "true", "true")
    """,
    "descriptor": """
        def test_leaks():
            os.pipe()
    """,
    "thread": """
        def test_leaks():
            threading.Thread(target=threading.Event().wait, daemon=True, name="forgotten").start()
    """,
    "zzz_stray": """
        def test_leaks():
            subprocess.run(["setsid", "sh", "-c", "sleep 30 & exit"], stdin=subprocess.DEVNULL, check=True)
    """,
    "module_fixture": """
        @pytest.fixture(scope="module")
        def shared():
            return os.pipe()

        def test_leaks(shared):
            pass
    """,
    "module_fixture_later": """
        @pytest.fixture(scope="module")
        def shared():
            return []

        def test_leaks(shared):
            shared.append(os.pipe())
    """,
}

CLEAN = {
    "process": """
        @pytest.mark.asyncio
        async def test_ends_its_child():
            child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            child.kill()
            await child.wait()
    """,
    "executor": """
        @pytest.mark.asyncio
        async def test_uses_a_thread():
            assert await asyncio.to_thread(int, "1") == 1
    """,
    "asyncio_run": """
        def test_runs_a_loop():
            asyncio.run(asyncio.to_thread(int, "1"))
    """,
    "fixture_process": """
        @pytest_asyncio.fixture
        async def cat():
            child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            yield child
            child.kill()
            await child.wait()

        @pytest.mark.asyncio
        async def test_uses_it(cat):
            assert cat.returncode is None
    """,
    "module_loop": """
        @pytest.mark.asyncio(loop_scope="module")
        async def test_first():
            assert await asyncio.to_thread(int, "1") == 1

        @pytest.mark.asyncio(loop_scope="module")
        async def test_second():
            assert await asyncio.to_thread(int, "1") == 1
    """,
    "module_process_replaced": """
        @pytest_asyncio.fixture(scope="module", loop_scope="module")
        async def cats():
            cats = [await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)]
            yield cats
            for cat in cats:
                if cat.returncode is None:
                    cat.kill()
                await cat.wait()

        @pytest.mark.asyncio(loop_scope="module")
        async def test_replaces_it(cats):
            cats[-1].kill()
            cats.append(await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE))

        @pytest.mark.asyncio(loop_scope="module")
        async def test_goes_on(cats):
            assert cats[-1].returncode is None
    """,
}

HEAD = """
import asyncio, os, subprocess, threading
import pytest, pytest_asyncio
"""


INI = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""


def _run(folder: Path, tests: dict[str, str], grace_s: float) -> subprocess.CompletedProcess[str]:
    conftest = Path(__file__).with_name("conftest.py").read_text()
    (folder / "conftest.py").write_text(conftest.replace("GRACE_S = 1.0", f"GRACE_S = {grace_s}"))
    (folder / "pytest.ini").write_text(INI)
    for name, text in tests.items():
        (folder / f"test_{name}.py").write_text(HEAD + textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider"]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**outer, "COLUMNS": "200"}  # else the reasons are cut
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_leak_is_an_error_of_the_test_that_left_it_and_of_no_other(tmp_path: Path) -> None:
    done = _run(tmp_path, LEAKING, grace_s=0.1)
    blamed = re.findall(r"^ERROR (\S+) - (.*) left", done.stdout, re.MULTILINE)
    assert blamed == [
        ("test_descriptor.py::test_leaks", "Failed: the test"),
        ("test_module_fixture.py::test_leaks", "Failed: the module's fixtures"),
        ("test_module_fixture_later.py::test_leaks", "Failed: the module's fixtures"),
        ("test_process.py::test_leaks", "Failed: the test"),
        ("test_thread.py::test_leaks", "Failed: the test"),
        ("test_zombie.py::test_leaks", "Failed: the test"),
        # Seen only when all is over, so that the last test bears it.
        ("test_zzz_stray.py::test_leaks", "Failed: some test"),
    ], done.stdout
    assert "7 passed, 7 errors" in done.stdout


def test_what_ends_in_time_is_no_leak(tmp_path: Path) -> None:
    done = _run(tmp_path, CLEAN, grace_s=1.0)
    assert done.returncode == 0, done.stdout
