"""Lists a hub's or a bucket's files on the control machine, and shows progress on a terminal while a host copies."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.staging import Target
from ansible_collections.llmops.fleet.plugins.plugin_utils.weights_remote import (
    BUCKET,
    HUB,
    bucket_files,
    hub_files,
)

# Read when the strategy loads this plugin, in the process that still has the terminal; its workers have not.
ON_TERMINAL = sys.stdout.isatty()
POLL_S = 2
LONGEST_S = 24 * 3600
SILENCE_S = 60

display = Display()


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        hub_endpoint, bucket = arguments.pop("hub_endpoint", None), arguments.pop("s3", None)
        source, exclude = str(arguments.get("source", "")), arguments.get("exclude") or ()
        try:
            if source.startswith(HUB):
                arguments["files"] = hub_files(
                    source, str(arguments.get("revision") or ""), exclude, arguments.get("token"), hub_endpoint
                )
            elif source.startswith(BUCKET):
                arguments["files"] = bucket_files(source, exclude, bucket or {})
                arguments.pop("token", None)
        except FleetError as error:
            return {"failed": True, "msg": str(error)}
        if not ON_TERMINAL or self._task.check_mode:
            return self._execute_module(module_args=arguments, task_vars=task_vars)
        return self._with_progress(arguments, task_vars or {})

    def _with_progress(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self._task.async_val = LONGEST_S
        try:
            job = self._execute_module(module_args=arguments, task_vars=task_vars, wrap_async=True)
        finally:
            self._task.async_val = 0
        if job.get("failed") or "results_file" not in job:
            return job
        state_dir = Path(arguments.get("state_dir") or Target.state_dir)
        target = Target(Path(arguments["path"]), str(arguments["name"]), state_dir=state_dir)
        results, progress = shlex.quote(job["results_file"]), shlex.quote(str(target.progress))
        told, changed_at = "", time.monotonic()
        while True:
            text = self._low_level_execute_command(f"cat {results}; echo; cat {progress}")["stdout"]
            result = finished(text)
            if result is not None:
                self._low_level_execute_command(f"rm -f {results}")
                return result
            if text != told:
                told, changed_at = text, time.monotonic()
                if line := progress_line(text):
                    display.display(f"{task_vars['inventory_hostname']}: {line}", color="bright gray")
            elif time.monotonic() - changed_at > float(arguments.get("stall_s") or 300) + SILENCE_S:
                return {"failed": True, "msg": f"the run on the host no longer tells its progress in {progress}"}
            time.sleep(POLL_S)


def finished(text: str) -> dict[str, Any] | None:
    """The module's result from the first line of `text`, None while it still runs."""
    try:
        result = json.loads(text.partition("\n")[0])
    except ValueError:
        return None
    return result if isinstance(result, dict) and "started" not in result else None


def progress_line(text: str) -> str | None:
    """What a progress file, the last line of `text`, says; None where there is nothing to say yet."""
    try:
        progress = json.loads(text.rstrip().rpartition("\n")[2])
        left_s = progress["seconds_left"]
        return (
            f"{progress['staged_bytes'] / 1e9:.1f} of {progress['total_bytes'] / 1e9:.1f} GB,"
            f" {progress['bytes_per_s'] / 1e9:.2f} GB/s, {'?' if left_s is None else left_s} s left"
        )
    except (ValueError, KeyError, TypeError):
        return None
