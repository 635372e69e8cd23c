from __future__ import annotations

import pytest

from tunewire.devices import DeviceId, environment_for, parse
from tunewire.devices.identifiers import local_index
from tunewire.errors import NoSuchDevice

GPU_0, GPU_1 = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1d2f3a4b-0000-4106-c12f-20bd9faed9f7"
MIG = "MIG-41b359e2-e721-56e5-8009-12797ed51514"
OLD_MIG = f"MIG-{GPU_0}/1/0"


@pytest.mark.parametrize(
    ("mask", "device", "child"),
    [
        (None, "cuda:0", "0"),
        (None, "cuda:3", "3"),
        ("0", "cuda:0", "0"),
        ("2,0", "cuda:0", "2"),
        ("2,0", "cuda:1", "0"),
        ("1, 0", "cuda:0", "1"),
        (" 1 ,0 ", "cuda:1", "0"),
        ("3,-1,1", "cuda:0", "3"),
        (GPU_0, "cuda:0", GPU_0),
        (f"{GPU_1},{GPU_0}", "cuda:1", GPU_0),
        ("GPU-8932f937", "cuda:0", "GPU-8932f937"),
        (f"{GPU_0},1", "cuda:1", "1"),
        (MIG, "cuda:0", MIG),
        (f"{MIG},{OLD_MIG}", "cuda:1", OLD_MIG),
    ],
)
def test_a_child_sees_one_gpu_of_those_that_its_parent_sees(
    mask: str | None, device: str, child: str
) -> None:
    environ = {"PATH": "/bin", **({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask})}
    assert environment_for(device, environ) == {"TUNEWIRE_DEVICE": device, "CUDA_VISIBLE_DEVICES": child}


@pytest.mark.parametrize(
    ("mask", "device", "says"),
    [
        ("", "cuda:0", "CUDA_VISIBLE_DEVICES is ''"),
        ("  ", "cuda:0", "CUDA_VISIBLE_DEVICES is '  '"),
        ("-1", "cuda:0", "CUDA_VISIBLE_DEVICES is '-1'"),
        ("NoDevFiles", "cuda:0", "is 'NoDevFiles'"),
        ("0,1", "cuda:2", r"is '0,1'.*There is: cuda:0, cuda:1"),
        ("3,-1,1", "cuda:1", "is '3,-1,1'"),
        ("0,0", "cuda:0", "names '0' twice"),
        ("0,00", "cuda:0", "names '00' twice"),
        (f"{GPU_0},{GPU_0.lower()}", "cuda:0", "twice"),
        ("zero", "cuda:0", "'zero' is neither an index nor the uuid"),
        ("0,,1", "cuda:0", "'' is neither"),
        ("0;1", "cuda:0", "'0;1' is neither"),
        ("-2", "cuda:0", "'-2' is neither"),
        ("GPU-", "cuda:0", "'GPU-' is neither"),
        ("GPU-not hex", "cuda:0", "is neither"),
        ("MIG", "cuda:0", "'MIG' is neither"),
    ],
)
def test_a_mask_that_hides_the_gpu_or_is_none_is_an_error_that_quotes_it(
    mask: str, device: str, says: str
) -> None:
    with pytest.raises(NoSuchDevice, match=says) as raised:
        environment_for(device, {"CUDA_VISIBLE_DEVICES": mask})
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("device", ["cpu", "opencl:0", "opencl:3"])
@pytest.mark.parametrize("mask", [None, "1", "nonsense"])
def test_other_devices_leave_the_mask_alone(device: str, mask: str | None) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert environment_for(device, environ) == {"TUNEWIRE_DEVICE": device}


def test_the_environment_is_this_processs_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5")
    assert environment_for("cuda:1")["CUDA_VISIBLE_DEVICES"] == "5"


@pytest.mark.parametrize(
    "device", ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:01", "cuda:1.0", "CUDA:0", "cpu:0", "cuda:0 "]
)
def test_what_is_no_device_id_is_an_error(device: str) -> None:
    with pytest.raises(NoSuchDevice, match="is named 'cpu', 'opencl:N' or 'cuda:N'"):
        parse(device)
    with pytest.raises(NoSuchDevice):
        environment_for(device, {})


def test_a_device_id_has_parts() -> None:
    assert [parse(device) for device in ("cpu", "opencl:2", "cuda:10")] == [
        DeviceId("cpu", 0),
        DeviceId("opencl", 2),
        DeviceId("cuda", 10),
    ]


@pytest.mark.parametrize(
    ("device", "pinned", "index"),
    [
        ("cuda:2", None, 2),
        ("cuda:2", "cuda:2", 0),
        ("opencl:2", "opencl:2", 2),
        ("opencl:2", "cpu", 2),
    ],
)
def test_a_process_knows_its_devices_by_the_numbers_that_it_sees(
    device: str, pinned: str | None, index: int
) -> None:
    assert local_index(device, {} if pinned is None else {"TUNEWIRE_DEVICE": pinned}) == index


def test_a_process_that_was_pinned_to_another_gpu_has_not_this_one() -> None:
    with pytest.raises(NoSuchDevice, match="for another device"):
        local_index("cuda:1", {"TUNEWIRE_DEVICE": "cuda:0"})
