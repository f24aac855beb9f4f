"""What is known of each GPU: who it is, how it is set, and how it is at this moment.

Two nodes "of the same kind" gave different figures because one had a lower power cap and the other was partitioned.
This is the one place that touches amdsmi and NVML, both optional: amdsmi raises KeyError on import without its library,
and either may lack a call that the installed driver does not have, so every fact is asked for by itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from harness.host import UNKNOWN, Host

#: What every entry has, "unknown" where nobody could say. The last ones describe the moment and not the GPU.
FACTS = (
    "name", "arch", "memory_mib", "pci", "compute_partition", "memory_partition", "power_cap_w", "driver", "firmware",
    "clock_mhz", "memory_clock_mhz", "temperature_c", "throttling",
)  # fmt: skip
MOMENTARY = ("clock_mhz", "memory_clock_mhz", "temperature_c", "throttling")

Gpu = dict[str, Any]


def list_gpus(host: Host, load: Callable[[str], ModuleType | None] | None = None) -> list[Gpu]:
    """One entry a GPU, each with all of `FACTS`. The first source that sees a GPU is the base; later ones fill gaps."""
    load = load or load_optional
    sources = (_from_amdsmi(load("amdsmi")), _from_nvml(load("pynvml")), _from_sysfs(host), _from_nvidia_smi(host))
    base: list[Gpu] = next((found for found in sources if found), [])
    for found in (*sources, _from_torch(host)):
        if not base:
            base = found
        elif len(found) == len(base):
            base = [{**fresh, **known} for fresh, known in zip(found, base, strict=True)]
    return [{fact: gpu.get(fact, UNKNOWN) for fact in FACTS} for gpu in base]


def load_optional(module: str) -> ModuleType | None:
    """An optional telemetry module, or None whatever its import raises: ImportError, KeyError and OSError all occur."""
    try:
        return importlib.import_module(module)
    except Exception:
        return None


def known_facts(**asked: Callable[[], Any]) -> Gpu:
    """The facts that could be had. One that raises, or that its library calls N/A, costs only itself."""
    facts: Gpu = {}
    for name, ask in asked.items():
        try:
            value = ask()
        except Exception:
            continue
        value = value.decode(errors="replace") if isinstance(value, bytes) else value
        if value not in (None, "", "N/A", UNKNOWN):
            facts[name] = value
    return facts


def _from_amdsmi(smi: ModuleType | None) -> list[Gpu]:
    if smi is None:
        return []
    try:
        smi.amdsmi_init()
    except Exception:
        return []
    try:
        return [_amd_gpu(smi, handle) for handle in smi.amdsmi_get_processor_handles()]
    except Exception:
        return []
    finally:
        smi.amdsmi_shut_down()


def _amd_gpu(smi: Any, handle: Any) -> Gpu:
    clock = smi.AmdSmiClkType
    return known_facts(
        name=lambda: smi.amdsmi_get_gpu_asic_info(handle)["market_name"],
        arch=lambda: smi.amdsmi_get_gpu_asic_info(handle)["target_graphics_version"],
        memory_mib=lambda: smi.amdsmi_get_gpu_vram_info(handle)["vram_size"],
        pci=lambda: smi.amdsmi_get_gpu_device_bdf(handle),
        compute_partition=lambda: smi.amdsmi_get_gpu_compute_partition(handle),
        memory_partition=lambda: smi.amdsmi_get_gpu_memory_partition(handle),
        power_cap_w=lambda: _watts(smi.amdsmi_get_power_cap_info(handle)["power_cap"]),
        driver=lambda: smi.amdsmi_get_gpu_driver_info(handle)["driver_version"],
        firmware=lambda: _firmware(smi.amdsmi_get_fw_info(handle)["fw_list"]),
        clock_mhz=lambda: smi.amdsmi_get_clock_info(handle, clock.GFX)["clk"],
        memory_clock_mhz=lambda: smi.amdsmi_get_clock_info(handle, clock.MEM)["clk"],
        temperature_c=lambda: smi.amdsmi_get_temp_metric(
            handle, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        ),
        throttling=lambda: violations_now(smi.amdsmi_get_violation_status(handle)),
    )


def _watts(value: int) -> int:
    """amdsmi gave watts up to ROCm 6 and gives microwatts since; no GPU has a cap of 10 kW."""
    return value // 1_000_000 if value > 10_000 else value


def _firmware(blocks: list[dict[str, Any]]) -> str:
    named = ((str(getattr(block["fw_name"], "name", block["fw_name"])), block["fw_version"]) for block in blocks)
    return " ".join(f"{name.removeprefix('AMDSMI_FW_ID_').removeprefix('FW_ID_')}={version}" for name, version in named)


def violations_now(status: dict[str, Any]) -> str:
    """The limits that hold the clocks down now, by amdsmi's names; `throttle_status` itself is N/A from MI300 on."""
    active = {name: value for name, value in status.items() if name.startswith("active_") and value != "N/A"}
    if not active:
        return UNKNOWN
    return " ".join(name.removeprefix("active_") for name, value in active.items() if value is True) or "none"


