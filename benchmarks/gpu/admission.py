"""SGLang plugin: a scheduler that has imported everything waits here until it alone may use the GPU.

Launches can then start ahead of their turn without seeing each other's memory. measure.py writes the name of the
launch whose turn it is into $ADMITTED.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path


def wait() -> None:
    """Return at once in every other process, and where nobody admits."""
    target = getattr(multiprocessing.current_process(), "_target", None)
    admitted = os.environ.get("ADMITTED")
    if admitted is None or target is None or target.__name__ != "run_scheduler_process":
        return
    print("waiting for admission", flush=True)
    while Path(admitted).read_text() != os.environ["LAUNCH"]:
        time.sleep(0.02)
    print("admitted", flush=True)
