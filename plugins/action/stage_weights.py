"""Lists a hub's or a bucket's files on the control machine, and shows progress on a terminal while a host copies."""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
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
        if job.get("failed") or "ansible_job_id" not in job:
            return job
        shown = None
        while True:
            status = self._job("status", job["ansible_job_id"], task_vars)
            if status.get("finished"):
                self._job("cleanup", job["ansible_job_id"], task_vars)
                return {
                    key: value for key, value in status.items() if not key.startswith(("ansible_job", "results_file"))
                }
            text = self._low_level_execute_command(f"cat {shlex.quote(arguments['path'] + '.progress.json')}")
            line = progress_line(text["stdout"])
            if line and line != shown:
                display.display(f"{task_vars['inventory_hostname']}: {line}", color="bright gray")
                shown = line
            time.sleep(POLL_S)

    def _job(self, mode: str, job: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        return self._execute_module(
            "ansible.builtin.async_status", module_args={"jid": job, "mode": mode}, task_vars=task_vars
        )


def progress_line(text: str) -> str | None:
    """What a progress file says, in one line; None where there is nothing to say yet."""
    try:
        progress = json.loads(text)
        left_s = progress["seconds_left"]
        return (
            f"{progress['staged_bytes'] / 1e9:.1f} of {progress['total_bytes'] / 1e9:.1f} GB,"
            f" {progress['bytes_per_s'] / 1e9:.2f} GB/s, {'?' if left_s is None else left_s} s left"
        )
    except (ValueError, KeyError, TypeError):
        return None
