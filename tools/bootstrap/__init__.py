"""Makes `.venv`, or finds that the interpreter at hand will do: `python3 -m tools.bootstrap` from the checkout's root.

A plain `pip install` on a GPU machine replaced its ROCm torch by a CUDA one, and every test after it passed on the CPU.
So nothing here lets pip decide on torch: a torch built for a GPU stays as it is, under an environment laid over it.
"""
