"""What the action plugin makes of the job's result file and the progress file."""

import json

import pytest
from ansible_collections.llmops.fleet.plugins.action.stage_weights import finished, progress_line

STARTED = json.dumps({"started": 1, "finished": 0, "ansible_job_id": "j1"})
RESULT = {"changed": True, "digest": "d"}
PROGRESS = {"total_bytes": 54_000_000_000, "staged_bytes": 13_500_000_000, "bytes_per_s": 1_900_000_000}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", None),
        (STARTED, None),
        (f"{STARTED}\n{json.dumps(PROGRESS)}", None),
        (json.dumps(RESULT)[:-3], None),
        (json.dumps(RESULT), RESULT),
        (f"{json.dumps(RESULT)}\n{json.dumps(PROGRESS)}", RESULT),
    ],
)
def test_a_job_is_finished_when_its_whole_result_is_there(text, result):
    assert finished(text) == result


@pytest.mark.parametrize(
    ("seconds_left", "line"),
    [(21, "13.5 of 54.0 GB, 1.90 GB/s, 21 s left"), (None, "13.5 of 54.0 GB, 1.90 GB/s, ? s left")],
)
def test_progress_is_bytes_rate_and_time_left(seconds_left, line):
    text = json.dumps(PROGRESS | {"seconds_left": seconds_left})
    assert progress_line(f"{STARTED}\n{text}\n") == line


@pytest.mark.parametrize("text", ["", STARTED, f"{STARTED}\n{{"])
def test_before_the_first_byte_there_is_nothing_to_show(text):
    assert progress_line(text) is None
