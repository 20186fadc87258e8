"""`tools/bench.py data`: it runs, and says what it measured. How fast is not a test's business."""

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "tools" / "bench.py"


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", str(BENCH), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=BENCH.parents[1],
        env={"PYTHONPATH": str(BENCH.parents[1])},
    )


def test_data_prints_a_speed_for_each_packing():
    done = bench("data", "--tokens", "300000", "--repeats", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "300,000 tokens" in done.stdout
    for length, mode, attend in [
        (128, "fill", "document"),
        (128, "complete", "row"),
        (512, "fill", "document"),
        (512, "complete", "row"),
    ]:
        assert f"rows of {length} ({mode}, attend {attend})" in done.stdout
    speeds = re.findall(r"batches +([\d.]+) +prefetch +([\d.]+)", done.stdout)
    assert len(speeds) == 8
    assert all(float(speed) > 0.1 for pair in speeds for speed in pair)


def test_a_store_that_is_not_there_is_one_sentence():
    done = bench("data", "--store", "no/such/store")
    assert done.returncode == 2
    assert done.stdout == "" or "tokens" not in done.stdout
    assert re.fullmatch(r"bench data: .*no/such/store.*\n", done.stderr)
