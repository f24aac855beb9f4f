"""The software graph: `torch.cuda.CUDAGraph`'s calls on a CPU, with its real consequences.

A program that is wrong under CUDA graphs is usually right eagerly: a tensor rebuilt each step and never copied, a
Python integer frozen at capture, a block freed and reused, an `.item()`. This package makes such programs wrong, or
stop with the place, on a machine without a GPU. It needs torch and a C++ compiler, and nothing else of this project.

To test your own graph code, capture as you would on a GPU and compare with eager:

    from atom_impl.device.software import SoftwareGraph

    x, out = torch.zeros(8, 64), torch.zeros(8, 64)           # static input and output
    graph = SoftwareGraph()
    graph.capture_begin()
    out.copy_(model(x))
    graph.capture_end()                                       # nothing was computed: `out` is still zero

    x.copy_(next_batch)
    graph.replay()
    assert torch.equal(out, model(x))

Things that differ from plain eager code, as on a GPU: memory freed in a capture is reused and filled with NaN; host
integers stay what they were; reads of device data on the host, compiles and collections raise `CaptureError`; a
replay raises when an outside tensor was freed or moved. Say `host(tensor)` of tensors that stand for host memory,
`register_body(op, function)` of custom ops written in Python, and `launch(kernel, *args)` for kernels that torch does
not see. `SoftwareDevice` gives sessions of several graphs in one pool, with eager code between them, and side streams:
a capture raises for one that does not come back, for launches that no edge orders and that share memory, and for
collectives that nobody waits for.
`graph.reads_before_writes()` names counters that nobody sets back. `DelayedCopies` makes host-to-device copies late.
`docs/software_graph.md` has an example of each.
"""

from atom_impl.device.base import CaptureError
from atom_impl.device.software.accesses import ReadBeforeWrite
from atom_impl.device.software.arena import CompilerMissing
from atom_impl.device.software.bodies import BODIES, register_body
from atom_impl.device.software.delayed import CopyEvent, DelayedCopies
from atom_impl.device.software.device import SoftwareDevice, launch
from atom_impl.device.software.entries import RecordedOp
from atom_impl.device.software.graph import SoftwareGraph
from atom_impl.device.software.host import host
from atom_impl.device.software.pool import Pool, poisoning
from atom_impl.device.software.session import recording
from atom_impl.device.software.streams import Edge, SideStream

__all__ = [
    "BODIES",
    "CaptureError",
    "CompilerMissing",
    "CopyEvent",
    "DelayedCopies",
    "Edge",
    "Pool",
    "ReadBeforeWrite",
    "RecordedOp",
    "SideStream",
    "SoftwareDevice",
    "SoftwareGraph",
    "host",
    "launch",
    "poisoning",
    "recording",
    "register_body",
]
