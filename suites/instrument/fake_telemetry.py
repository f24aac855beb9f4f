"""The GPU vendors' libraries and commands, answering as for an MI300X or an H200."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from harness.host import Outcome


def amdsmi(**changes: Any) -> Any:
    """amdsmi's calls as they answer on an MI300X under ROCm 7; `changes` replaces some."""
    calls: dict[str, Callable[..., Any]] = {
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["h0"],
        "amdsmi_get_gpu_asic_info": lambda h: {
            "market_name": "AMD Instinct MI300X",
            "target_graphics_version": "gfx942",
        },
        "amdsmi_get_gpu_vram_info": lambda h: {"vram_size": 196592},
        "amdsmi_get_gpu_device_bdf": lambda h: "0000:05:00.0",
        "amdsmi_get_gpu_compute_partition": lambda h: "SPX",
        "amdsmi_get_gpu_memory_partition": lambda h: "NPS1",
        "amdsmi_get_power_cap_info": lambda h: {"power_cap": 750_000_000},
        "amdsmi_get_gpu_driver_info": lambda h: {"driver_version": "6.12.12"},
        "amdsmi_get_fw_info": lambda h: {
            "fw_list": [{"fw_name": SimpleNamespace(name="PM"), "fw_version": "04.85.12"}]
        },
        "amdsmi_get_clock_info": lambda h, kind: {"clk": {"gfx": 2100, "mem": 1300}[kind]},
        "amdsmi_get_temp_metric": lambda h, sensor, metric: 41,
        "amdsmi_get_violation_status": lambda h: {"active_ppt_pwr": True, "active_hbm_thrm": False, "acc_ppt_pwr": 9},
    }
    enums = {
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT=1),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT=0),
    }
    return SimpleNamespace(**{**calls, **enums, **changes})


def fails(*arguments: Any) -> Any:
    raise RuntimeError("not supported")


def loading(**modules: Any) -> Callable[[str], ModuleType | None]:
    return modules.get


SMI_ROW = (
    "NVIDIA H200, 9.0, 143771, 00000000:04:00.0, Disabled, 700.00, 575.57.08, 96.00.CF.00.02, "
    "345, 3201, 28, 0x0000000000000004\n"
)


def nvidia_smi(row: str) -> dict[str, Any]:
    return {"which": lambda name: name, "run": lambda command: Outcome(0, row if command[0] == "nvidia-smi" else "")}
