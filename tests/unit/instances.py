"""One engine's record for tests of what reads records; a test changes what it is about."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.llmops.fleet.plugins.module_utils.instance import Instance

INSTANCE = Instance(
    name="0",
    gpus=(0,),
    port=30000,
    nccl_port=30100,
    url="http://192.0.2.1:30000",
    local_url="http://127.0.0.1:30000",
    engine_version="0.5.23",
    python="/opt/sglang/0.5.23/bin/python",
    model_path="/dev/shm/sglang/m",
    served_model_name="m",
)


def configure(config_dir: Path, instance: Instance = INSTANCE, args: str = "--port=30000\n") -> None:
    """Write what a host holds of the instance."""
    directory = config_dir / instance.name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "instance.json").write_text(instance.to_json())
    (directory / "args").write_text(args)
    (directory / "env").write_text("")
