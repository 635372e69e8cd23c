"""GPUs of the simulated NVML: what its file says of them."""

import json

GPU = {
    "uuid": "GPU-aaaaaaaa-0000",
    "name": "Model A",
    "memory": [10, 90, 100],
    "utilization": 37,
    "milliwatts": 250_500,
    "temperature": 60,
    "clocks": [1980, 2619],
}
OTHER = {**GPU, "uuid": "GPU-bbbbbbbb-0000", "memory": [20, 80, 100], "utilization": 0}
OLD = {"uuid": "GPU-cccccccc-0000", "name": "Model C", "memory": [1, 2, 3]}
INSTANCE = {"uuid": "MIG-dddddddd-0000", "name": "Model A MIG 1g", "memory": [5, 5, 10]}
SPLIT = {**GPU, "instances": [INSTANCE]}


def write(path, *gpus, **more):
    """Put it there as a whole: another process may be reading."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps({"gpus": gpus, **more}))
    beside.replace(path)
