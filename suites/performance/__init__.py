"""asv's benchmarks, and nothing else: asv imports every module below this folder.

asv strips PYTHONPATH and works in a temporary folder, so the checkout is put on the path here.
"""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
if str(CHECKOUT) not in sys.path:
    sys.path.insert(0, str(CHECKOUT))
