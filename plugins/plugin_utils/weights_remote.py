"""What a hub or a bucket holds: listed on the control machine by the client that its maker keeps.

The host then reads the listed addresses with plain range requests and needs neither client nor, for a bucket, keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from time import sleep
from typing import Any

from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.manifest import SUMS, parse_sums
from ansible_collections.llmops.fleet.plugins.module_utils.weights_source import selected

HUB = "hf://"
BUCKET = "s3://"
SIGNED_FOR_S = 12 * 3600
ATTEMPTS = 5
_COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_files(
    source: str, revision: str, exclude: Iterable[str], token: str | None = None, endpoint: str | None = None
) -> list[dict[str, Any]]:
    """Files of a model on a Hugging Face hub at one commit.

    Args:
        source: "hf://organisation/model".
        revision: the commit, 40 hexadecimal digits; a branch could change between two hosts.
        token, endpoint: as huggingface_hub takes them; None for its defaults.

    Returns mappings with path, url, size_bytes and sha256 or git_sha1. Raises FleetError.
    """
    if not _COMMIT.fullmatch(revision):
        raise FleetError(
            f"sglang_weights_revision to be a commit of {source}, 40 hexadecimal digits",
            repr(revision),
            "pin the commit that the hub shows under 'Files and versions'",
        )
    try:
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise _missing("huggingface_hub") from None
    repository = source.removeprefix(HUB)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            model = HfApi(endpoint=endpoint, token=token or False).model_info(
                repository, revision=revision, files_metadata=True, timeout=60
            )
            break
        except HfHubHTTPError as error:
            status = error.response.status_code
            if attempt == ATTEMPTS or (status != 429 and status < 500):
                raise FleetError(
                    f"the hub to list {repository} at {revision}",
                    f"HTTP {status} after {attempt} tries",
                    "give sglang_weights_token, correct the name and the commit, or wait",
                ) from None
            sleep(_pause_s(error.response.headers.get("Retry-After", ""), attempt))
        # A failed connection raises what the HTTP library below raises, and which one that is differs by version.
        except Exception as error:
            if attempt == ATTEMPTS:
                raise FleetError(
                    f"the hub to answer within {ATTEMPTS} tries", str(error), "look at the network"
                ) from None
            sleep(_pause_s("", attempt))
    if model.sha != revision:
        raise FleetError(f"{repository} at commit {revision}", f"{model.sha}", "pin a commit of this model")
    return [
        {
            "path": file.rfilename,
            "url": hf_hub_url(repository, file.rfilename, revision=revision, endpoint=endpoint),
            "size_bytes": file.size,
            **({"sha256": file.lfs.sha256} if file.lfs else {"git_sha1": file.blob_id}),
        }
        for file in model.siblings
        if selected(file.rfilename, exclude)
    ]


def bucket_files(source: str, exclude: Iterable[str], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Files below a prefix of an S3-compatible bucket, with addresses that are signed for 12 hours.

    Args:
        source: "s3://bucket/prefix"; the prefix holds a SHA256SUMS.
        settings: endpoint, region, access_key, secret_key; None or absent for boto3's own search.

    Returns mappings with path, url, size_bytes and sha256. Raises FleetError.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise _missing("boto3") from None
    bucket, _, prefix = source.removeprefix(BUCKET).partition("/")
    prefix = prefix.rstrip("/") + "/" if prefix else ""
    client = boto3.client(
        "s3",
        endpoint_url=settings.get("endpoint"),
        region_name=settings.get("region"),
        aws_access_key_id=settings.get("access_key"),
        aws_secret_access_key=settings.get("secret_key"),
        config=Config(
            signature_version="s3v4",
            connect_timeout=20,
            read_timeout=60,
            retries={"max_attempts": ATTEMPTS, "mode": "standard"},
        ),
    )
    try:
        sizes = {
            entry["Key"].removeprefix(prefix): entry["Size"]
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for entry in page.get("Contents", ())
        }
        if SUMS not in sizes:
            raise FleetError(
                f"a manifest {source.rstrip('/')}/{SUMS} to prove the bytes with",
                f"{len(sizes)} objects without it",
                f"make one where the model lies (sha256sum * > {SUMS}) and upload it beside the shards",
            )
        text = client.get_object(Bucket=bucket, Key=prefix + SUMS)["Body"].read().decode()
        sums = parse_sums(text, f"{source}/{SUMS}")
        missing = sorted(set(sums) - set(sizes))
        if missing:
            raise FleetError(
                f"every file that {source}/{SUMS} lists",
                f"{len(missing)} missing: {', '.join(missing[:3])}",
                "complete the upload",
            )
        return [
            {
                "path": path,
                "url": client.generate_presigned_url(
                    "get_object", {"Bucket": bucket, "Key": prefix + path}, ExpiresIn=SIGNED_FOR_S
                ),
                "size_bytes": sizes[path],
                "sha256": sha256,
            }
            for path, sha256 in sums.items()
            if selected(path, exclude)
        ]
    except (BotoCoreError, ClientError) as error:
        raise FleetError(
            f"the bucket to list {source}",
            str(error),
            "correct the bucket, its endpoint or the keys in sglang_weights_s3",
        ) from None


def _missing(package: str) -> FleetError:
    return FleetError(
        f"the Python package {package} beside Ansible on the control machine", "none", f"pip install {package}"
    )


def _pause_s(retry_after: str, attempt: int) -> float:
    return min(float(retry_after), 60) if retry_after.isdigit() else 2.0**attempt / 4
