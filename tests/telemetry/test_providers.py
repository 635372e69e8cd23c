"""What is read: of this host, and of GPUs that a simulated NVML has."""

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from simulated_gpus import GPU, INSTANCE, OLD, OTHER, SPLIT, write
from tunewire.telemetry.providers import HostProvider, NvmlProvider, Unavailable


@pytest.fixture(scope="module")
def nvml():
    place = Path(__file__).parents[1] / "simulated_nvml" / "pynvml.py"
    spec = importlib.util.spec_from_file_location("simulated_nvml", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def state(tmp_path, monkeypatch):
    path = tmp_path / "nvml.json"
    monkeypatch.setenv("SIMULATED_NVML", str(path))
    return path


@pytest.fixture
def read(nvml, state):
    """The readings of these GPUs under this environment, and the notes."""

    def read(*gpus, environ=()):
        write(state, *gpus)
        notes = []
        provider = NvmlProvider(nvml, dict(environ), lambda level, text: notes.append((level, text)))
        readings = provider.read()
        provider.close()
        return readings, notes

    return read


def ids(readings):
    return [(reading.id, reading.uuid) for reading in readings]


def test_the_host_has_memory_and_a_use_between_two_readings():
    provider = HostProvider()
    first = provider.read(follows=True)
    assert first.cpu_percent is None
    assert 0 < first.memory_used_bytes <= first.memory_total_bytes
    assert 0 < first.memory_available_bytes <= first.memory_total_bytes
    seen = [provider.read(follows=True).cpu_percent for _ in range(1000)]
    assert all(percent is None or 0 <= percent <= 100 for percent in seen)
    assert provider.read(follows=False).cpu_percent is None
    provider.close()


def test_a_gpu_is_read_in_the_units_of_its_names(read):
    (reading,), notes = read(GPU)
    assert (reading.id, reading.index, reading.uuid, reading.name) == ("cuda:0", 0, GPU["uuid"], "Model A")
    assert (reading.memory_used_bytes, reading.memory_free_bytes, reading.memory_total_bytes) == (10, 90, 100)
    assert (reading.utilization_percent, reading.power_watts, reading.temperature_celsius) == (37, 250.5, 60)
    assert (reading.clock_sm_mhz, reading.clock_memory_mhz) == (1980, 2619)
    assert notes == []


def test_what_a_gpu_does_not_support_is_none_and_no_matter_for_a_note(read):
    (reading,), notes = read(OLD)
    assert reading.memory_used_bytes == 1
    assert (reading.utilization_percent, reading.power_watts, reading.clock_sm_mhz) == (None, None, None)
    assert notes == []


def test_without_a_mask_every_gpu_is_read_as_cuda_numbers_it(read):
    readings, _ = read(GPU, OTHER)
    assert ids(readings) == [("cuda:0", GPU["uuid"]), ("cuda:1", OTHER["uuid"])]


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("1,0", [("cuda:0", OTHER["uuid"]), ("cuda:1", GPU["uuid"])]),
        ("1", [("cuda:0", OTHER["uuid"])]),
        ("GPU-BBBB", [("cuda:0", OTHER["uuid"])]),
        ("GPU-bbbb,0", [("cuda:0", OTHER["uuid"]), ("cuda:1", GPU["uuid"])]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_the_mask_says_which_gpus_are_read_and_in_which_order(read, mask, found):
    readings, notes = read(GPU, OTHER, environ={"CUDA_VISIBLE_DEVICES": mask})
    assert (ids(readings), notes) == (found, [])


@pytest.mark.parametrize("mask", ["7", "GPU-ee"])
def test_a_mask_that_names_no_gpu_ends_there_as_cuda_has_it_and_is_noted(read, mask):
    readings, ((level, text),) = read(GPU, OTHER, environ={"CUDA_VISIBLE_DEVICES": f"0,{mask},1"})
    assert ids(readings) == [("cuda:0", GPU["uuid"])]
    assert level == logging.WARNING
    assert mask in text


def test_a_mask_that_is_none_is_noted_and_all_are_read(read):
    readings, ((level, text),) = read(GPU, OTHER, environ={"CUDA_VISIBLE_DEVICES": "first"})
    assert ids(readings) == [(None, GPU["uuid"]), (None, OTHER["uuid"])]
    assert level == logging.WARNING
    assert "'first'" in text


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "1"}])
def test_where_cudas_order_is_not_known_no_gpu_is_called_by_a_number_of_it(read, environ):
    readings, ((_, text),) = read(GPU, OLD, environ=environ)
    assert ids(readings) == [(None, GPU["uuid"]), (None, OLD["uuid"])]
    assert "CUDA_DEVICE_ORDER" in text
    readings, notes = read(GPU, OLD, environ={**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert readings[-1].id == ("cuda:0" if environ else "cuda:1")
    assert notes == []


def test_uuids_need_no_order(read):
    readings, notes = read(GPU, OLD, environ={"CUDA_VISIBLE_DEVICES": "GPU-cc,GPU-aa"})
    assert ids(readings) == [("cuda:0", OLD["uuid"]), ("cuda:1", GPU["uuid"])]
    assert notes == []


def test_a_mig_instance_is_read_where_the_mask_names_it(read):
    (reading,), notes = read(OTHER, SPLIT, environ={"CUDA_VISIBLE_DEVICES": "MIG-dddd"})
    assert (reading.id, reading.uuid, reading.index) == ("cuda:0", INSTANCE["uuid"], 1)
    assert (reading.memory_used_bytes, reading.power_watts, reading.utilization_percent) == (5, None, None)
    assert notes == []


def test_without_a_mask_a_gpu_and_its_instances_are_read_and_have_no_id(read):
    readings, _ = read(SPLIT)
    assert ids(readings) == [(None, GPU["uuid"]), (None, INSTANCE["uuid"])]


def test_a_gpu_that_is_lost_has_no_readings_and_the_others_have_theirs(nvml, state):
    write(state, GPU, OTHER)
    notes = []
    provider = NvmlProvider(nvml, {}, lambda level, text: notes.append((level, text)))
    write(state, {**GPU, "lost": True}, OTHER)
    lost, other = provider.read()
    assert (lost.uuid, lost.id, lost.memory_used_bytes, lost.power_watts) == (
        GPU["uuid"],
        "cuda:0",
        None,
        None,
    )
    assert other.power_watts == 250.5
    assert set(notes) == {(logging.WARNING, f"{GPU['uuid']}: GPU is lost")}


def test_without_a_driver_there_is_nothing_to_read(nvml, state):
    write(state, driver=False)
    with pytest.raises(Unavailable, match="Driver Not Loaded"):
        NvmlProvider(nvml, {}, lambda level, text: None)


def test_a_gpu_that_is_lost_from_the_beginning_is_noted(read):
    readings, ((level, text),) = read({**GPU, "lost": True}, OTHER)
    assert ids(readings) == [("cuda:1", OTHER["uuid"])]
    assert level == logging.WARNING
    assert text == "GPU 0 of NVML is not read: GPU is lost"


def test_the_simulated_nvml_has_no_name_that_the_real_one_lacks(nvml):
    names = sorted(name for name in vars(nvml) if name.startswith(("nvml", "NVML")))
    code = f"import pynvml; print([name for name in {names} if not hasattr(pynvml, name)])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("nvidia-ml-py is not installed")
    assert done.stdout == "[]\n", done.stderr
