"""The player's pure JavaScript, tested by Node itself (tests/player/*.test.mjs)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None and "CI" not in os.environ, reason="Node is not installed (`node --version` says so)")
def test_the_pure_parts_of_the_player_pass_in_node():
    assert NODE is not None, "CI must have Node"
    files = sorted(str(path) for path in Path(__file__).parent.glob("*.test.mjs"))
    done = subprocess.run([NODE, "--test", *files], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout and "# pass 0\n" not in done.stdout