def _from_nvml(nvml: ModuleType | None) -> list[Gpu]:
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
    except Exception:
        return []
    try:
        count = nvml.nvmlDeviceGetCount()
        return [_nvidia_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    except Exception:
        return []
    finally:
        nvml.nvmlShutdown()


def _nvidia_gpu(nvml: Any, handle: Any) -> Gpu:
    return known_facts(
        name=lambda: nvml.nvmlDeviceGetName(handle),
        arch=lambda: "sm_{}{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        memory_mib=lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20,
        pci=lambda: nvml.nvmlDeviceGetPciInfo(handle).busId,
        compute_partition=lambda: "MIG" if nvml.nvmlDeviceGetMigMode(handle)[0] else "whole",
        power_cap_w=lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
        driver=lambda: nvml.nvmlSystemGetDriverVersion(),
        firmware=lambda: nvml.nvmlDeviceGetVbiosVersion(handle),
        clock_mhz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        temperature_c=lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        throttling=lambda: event_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    )


def event_reasons(bits: int) -> str:
    """NVML's clock event reasons. Bit 0, an idle GPU, and bit 1, clocks set by the user, are no throttling."""
    names = {2: "power_cap", 3: "hw_slowdown", 4: "sync_boost", 5: "sw_thermal", 6: "hw_thermal", 7: "hw_power_brake"}
    return " ".join(name for bit, name in names.items() if bits >> bit & 1) or "none"


def _from_nvidia_smi(host: Host) -> list[Gpu]:
    fields = {
        "name": "name", "arch": "compute_cap", "memory_mib": "memory.total", "pci": "pci.bus_id",
        "compute_partition": "mig.mode.current", "power_cap_w": "power.limit", "driver": "driver_version",
        "firmware": "vbios_version", "clock_mhz": "clocks.sm", "memory_clock_mhz": "clocks.mem",
        "temperature_c": "temperature.gpu", "throttling": "clocks_throttle_reasons.active",
    }  # fmt: skip
    query = f"--query-gpu={','.join(fields.values())}"
    table = host.output("nvidia-smi", query, "--format=csv,noheader,nounits") if host.which("nvidia-smi") else UNKNOWN
    if table == UNKNOWN:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in table.splitlines()]
    return [_nvidia_row(dict(zip(fields, row, strict=True))) for row in rows if len(row) == len(fields)]


def _nvidia_row(row: dict[str, str]) -> Gpu:
    mig = {"Enabled": "MIG", "Disabled": "whole"}
    return known_facts(
        **{name: (lambda name=name: _shown(row[name])) for name in ("name", "pci", "driver", "firmware")},
        **{
            name: (lambda name=name: int(float(row[name])))
            for name in ("memory_mib", "power_cap_w", "clock_mhz", "memory_clock_mhz", "temperature_c")
        },
        arch=lambda: f"sm_{row['arch'].replace('.', '')}" if row["arch"][:1].isdigit() else UNKNOWN,
        compute_partition=lambda: mig.get(row["compute_partition"], UNKNOWN),
        throttling=lambda: event_reasons(int(row["throttling"], 16)),
    )


def _shown(cell: str) -> str:
    return UNKNOWN if cell.startswith("[") else cell


def _from_sysfs(host: Host) -> list[Gpu]:
    """AMD's driver without amdsmi. Its DRM cards come in the order of their numbers, as HIP's devices do by default."""
    cards = [card for card in host.glob("/sys/class/drm/card*/device") if host.read(f"{card}/vendor") == "0x1002"]
    return [_sysfs_gpu(host, card) for card in cards]


def _sysfs_gpu(host: Host, card: str) -> Gpu:
    def first(pattern: str) -> str:
        return next((host.read(path) for path in host.glob(f"{card}/{pattern}")), UNKNOWN)

    def clock(name: str) -> int:
        """`1: 2100Mhz *`: the star marks the current one."""
        line = next(line for line in host.read(f"{card}/{name}").splitlines() if line.endswith("*"))
        return int(line.split(":")[1].strip().lower().split("mhz")[0])

    return known_facts(
        name=lambda: host.read(f"{card}/product_name"),
        memory_mib=lambda: int(host.read(f"{card}/mem_info_vram_total")) >> 20,
        compute_partition=lambda: host.read(f"{card}/current_compute_partition"),
        memory_partition=lambda: host.read(f"{card}/current_memory_partition"),
        power_cap_w=lambda: int(first("hwmon/hwmon*/power1_cap")) // 1_000_000,
        driver=lambda: host.read("/sys/module/amdgpu/version"),
        firmware=lambda: host.read(f"{card}/vbios_version"),
        clock_mhz=lambda: clock("pp_dpm_sclk"),
        memory_clock_mhz=lambda: clock("pp_dpm_mclk"),
        temperature_c=lambda: int(first("hwmon/hwmon*/temp1_input")) // 1000,
    )


def _from_torch(host: Host) -> list[Gpu]:
    """What the runtime itself says; it knows neither settings nor sensors."""
    return [{"name": name, "arch": arch, "memory_mib": memory_mib} for name, arch, memory_mib in host.torch().gpus]
