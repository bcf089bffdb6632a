"""The programs in docs/PYTHON.md run as they stand there."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = re.findall(r"```python\n(.*?)```", (
    Path(__file__).resolve().parents[2] / "docs/PYTHON.md").read_text(), re.S)


def test_the_quickstart_has_ten_lines():
    lines = [line for line in PROGRAMS[0].splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(number, tmp_path):
    if "entwine.torch" in PROGRAMS[number]:
        pytest.importorskip("torch", reason="torch is not installed: THIS PROGRAM WAS NOT RUN")
    script = tmp_path / "program.py"
    script.write_text(PROGRAMS[number])
    ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True,
                         timeout=120)
    assert ran.returncode == 0, ran.stderr
