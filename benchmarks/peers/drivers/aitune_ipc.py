"""AITune's module of inter-process communication, alone: its package imports PyTorch and TensorRT, this module nothing."""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

_package = find_spec("aitune")
assert _package is not None
assert _package.origin is not None
_spec = spec_from_file_location(
    "aitune_ipc_module", Path(_package.origin).parent / "utils/monitoring/hardware_metrics/ipc.py"
)
assert _spec is not None
assert _spec.loader is not None
ipc = module_from_spec(_spec)
_spec.loader.exec_module(ipc)
